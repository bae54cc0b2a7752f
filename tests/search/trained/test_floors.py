"""Floors and counts of shapes against every layout of small cases, each listed and priced by the oracle."""

from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

import numpy as np
import pytest
from exhaustive_oracle import PricedSpace, Wishes, all_rows, placements_of, price_everything
from instances import MODES
from wishes import Wish

from meshwright.costmodel.estimate import estimate
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.workload import Training
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.question import resolve
from meshwright.search.architecture import Ends, counts_of, model_of
from meshwright.search.shape import Shapes
from meshwright.search.trained.floors import least_device_bytes, replace_model, step_floor_s
from meshwright.search.trained.pairs import Pairs

CLUSTERS = ("h100:2x1", "h100:3x1", "h100:2x2", "h100:4x1", "v5e:2x2", "v5p:2x2x1")
pytestmark = pytest.mark.usefixtures("few_tensors")
CASES = 16


@dataclass(frozen=True)
class Case:
    """A few shapes on a small cluster, with every plan of each."""

    given: Setting
    shapes: Shapes
    ends: Ends
    spaces: tuple[PricedSpace, ...]


@lru_cache
def case(seed: int) -> Case:
    random = Random(seed)
    shapes, ends = some_shapes(random, 2), Ends(random.choice((2_000, 64_000)), random.random() < 0.5)
    sequences, seq_len = random.choice((1, 2, 3, 4, 6)), random.choice((1024, 1542, 4096))
    efficiency, overlap = random.choice(MODES)
    given = resolve(
        model_of(shapes, 0, ends),
        random.choice(CLUSTERS),
        Training(sequences * seq_len, seq_len, moe_imbalance=random.choice((1.0, 1.3))),
        efficiency=efficiency,
        overlap=overlap,  # type: ignore[arg-type]
        framework=random.choice(("jax", "megatron")),
    )
    settings = [replace_model(given, model_of(shapes, row, ends)) for row in range(len(shapes))]
    return Case(given, shapes, ends, tuple(price_everything(s, Wishes()) for s in settings))


def some_shapes(random: Random, count: int) -> Shapes:
    """Dense ones, mixtures, and mixtures with a shared expert."""
    heads = random.choice((2, 4, 6))
    kinds = random.choices(((1, 1, 0), (4, 1, 0), (4, 2, 0), (2, 1, 1)), k=count)

    def ints(values: list[int]) -> np.ndarray:  # type: ignore[type-arg]
        return np.array(values, np.int64)

    return Shapes(
        layers=ints(random.choices((2, 3, 4), k=count)),
        width=ints(random.choices((512, 1024, 1536), k=count)),
        heads=ints([heads] * count),
        kv_heads=ints([random.choice([k for k in (1, 2, heads) if heads % k == 0]) for _ in range(count)]),
        head_dim=ints([128] * count),
        ffn_ratio=np.array(random.choices((1.0, 2.0, 4.0), k=count)),
        experts=ints([k[0] for k in kinds]),
        top_k=ints([k[1] for k in kinds]),
        shared=ints([k[2] for k in kinds]),
    )


@pytest.mark.parametrize("seed", range(CASES))
def test_no_plan_beats_the_floors(seed: int) -> None:
    asked = case(seed)
    floor_s = step_floor_s(asked.given, asked.shapes, asked.ends)
    params = counts_of(asked.shapes, asked.ends).params
    least = least_device_bytes(asked.given, params, on_host=set())
    for row, space in enumerate(asked.spaces):
        plans = [b for b in space.batches if b.seconds.size]
        fastest = min(float(b.seconds.min()) for b in plans)
        leanest = min(float(b.device_bytes.min()) for b in plans)
        assert fastest >= floor_s[row]
        assert leanest >= least[row]
        assert floor_s[row] > 0.1 * fastest, "a floor that holds and tells nothing"


@pytest.mark.parametrize("kind", [(1, 1, 0), (4, 2, 0), (2, 1, 1)])
def test_on_one_device_only_what_is_done_once_a_step_lies_above_the_floor(kind: tuple[int, int, int]) -> None:
    ends = Ends(64_000, True)
    experts, top_k, shared = (np.array([n]) for n in kind)
    shapes = replace(some_shapes(Random(1), 1), experts=experts, top_k=top_k, shared=shared)
    given = resolve(model_of(shapes, 0, ends), "h100:1x1", Training(4 * 4096, 4096), efficiency="ideal")
    layout = Layout(micro_batch=4, layers_per_stage=(int(shapes.layers[0]),), policies=("none",))
    priced = estimate(given, layout)
    assert priced.parts["compute"] == pytest.approx(float(step_floor_s(given, shapes, ends)[0]), rel=1e-6)


WISHES = (
    (Wish(""),),
    (Wish("tp<=2", lambda x: x.tp <= 2), Wish("zero >= 2", lambda x: x.zero >= 2)),
    (Wish("ep != 2", lambda x: x.ep != 2), Wish("recompute != none", policy=lambda p: p != "none")),
    (
        Wish("devices in {2,4}", lambda x: x.devices in (2, 4)),
        Wish("cp_kind != ring", lambda x: x.cp_kind != "ring"),
    ),
)


@pytest.mark.parametrize("wishes", WISHES)
@pytest.mark.parametrize("seed", range(CASES))
def test_pairs_are_the_rows_that_the_oracle_lists_and_the_network_holds(
    seed: int, wishes: tuple[Wish, ...]
) -> None:
    asked = case(seed)
    text = ", ".join(w.text for w in wishes)
    alike = Wishes(lambda x: all(w.candidate(x) for w in wishes), lambda p: all(w.policy(p) for w in wishes))
    pairs = Pairs(asked.given, asked.shapes, asked.ends, parse_constraints(text))
    listed = [_placeable(s.setting, all_rows(s.setting, alike, by_tensor=False)) for s in asked.spaces]
    assert [pairs.of(row) for row in range(len(asked.shapes))] == listed
    assert pairs.total() == sum(listed)


def _placeable(setting: Setting, rows: Rows) -> int:
    """Rows whose data, tensor, context and pipeline degrees have a place together."""
    keys = np.stack([rows.tp, rows.cp, rows.dp, np.ones_like(rows.tp), rows.pp], axis=1)
    distinct, of = np.unique(keys, axis=0, return_inverse=True)
    held = np.array(
        [bool(placements_of(tuple(key), setting.cluster.levels)) for key in distinct.tolist()], bool
    )
    return int(held[of.ravel()].sum())
