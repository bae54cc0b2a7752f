"""Reasons of a no cost a bounded work, say what is tried, and give what is known where they are cut short."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

import meshwright as mw
from meshwright.optimizer import progress
from meshwright.optimizer.cli import main
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.plan import Infeasible
from meshwright.optimizer.progress import Progress
from meshwright.optimizer.question import price
from meshwright.optimizer.queue import Level
from meshwright.optimizer.reasons import effort as efforts
from meshwright.optimizer.reasons.clash import clash_of
from meshwright.optimizer.reasons.effort import Effort, work_of
from meshwright.optimizer.reasons.infeasible import why_none
from meshwright.optimizer.reasons.solving import Case, solve
from meshwright.optimizer.shortfall import closest_miss
from meshwright.optimizer.solve import Search, SolveOptions

# Nothing fits; the memory missing is told without a search, the clash and the ways out by some.
LINE = [
    "recommend",
    "llama-3-70b",
    "--cluster",
    "h100:8x1",
    "--batch",
    "64Ki",
    "--seq",
    "8192",
    "--constraint",
    "tp==8",
]
TEXT = "tp==8"


def question() -> Any:
    return mw.resolve("llama-3-70b", "h100:8x1", mw.Training(65536, 8192))


def refusal() -> Infeasible:
    with pytest.raises(Infeasible) as no:
        mw.recommend("llama-3-70b", "h100:8x1", mw.Training(65536, 8192), constraints=TEXT)
    return no.value


def test_work_is_the_same_every_time_and_ends_a_search() -> None:
    case, options = Case(question(), ()), SolveOptions(runner_ups=0)
    bigger = Case(mw.resolve("llama-3-8b", "h100:8x2", mw.Training(2**20, 8192)), ())
    costs = []
    for _ in range(2):
        effort = Effort.endless()
        effort.left = 10**6
        assert solve(bigger, options, effort=effort).settled
        costs.append(10**6 - effort.left)
    assert costs[0] == costs[1] > 1
    cut = Effort(each=1, left=10)
    outcome = solve(bigger, options, effort=cut)
    assert not outcome.settled and cut.left < 10
    spent = Effort(left=0)
    assert (
        solve(case, options, effort=spent).feasible is None
        and spent.over == "the effort for reasons is spent"
    )


def test_hosts_that_are_short_count_for_more() -> None:
    class Tally:
        def __init__(self, any_tensor: bool) -> None:
            self.solved = 5
            self.space = type("Space", (), {"menus": type("Menus", (), {"any_tensor": any_tensor})})
            self.shorts = 3

    assert work_of(Tally(any_tensor=False)) == 5  # type: ignore[arg-type]
    assert work_of(Tally(any_tensor=True)) == 2 + 3 * efforts._SHORT_HOSTS  # type: ignore[arg-type]


def test_without_effort_a_clash_keeps_all_and_says_so() -> None:
    case = Case(question(), parse_constraints(TEXT))
    whole, none = clash_of(case, SolveOptions()), clash_of(case, SolveOptions(), Effort(left=0))
    assert whole.proven and [x.kind for x in whole.limits] == ["device memory"]
    assert not none.proven and [x.kind for x in none.limits] == ["constraint", "device memory"]
    made = why_none(question(), TEXT, SolveOptions(), refusal(), Effort(left=0))
    assert made.cut == made.to_dict()["cut"] == "the effort for reasons is spent"
    assert made.short is not None and [way.kind for way in made.ways] == ["device memory"]
    assert why_none(question(), TEXT, SolveOptions(), refusal()).cut == ""


def test_the_effort_ends_the_clash_on_hosts_that_took_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the constraint on zero left out every plan has mixes for short hosts; the search of it is ended."""
    cluster = mw.parse_cluster("h100:8x2", host_memory="100MB")
    given = mw.resolve("llama-3-8b", cluster, mw.Training(2**20, 8192))
    wishes = parse_constraints("offload==activations, zero==3, dp_shard==16")
    effort = Effort(each=64)
    outcome = solve(Case(given, wishes), SolveOptions(), first=True, effort=effort)
    assert outcome.feasible is None and 0 < efforts.ALL - effort.left <= 64 + efforts._SHORT_HOSTS


def test_every_search_for_reasons_says_what_is_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_QUIET_S", 0.0)
    monkeypatch.setattr(progress, "_EVERY_S", {True: 0.0, False: 0.0})
    assert main([*LINE, "--progress", "--json"]) == 3
    told = capsys.readouterr().err
    for what in ("what clashes: ", "ways out: ", "ways out, devices with "):
        assert f" s: {what}" in told
    small = ["llama-3-8b", "--cluster", "h100:8x1", "--batch", "64Ki", "--seq", "8192"]
    assert main(["recommend", *small, "--shadow", "--why-not", "tp=2", "--progress", "--json"]) == 0
    told = capsys.readouterr().err
    assert " s: shadow price of HBM size: " in told and " s: why not tp=2: " in told
    assert main(["balance", *small, "--progress", "--json"]) == 0
    assert "candidates open" in capsys.readouterr().err


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize("at", ["what clashes", "ways out"])
def test_an_interrupt_gives_what_is_known_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], at: str, form: list[str]
) -> None:
    plain = Progress.__call__

    def hit(self: Progress, search: Search, bound_s: float, levels: Sequence[Level]) -> bool:
        if self.trying.startswith(at):
            self.stop()
        return plain(self, search, bound_s, levels)

    monkeypatch.setattr(Progress, "__call__", hit)
    with pytest.raises(KeyboardInterrupt):
        main([*LINE, *form])
    out = capsys.readouterr().out
    if form:
        data = json.loads(out)
        assert data["status"] == "INFEASIBLE" and data["why"]["cut"] == "interrupted"
        assert (
            data["why"]["clash"]["proven"] == (at == "ways out") and data["why"]["short"]["short_bytes"] > 0
        )
    else:
        assert out.startswith("INFEASIBLE (proven): ") and "What clashes" in out and "Memory missing" in out
        assert "interrupted: what clashes may be fewer, and other ways out may exist" in " ".join(out.split())


def test_an_interrupt_of_the_closest_miss_names_no_clash(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = Progress.say

    def hit(self: Progress, text: str) -> bool:
        if text.startswith("the closest miss"):
            self.stop()
        return plain(self, text)

    monkeypatch.setattr(Progress, "say", hit)
    with pytest.raises(KeyboardInterrupt):
        main(LINE)
    out = capsys.readouterr().out
    assert out.startswith(
        "INFEASIBLE (proven): no layout under constraint 'tp==8' fits; what clashes was not settled when it was\n"
        "interrupted."
    )


def test_candidates_that_hosts_rule_out_cost_no_effort() -> None:
    """Thousands of them, and the clash is settled all the same."""
    cluster = mw.parse_cluster("h100:8x2", host_memory="2TB", cpu_update="1 Gparam/s")
    case = Case(
        mw.resolve("llama-3-70b", cluster, mw.Training(2**20, 8192)), parse_constraints("offload == none")
    )
    clash = clash_of(case, SolveOptions(), Effort())
    assert clash.proven and [x.kind for x in clash.limits] == ["constraint", "device memory"]


SHORT = [
    ("llama-3-70b", "h100:8x2", 2**18, 8192, None),
    ("llama-3-70b", "h100:8x1", 65536, 8192, "tp==8"),
    ("llama-3.1-405b", "h100:8x8", 2**22, 8192, None),
    ("mixtral-8x7b", "h100:8x1", 65536, 4096, None),
]


@pytest.mark.parametrize(
    ("model", "cluster", "batch", "seq", "text"), SHORT, ids=[f"{x[0]} {x[1]}" for x in SHORT]
)
def test_memory_missing_is_what_estimate_says_to_the_byte(
    model: str, cluster: str, batch: int, seq: int, text: str | None
) -> None:
    """Of the layout that is told; the search finds it by a bound that lies some bytes below."""
    given = mw.resolve(model, cluster, mw.Training(batch, seq))
    with pytest.raises(Infeasible) as no:
        mw.recommend(model, cluster, mw.Training(batch, seq), constraints=text)
    assert no.value.layout is not None
    layout = no.value.layout
    here = mw.estimate(given, layout)
    assert no.value.short_bytes == here.short_bytes > 0
    made = why_none(given, text, SolveOptions(), no.value, Effort(left=0)).short
    assert made is not None and made.need_bytes == max(here.stage_bytes)
    told = made.to_dict()
    assert 0 <= told["need_bytes"] - made.need_bytes < 1 and isinstance(told["need_bytes"], int)
    assert (
        told["short_bytes"]
        == no.value.to_dict()["short_bytes"]
        == price(given, layout).to_dict()["short_bytes"]
    )


def test_the_closest_miss_is_told_while_it_lasts_and_none_where_it_was_ended() -> None:
    space, told = Case(question(), parse_constraints(TEXT)).space, []
    whole = closest_miss(space, 1, lambda text: bool(told.append(text)))
    assert whole[0] is not None and told and all(text.startswith("the closest miss, ") for text in told)
    assert closest_miss(space, 1, lambda text: True) == (None, 0.0)


def test_an_interrupted_search_says_its_gap_and_leaves_reasons_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(self: Progress, search: Search, bound_s: float, levels: Sequence[Level]) -> bool:
        self.stop()
        return True

    monkeypatch.setattr(Progress, "__call__", stop)
    small = ["llama-3-8b", "--cluster", "h100:8x1", "--batch", "64Ki", "--seq", "8192"]
    assert main(["recommend", *small, "--why-not", "tp=2"]) == 130
    told = capsys.readouterr().err
    assert "so the reasons asked for are left out" in told and "interrupted, with no plan found yet" in told
