"""`meshwright search`: stated golden answers from a board's name, what a page holds, and refusals."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import LAUNCH
from meshwright.costmodel.inference.work import ATTENTION, ENDS, FFN
from meshwright.hardware.errors import MeshwrightError
from meshwright.optimizer.cli import main
from meshwright.search.answer import answer
from meshwright.search.asked import Budget, search_shapes
from meshwright.search.board import board_of
from meshwright.search.breakdown import GROUPS, breakdown

ASK = ["search", "--cluster", "jetson-agx-orin-64gb", "--prompt", "1024", "--output", "16"]
SHAPE = ("layers", "width", "experts", "top_k", "ffn_ratio", "kv_heads")
Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """The JSON answer to further words."""

    def asked(*words: str) -> dict[str, Any]:
        assert main([*ASK, *words, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return asked


@pytest.mark.parametrize(
    ("budget", "shape", "loss"),
    [
        # plas.md 1.6, at 42.5 TFLOP/s and 204.8 GB/s, FP16, 64 GB; the board has 42.75.
        (("--total", "100ms"), (20, 2560, 16, 1, 0.5, 1), 3.063),
        (("--total", "200ms"), (28, 3072, 16, 1, 0.5, 1), 2.988),
        (("--tpot", "1.25ms"), (12, 1792, 16, 1, 0.25, 2), 3.320),
    ],
)
def test_the_stated_budgets(ask: Ask, budget: tuple[str, str], shape: tuple[float, ...], loss: float) -> None:
    found = ask("--latency", "plas", *budget)
    row = found["table"][0]
    assert row["best"] == "1" and tuple(row[name] for name in SHAPE) == shape
    assert found["steps"]["best_loss"]["value"] == pytest.approx(loss, abs=5e-4)


def test_the_front_is_that_of_the_whole_grid(ask: Ask) -> None:
    steps = {name: step["value"] for name, step in ask("--latency", "plas")["steps"].items()}
    assert (steps["shapes_listed"], steps["shapes_priced"], steps["front_points"]) == (12600, 9474, 120)
    assert steps["front_moe_share"] == 1.0  # the paper's finding at batch 1


def test_smaller_weights_and_more_memory_are_never_worse(ask: Ask) -> None:
    def loss(*words: str) -> float:
        return float(ask(*words)["steps"]["best_loss"]["value"])

    assert loss("--total", "100ms", "--weights", "int8") <= loss("--total", "100ms")
    losses = [loss("--total", "2s", "--memory", size) for size in ("1GiB", "4GiB", "16GiB", "60GiB")]
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1]


def test_parts_sum_to_the_best_total_in_both_forms(ask: Ask) -> None:
    assert {n for names in GROUPS.values() for n in names} == {*ATTENTION, *FFN, *ENDS, LAUNCH}
    for words in ((), ("--latency", "plas"), ("--efficiency", "default"), ("--batch", "1", "--head", "bf16")):
        steps = ask("--total", "1s", "--weights", "int8", *words)["steps"]
        parts = [step["value"] for name, step in steps.items() if name.startswith("part_")]
        assert sum(parts) == pytest.approx(steps["best_total"]["value"], rel=1e-9)
        whole = steps["best_prefill"]["value"] + 16 * steps["best_token"]["value"]
        assert whole == pytest.approx(steps["best_total"]["value"], rel=1e-9)


@pytest.mark.parametrize("against", ["total", "ttft", "tpot", "memory"])
def test_a_front_is_what_no_priced_shape_beats(against: str) -> None:
    board = board_of("jetson-orin-nano-8gb", weights="int8")
    found = search_shapes("plas-10b", "plas", board.device, Request(1, 512, 64, 1, 2), against=against)  # type: ignore[arg-type]
    loss, cost = found.loss, found.against_cost
    on = found.on_front
    assert (np.diff(cost[on]) > 0).all() and (np.diff(loss[on]) < 0).all()
    beaten = [
        (cost <= c).any() and loss[cost <= c].min() < at for at, c in zip(loss[on], cost[on], strict=True)
    ]
    assert not any(beaten)
    assert (found.costs.memory_bytes <= board.device.memory_bytes).all()


def test_each_budget_has_the_best_shape_under_it(ask: Ask) -> None:
    together = ask("--budgets", "50ms,100ms,1ms")
    alone = [ask("--total", limit)["table"][0] for limit in ("50ms", "100ms")]
    rows = together["table"][:3]
    assert [row["best"] for row in rows] == ["1", "2", ""]
    assert [{**row, "best": "1"} for row in rows[:2]] == alone
    assert "best 3, total 1 ms: no shape keeps it" in together["notes"]
    assert together["binds"] == "each budget has a best shape of its own; the table starts with them"


def test_memory_that_binds_is_named_with_what_holds_it(ask: Ask) -> None:
    found = ask("--against", "memory", "--budgets", "2GiB")
    assert found["binds"].startswith("memory: the best shape takes 9") and "weights" in found["binds"]
    assert any(note.startswith("memory-bound at width ") and "rho* = " in note for note in found["notes"])


@pytest.mark.parametrize(("limit", "told"), [("ttft_s", "prefill"), ("tpot_s", "a token")])
def test_two_limits_that_bind_together_give_the_joint_closed_form(limit: str, told: str) -> None:
    """5.3 at budgets of both kinds in the very ratio of a shape chooses the shape's own rho."""
    board, asked = board_of("jetson-agx-orin-64gb"), Request(1, 1024, 16, 2, 2)
    first = search_shapes("plas-10b", "plas", board.device, asked, Budget(**{limit: 0.02}), latency="plas")
    i = first.best[0]
    assert i is not None
    cost = first.costs.prefill_s if limit == "ttft_s" else first.costs.token_s
    device = board.device.holding(1.01 * float(first.costs.memory_bytes[i]))
    budget = Budget(**{limit: 1.01 * float(cost[i])})
    notes = answer(search_shapes("plas-10b", "plas", device, asked, budget, latency="plas"), board).notes
    own = float(first.shapes.activation[i])
    assert f"{told} and memory both bind: rho* = {own:.4g} at that r and gqa" in notes


def test_what_is_assumed_is_told(ask: Ask) -> None:
    weight_only, w8a8 = ask("--weights", "int8"), ask("--weights", "int8", "--compute", "int8")
    assert any("widened as they are read and multiplied in fp16" in note for note in weight_only["notes"])
    assert w8a8["given"]["C"]["value"] == 2 * weight_only["given"]["C"]["value"] == 85.5e12
    assert any("attention's scores stay in 16 bits" in note for note in w8a8["notes"])
    assert any(note.startswith("ideal rates: times are floors") for note in w8a8["notes"])


def test_the_page_is_one_screen_and_the_json_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*ASK, "--weights", "int8", "--total", "100ms"]
    assert main(words) == 0
    page = capsys.readouterr().out.splitlines()
    assert len(page) <= 60 and all(len(line) <= 110 for line in page)
    twice = []
    for _ in range(2):
        assert main([*words, "--json"]) == 0
        twice.append(capsys.readouterr().out)
    assert twice[0] == twice[1]


@pytest.mark.parametrize(
    ("words", "told", "code"),
    [
        (["--total", "100"], "--total: '100' has no unit", 2),
        (["--total", "1us"], "no shape of the grid keeps the budget: the fastest takes", 3),
        (["--budgets", "1us,2us"], "no shape of the grid keeps the budget: the fastest takes", 3),
        (["--budgets", "1us,"], "--budgets: ", 2),
        (["--budgets", "1GiB"], "--budgets: ", 2),
        (["--budgets", "1s", "--total", "1s"], "--budgets and --total both limit total; give one", 2),
        (["--memory", "1MiB"], "no shape of the grid fits", 3),
        (["--law", "plas"], "unknown loss law 'plas'; did you mean plas-10b", 2),
        (["--law", "besiroglu"], "law besiroglu needs tokens", 2),
        (["--grid", "nowhere"], "unknown grid 'nowhere'", 2),
        (["--cluster", "h100:8x1"], "h100:8x1 has 8 devices, this is asked of one", 2),
        (
            ["--cluster", "jetson-agx-orin-32gb"],
            "no source lists an fp16 or bf16 peak for jetson-agx-orin-32gb",
            2,
        ),
        (["--compute", "int8"], "products in int8 cannot take weights of bf16, which are wider", 2),
        (
            ["--compute", "fp8", "--weights", "fp8"],
            "no source lists a peak in fp8 for jetson-agx-orin-64gb",
            2,
        ),
        (["--prompt", "0"], "--prompt: '0' is not above zero", 2),
        (["--batch", "two"], "--batch: ", 2),
        (["--latency", "plas", "--batch", "2"], "the paper's decode form (33) is written for batch 1", 2),
        (["--efficiency", "great"], "unknown efficiency 'great'", 2),
        (["--csv", "no/such/folder/a.csv"], "no folder", 2),
        (["--config", "no/such/folder"], "no folder", 2),
        (["--plot", "front.gif"], "ends in neither .png nor .svg", 2),
    ],
)
def test_refusals(words: list[str], told: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASK, *words]) == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and told in err, err


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--prompt", "8"]) == 2
    assert "give --cluster, --output; see meshwright search --help" in capsys.readouterr().err


_DEVICE, _REQUEST = board_of("apple-m1").device, Request(1, 64, 4, 2, 2)


def _with(**change: Any) -> object:
    asked: dict[str, Any] = {"law": "plas-10b", "grid": "plas", "device": _DEVICE, "request": _REQUEST}
    return search_shapes(**asked | change)


# A door takes the wrong value; where None is right it is not tried.
DOORS: dict[str, Callable[[Any], object]] = {
    **{field: lambda wrong, f=field: Budget(**{f: wrong}) for field in Budget.__dataclass_fields__},  # type: ignore[misc]
    **{name: lambda wrong, n=name: _with(**{n.strip("?"): wrong})  # type: ignore[misc]
       for name in ("law", "grid", "device", "request", "latency", "against", "tokens?")},
    "budget": lambda wrong: search_shapes("plas-10b", "plas", _DEVICE, _REQUEST, wrong),
    "cluster": board_of,
    **{name: lambda wrong, n=name: board_of("apple-m1", **{n.strip("?"): wrong})  # type: ignore[misc]
       for name in ("weights", "efficiency", "compute?", "memory_bytes?")},
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("wrong", [None, True, -1, 0, math.nan, "x", b"x", [], {}, object], ids=repr)
def test_library_doors_refuse_in_one_typed_line(door: str, wrong: object) -> None:
    if wrong is None and door.endswith("?"):
        return
    with pytest.raises(MeshwrightError) as told:
        DOORS[door](wrong)
    assert "\n" not in str(told.value)


def test_every_board_with_a_peak_is_searched() -> None:
    from meshwright.hardware.chip import board_names

    unknown = []
    for name in board_names():
        try:
            board = board_of(name, weights="int8")
        except MeshwrightError as error:
            assert "no source lists" in str(error)
            unknown.append(name)
            continue
        found = search_shapes(
            "plas-10b", "plas", board.device, Request(1, 128, 16, 1, 2), Budget(total_s=1.0)
        )
        assert found.best[0] is not None
        parts = breakdown(found.shapes, found.best[0], found.grid.ends, board.device, found.request, "full")
        assert sum(map(sum, parts.values())) == pytest.approx(found.costs.total_s[found.best[0]])
    assert unknown == ["apple-m3-ultra", "jetson-agx-orin-32gb"]
