"""Constraints that no layout can obey are refused before the search, with both numbers; no other one is."""

from dataclasses import replace
from typing import Any

import pytest
from exhaustive_oracle import Wishes, candidates
from instances import instance

import meshwright as mw
from meshwright.costmodel.workload import Training
from meshwright.hardware.errors import LayoutError
from meshwright.optimizer.constraints import NUMBERS, parse_constraints
from meshwright.optimizer.wishes import refuse_impossible

LLAMA = mw.resolve("llama-3-8b", "h100:8x8", Training(2**20, 8192))
MIXTRAL = mw.resolve("mixtral-8x7b", "v5p:4x4x4", Training(2**20, 4096))
MEGATRON = mw.resolve("llama-3-8b", "h100:8x8", Training(2**20, 8192), framework="megatron")
MOVED = mw.resolve("llama-3-8b", "h100:8x8", Training(2**20, 8192, batch_tolerance=0.05))
TP = "1, 2, 4, 8, 16 or 32 (tp cuts 32 heads evenly, and h100:8x8 has 64 devices)"
BATCH = "1, 2, 4, 8, 16, 32, 64 or 128 (it divides the batch of 128 sequences)"


@pytest.mark.parametrize(
    ("setting", "text", "message"),
    [
        (LLAMA, "tp<=0", f"constraint 'tp<=0' leaves no value of tp: here it is {TP}; drop or widen it"),
        (LLAMA, "tp==3", f"constraint 'tp==3' leaves no value of tp: here it is {TP}; drop or widen it"),
        (LLAMA, "tp>32", f"constraint 'tp>32' leaves no value of tp: here it is {TP}; drop or widen it"),
        (LLAMA, "tp<=8, tp>=9", f"constraints 'tp<=8' and 'tp>=9' leave no value of tp: here it is {TP}; drop or widen one"),
        (LLAMA, "tp>=9, tp<=15", f"constraints 'tp>=9' and 'tp<=15' leave no value of tp: here it is {TP}; drop or widen one"),
        (LLAMA, "tp<=8, tp!=1, tp in {1,16}", f"constraints 'tp<=8', 'tp!=1' and 'tp in {{1,16}}' leave no value of tp: here it is {TP}; drop or widen one"),
        (LLAMA, "micro_batch==0", f"constraint 'micro_batch==0' leaves no value of micro_batch: here it is {BATCH}; drop or widen it"),
        (LLAMA, "micro_batches==3", f"constraint 'micro_batches==3' leaves no value of micro_batches: here it is {BATCH}; drop or widen it"),
        (LLAMA, "devices==0", "constraint 'devices==0' leaves no value of devices: here it is 1 to 64 (h100:8x8 has 64); drop or widen it"),
        (LLAMA, "devices>64", "constraint 'devices>64' leaves no value of devices: here it is 1 to 64 (h100:8x8 has 64); drop or widen it"),
        (LLAMA, "sequences==100", "constraint 'sequences==100' leaves no value of sequences: here it is 128 (the batch asked for; a tolerance like 4Mi~5% widens it); drop or widen it"),
        (MOVED, "sequences==100", "constraint 'sequences==100' leaves no value of sequences: here it is 122 to 134 (the batch with its tolerance); drop or widen it"),
        (LLAMA, "dp==24", "constraint 'dp==24' leaves no value of dp: here it is 1, 2, 4, 8, 16, 32 or 64 (it divides the batch of 128 sequences and h100:8x8 has 64 devices); drop or widen it"),
        (LLAMA, "cp==3", "constraint 'cp==3' leaves no value of cp: here it is 1, 2, 4, 8, 16, 32 or 64 (2*cp divides the sequence of 8192, and h100:8x8 has 64 devices); drop or widen it"),
        (LLAMA, "pp==40", "constraint 'pp==40' leaves no value of pp: here it is 1 to 32 (32 layers, and h100:8x8 has 64 devices); drop or widen it"),
        (LLAMA, "vpp==3", "constraint 'vpp==3' leaves no value of vpp: here it is 1, 2, 4, 8, 16 or 32 (it divides the 32 layers); drop or widen it"),
        (LLAMA, "ep==8", "constraint 'ep==8' leaves no value of ep: here it is 1 (llama-3-8b has no experts); drop or widen it"),
        (LLAMA, "etp==5", "constraint 'etp==5' leaves no value of etp: here it is 1 (llama-3-8b has no experts); drop or widen it"),
        (MIXTRAL, "ep==3", "constraint 'ep==3' leaves no value of ep: here it is 1, 2, 4 or 8 (it divides the 8 experts); drop or widen it"),
        (LLAMA, "zero>=2,zero<2", "constraints 'zero>=2' and 'zero<2' leave no value of zero: here it is 0 to 3 (0 none, 1 optimizer, 2 and gradients, 3 and weights); drop or widen one"),
        (LLAMA, "recompute==full,recompute==none", "constraints 'recompute==full' and 'recompute==none' leave no value of recompute: it is none, elementwise, attention, mlp, full or tensors; drop or widen one"),
        (MEGATRON, "recompute==tensors", "constraint 'recompute==tensors' leaves no value of recompute: it is none, elementwise, attention, mlp or full (megatron takes no policy by tensor); drop or widen it"),
        (LLAMA, "tp==8,pp==16", "constraints 'tp==8' and 'pp==16' leave no layout: they need at least 128 devices, h100:8x8 has 64; lower a degree"),
        (LLAMA, "devices<=8,tp>=16", "constraints 'devices<=8' and 'tp>=16' leave no layout: they need at least 16 devices, and allow 8; lower a degree"),
        (LLAMA, "dp==64,micro_batch==4", "constraints 'dp==64' and 'micro_batch==4' leave no layout: they need at least 256 sequences a step (dp * micro_batch * micro_batches), the batch has 128; lower one"),
    ],
    ids=lambda x: x[:40] if isinstance(x, str) else "",
)  # fmt: skip
def test_what_cannot_be_is_refused_with_both_numbers(setting: Any, text: str, message: str) -> None:
    with pytest.raises(LayoutError) as caught:
        refuse_impossible(setting, parse_constraints(text))
    assert str(caught.value) == message


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_nothing_that_can_be_is_refused(seed: int) -> None:
    """Every value of every candidate of random instances passes, alone and with all others of its candidate."""
    setting = instance(seed).setting
    found = list(candidates(setting, Wishes(asks_schedule=True, asks_sp=True)))[:3000:50]
    for x in found:
        told = {
            **{n: getattr(x, n) for n in NUMBERS if hasattr(x, n)},
            "dp": x.dp_replicate * x.dp_shard,
            "devices": x.dp_replicate * x.dp_shard * x.cp * x.tp * x.pp,
            "micro_batches": x.sequences // (x.dp_replicate * x.dp_shard * x.micro_batch),
        }
        assert set(told) == set(NUMBERS)
        refuse_impossible(setting, parse_constraints(", ".join(f"{n}=={v}" for n, v in told.items())))


def test_what_is_too_much_to_list_is_left_to_the_search() -> None:
    huge = replace(LLAMA, training=Training(2**40, 1, batch_tolerance=0.5))
    refuse_impossible(huge, parse_constraints("micro_batch==7, micro_batches>=3, sequences>2"))


def test_a_contradiction_across_names_is_proven_and_names_them_all() -> None:
    """Exit code 3: no value of one name is impossible, only the search can tell."""
    with pytest.raises(mw.Infeasible) as no:
        mw.recommend(
            "llama-3-8b", "h100:8x8", Training(2**20, 8192), constraints="vpp==1, schedule==interleaved"
        )
    assert str(no.value).startswith(
        "no layout fits: constraints 'vpp==1' and 'schedule==interleaved' leave no layout: interleaved has vpp above 1, "
        "dualpipev vpp=2, any other schedule vpp=1. Drop or widen one of the constraints."
    )
