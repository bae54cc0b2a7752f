"""What `limits` prints: every formula gives its value from the values beside it, and a name means one thing."""

import math
import re
from typing import Any

import pytest
from test_limits import ask

from meshwright.costmodel.limits.answer import limits, scaling
from meshwright.costmodel.limits.run_answer import Speed, train_time
from meshwright.costmodel.limits.run_time import Failures
from meshwright.costmodel.working import Value, Working

# Tori alike and not (an axis of 8 does not wrap), two devices a chip, slices, mixtures, switches; with fp8 products.
ASKED = [
    ("llama-3-70b", "v5p:16x20x28"),
    ("llama-3-70b", "v5p:16x16x16*4"),
    ("llama-3-70b", "v5e:8x16"),
    ("llama-3-70b", "v5p:4x4x8"),
    ("llama-3-70b", "v5p:2x2x4"),
    ("llama-3.1-405b", "tpu7x:16x24x24"),
    ("llama-3.1-405b", "tpu7x:4x4x8"),
    ("deepseek-v3", "v5p:16x16x16"),
    ("deepseek-v3", "tpu7x:8x8x16"),
    ("llama-3-70b", "h100:8x64"),
    ("deepseek-v3", "h100:8x64"),
    ("mixtral-8x7b", "gb200:72x8"),
    ("llama-3-8b", "h100:8x1"),
]
WORD = r"[A-Za-z_]\w*|\d+(?:\.\d+)?(?:e[+-]?\d+)?"
CALLS = {"sqrt": math.sqrt, "ceil": math.ceil, "min": min, "max": max}


def by_formula(formula: str, known: dict[str, Value]) -> float:
    """Juxtaposed factors multiply, also written with an x; ^ is a power."""
    python, before = [], ""
    for token in re.findall(rf"{WORD}|[-+*/^(),]", formula.replace(" x ", " ")):
        ends = before == ")" or (re.fullmatch(WORD, before) and before not in CALLS)
        if ends and (token == "(" or re.fullmatch(WORD, token)):
            python.append("*")
        python.append("**" if token == "^" else token)
        before = token
    return float(eval(" ".join(python), {"__builtins__": {}}, {**known, **CALLS}))


def symbols(working: Working) -> dict[str, Value]:
    """What was given; 'D, F, L' names three."""
    found: dict[str, Value] = {}
    for names, step in working.given.items():
        values = step.value.split(", ") if isinstance(step.value, str) else [step.value]
        found |= {n: float(v) for n, v in zip(names.split(", "), values, strict=True)}
    return found


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize(("model", "cluster"), ASKED, ids=lambda text: text)
def test_a_printed_formula_gives_the_printed_value(model: str, cluster: str, dtype: str) -> None:
    if dtype == "fp8" and cluster.startswith("v5e"):
        pytest.skip("v5e has no fp8")
    setting = ask(cluster, 4096, model, dtype=dtype)
    workings = [limits(setting), limits(setting, with_batch=False)]
    if cluster != "h100:8x1":
        workings.append(scaling(setting)[0])
    for working in workings:
        known, checked = symbols(working), 0
        for name, step in working.steps.items():
            if step.formula and step.formula != "nearest power of two":
                assert by_formula(step.formula, known) == pytest.approx(step.value, rel=2e-3), (name, step)
                checked += 1
            known[name] = step.value
        assert checked > 2 and working.binds


@pytest.mark.parametrize(
    "words", [{}, {"failures": Failures(10800.0, 300.0, 60.0), "deadline_s": 30 * 86400.0}]
)
@pytest.mark.parametrize(("model", "cluster"), [("llama-3-70b", "h100:8x64"), ("deepseek-v3", "tpu7x:4x4x8")])
def test_a_run_s_formulas_give_their_values(model: str, cluster: str, words: dict[str, Any]) -> None:
    prices = {"usd_per_chip_hour": 2.5, "watts": 700.0}
    working = train_time(model, cluster, 10**12, 4096, Speed(mfu=0.4), **words, **prices)
    known: dict[str, Value] = {name: step.value for name, step in working.given.items()}
    checked = 0
    for name, step in working.steps.items():
        if step.formula and step.formula != "tau / E(tau)":
            assert by_formula(step.formula, known) == pytest.approx(step.value, rel=1e-9), (name, step)
            checked += 1
        known[name] = step.value
    assert checked >= 10


@pytest.mark.parametrize(("model", "cluster"), ASKED[:-1], ids=lambda text: text)
def test_limits_and_the_curve_mean_the_same_by_a_name(model: str, cluster: str) -> None:
    setting = ask(cluster, 4096, model)
    table, (curve, _) = limits(setting), scaling(setting)
    shared = set(table.steps) & set(curve.steps)
    assert {"fsdp_model", "chips_fsdp"} <= shared
    for name in shared:
        assert table.steps[name] == curve.steps[name], name
    assert curve.number("chips_mixed_model") == pytest.approx(4096 * 4096 / curve.number("mixed_model"))


def test_degrees_count_devices_and_tokens_are_per_chip() -> None:
    """16x24x24 chips of two devices: the ways of TP are twice F / alpha, X and Y multiply to the devices."""
    found = limits(ask("tpu7x:16x24x24", 4096, "llama-3.1-405b"))
    assert found.number("tp_1_axis") == pytest.approx(2 * 53248 / found.number("alpha"))
    assert (found["N"], found["d"]) == (9216, 2) and "18,432 devices" in found.given["N"].note
    y = float(found.steps["X_opt"].note.split("= ")[-1])
    assert found.number("X_opt") * y == pytest.approx(18432, rel=2e-3)
    # Pure DP holds all state on one device, half a chip.
    assert found.number("most_params_pure_dp") == pytest.approx(found.number("HBM") / 2 / 10)


def test_the_tp_limit_by_the_book_does_not_depend_on_precision() -> None:
    wide, fp8 = limits(ask("v5p:16x16x16")), limits(ask("v5p:16x16x16", dtype="fp8"))
    ratio = fp8.number("C") / wide.number("C")
    assert fp8.number("tp_1_axis") == pytest.approx(wide.number("tp_1_axis") / ratio)  # traffic stays in bf16
    assert fp8.number("tp_1_axis_traffic_fp8") == pytest.approx(2 * wide.number("tp_1_axis") / ratio)
    assert fp8.number("fsdp_3_axes_traffic_fp8") == pytest.approx(fp8.number("fsdp_3_axes") / 2)
    assert any("traffic in bf16 as the planner moves it" in note for note in fp8.notes)
    assert not any("traffic" in name for name in wide.steps)


def test_without_a_batch_it_says_below_which_batch_communication_binds() -> None:
    said = limits(ask("tpu7x:4x4x8"), with_batch=False).binds
    assert "on 128 chips (256 devices)" in said and "under FSDP x TP below" in said and "e+" not in said
    assert "under TP beyond" in limits(ask("h100:8x64"), with_batch=False).binds


@pytest.mark.parametrize("sequences", [128, 1024, 2**17])
def test_numbers_in_a_verdict_are_written_in_one_way(sequences: int) -> None:
    for cluster, model in (
        ("v5p:8x8x8", "deepseek-v3"),
        ("tpu7x:4x4x4", "llama-3-8b"),
        ("h100:8x8", "llama-3-8b"),
    ):
        working = limits(ask(cluster, sequences, model))
        assert "e+" not in working.binds and not re.search(r"(?<![\d,.])\d{4,}(?![\d ]*x)", working.binds), (
            working.binds
        )
