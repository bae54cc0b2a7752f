"""What a law means by a size and by granularity, held against the sources that its file names."""

from dataclasses import dataclass

import numpy as np
import pytest

from meshwright.search.law import load_law
from meshwright.search.law_columns import MissingVariableError
from meshwright.search.shape import Shapes


def shapes(**changes):
    row = {"layers": 16, "width": 2048, "heads": 16, "kv_heads": 2, "head_dim": 128, "ffn_ratio": 1.0, "experts": 16,
           "top_k": 1, "shared": 0}  # fmt: skip
    return Shapes(**{name: np.broadcast_to(changes.get(name, value), 3) for name, value in row.items()})


@dataclass(frozen=True)
class Counts:
    params: np.ndarray
    active_params: np.ndarray
    end_params: np.ndarray


COUNTS = Counts(np.array([9e8, 9e8, 9e8]), np.array([3e8, 3e8, 3e8]), np.array([1e8, 1e8, 1e8]))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("besiroglu", 9e8), ("gemstones-wdpt", 9e8), ("krajewski", 8e8), ("abnar", 9e8), ("zhao", 9e8)],
)
def test_a_law_counts_parameters_as_its_authors_do(name, parameters):
    columns = load_law(name).columns(shapes(), COUNTS, tokens=20e9)
    assert columns.parameters.tolist() == [parameters] * 3
    assert load_law(name).loss(columns).loss.shape == (3,)


def test_clark_reads_the_dense_model_without_its_tables():
    assert load_law("clark-sbase").columns(shapes(), COUNTS).active_parameters.tolist() == [2e8] * 3
    with pytest.raises(MissingVariableError, match=r"^law clark-sbase needs active_parameters"):
        load_law("clark-sbase").loss(load_law("clark-sbase").columns(shapes()))


def test_gemstones_counts_table_and_head():
    """The repository's own counts are 15 l d^2, norms, and two tables of 50,304 tokens (law file, counts)."""
    for width, layers, count in ((1024, 28, 543482880), (2560, 8, 1044032000), (256, 23, 48377600)):
        assert 15 * layers * width**2 + (2 * layers + 1) * width + 2 * 50304 * width == count


def test_granularity_by_each_papers_word():
    """Krajewski cuts a dense part of 4 d into G; Zhao counts the experts that a token meets, shared ones too."""
    three = shapes(experts=[1, 64, 512], top_k=[1, 1, 6], shared=[0, 0, 2], ffn_ratio=[4.0, 4.0, 4.0])
    assert load_law("krajewski").columns(three, COUNTS).granularity.tolist() == [1, 1, 8]
    zhao = load_law("zhao").columns(three, COUNTS)
    assert zhao.granularity.tolist() == [1, 1, 8]
    assert zhao.shared_share.tolist() == [0, 0, 0.25]
    half = shapes(experts=64, top_k=2, ffn_ratio=[1.0, 2.0, 4.0])
    assert load_law("krajewski").columns(half, COUNTS).granularity.tolist() == [8, 4, 2]
    assert load_law("zhao").columns(half, COUNTS).granularity.tolist() == [2, 2, 2]
