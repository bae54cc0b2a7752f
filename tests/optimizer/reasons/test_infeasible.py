"""A proven no is explained by things that solving confirms: clash, memory missing, ways out.

Each is confirmed by another path than the one that found it: constraint strings and machines are put together anew and
go through `recommend_in`.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest
from instances import Instance, build, instance, with_memory

import meshwright as mw
from meshwright.costmodel.setting import Setting
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import InputError
from meshwright.optimizer.cli import main
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.plan import Infeasible, Plan
from meshwright.optimizer.question import resolve
from meshwright.optimizer.reasons.clash import clash_of
from meshwright.optimizer.reasons.infeasible import WhyNone, why_none
from meshwright.optimizer.reasons.limits import CONSTRAINT, HOST_MEMORY, MEMORY, without
from meshwright.optimizer.reasons.solving import Case, solve
from meshwright.optimizer.recommend import recommend_in
from meshwright.optimizer.solve import SolveOptions

QUICK = SolveOptions(runner_ups=0)
ENDLESS = 10**17
NOES = (6, 16, 68, 70, 80, 93)  # seeds of small questions without a plan


def infeasible_instances() -> Iterator[Instance]:
    """Seeds whose question has no plan; large ones are left to the full run."""
    for seed in range(6, 400):
        if seed % 10 != 9 and (asked := build(seed)[0]).infeasible:
            yield asked


def reasons(asked: Instance) -> tuple[Infeasible, WhyNone]:
    with pytest.raises(Infeasible) as no:
        recommend_in(asked.setting, asked.constraints, QUICK)
    return no.value, why_none(asked.setting, asked.constraints, QUICK, no.value)


def answer(given: Setting, constraints: str) -> Plan | None:
    try:
        return recommend_in(given, constraints, QUICK)
    except Infeasible:
        return None


def machine(given: Setting, memory: bool, host: bool) -> Setting:
    """The question with device or host memory made endless; tests' settings reserve nothing."""
    device = given.capacity_bytes if memory else ENDLESS
    return with_memory(given, device, given.cluster.host_memory_bytes if host else ENDLESS)


def check_clash(asked: Instance, why: WhyNone) -> None:
    """The clash alone leaves nothing; without any one member there is a plan."""
    assert why.clash.proven
    members = [(x.kind, x.text) for x in why.clash.limits]
    assert members and {kind for kind, _ in members} <= {CONSTRAINT, MEMORY, HOST_MEMORY}
    for left_out in (None, *members):
        kept = [x for x in members if x != left_out]
        kinds = {kind for kind, _ in kept}
        host = asked.setting.cluster.host_memory_bytes is None or HOST_MEMORY in kinds
        given = machine(asked.setting, MEMORY in kinds, host)
        texts = ", ".join(text for kind, text in kept if kind == CONSTRAINT)
        assert (answer(given, texts) is None) == (left_out is None), (str(asked), left_out)


def check_short(asked: Instance, no: Infeasible, why: WhyNone) -> None:
    """The memory missing is what growing it at the solver finds."""
    if why.short is None:
        assert MEMORY not in why.clash.kinds
        return
    given, need = asked.setting, why.short.need_bytes
    host = given.cluster.host_memory_bytes
    low, high = float(given.capacity_bytes), 2.0 * need
    while high - low > 2e-4 * high:
        middle = (low + high) / 2
        fits = answer(with_memory(given, int(middle), host), asked.constraints) is not None
        low, high = (low, middle) if fits else (middle, high)
    assert need == pytest.approx(high, rel=4e-4), str(asked)
    assert why.short.short_bytes == pytest.approx(need - given.capacity_bytes)
    assert sum(why.short.parts.values()) == pytest.approx(need, rel=1e-3)
    if no.short_bytes is not None and HOST_MEMORY not in why.clash.kinds:
        assert why.short.short_bytes == pytest.approx(no.short_bytes, rel=1e-3)


def check_ways(asked: Instance, why: WhyNone) -> None:
    """Every way out has a plan, and no better one than it says where it says best."""
    given = asked.setting
    wishes = [c.text for c in parse_constraints(asked.constraints)]
    for way in why.ways:
        changed, texts = given, list(wishes)
        if way.kind == "constraint":
            new, _, old = way.text.partition(" in place of ")
            gone = (old or way.text.removeprefix("drop ")).split(", ")
            texts = [t for t in wishes if t not in gone and t.strip() not in gone] + ([new] if old else [])
            assert len(texts) < len(wishes) or old
        elif way.kind == "batch":
            sequences = int(way.option.removeprefix("--batch ").removesuffix("seq"))
            tokens = sequences * given.training.seq_len
            changed = replace(given, training=replace(given.training, global_batch_tokens=tokens))
        elif way.kind == "device memory":
            assert why.short is not None
            changed = with_memory(
                given, int(why.short.need_bytes * (1 + 1e-5)) + 1, given.cluster.host_memory_bytes
            )
        elif way.kind in ("host memory", "offload"):
            size = int(way.option.removeprefix("--host-memory ").removesuffix("GB").removesuffix("B"))
            changed = with_memory(given, given.capacity_bytes, size * (10**9 if "GB" in way.option else 1))
        else:
            raise AssertionError(way.kind)
        plan = answer(changed, ", ".join(texts))
        assert plan is not None, (str(asked), way)
        slack = max(plan.certificate.slack_s, 1e-6 * way.step_s)
        assert plan.certificate.value_s <= way.step_s + slack
        if way.best and way.kind != "device memory":
            assert plan.certificate.value_s == pytest.approx(way.step_s, abs=slack)


def check(asked: Instance) -> None:
    no, why = reasons(asked)
    check_clash(asked, why)
    check_short(asked, no, why)
    check_ways(asked, why)
    json.dumps(why.to_dict())


def test_reasons_of_a_no_are_confirmed_by_solving() -> None:
    for asked in map(instance, NOES):
        assert asked.infeasible, str(asked)
        check(asked)


@pytest.mark.full
def test_reasons_of_twenty_noes_are_confirmed_by_solving() -> None:
    checked = list(islice(infeasible_instances(), 20))
    assert len(checked) == 20
    for asked in checked:
        check(asked)


def test_rules_are_named_where_constraints_leave_nothing_to_place() -> None:
    """2*cp*tp = 32 does not divide 48; without either constraint, or the rule, there is a plan."""
    given = resolve("llama-3-8b", "h100:8x4", mw.Training(48 * 64, 48))
    case = Case(given, parse_constraints("tp==4, cp==4, micro_batch<=64"))
    assert solve(case, QUICK, first=True).feasible is False
    clash = clash_of(case, QUICK)
    assert [str(x) for x in clash.limits] == [
        "constraint 'tp==4'", "constraint 'cp==4'",
        (
            "rule 'cp and tp divide the sequence': seq_len 48 is not a multiple of 2*cp (cp=4) times tp=4; use degrees "
            "that divide it"
        ),
    ]  # fmt: skip
    assert clash.proven
    for limit in clash.limits:
        assert solve(without(case, [limit]), QUICK, first=True).feasible


@pytest.fixture(scope="module")
def full_size() -> tuple[Setting, WhyNone]:
    given = resolve("llama-3-70b", "h100:8x2", mw.Training(2**18, 8192))
    with pytest.raises(Infeasible) as no:
        recommend_in(given, "tp<=8", QUICK)
    return given, why_none(given, "tp<=8", QUICK, no.value)


def test_the_machine_is_a_way_out(full_size: tuple[Setting, WhyNone]) -> None:
    """6 GiB are missing on 16 H100; twice as many chips, or H100 of 96 GB, hold a 70B model."""
    given, why = full_size
    assert [str(x) for x in why.clash.limits] == ["device memory: 77.8 GiB usable on a device"]
    by_kind = {way.kind: way for way in why.ways}
    assert by_kind["more chips"].option == "--cluster h100:8x4"
    assert by_kind["other chip"].option == "--cluster h100-96gb:8x2"
    for kind in ("more chips", "other chip"):
        way = by_kind[kind]
        changed = resolve(given.model, way.option.removeprefix("--cluster "), given.training)
        plan = recommend_in(changed, "tp<=8", QUICK)
        assert way.best and plan.certificate.value_s == pytest.approx(way.step_s, rel=1e-6)
    larger = parse_cluster("h100:8x4")
    assert larger.chips == 2 * given.cluster.chips


def test_the_page_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    line = "recommend llama-3-70b --cluster h100:8x2 --batch 256Ki --seq 8192"
    assert main(line.split()) == 3
    page = capsys.readouterr().out
    for wanted in (
        "What clashes",
        "device memory: 77.8 GiB",
        "Memory missing   6.032 GiB on stage 0",
        "Ways out",
    ):
        assert wanted in page
    assert page.count("\n") <= 50
    assert main([*line.split(), "--no-ways-out"]) == 3
    assert "Ways out" not in capsys.readouterr().out


def test_a_question_with_a_plan_has_no_such_reasons() -> None:
    given = resolve("llama-3-8b", "h100:8x1", mw.Training(2**18, 8192))
    with pytest.raises(InputError, match="why none: the question has a plan"):
        why_none(given, None)
