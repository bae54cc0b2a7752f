"""In ideal mode a recommended plan is never worse than the book's: X_opt rounded to FSDP x TP that slice and batch hold.

The book's plan is rounded here in every way that a reader could: to the two legal X next to X_opt on either side, with
every TP degree that goes with them, with and without recompute, in one or many micro-batches. What fits is priced by
`estimate`; none may be faster than what `recommend` proves.
"""

import random
from dataclasses import dataclass
from functools import cache
from math import log

import pytest

from meshwright.costmodel.estimate import estimate
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.limits.thresholds import block_work
from meshwright.costmodel.limits.tilings import legal_splits, slice_of
from meshwright.costmodel.limits.training import Limits
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.workload import Training
from meshwright.hardware.errors import LayoutError
from meshwright.optimizer.plan import Infeasible
from meshwright.optimizer.question import resolve
from meshwright.optimizer.recommend import recommend_in

MODELS = ("llama-3-8b", "llama-2-13b", "llama-3-70b", "gemma-7b", "falcon3-10b", "llama-2-7b")
CLUSTERS = (
    "v5p:4x4x4", "v5p:4x4x8", "v5p:4x8x8", "v5p:8x8x8", "v5p:8x8x12", "v5p:4x4x20", "v5e:4x8", "v5e:8x8", "v5e:8x16",
    "v5e:16x16", "v6e:8x8", "v6e:16x16", "v4:4x4x8", "h100:8x4", "h100:8x16", "b200:8x8",
)  # fmt: skip
SEQUENCES = (64, 96, 128, 240, 256, 320, 512, 768, 1024, 2048)
SEQ_LENS = (1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Case:
    model: str
    cluster: str
    sequences: int
    seq_len: int

    def setting(self) -> Setting:
        return resolve(
            self.model,
            self.cluster,
            Training(self.sequences * self.seq_len, self.seq_len),
            efficiency="ideal",
            overlap="full",
            comm_streams="independent",
        )


def cases(count: int) -> list[Case]:
    draw = random.Random(3)
    return [
        Case(draw.choice(MODELS), draw.choice(CLUSTERS), draw.choice(SEQUENCES), draw.choice(SEQ_LENS))
        for _ in range(count)
    ]


def x_opt(setting: Setting) -> float:
    """sqrt(B/F M_X/M_Y N) by the public functions; all chips for FSDP where the network has one level."""
    limits = Limits(setting, setting)
    ways = limits.best_tensor(block_work(setting.rates.matmul_flop_per_s, setting.model.hidden, limits.ffn))
    return setting.cluster.devices / (ways or 1.0)


def rounded(setting: Setting) -> list[tuple[int, int, int]]:
    """(data, context, tensor) next to X_opt."""
    splits = legal_splits(slice_of(setting))
    best = x_opt(setting)
    near = sorted({x for x, _ in splits}, key=lambda x: abs(log(x / best)))[:4]
    return [(*splits[x, y], y) for x, y in sorted(splits) if x in near]


def layouts(setting: Setting) -> list[Layout]:
    out = []
    for data, context, tensor in rounded(setting):
        share = setting.training.sequences // data
        for micro in sorted({1, share}):
            for policy in ("none", "full"):
                out.append(
                    Layout(
                        dp_shard=data, cp=context, tp=tensor, zero=3 if data * context > 1 else 0,
                        micro_batch=micro, policies=(policy,),
                    )
                )  # fmt: skip
    return out


@cache
def book_s(case: Case) -> float:
    """Step seconds of the fastest that fits; inf where none does."""
    setting, best = case.setting(), float("inf")
    for layout in layouts(setting):
        try:
            priced = estimate(setting, layout)
        except LayoutError:  # no placement holds it
            continue
        if priced.fits:
            best = min(best, priced.step_s)
    return best


def complaint(case: Case) -> str | None:
    theirs = book_s(case)
    try:
        ours = recommend_in(case.setting()).certificate
    except Infeasible:
        return (
            None if theirs == float("inf") else f"{case}: proven infeasible, the book's takes {theirs:.6g} s"
        )
    if ours.value_s - ours.slack_s > theirs * (1 + 1e-9):
        return f"{case}: recommended {ours.value_s:.6g} s, the book's {theirs:.6g} s"
    return None


@pytest.mark.parametrize("case", cases(200)[:6], ids=str)
def test_recommend_is_never_worse_than_the_book(case: Case) -> None:
    assert complaint(case) is None


@pytest.mark.full
@pytest.mark.parametrize("case", cases(200), ids=str)
def test_on_two_hundred(case: Case) -> None:
    assert complaint(case) is None


def test_the_comparison_is_not_empty() -> None:
    """The book's plan exists and fits in nearly every case, so that there is something to be worse than."""
    found = [book_s(case) for case in cases(200)[:6]]
    assert sum(s < float("inf") for s in found) >= 4
