"""What the judge says about a search: everything in which its answer differs from exhaustive search."""

import numpy as np
from exhaustive_oracle import hosts_of, placements_of
from independent_rules import OFFLOAD_PREDICATES, Candidate, broken, stage_sizes
from instances import Instance, instance

from meshwright.costmodel.estimate import estimate
from meshwright.costmodel.layout import CP_KINDS, OFFLOADS, Layout
from meshwright.costmodel.policies import tensor_bits
from meshwright.costmodel.schedules import SCHEDULES
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.tensors import HOST, OTHER, named, simplest, words_of
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.solve import Found, Search, SolveOptions
from meshwright.optimizer.space import Space

FLOATS = 1e-9  # sums of floats in another order


def search(asked: Instance, options: SolveOptions | None = None, further: str = "") -> Search:
    """Run the optimizer on an instance; `further` constraints come on top of its own."""
    text = ", ".join(t for t in (asked.constraints, further) if t)
    # Both kinds of run are judged: alone the cutoff prunes hardest, with runner-ups the list must be right too.
    options = options or SolveOptions(runner_ups=(0, 3)[asked.seed % 2])
    run = Search(Space(asked.setting, parse_constraints(text)), options)
    run.run()
    return run


def agrees(seed: int) -> Instance:
    """The instance of a seed, once the search has said of it what exhaustive search says."""
    asked = instance(seed)
    found = complaints(asked, search(asked))
    assert found == [], f"{asked}: {found}"
    return asked


def complaints(asked: Instance, run: Search) -> list[str]:
    """Nothing, if the search is right."""
    out = [f"{len(run.undecided)} candidates undecided"] if run.undecided else []
    listed = run.ranked[: run.options.runner_ups + 1]
    if asked.answer is None:
        return out + [f"finds {f.value_s} where nothing fits: {flaws(asked, f)}" for f in listed[:1]]
    if not listed:
        return [*out, f"finds nothing; {asked.answer} fits"]
    expected = asked.ranked_s[: run.options.runner_ups + 1]
    if len(listed) != len(expected):
        out.append(f"lists {len(listed)} plans, {len(expected)} visibly different ones exist")
    for place, (found, seconds) in enumerate(zip(listed, expected, strict=False)):
        if abs(found.value_s - seconds) > found.slack_s + FLOATS * seconds:
            out.append(f"plan {place} takes {found.value_s:.9g} s, exhaustive search finds {seconds:.9g} s")
        out += [f"plan {place}: {flaw}" for flaw in flaws(asked, found)]
    return out


def flaws(asked: Instance, found: Found) -> list[str]:
    """What is wrong with one plan by itself: rules, wishes, stages, placement, memory, price."""
    setting, x = asked.setting, candidate_of(found)
    levels, out = setting.cluster.levels, [f"breaks {name!r}" for name in broken(setting, x)]
    codes = [{code for stage in found.mixes for code, _ in stage[k]} for k in range(len(setting.model.kinds))]
    present = [tensor_bits(setting.framework, kind) for kind in setting.model.kinds]
    policies = [
        named(code if named(code) != OTHER else simplest(code, has))
        for some, has in zip(codes, present, strict=True)
        for code in some
    ]
    offload = OFFLOADS[int(found.row.offload[0])]
    out += [
        f"breaks {name!r}" for name, holds in OFFLOAD_PREDICATES.items() if not holds(setting, x, offload)
    ]
    if not (
        asked.wishes.candidate(x)
        and all(map(asked.wishes.policy, policies))
        and asked.wishes.offload(offload_of(found))
    ):
        out.append("breaks a constraint")
    if any(len(mix) > 2 for stage in found.mixes for mix in stage):
        out.append("more than two policies of a kind on a stage")
    if not setting.framework.chooses and any(len(some) > 1 for some in codes):
        out.append("policies differ where the framework has one for all")
    sizes = stage_sizes(setting, x.pp, x.vpp, x.schedule)
    if sum(found.lengths) != setting.model.layers or not set(sizes).issuperset(found.lengths):
        out.append(f"stages of {found.lengths} layers")
    if _fixed(found.placement) not in map(
        _fixed, placements_of((x.tp, x.cp, x.dp_shard, x.dp_replicate, x.pp), levels)
    ):
        out.append(f"placement {found.placement}")
    if out:
        return out
    priced = estimate(setting, layout_of(setting, found))
    value = priced.step_s * setting.training.sequences / x.sequences
    if abs(value - found.value_s) > found.slack_s + FLOATS * value:
        out.append(f"estimate says {value:.9g} s, the search {found.value_s:.9g} s")
    if found.bound_s > found.value_s + FLOATS * value:
        out.append(f"bound {found.bound_s} above value {found.value_s}")
    if max(priced.stage_bytes) > setting.capacity_bytes:
        out.append(f"{max(priced.stage_bytes)} bytes on a device of {setting.capacity_bytes}")
    host = setting.cluster.host_memory_bytes
    if offload != "none" and host is not None:
        on_hosts = hosts_of(found.placement, levels, setting.cluster.devices_per_host or 1, x.pp)
        fullest = float((np.array(on_hosts) @ np.array(priced.host_bytes)).max())
        if fullest > host:
            out.append(f"{fullest} bytes on a host of {host}")
    return out


def candidate_of(found: Found) -> Candidate:
    row = found.row
    values = {name: int(getattr(row, name)[0]) for name in Candidate._fields}
    values |= {
        "cp_kind": CP_KINDS[values["cp_kind"]],
        "sp": bool(values["sp"]),
        "schedule": SCHEDULES[values["schedule"]],
        "reshard": bool(values["reshard"]),
    }
    return Candidate(**values)


def offload_of(found: Found) -> str:
    """The class of what is on the hosts in fact."""
    offload = OFFLOADS[int(found.row.offload[0])]
    if not any(code >> HOST for stage in found.mixes for mix in stage for code, _ in mix):
        offload = "none" if offload == "activations" else offload.removesuffix("+activations")
    return offload


def layout_of(setting: Setting, found: Found) -> Layout:
    """The plan as a layout; written again here so that `decode` is not its own judge."""
    x = candidate_of(found)
    present = [tensor_bits(setting.framework, kind) for kind in setting.model.kinds]
    stages = words_of(found.mixes, present)
    uniform = [{word for word in kind if word != "-"} for kind in zip(*stages, strict=True)]
    alike = all(len(some) <= 1 and not any("*" in word for word in some) for some in uniform)
    return Layout(
        **x._asdict(),
        layers_per_stage=found.lengths,
        policies=tuple(next(iter(some), "none") for some in uniform) if alike else ("none",),
        stage_policies=() if alike else stages,
        offload=offload_of(found),
        placement=found.placement,
    )


def _fixed(placement: tuple[tuple[tuple[str, int], ...], ...]) -> tuple[frozenset[tuple[int, str, int]], ...]:
    """A placement with what counts: on a level each member with its factor and its stride.

    Members of a switched tier are compared with their order too: no rate depends on it, but the stages a host
    holds may.
    """
    out = []
    for members in placement:
        stride, level = 1, []
        for name, factor in members:
            level.append((stride, name, factor))
            stride *= factor
        out.append(frozenset(level))
    return tuple(out)
