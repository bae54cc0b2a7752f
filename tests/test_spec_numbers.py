"""Numbers of the public frozen specs are read one way: no flags, texts or nan; numpy's become Python's; no minus zero."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from math import inf, nan
from types import UnionType
from typing import Any, get_args

import numpy as np
import pytest

import meshwright as mw
from meshwright.costmodel.goals import Goal
from meshwright.hardware.chip import Chip, load_chip
from meshwright.hardware.errors import check_type

ENDLESS = {"most", "least", "ttft_s", "tpot_s", "total_s", "memory_bytes of Budget", "flop_per_s of Machine", "hbm_bytes_per_s of Machine"}  # fmt: skip


@cache
def specs() -> dict[str, Any]:
    """One of each, by name; every number that may be left out is said."""
    made = [
        mw.Training(65536, 4096, batch_tolerance=0.05, total_tokens=10**9),
        replace(mw.Training(65536, 4096), expert_capacity=1.5),
        mw.Layout(sequences=16, layers_per_stage=(4,)),
        mw.SolveOptions(),
        mw.Failures(1e4, 60.0, 5.0),
        mw.Speed(mfu=0.4),
        mw.Request(1, 128, 128, 2.0, 2.0, 2.0),
        mw.Budget(ttft_s=1.0),
        mw.ShapeLimit("params", most=1e9, least=1e6),
        mw.Server(8, 1e15, 1e12, 8e10, 1, 2.0),
        mw.Served(8e9, 8e9, 2.0, 1e9),
        mw.Routing(top_k=2, experts=8),
        mw.Work(1e9, 1e6),
        mw.Machine(mw.parse_mesh(None, "v5p:4x4x4"), 1e15, 1e12),
        Goal("chips", 2.0, 3e6),
        mw.parse_cluster("h100:8x2", host_memory="2TB", cpu_update="1 Gparam/s"),
        mw.load_framework("jax"),
        mw.load_model("llama-3-8b"),
    ]
    return {f"{type(spec).__name__} {number}": spec for number, spec in enumerate(made)}


def numbers() -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """(spec, field, types that it is declared with) of every number."""
    for name, spec in specs().items():
        assert is_dataclass(spec)
        for field in fields(spec):
            kinds = get_args(field.type) if isinstance(field.type, UnionType) else (field.type,)
            if {int, float} & {*kinds} and getattr(spec, field.name) is not None:
                yield name, field.name, kinds


NUMBERS = list(numbers())
BAD = [True, False, np.bool_(True), nan, -inf, "3", b"3", [3], 3 + 0j, np.array([3, 4])]


@pytest.mark.parametrize(("name", "field", "kinds"), NUMBERS, ids=[f"{n}.{f}" for n, f, _ in NUMBERS])
def test_what_is_no_number_is_refused_in_one_line(name: str, field: str, kinds: tuple[Any, ...]) -> None:
    spec, kind = specs()[name], name.partition(" ")[0]
    endless = bool({field, f"{field} of {kind}"} & ENDLESS)
    bad = [
        *BAD,
        *([] if endless else [inf, np.float64(inf)]),
        *([] if float in kinds else [2.5, np.float32(2.5)]),
    ]
    for value in bad:
        if field == "least" and value is BAD[4]:  # no limit
            continue
        with pytest.raises(mw.MeshwrightError) as refused:
            changed = replace(spec, **{field: value})
            if isinstance(changed, mw.ModelSpec):  # of columns inside, so its door looks
                mw.resolve(changed, "h100:8x2", mw.Training(65536, 4096))
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("name", "field", "kinds"), NUMBERS, ids=[f"{n}.{f}" for n, f, _ in NUMBERS])
def test_numpy_scalars_are_kept_as_python_numbers(name: str, field: str, kinds: tuple[Any, ...]) -> None:
    spec = specs()[name]
    value = getattr(spec, field)
    for cast in (np.int64, np.float64) if float in kinds else (np.int64,):
        if value != inf and cast(value) == value:
            again = replace(spec, **{field: cast(value)})
            if isinstance(again, mw.ModelSpec):
                mw.resolve(again, "h100:8x2", mw.Training(65536, 4096))
            assert again == spec and type(getattr(again, field)) in (int, float)
            assert repr(again).replace(".0", "") == repr(spec).replace(".0", "")


def test_minus_zero_is_zero_and_entries_of_tuples_count_too() -> None:
    assert repr(mw.Training(65536, 4096, batch_tolerance=-0.0)) == repr(mw.Training(65536, 4096))
    layout = mw.Layout(layers_per_stage=(np.int64(4),), placement=((("tp", np.int64(1)),),))  # type: ignore[arg-type]
    assert "np." not in repr(layout)
    for wrong in ({"layers_per_stage": (True,)}, {"placement": ((("tp", True),),)}, {"sequences": True}):
        with pytest.raises(mw.InputError):
            mw.Layout(**wrong)
    with pytest.raises(mw.InputError, match=r"shape is \(True, 2\); give a tuple of whole numbers"):
        replace(mw.parse_cluster("h100:8x2"), shape=(True, 2))


def test_the_flaw_that_was_found() -> None:
    with pytest.raises(mw.InputError) as refused:
        mw.Training(65536, 4096, moe_imbalance=True)
    assert str(refused.value) == "moe_imbalance is True; give a number from 1 to 100 (fullest over mean)"


@pytest.mark.parametrize("field", ["devices_per_chip", "memory", "name"])
def test_a_flag_is_no_figure_of_a_chip(field: str) -> None:
    data = load_chip("h100").model_dump()
    Chip.model_validate(data)
    with pytest.raises(ValueError, match="true is no value of it"):
        Chip.model_validate({**data, field: True})


@pytest.mark.parametrize("kinds", [int, (int, float), (int, type(None)), float])
def test_a_flag_is_no_number_at_any_door(kinds: Any) -> None:
    for flag in (True, False):
        with pytest.raises(mw.InputError, match=f"^share is {flag}; give a share$"):
            check_type("share", flag, kinds, "a share")
    check_type("share", 1.0 if kinds is float else 1, kinds, "a share")
    check_type("flag", True, bool, "a flag")
    check_type("either", True, (int, bool), "a flag or a number")


def test_the_band_is_no_flag() -> None:
    asked = mw.resolve("llama-3-8b", "h100:8x1", mw.Training(65536, 8192))
    with pytest.raises(mw.InputError, match=r"^band is True; give a share of step time such as 0\.1$"):
        mw.in_band(asked, band=True)
