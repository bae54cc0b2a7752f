"""Grids as files: the paper's counts, rules by name, and what a wrong file hears."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodel.inference.request import Request
from meshwright.hardware.errors import InputError, UnknownNameError
from meshwright.search.grid import RULES, Grid, list_shapes, load_grid, sides_of
from meshwright.search.plas import memory_bytes
from meshwright.search.shape import Shapes

FP16 = Request(batch=1, prompt=1024, output=16, weight_bytes=2, kv_bytes=2)


def test_the_papers_grid_has_9474_shapes_that_fit() -> None:
    """plas.md 1.6 and issue 4: the count is of shapes that fit 64 GB; 46 legal ones do not."""
    found = list_shapes(load_grid("plas"), {"fits_memory": lambda s: memory_bytes(s, FP16) <= 64e9})
    assert found.listed == 12_600
    assert found.removed == {
        "heads_fill_width": 0,
        "kv_heads_divide_heads": 2_800,
        "top_k_within_experts": 0,
        "whole_expert_width": 0,
        "distinct": 280,
        "fits_memory": 46,
    }
    assert len(found.shapes) == 9_474


sizes = st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True)


@given(
    layers=sizes,
    width=sizes,
    head_dim=sizes,
    kv=st.lists(st.sampled_from([1, 2, 3, 4, "heads"]), min_size=1, max_size=5, unique=True),
    ratio=st.lists(st.sampled_from([0.25, 0.5, 1.0, 1.5]), min_size=1, unique=True),
    pairs=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=4, unique=True),
    shared=st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True),
)
def test_listing_equals_plain_loops(
    layers: list[int],
    width: list[int],
    head_dim: list[int],
    kv: list[int | str],
    ratio: list[float],
    pairs: list[tuple[int, int]],
    shared: list[int],
) -> None:
    grid = Grid.model_validate(
        {
            "source": "test",
            "layers": layers,
            "width": width,
            "head_dim": head_dim,
            "kv_heads": kv,
            "ffn_ratio": ratio,
            "experts": pairs,
            "shared": shared,
            "vocab": 1000,
            "tied": True,
            "rules": ["shared_beside_experts", *load_grid("plas").rules],
        }
    )
    found = list_shapes(grid)
    expected = {
        (l, d, d // h, d // h if k == "heads" else k, h, r, e, top, s)
        for l in layers for d in width for h in head_dim for k in kv for r in ratio for e, top in pairs
        for s in shared
        if d % h == 0 and (s == 0 or e > 1)
        and (k == "heads" or (d // h) % int(k) == 0)
        and top <= e
        and (r * d / (top + s)).is_integer()
    }  # fmt: skip
    assert found.listed - sum(found.removed.values()) == len(found.shapes) == len(expected)
    assert _rows(found.shapes) == expected


def _rows(s: Shapes) -> set[tuple[object, ...]]:
    columns = (s.layers, s.width, s.heads, s.kv_heads, s.head_dim, s.ffn_ratio, s.experts, s.top_k, s.shared)
    return set(zip(*(column.tolist() for column in columns), strict=True))


def test_a_wrong_file_is_told_what_to_correct(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "search/data/grids/plas.yaml").read_text()
    over = text.replace("[16, 2]]", "[16, 2], [2, 3]]")
    file = tmp_path / "grid.yaml"
    for old, new, told in (
        ("distinct]", "distnct]", "'distnct' is no rule; known: heads_fill_width"),
        ("layers: [4,", "layers: [8,", "layers names a value twice"),
        ("head_dim: [128]", "head_dim: [0]", "head_dim.0"),
        ("head_dim: [128]", "head_dims: [128]", "head_dims"),
        ("heads]\nffn", "head]\nffn", "kv_heads.4"),
        ("head_dim: [128]", "head_dim: {from: 256, to: 128}", "to 128 is below from 256"),
        ("head_dim: [128]", "head_dim: {from: 1, to: 1000000}", "1,000,000 values, more than the 100,000"),
        ("head_dim: [128]", "head_dim: {from: 1, to: 9, step: 0}", "step"),
        ("head_dim: [128]", "head_dim: {from: 1, to: 9, by: 2}", "by"),
        ("head_dim: [128]", "head_dim: {from: 1, to: 2, step: 0.5}", "are whole numbers"),
        (
            "top_k_within_experts, ",
            "",
            "experts [2, 3] chooses more than there are; add the rule top_k_within_experts",
        ),
        ("vocab:", "shared: [0, 1]\nvocab:", "add the rule shared_beside_experts"),
    ):
        assert old in text
        file.write_text((over if "chooses more" in told else text).replace(old, new))
        with pytest.raises(InputError) as error:
            load_grid(file)
        assert told in str(error.value)
        assert "\n" not in str(error.value)
    file.write_text(text)
    assert load_grid(file) == load_grid("plas")
    with pytest.raises(UnknownNameError, match="plas"):
        load_grid("pals")


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        ({"kv_heads": [4]}, "6 heads are not a multiple of 4 kv heads; add the rule kv_heads_divide_heads"),
        ({"width": [500]}, "width 500 is not whole heads of 128; add the rule heads_fill_width"),
        (
            {"ffn_ratio": [0.3]},
            "width 768 times ratio 0.3 is no whole number; add the rule whole_expert_width",
        ),
        ({"experts": [[7, 7]]}, "width 768 times ratio 0.25 is not whole channels of 7 experts"),
        (
            {"experts": [[1, 2]]},
            "experts [1, 2] chooses more than there are; add the rule top_k_within_experts",
        ),
        (
            {"shared": [0, 1]},
            "shared experts stand beside a dense part too; add the rule shared_beside_experts",
        ),
    ],
)
def test_nothing_is_rounded_where_no_rule_keeps_it_out(axes: dict[str, object], told: str) -> None:
    """Heads and experts that no model can have are refused, not floored."""
    plain = load_grid("plas").model_dump() | {
        "width": [768],
        "kv_heads": [1, 2],
        "experts": [[1, 1]],
        "rules": [],
    }
    assert len(list_shapes(Grid.model_validate(plain)).shapes)
    with pytest.raises(ValueError, match=re.escape(told)):
        Grid.model_validate(plain | axes)


def test_an_axis_by_its_ends_is_the_axis_spelled_out() -> None:
    spelled = {
        "layers": list(range(4, 33, 4)),
        "ffn_ratio": [0.1, 0.2, 0.3],
        "kv_heads": [1, 2, 3],
        "shared": [0, 1],
    }
    by_ends = {
        "layers": {"from": 4, "to": 34, "step": 4}, "ffn_ratio": {"from": 0.1, "to": 0.3, "step": 0.1},
        "kv_heads": {"from": 1, "to": 3}, "shared": {"from": 0, "to": 1},
    }  # fmt: skip
    text = load_grid("plas").model_dump() | {"rules": [*load_grid("plas").rules, "shared_beside_experts"]}
    first, again = (Grid.model_validate(text | axes) for axes in (spelled, by_ends))
    assert first == again
    assert _rows(list_shapes(first).shapes) == _rows(list_shapes(again).shapes)


@given(st.integers(0, 2**32 - 1))
def test_sides_are_the_listing(seed: int) -> None:
    """Legal pairs of sides at every width and number of layers are the legal shapes, and rules count alike."""
    rng = np.random.default_rng(seed)
    rules = [r for r in RULES if rng.random() < 0.8 or r in ("top_k_within_experts", "shared_beside_experts")]
    grid = load_grid("plas").model_copy(
        update={
            "layers": (1, 3), "width": tuple(rng.choice([96, 128, 192, 256], 2, replace=False).tolist()),
            "head_dim": (32, 64), "kv_heads": (1, 3, 4, "heads"), "ffn_ratio": (0.25, 0.3),
            "experts": ((1, 1), (4, 2), (4, 8)), "shared": (0, 1), "rules": tuple(rng.permutation(rules).tolist()),
        }
    )  # fmt: skip
    sides, listing = sides_of(grid), list_shapes(grid)
    assert dict(sides.removed) == dict(listing.removed)
    assert len(grid.layers) * sides.pairs(len(grid.width)) == len(listing.shapes)
    made = set()
    for i, at in enumerate(sides.attention.width_at):
        a = sides.attention.shapes[[i]]
        for j in np.flatnonzero(sides.ffn.width_at == at):
            f = sides.ffn.shapes[[j]]
            sizes = (a.width, a.heads, a.kv_heads, a.head_dim, f.ffn_ratio, f.experts, f.top_k, f.shared)
            made |= {(n, *(x[0].item() for x in sizes)) for n in grid.layers}
    assert made == _rows(listing.shapes)


def test_a_grid_too_large_to_list_is_refused() -> None:
    grid = load_grid("plas").model_copy(update={"layers": tuple(range(1, 100_001))})
    with pytest.raises(InputError, match="157,500,000 rows"):
        list_shapes(grid)


def test_columns_have_their_kinds() -> None:
    shapes = list_shapes(load_grid("plas")).shapes
    assert shapes.layers.dtype == shapes.kv_heads.dtype == shapes.experts.dtype == np.int64
    assert shapes.ffn_ratio.dtype == np.float64
