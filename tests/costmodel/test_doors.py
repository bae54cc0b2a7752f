"""The door of the answering functions: names are taken where a machine or a model is meant, the rest is refused in a line."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from meshwright.costmodel.counting.on_chip import count_batch, count_state, count_utilisation
from meshwright.costmodel.counting.parts import count_activations, count_cache, count_parts
from meshwright.costmodel.framework import load_framework
from meshwright.costmodel.limits.answer import limits, scaling
from meshwright.costmodel.limits.run_answer import Speed, train_time
from meshwright.costmodel.limits.run_time import Failures
from meshwright.costmodel.readers import load_model
from meshwright.costmodel.roofline.attention import attention
from meshwright.costmodel.roofline.intensity import dot_product, elementwise, operator, overlap
from meshwright.costmodel.roofline.inventory import inventory, pod, ratios
from meshwright.costmodel.roofline.matmul import matmul
from meshwright.costmodel.roofline.operands import Work
from meshwright.costmodel.roofline.split_matmul import split_matmul
from meshwright.hardware.chip import load_chip
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import InputError, UnknownNameError
from meshwright.hardware.profile import book_chip

OPEN, MODEL, CLUSTER = "bf16[B,4] x bf16[4,4]", "llama-3-70b", "v5p:4x4x4"
SPEED = Speed(mfu=0.4)
HEADS = {"queries": 1, "keys": 64, "heads": 8, "kv_heads": 8, "head_dim": 128}


def product(**given: Any) -> object:
    return matmul(OPEN, "v5p", **given)


def run(**given: Any) -> object:
    asked: dict[str, Any] = {
        "model": MODEL,
        "cluster": CLUSTER,
        "tokens": 10**9,
        "seq_len": 4096,
        "speed": SPEED,
    }
    return train_time(**(asked | given))


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "rows 0 (once without end)": (lambda: product(rows=(0,)), "rows is 0"),
    "rows below zero": (lambda: product(rows=(-3,)), "rows is -3"),
    "no rows": (lambda: product(rows=()), r"rows is \(\)"),
    "rows as one number": (lambda: product(rows=3), "rows is 3"),
    "rows in halves": (lambda: product(rows=(1.5,)), "rows is 1.5"),
    "peak below zero": (lambda: product(flop_per_s=-1), "flop_per_s is -1"),
    "peak no number": (lambda: product(flop_per_s=nan), "flop_per_s is nan"),
    "peak without end": (lambda: product(flop_per_s=inf), "flop_per_s is inf"),
    "rate 0": (lambda: product(bytes_per_s=0), "bytes_per_s is 0"),
    "tile with a 0": (lambda: product(tile=(0, 4)), "tile is 0"),
    "tile of one": (lambda: product(tile=4), "tile is 4"),
    "size in halves": (lambda: product(sizes={"B": 2.5}), "size B is 2.5"),
    "size a word": (lambda: product(sizes={"B": "x"}), "size B is 'x'"),
    "sizes a number": (lambda: product(sizes=3), "sizes is 3"),
    "place a number": (lambda: product(source=3), "source is 3"),
    "weights a number": (lambda: product(weights=3), "dtype is 3"),
    "product a number": (lambda: matmul(3, "v5p"), "product is 3"),  # type: ignore[arg-type]
    "chip a number": (lambda: matmul(OPEN, 3), "chip is 3"),  # type: ignore[arg-type]
    "split in halves": (lambda: split_matmul(OPEN, "v5p", 2.5), "ways is 2.5"),  # type: ignore[arg-type]
    "split at rate 0": (lambda: split_matmul(OPEN, "v5p", 2, link_bytes_per_s=0), "link_bytes_per_s is 0"),
    "keys a word": (lambda: attention("v5p", **HEADS | {"keys": "x"}), "keys is 'x'"),  # type: ignore[arg-type]
    "no sequences": (lambda: attention("v5p", **HEADS, sequences=0), "sequences is 0"),
    "attention at rate 0": (lambda: attention("v5p", **HEADS, bytes_per_s=0), "bytes_per_s is 0"),
    "no work": (lambda: operator(3, "v5p"), "work is 3"),  # type: ignore[arg-type]
    "work without bytes": (lambda: operator(Work(1.0, 0.0), "v5p"), "bytes is 0"),
    "work no number": (lambda: operator(Work(nan, 1.0), "v5p"), "flops is nan"),
    "dot of nothing": (lambda: dot_product(0), "length is 0"),
    "sum below zero": (lambda: elementwise(-1), "length is -1"),
    "seconds no number": (lambda: overlap({"t_math": nan}), "at least one time"),
    "seconds a word": (lambda: overlap({"t_math": "x"}), "t_math is 'x'"),  # type: ignore[dict-item]
    "inventory of a number": (lambda: inventory(3), "cluster is 3"),  # type: ignore[arg-type]
    "pod of nothing": (lambda: pod("v5p", 0), "chips is 0"),
    "context below zero": (lambda: count_cache(MODEL, -5), "context is -5"),
    "no cached sequences": (lambda: count_cache(MODEL, 5, sequences=0), "sequences is 0"),
    "no sequence length": (lambda: count_parts(MODEL, 0), "seq_len is 0"),
    "run below zero": (lambda: count_parts(MODEL, 5, tokens=-4), "tokens is -4"),
    "model a number": (lambda: count_parts(3, 5), "model is 3"),  # type: ignore[arg-type]
    "framework a number": (lambda: count_state(MODEL, 3), "framework is 3"),  # type: ignore[arg-type]
    "no shards": (lambda: count_state(MODEL, shards=0), "shards is 0"),
    "no activations": (lambda: count_activations(MODEL, "jax", 5, 0), "tokens is 0"),
    "utilisation of -10": (lambda: count_utilisation(MODEL, 5, -10, 1.0, 1.0), "tokens is -10"),
    "utilisation in no time": (lambda: count_utilisation(MODEL, 5, 10, nan, 1.0), "chip_s is nan"),
    "run of no sequence": (lambda: run(seq_len=0), "seq_len is 0"),
    "run of no tokens": (lambda: run(tokens=0), "tokens is 0"),
    "speed a number": (lambda: run(speed=0.4), "speed is 0.4"),
    "failures a number": (lambda: run(failures=3), "failures is 3"),
    "power below zero": (lambda: run(watts=-1), "watts is -1"),
    "free of charge": (lambda: run(usd_per_chip_hour=0), "usd_per_chip_hour is 0"),
    "deadline past": (lambda: run(deadline_s=-1), "deadline_s is -1"),
    "mfu 0": (lambda: Speed(mfu=0), "mfu is 0"),
    "mfu no number": (lambda: Speed(mfu=nan), "mfu is nan"),
    "mfu a word": (lambda: Speed(mfu="x"), "mfu is 'x'"),  # type: ignore[arg-type]
    "no tokens per second": (lambda: Speed(tokens_per_s=0), "tokens per second is 0"),
    "failures a word": (lambda: Failures("x", 1.0), "mtbf is 'x'"),  # type: ignore[arg-type]
    "limits of a number": (lambda: limits(3), "setting is 3"),  # type: ignore[arg-type]
    "scaling of a word": (lambda: scaling("x"), "setting is 'x'"),  # type: ignore[arg-type]
    "load_chip of a number": (lambda: load_chip(3), "chip is 3"),  # type: ignore[arg-type]
    "book_chip of a number": (lambda: book_chip(3), "chip is 3"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_value_out_of_range_is_refused_in_one_typed_line(case: str) -> None:
    ask, said = REFUSED[case]
    with pytest.raises(InputError, match=f"^{said}|give {said}") as refused:
        ask()
    line = str(refused.value)
    assert "\n" not in line
    assert "give" in line


def test_names_stand_for_chips_clusters_models_and_frameworks() -> None:
    chip, model, jax = load_chip("v5p"), load_model(MODEL), load_framework("jax")
    assert matmul(OPEN, "v5p") == matmul(OPEN, chip)
    assert attention("v5p", **HEADS) == attention(chip, **HEADS)  # type: ignore[arg-type]
    assert operator(dot_product(64), "v5p") == operator(dot_product(64), chip)
    assert inventory(CLUSTER) == inventory(parse_cluster(CLUSTER))
    assert ratios("v5p", "v5e") == ratios(chip, load_chip("v5e"))
    assert count_parts(MODEL, 64) == count_parts(model, 64)
    assert count_cache(MODEL, 64) == count_cache(model, 64)
    assert count_batch(MODEL, "v5p") == count_batch(model, chip)
    assert count_state(MODEL, "jax", "adamw", "v5p") == count_state(model, jax, "adamw", chip)
    assert count_activations(MODEL, "jax", 64, 64) == count_activations(model, jax, 64, 64)
    assert run() == run(model=model, cluster=parse_cluster(CLUSTER))


def test_an_unknown_chip_points_to_the_command_that_lists_them() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown chip 'qqq'; \d+ chips and \d+ boards are known: meshwright chips$"
    ):
        load_chip("qqq")
