"""config.json of shapes: what is written reads back as the very model that was priced."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodel.readers import load_model
from meshwright.hardware.errors import InputError
from meshwright.search.architecture import Ends, counts_of, model_of
from meshwright.search.output.config import config_of, shape_name, write_configs
from meshwright.search.shape import Shapes


@st.composite
def shapes(draw: st.DrawFn) -> Shapes:
    """One random shape of whole sizes: dense, routed, or routed with shared experts."""
    whole = st.integers
    kv_heads, groups = draw(whole(1, 8)), draw(whole(1, 8))
    experts = draw(st.sampled_from((1, 2, 8, 64)))
    top_k = draw(whole(1, experts))
    shared = draw(whole(0, 3)) if experts > 1 else 0
    width, expert_width = draw(whole(8, 512)), draw(whole(1, 2048))
    return Shapes(
        *(
            np.array([n])
            for n in (draw(whole(1, 48)), width, kv_heads * groups, kv_heads, 2 * draw(whole(1, 80)))
        ),
        ffn_ratio=np.array([expert_width * (top_k + shared) / width]),
        experts=np.array([experts]),
        top_k=np.array([top_k]),
        shared=np.array([shared]),
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(shapes(), st.booleans(), st.integers(1, 300_000))
def test_a_config_reads_back_as_the_model_that_was_priced(shape: Shapes, tied: bool, vocab: int) -> None:
    ends = Ends(vocab, tied)
    read = load_model(json.loads(json.dumps(config_of(shape, 0, ends, 2048))))
    counts = counts_of(shape, ends)
    assert (read.params, read.active_params) == (counts.params[0], counts.active_params[0])
    priced = model_of(shape, 0, ends)
    assert (read.model_type, read.pattern, read.tied) == (priced.model_type, priced.pattern, tied)
    assert (read.embedding, read.head) == (priced.embedding, priced.head)
    (kind,), (own,) = read.kinds, priced.kinds
    assert (kind.weights, kind.attention, kind.ffn, kind.norms) == (
        own.weights,
        own.attention,
        own.ffn,
        own.norms,
    )
    assert read.max_seq_len == 2048 and read.notes == ()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(shapes())
def test_transformers_reads_it(shape: Shapes) -> None:
    auto = pytest.importorskip("transformers", reason="the reference reader is not installed").AutoConfig
    written = config_of(shape, 0, Ends(1000, True), 2048)
    kind = written["model_type"]
    read = auto.for_model(**written)
    assert read.model_type == kind
    saved = {k: v for k, v in read.to_dict().items() if v is not None}
    again, own = load_model(saved), model_of(shape, 0, Ends(1000, True))
    assert (again.params, again.active_params) == (own.params, own.active_params)


def _one(**change: int) -> Shapes:
    base = {"layers": 20, "width": 2560, "heads": 20, "kv_heads": 1, "head_dim": 128}
    base |= {"ffn_ratio": 0.5, "experts": 16, "top_k": 1, "shared": 0} | change  # type: ignore[dict-item]
    return Shapes(**{name: np.array([value]) for name, value in base.items()})


def test_folders_are_named_by_the_shape_and_replaced_whole(tmp_path: Path) -> None:
    root = tmp_path / "found"
    (file,) = write_configs(root, _one(), [0], Ends(1000, True), 1040)
    assert file == root / "l20-d2560-h20-kv1x128-e16k1-f1280" / "config.json"
    before = file.read_bytes()
    file.write_text("{}")
    write_configs(root, _one(), [0], Ends(1000, True), 1040)
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == ["config.json"]
    assert load_model(file.parent).name == file.parent.name
    assert shape_name(_one(experts=1), 0) == "l20-d2560-h20-kv1x128-f1280"
    assert shape_name(_one(top_k=2, shared=2), 0) == "l20-d2560-h20-kv1x128-e16k2s2-f320"


def test_places_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder, told in (
        (tmp_path / "file", "it is a file"),
        (tmp_path / "no" / "such", "no folder .*; make it first"),
        ("", "not the name of a folder"),
        ("a\0b", "not the name of a folder"),
        (3, "folder is 3; give the name of a folder"),
    ):
        with pytest.raises(InputError, match=told):
            write_configs(folder, _one(), [0], Ends(1000, True), 1040)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="head_dim 5 is odd"):
        config_of(_one(head_dim=5), 0, Ends(1000, True), 1040)
    with pytest.raises(InputError, match="row is '0'; give the number of a shape"):
        config_of(_one(), "0", Ends(1000, True), 1040)  # type: ignore[arg-type]
