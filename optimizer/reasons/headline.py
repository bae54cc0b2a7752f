"""The sentence of a proven no: every member of the clash, what is missing, and the way out.

Where rules leave no candidate the members are a minimal clash (`reasons.rule_clash`), told here and now. Where memory
decides they are all that was asked for; `narrowed` leaves the ones that the clash needs, found by solving.
"""

from collections.abc import Sequence

from meshwright.costmodel.legal import RULES, offload_refusal
from meshwright.costmodel.offloads import OFFLOADS
from meshwright.costmodel.setting import Setting
from meshwright.hardware.units import human_bytes
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.decode import layout_of
from meshwright.optimizer.plan import Infeasible, LimitMissed
from meshwright.optimizer.progress import Progress
from meshwright.optimizer.reasons.clash import clash_of
from meshwright.optimizer.reasons.effort import Effort
from meshwright.optimizer.reasons.limits import (
    CONSTRAINT,
    HOST_MEMORY,
    LAUNCHER,
    MEMORY,
    Clash,
    Limit,
    limits_of,
)
from meshwright.optimizer.reasons.rule_clash import clash_of_rules
from meshwright.optimizer.reasons.solving import Case
from meshwright.optimizer.shortfall import closest_miss
from meshwright.optimizer.solve import HOSTS, TOO_LARGE, Search, SolveOptions
from meshwright.optimizer.space import Space


def infeasible(search: Search) -> Infeasible:
    """What a search that found nothing says: hosts, memory with the closest miss, or rules that leave nothing."""
    space, removed = search.space, search.funnel.removed
    case = Case(space.setting, space.constraints, RULES if space.rules is None else space.rules)
    limits = limits_of(case)
    if HOSTS in removed:
        return Infeasible(_memory_told(case, limits), None, None, removed)
    effort = Effort(watch=search.watch if isinstance(search.watch, Progress) else None)
    sizes = search.options.batch_sizes
    found, short = closest_miss(space, sizes, effort.tick) if TOO_LARGE in removed else (None, 0.0)
    if found is not None and short > 0:
        asked = tuple(limit for limit in limits if limit.kind != HOST_MEMORY)
        return Infeasible(_memory_told(case, asked), short, layout_of(space.setting, found), removed)
    clash = None if effort.stopped else clash_of_rules(case, sizes, effort)
    if clash is None and effort.stopped:
        reason = f"no layout{_left_by(limits, space.setting)} fits; what clashes was not settled when it was interrupted."
        return Infeasible(reason, None, None, removed)
    if clash is None and TOO_LARGE in removed and any(limit.kind == HOST_MEMORY for limit in limits):
        # Devices alone could hold a layout, or hosts theirs: together they hold none.
        return Infeasible(_memory_told(case, limits), None, None, removed)
    told = _undecided_told(limits, removed) if clash is None else _rules_told(clash)
    return Infeasible(told, None, None, removed, clash)


def narrowed(
    no: Infeasible,
    given: Setting,
    constraints: str | None,
    options: SolveOptions,
    effort: Effort | None = None,
) -> Infeasible:
    """The same no; where memory decides, with a sentence that names the members of the clash alone."""
    if isinstance(no, LimitMissed) or no.clash is not None:
        return no
    case = Case(given, parse_constraints(constraints))
    clash = clash_of(case, options, effort)
    told = _memory_told(case, clash.limits) if clash.kinds & {MEMORY, HOST_MEMORY} else no.reason
    return Infeasible(told if clash.proven else no.reason, no.short_bytes, no.layout, no.removed, clash)


def _memory_told(case: Case, limits: Sequence[Limit]) -> str:
    """Devices, hosts or both are too small, for every layout that the other limits leave."""
    kinds, left = {limit.kind for limit in limits}, _left_by(limits, case.setting)
    if HOST_MEMORY in kinds:
        host = human_bytes(case.setting.cluster.host_memory_bytes or 0)
        fits = " that fits the device memory" if MEMORY in kinds else ""
        also = fits.replace(" that", " and", 1) if left.endswith("can run") else fits
        none = "" if "none" in case.space.offloads_asked else ", or allow offload=none"
        return f"every layout{left}{also} overfills a host of {host}; give more with --host-memory{none}."
    reason = f"the device memory is too small for every layout{left}."
    space = case.space
    for refusal in not_considered(space):
        missing = refusal.removeprefix("not considered: ").rpartition(", or use ")[0]
        parts = (part for i in space.offloads if i for part in OFFLOADS[i].split("+"))
        tried = _and(sorted(set(parts)))
        reason += (
            f" {f'Offload of {tried} is not enough; more' if tried else 'Offload'} was no option: {missing}."
        )
    return reason


def asked_of(space: Space) -> str:
    """` under constraint 'zero==0' that megatron can run`: what bounds the plans of a space beside the machine."""
    return _left_by(limits_of(Case(space.setting, space.constraints)), space.setting)


def _left_by(limits: Sequence[Limit], setting: Setting) -> str:
    """` under constraint 'zero==0' that megatron can run`; nothing where there are neither."""
    wishes = _wishes_told(limits)
    launcher = any(limit.kind == LAUNCHER for limit in limits)
    return (f" under {wishes}" if wishes else "") + (f" that {setting.launcher} can run" if launcher else "")


def _wishes_told(limits: Sequence[Limit]) -> str:
    """`constraint 'tp==8'`, `constraints 'tp==8' and 'pp==1'`."""
    texts = [repr(limit.text) for limit in limits if limit.kind == CONSTRAINT]
    noun = "constraint" if len(texts) == 1 else "constraints"
    return f"{noun} {_and(texts)}" if texts else ""


def _rules_told(clash: Clash) -> str:
    """Constraints and rules that leave nothing, with what each rule says."""
    wishes = [limit for limit in clash.limits if limit.kind == CONSTRAINT]
    rules = [limit for limit in clash.limits if limit.kind != CONSTRAINT]
    way = "Change the batch or the machine"
    if wishes:
        way = f"Drop or widen {'the constraint' if len(wishes) == 1 else 'one of the constraints'}"
    if any(limit.kind == LAUNCHER for limit in rules):
        way += ", or use --launcher any"
    named = [limit for limit in rules if limit.says]
    who = [_wishes_told(wishes)] if wishes else []
    who += [f"the {'launcher ' if limit.kind == LAUNCHER else ''}rule {limit.text!r}" for limit in named]
    why = "; ".join([limit.says or limit.text for limit in rules])
    verb = "leaves" if len(wishes) + len(named) == 1 else "leave"
    return f"{_and(who or ['the rules of every layout'])} {verb} no layout{f': {why}' if why else ''}. {way}."


def _undecided_told(limits: Sequence[Limit], removed: dict[str, int]) -> str:
    """Where too many candidates would have to be listed: all that was asked for, and the rule that most fall to."""
    asked = [_wishes_told(limits), *(limit.text for limit in limits if limit.kind == LAUNCHER)]
    worst = max(removed, key=lambda rule: removed[rule], default="")
    most = f"; most candidates fall to {worst!r} ({removed[worst]:,})" if worst else ""
    return f"{_and([*filter(None, asked), 'the rules of every layout'])} leave no layout together{most}. Drop or widen one."


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def not_considered(space: Space) -> tuple[str, ...]:
    """Offload classes that the user allows and the cluster cannot price."""
    out: dict[str, str] = {}
    for offload in space.offloads_asked:
        if refusal := offload_refusal(space.setting, offload):
            # One missing figure, such as the host's memory, is one thing to say.
            out.setdefault(refusal.partition(" needs ")[2], f"not considered: {refusal}")
    return tuple(out.values())
