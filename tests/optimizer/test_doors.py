"""What one door says of a layout every other says: the search, `estimate` from Python and the command line, plan files."""

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest
from instances import instance

import meshwright as mw
from meshwright.costmodel.hosts import fullest_host_bytes
from meshwright.costmodel.placement import enumerate_placements
from meshwright.optimizer.plan import Infeasible, Plan
from meshwright.optimizer.question import price
from meshwright.optimizer.reasons.question import reopen
from meshwright.optimizer.recommend import bounded, recommend_in
from meshwright.optimizer.report.answer import answer
from meshwright.optimizer.report.page import render
from meshwright.optimizer.validate import device_stages

JOB = mw.Training(2**20, 8192)
# Two stages of mixed policies, chunks, hosts, states on hosts, schedules, modules, uneven stages, devices left idle.
SEEDS = (2, 3, 5, 7, 9, 10, 15, 1003, 10_002, 20_001)


def layout_on(page: str) -> str:
    """What a reader copies from a page: the text between the quotes, with its line ends."""
    (text,) = re.findall(r"--layout '([^']*)'", page)
    return str(text)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_page_of_a_plan_holds_a_text_that_prices_it_again(seed: int) -> None:
    asked = instance(seed)
    plan = recommend_in(asked.setting, asked.constraints)
    for width in (110, 60):
        text = layout_on(render(answer(plan), width))
        assert mw.parse_layout(text) == plan.layout, text
    own = price(asked.setting, mw.parse_layout(text))
    assert own.layout == plan.layout and own.estimate == plan.estimate
    assert plan.estimate.fits
    again = Plan.from_dict(plan.to_dict())
    assert reopen(again, asked.setting) is asked.setting and again.to_dict() == plan.to_dict()


def test_the_fullest_host_is_found_by_walking_the_devices() -> None:
    for shape, degrees in (
        ("h100:8x2", (2, 1, 2, 1, 4)),
        ("h100:6x3", (3, 1, 1, 2, 3)),
        ("v5e:4x4", (2, 1, 1, 2, 2)),
    ):
        given = mw.resolve("llama-3-8b", mw.parse_cluster(shape, host_memory="1TB"), JOB)
        names = dict(zip(("tp", "cp", "dp_shard", "dp_replicate", "pp"), degrees, strict=True))
        kept = [Random(shape).uniform(1, 9) * 1e9 * (stage + 1) for stage in range(degrees[-1])]
        per_host = given.cluster.devices_per_host or 1
        layout = mw.Layout(**names, zero=int(names["dp_shard"] > 1))
        seen = set()
        for placement in enumerate_placements(names, given.cluster.levels):
            hosts: dict[int, float] = {}
            placed = replace(layout, placement=placement)
            for device, stage in device_stages(given, placed):
                hosts[device // per_host] = hosts.get(device // per_host, 0.0) + kept[stage]
            assert fullest_host_bytes(given, placed, kept) == pytest.approx(max(hosts.values()), rel=1e-12)
            seen.add(round(max(hosts.values())))
        assert len(seen) > 1, "placements that share a host differently"


def test_the_verdict_on_hosts_is_that_of_the_search() -> None:
    text = "dp=8,zero=3,offload=activations,recompute=full"
    cluster = mw.parse_cluster("h100:8x1", host_memory="2TB")
    # A framework whose layers do not differ; else some would stay on the device.
    given = mw.resolve("llama-3-8b", cluster, JOB, framework="megatron")
    need = mw.estimate(given, mw.parse_layout(text)).fullest_host_bytes
    pins = "dp_shard==8, zero==3, offload==activations, recompute==full, micro_batch==1, reshard==true"
    for spare in (2**20, -(2**20)):
        hosts = replace(cluster, host_memory_bytes=round(need) + spare)
        given = mw.resolve("llama-3-8b", hosts, JOB, framework="megatron")
        found = mw.estimate(given, mw.parse_layout(text))
        assert found.short_bytes == 0
        assert found.fits == (spare > 0)
        assert found.host_short_bytes == pytest.approx(max(0, -spare), abs=1)
        data = price(given, mw.parse_layout(text)).to_dict()
        assert (data["fits"], data["host_short_bytes"] > 0) == (spare > 0, spare < 0)
        if spare > 0:
            assert recommend_in(given, pins).layout.offload == "activations"
        else:
            with pytest.raises(Infeasible, match="overfills a host"):
                recommend_in(given, pins)


def test_a_host_that_is_too_small_is_told_on_the_page() -> None:
    given = mw.resolve("llama-3-8b", mw.parse_cluster("h100:8x2", host_memory="1GB"), JOB)
    page = render(answer(price(given, mw.parse_layout("dp=16,zero=3,offload=activations"))))
    assert (
        "DOES NOT FIT: the memory of the fullest host is 570.8 GiB short (571.7 GiB needed by its devices, 953.7 MiB on\n"
        "each host)"
    ) in page
    assert "on the host: at most 71.47 GiB per device; the fullest host keeps 571.7 GiB of 953.7 MiB" in page


REFUSED = [
    ("torchtitan", "tp=2,dp=8,zero=1", "torchtitan cannot run this layout: FSDP is ZeRO 3"),
    (
        "deepspeed",
        "pp=2,dp=8,layers=17/15",
        "deepspeed cannot run this layout: pipeline.partition balances the layers",
    ),
    (
        "megatron",
        "tp=2,dp=8,zero=1,placement=dp_shard*8;tp*2",
        "megatron cannot run this layout: ranks are numbered tp-cp-ep-dp-pp",
    ),
    ("jax", "tp=3", "tp=3 does not fit the model's heads"),
]


@pytest.mark.parametrize(("launcher", "text", "told"), REFUSED)
def test_both_doors_of_estimate_refuse_alike(launcher: str, text: str, told: str) -> None:
    given = mw.resolve("llama-3-8b", "h100:8x2", JOB, launcher=launcher)
    messages = []
    for door in (mw.estimate, price):
        with pytest.raises(mw.InputError) as refused:
            door(given, mw.parse_layout(text))
        messages.append(str(refused.value))
    assert messages[0] == messages[1] and messages[0].startswith(told)


def test_both_doors_place_as_the_launcher_can() -> None:
    """tp over both networks would be faster; megatron cannot number the ranks so."""
    layout = mw.parse_layout("tp=8,dp=2,zero=3,recompute=full")
    free, bound = (
        mw.resolve("llama-3-8b", "h100:8x2", JOB, launcher=x, framework="megatron")
        for x in ("any", "megatron")
    )
    assert mw.estimate(free, layout).step_s < mw.estimate(bound, layout).step_s
    assert mw.estimate(bound, layout) == price(bound, layout).estimate


@cache
def tight() -> Plan:
    """A plan with all sections: a run, a launcher that costs something, runner-ups, state on hosts."""
    job = replace(JOB, total_tokens=10**12)
    cluster = mw.parse_cluster("h100:8x1", host_memory="1TB", cpu_update="1 Gparam/s")
    given = mw.resolve("llama-3-8b", cluster, job, launcher="torchtitan")
    return bounded(given, None, mw.SolveOptions(runner_ups=1))


# What a file says beside its figures, and what the search alone can know.
WORDS = ("warnings", "idle.reason", "inputs.model.name")
# What a search lists after its frames; a percent of what rounding hides is below the ten digits of a bound.
SEARCHED = (
    *(f"certificate.entered.{level}" for level in ("shapes", "choices", "rows", "splits", "plans")),
    "certificate.removed",
    "certificate.slack_s",
    "launcher.proven",
)
# Without tp nothing is split along the sequence.
IDLE = (r"(layout|runner_ups\.0\.layout|launcher\.layout)\.(sp|cp_kind)",)


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(data, dict | list) and data:
        for key, inner in data.items() if isinstance(data, dict) else enumerate(data):
            yield from leaves(inner, (*path, key))
    else:
        yield path, data


def other(value: Any) -> Any:
    """Another value of the same kind, where there is one by a percent."""
    match value:
        case bool():
            return not value
        case float():
            return value * 1.01 + (value == 0)
        case int():
            return value + 1
        case str():
            return "OPTIMAL" if value == "FEASIBLE" else "FEASIBLE" if value == "OPTIMAL" else value + "x"
        case None:
            return 3
    return ["x"]


def test_a_file_whose_figures_were_changed_is_refused() -> None:
    """Every leaf of a plan in turn, but those that nothing decides."""
    plan, accepted, changed = tight(), [], 0
    for path, value in leaves(plan.to_dict()):
        name = ".".join(map(str, path))
        if name.startswith((*WORDS, *SEARCHED)) or any(re.fullmatch(p, name) for p in IDLE):
            continue
        data = copy.deepcopy(plan.to_dict())
        part = data
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = other(value)
        changed += 1
        try:
            reopen(Plan.from_dict(data))
        except mw.MeshwrightError as error:
            assert "\n" not in str(error)
        else:
            accepted.append((name, value))
    assert changed > 150
    assert accepted == []


CHANGED = [
    (
        ("memory", 0, "loss"), 1.0,
        r"the plan contradicts itself: |the plan says that memory\[0\].loss is 1, here its question makes it \d+: .*plan again",
    ),
    (
        ("certificate", "status"), "FEASIBLE",
        r"the plan contradicts itself: certificate.status is FEASIBLE, but value_s [\d.]+ and bound_s .* make it OPTIMAL; write",
    ),
    (("fits",), False, r"the plan contradicts itself: fits is false with short_bytes 0 and host_short_bytes 0; write it again"),
    (("short_bytes",), 5e9, r"short_bytes is 5000000000, and memory and estimate.capacity_bytes make it 0; write it again"),
    (("certificate", "slack_s"), -1e-7, r"certificate.slack_s is -1e-07, below zero; write it again"),
    (("certificate", "slack_s"), 0.5, r"certificate.(status|slack_s) is .*; write it again"),
    (("certificate", "value_s"), float("nan"), r"certificate.value_s is nan; expected a number"),
    (("certificate", "limit_s"), 3.0, r"certificate.limit_s is 3 with goal step; chips alone has one; write it again"),
    (("certificate", "deadline_s"), 3.0, r"certificate.deadline_s is 3 without a limit_s; write it again"),
    (("certificate", "solved"), -1, r"certificate.solved is -1, and certificate.entered.solved \d+; write it again"),
    (("certificate", "entered", "rows"), -1, r"certificate.entered is .*; expected a mapping from names to whole numbers of 0 or more"),
    (("certificate", "removed", "no cut fits the device memory"), 2.5, r"certificate.removed is .*; expected a mapping from names to whole"),
    (
        ("certificate", "removed", "uses at most the devices there are"), 10**6,
        r"certificate.removed has 1000000 for 'uses at most the devices there are', of certificate.entered.degrees \d+; write it again",
    ),
    (("certificate", "entered", "degrees"), 10**6, r"certificate.entered.degrees is 1000000, here its question makes it \d+: the file"),
    (("provenance", "sources"), ["https://example.org"], r"provenance.sources\[0\] is 'https://example.org', here its question makes it"),
    (("runner_ups", 0, "value_s"), 0.5, r"runner_ups\[0\].value_s is 0.5, below certificate.value_s [\d.]+ before it; write it again"),
    (("certificate", "goal"), "speed", r"certificate.goal is 'speed', not one of step, cost, chips; write it again"),
    (("estimate", "step_s"), 9.0, r"estimate.step_s is 9, and estimate.parts sum to [\d.]+; write it again"),
    (
        ("inputs", "launcher"), "megatrn",
        r"the plan's inputs.launcher is 'megatrn', not one of any, calculon, deepspeed, jax, maxtext, megatron, torchtitan; plan again",
    ),
    (("inputs", "framework"), ["jax"], r"the plan's inputs.framework is \['jax'\], not one of jax, megatron; plan again"),
    (("inputs", "cluster", "name"), "h1000:8x1", r"the plan's inputs do not say the question: unknown chip 'h1000'.*; plan again"),
    (("inputs", "training", "seq_len"), 0, r"inputs.training.seq_len is 0; expected a whole number above 0"),
    (("inputs", "constraints"), "tp<=2", r"certificate.space_hash is '\w+', here its question makes it '\w+': the file was edited"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "told"), CHANGED, ids=[".".join(map(str, path)) for path, _, _ in CHANGED]
)
def test_what_is_said_of_a_changed_file(path: tuple[Any, ...], value: Any, told: str) -> None:
    data = copy.deepcopy(tight().to_dict())
    part: Any = data
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(mw.InputError, match=told):
        mw.explain(Plan.from_dict(data))


@cache
def small() -> Plan:
    return mw.recommend("llama-3-8b", "h100:8x1", mw.Training(2**18, 8192))


def test_a_proof_leaves_what_rounding_hides() -> None:
    data = small().to_dict()
    proof = {**data["certificate"], "slack_s": 1e-3 * data["certificate"]["value_s"]}
    told = (
        r"certificate.slack_s is [\d.]+, and value_s [\d.]+ less bound_s [\d.]+ is [\d.e-]+; write it again"
    )
    with pytest.raises(mw.InputError, match=told):
        Plan.from_dict({**data, "certificate": proof})


def test_runner_ups_are_ranked_and_each_is_one_plan() -> None:
    data = small().to_dict()
    first, second = data["runner_ups"][:2]
    assert first["value_s"] < second["value_s"]
    for others, told in (
        ([second, first], r"runner_ups\[1\].value_s is [\d.]+, below runner_ups\[0\].value_s [\d.]+ before it; write it again"),
        ([first, first], r"runner_ups\[1\].layout is listed twice; write it again"),
        ([{**first, "layout": data["layout"]}], r"runner_ups\[0\].layout is listed twice; write it again"),
    ):  # fmt: skip
        with pytest.raises(mw.InputError, match=told):
            Plan.from_dict({**data, "runner_ups": others})


def question() -> Any:
    return mw.resolve("llama-3-8b", "h100:8x1", mw.Training(2**18, 8192))


NO_HOSTS = "offload=activations needs the host's memory and h100:8x1 gives none"
OPTIONS = "options is 3; give a SolveOptions, or None"
LIBRARY: list[tuple[str, Callable[[], Any], str]] = [
    ("recommend", lambda: recommend_in(question(), "offload==activations"), NO_HOSTS),
    ("in_band", lambda: mw.in_band(question(), constraints="offload==activations"), NO_HOSTS),
    ("why_not", lambda: mw.why_not(question(), "offload=activations"), NO_HOSTS),
    (
        "estimate",
        lambda: mw.estimate(question(), mw.parse_layout("dp=8,zero=1,offload=activations")),
        NO_HOSTS,
    ),
    ("in_band options", lambda: mw.in_band(question(), options=3), OPTIONS),
    ("shadow options", lambda: mw.shadow_prices(small(), options=3), OPTIONS),
    ("why_none options", lambda: mw.why_none(question(), None, 3), OPTIONS),
    ("why_none", lambda: mw.why_none("llama-3-8b"), "question is 'llama-3-8b'; give what resolve("),
    (
        "why_none no",
        lambda: mw.why_none(question(), no="no"),
        "no is 'no'; give what recommend raised, or None",
    ),
    (
        "no placement",
        lambda: mw.explain(replace(small(), layout=replace(small().layout, placement=())), question()),
        "the plan contradicts itself: placement on 0 levels of 1; write it again",
    ),
    (
        "no question",
        lambda: mw.explain(replace(small(), inputs={}), question()),
        "the key inputs.model is missing; expected a mapping",
    ),
]


@pytest.mark.parametrize(("name", "door", "told"), LIBRARY, ids=[name for name, _, _ in LIBRARY])
def test_doors_of_the_library_say_the_same_line(name: str, door: Callable[[], Any], told: str) -> None:
    with pytest.raises(mw.MeshwrightError) as refused:
        door()
    assert str(refused.value).startswith(told) and "\n" not in str(refused.value)
