"""Shadow prices equal a plain re-solve of the changed machine, put together here by other means; balance balances."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from instances import instance, with_memory

import meshwright as mw
from meshwright.costmodel.setting import Setting
from meshwright.hardware.chip import Chip
from meshwright.hardware.errors import InputError
from meshwright.hardware.network import SwitchTier
from meshwright.optimizer.cli import main
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.question import price, resolve
from meshwright.optimizer.reasons.balance import balance, balance_of
from meshwright.optimizer.reasons.explain import explained
from meshwright.optimizer.reasons.machine import levers
from meshwright.optimizer.reasons.shadow import ShadowPrices, shadow_prices
from meshwright.optimizer.recommend import recommend_in
from meshwright.optimizer.solve import SolveOptions
from meshwright.optimizer.space import Space

QUICK = SolveOptions(runner_ups=0)
SEEDS = (0, 13, 18, 23)  # among them a torus, two kinds of links that move the plan, offload


def of_chip(given: Setting, change: Callable[[dict[str, object]], None]) -> Setting:
    """The question on a chip read from a changed copy of its data."""
    data = given.cluster.chip.model_dump()
    change(data)
    return replace(given, cluster=replace(given.cluster, chip=Chip.model_validate(data)))


def scaled(figure: dict[str, str], now: float, unit: str) -> None:
    figure["text"] = f"{now * 1.1:.17g} {unit}"


def changed(given: Setting, name: str) -> Setting:
    """A tenth more of one thing."""
    chip = given.cluster.chip
    match name:
        case "HBM size":
            return with_memory(given, int(chip.memory_bytes * 1.1), given.cluster.host_memory_bytes)
        case "HBM bandwidth":
            now = chip.memory.bandwidth.si
            return of_chip(given, lambda d: scaled(d["memory"]["bandwidth"], now, "B/s"))  # type: ignore[index]
        case "FLOP/s":
            peaks = {dtype: figure.si for dtype, figure in chip.peak.items()}
            return of_chip(given, lambda d: [scaled(d["peak"][t], p, "FLOP/s") for t, p in peaks.items()])  # type: ignore[index,arg-type,return-value]
        case "host link":
            assert chip.host_link is not None
            link = chip.host_link.si
            return of_chip(given, lambda d: scaled(d["host_link"], link, "B/s"))  # type: ignore[arg-type]
    on = name.removesuffix(" links").split()
    levels = tuple(
        level
        if level.name not in on
        else replace(level, bytes_per_s=level.bytes_per_s * 1.1)
        if isinstance(level, SwitchTier)
        else replace(level, link_bytes_per_s=level.link_bytes_per_s * 1.1)
        for level in given.cluster.levels
    )
    assert levels != given.cluster.levels
    return replace(given, cluster=replace(given.cluster, levels=levels))


def check(given: Setting, constraints: str | None, made: ShadowPrices) -> None:
    assert [p.step_s for p in made.prices] == sorted(p.step_s for p in made.prices)
    for at in made.prices:
        plan = recommend_in(changed(given, at.name), constraints, QUICK)
        slack = max(plan.certificate.slack_s, made.plan.certificate.slack_s) + 1e-9 * at.step_s
        assert at.proven
        assert at.step_s == pytest.approx(plan.certificate.value_s, abs=2 * slack), at.name
        assert at.gain == pytest.approx(1 - at.step_s / made.plan.certificate.value_s)
        if not at.moved:
            assert at.layout == made.plan.layout
        else:
            assert plan.certificate.value_s == pytest.approx(at.step_s, abs=2 * slack)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_equals_a_plain_solve(seed: int) -> None:
    asked = instance(seed)
    made = shadow_prices(asked.setting, constraints=asked.constraints, options=QUICK)
    names = {p.name for p in made.prices}
    assert {"HBM size", "HBM bandwidth", "FLOP/s"} <= names
    open_ = Space(asked.setting, parse_constraints(asked.constraints)).offloads
    assert ("host link" in names) == any(open_)
    check(asked.setting, asked.constraints, made)


@pytest.mark.full
def test_each_equals_a_plain_solve_on_more_questions() -> None:
    for seed in range(50, 110):
        asked = instance(seed)
        if asked.answer is not None and seed % 10 != 9:
            check(
                asked.setting, asked.constraints,
                shadow_prices(asked.setting, constraints=asked.constraints, options=QUICK),
            )  # fmt: skip


def test_memory_that_binds_moves_the_plan() -> None:
    """A full device: more of it lets the planner repeat less, of what is cheapest to repeat."""
    plan = mw.recommend("llama-3-8b", "h100:8x1", mw.Training(2**19, 8192))
    made = {p.name: p for p in mw.shadow_prices(plan).prices}
    assert set(made) == {"HBM size", "HBM bandwidth", "FLOP/s", "nvlink links"}
    assert made["HBM size"].moved and made["HBM size"].gain > 0.001
    assert made["FLOP/s"].gain > made["HBM bandwidth"].gain > made["nvlink links"].gain > 0


def test_a_balanced_machine_is_balanced() -> None:
    """At the rate that balance names a resource takes as long as compute, and the ratios meet."""
    given = resolve("llama-3-8b", "h100:8x1", mw.Training(2**19, 8192))
    made = balance(given, options=QUICK)
    assert {r.name for r in made.resources} == {"HBM", "nvlink links"}
    levers_of = {"HBM": "HBM bandwidth", "nvlink links": "nvlink links"}
    for r in made.resources:
        assert r.has == pytest.approx(made.flop_per_s / r.bytes_per_s)
        assert r.needs == pytest.approx(made.flops / (r.busy_s * r.bytes_per_s))
        assert r.load == pytest.approx(r.has / r.needs) == pytest.approx(r.busy_s / made.compute_s)
        lever = next(x for x in levers(Space(given, ())) if x.name == levers_of[r.name])
        other = lever.scale(given, r.load)
        at_rate = price(other, made.plan.layout)
        again = balance_of(other, replace(made.plan, estimate=at_rate.estimate), explained(other, at_rate))
        met = next(x for x in again.resources if x.name == r.name)
        assert met.bytes_per_s == pytest.approx(r.balanced_bytes_per_s)
        assert met.load == pytest.approx(1, rel=0.03)  # latencies do not scale with the rate
        assert met.has == pytest.approx(r.needs, rel=0.03)


def test_the_commands(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    line = ["llama-3-8b", "--cluster", "h100:8x1", "--batch", "512Ki", "--seq", "8192"]
    assert main(["recommend", *line, "--shadow", "-o", f"{tmp_path}/plan.yaml"]) == 0
    page = capsys.readouterr().out
    assert "What 10% more would bring" in page and "another plan is best" in page
    assert main(["explain", f"{tmp_path}/plan.yaml", "--shadow"]) == 0
    assert page[page.index("What 10%") :].splitlines()[1:6] == capsys.readouterr().out.splitlines()[-5:]
    assert main(["balance", *line]) == 0
    out = capsys.readouterr().out
    assert "Against compute" in out and "nvlink links" in out and out.count("\n") < 20
    assert main(["estimate", *line, "--layout", "dp=8,zero=1", "-o", f"{tmp_path}/own.yaml"]) == 0
    capsys.readouterr()
    assert main(["explain", f"{tmp_path}/own.yaml", "--shadow"]) == 2
    assert "is an estimate, and solves nothing; give a file of recommend -o" in capsys.readouterr().err


def test_bad_questions_get_one_line() -> None:
    for ask in (shadow_prices, balance):
        with pytest.raises(InputError, match=r"question is 3; give a plan, or what resolve"):
            ask(3)  # type: ignore[operator]
