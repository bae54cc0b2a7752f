"""The clash of a question that rules leave no candidate, whatever the memory: constraints, rules of every layout, rules of
the launcher, the network.

Candidates are listed as the search lists them but never priced, so any rule can be left out. Decisions that no later rule
reads are merged on the way.
"""

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial

import numpy as np

from meshwright.costmodel.layout import DIMENSIONS, Layout, with_stages
from meshwright.costmodel.legal import Rule, chunk_unit
from meshwright.costmodel.offloads import OFFLOADS
from meshwright.costmodel.placement import unplaceable
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.tensors import CODES, OPEN, away
from meshwright.hardware.errors import LayoutError
from meshwright.optimizer.decode import layout_of
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.launchers.catalogue import launcher_of
from meshwright.optimizer.launchers.launcher import Launcher, LauncherRule
from meshwright.optimizer.queue import concatenate
from meshwright.optimizer.reasons.effort import Effort
from meshwright.optimizer.reasons.limits import LAUNCHER, RULE, Clash, Limit, filtered, wishes_of
from meshwright.optimizer.reasons.makings import contradicted
from meshwright.optimizer.reasons.solving import Case
from meshwright.optimizer.settle import Found
from meshwright.optimizer.shortfall import places
from meshwright.optimizer.space import (
    Space,
    frames,
    offloading,
    with_choices_kept,
    with_experts,
    with_sharding,
)

_NETWORK = "the degrees fit the network together"
_AT_ONCE = 2048
_MOST = 4_000_000  # candidates listed with their sharding, after which it is left open
# Decisions of a row that no rule of every layout looks at together with its sharding.
_MERGED = ("vpp", "schedule", "micro_batch", "sequences", "policies")


def clash_of_rules(case: Case, batch_sizes: int, effort: Effort | None = None) -> Clash | None:
    """A minimal clash among constraints and rules; None where they leave a candidate, so that memory decides, or where
    too many would have to be listed."""

    effort = effort or Effort()

    def feasible(some: Case) -> bool | None:
        row, settled = legal_row(some, batch_sizes, effort)
        return True if row is not None else False if settled else None

    if feasible(case) is not False:
        return None
    wishes, proven = filtered(case, wishes_of(case), feasible, rest=True)
    texts = {limit.text for limit in wishes}
    case = replace(case, wishes=tuple(w for w in case.wishes if w.text in texts))
    rules, settled = filtered(case, _rules_of(case), feasible, rest=True)
    told = tuple(_telling(case, limit, batch_sizes, effort) for limit in rules)
    if not rules and (says := contradicted(case.setting, case.wishes)) is not None:
        told = (Limit(RULE, says, lambda c: c),)
    return Clash((*wishes, *told), proven and settled)


def _rules_of(case: Case) -> tuple[Limit, ...]:
    """Every rule of layouts, of the launcher and of the network."""
    limits = [Limit(RULE, r.name, partial(_without_rule, r)) for r in case.rules]
    limits.append(Limit(RULE, _NETWORK, lambda c: replace(c, placed=False)))
    for rule in launcher_of(case.setting).rules:
        limits.append(Limit(LAUNCHER, rule.name, partial(_unbound, rule), source=rule.source))
    return tuple(limits)


def _without_rule(rule: Rule, case: Case) -> Case:
    return replace(case, rules=tuple(r for r in case.rules if r is not rule))


def _unbound(rule: LauncherRule, case: Case) -> Case:
    return replace(case, unbound=case.unbound | {rule.name})


def _bounds(case: Case) -> Launcher:
    """The launcher with what is left of its rules. Its words only shorten lists: the rules say the same."""
    own = launcher_of(case.setting)
    if not own.bounds:
        return own
    rules = tuple(rule for rule in own.rules if rule.name not in case.unbound)
    numbered = any(not rule.reads for rule in rules)
    return replace(
        own, rules=rules, policies=None, offloads=None, schedules=None,
        rank_orders=own.rank_orders if numbered else (), one_level=own.one_level and numbered,
    )  # fmt: skip


def legal_row(case: Case, batch_sizes: int, effort: Effort | None = None) -> tuple[Rows | None, bool]:
    """(a candidate that constraints and rules leave, whether all were looked at where there is none)."""
    space, listed = Space(case.setting, case.wishes, case.rules, _bounds(case)), 0
    if not space.offloads or not space.any_policy:
        return None, True
    for rows in _sharded(space, batch_sizes):
        listed += len(rows)
        rows = _distinct(rows, {f.name for f in fields(rows)} - {*DIMENSIONS})
        for i in range(len(rows)):
            if not case.placed or places(space, rows[i : i + 1]):
                return rows[i : i + 1], True
        if listed > _MOST or (effort and effort.tick(f"which rules leave a layout, {listed:,} listed")):
            return None, False
    return None, True


def _sharded(space: Space, batch_sizes: int) -> Iterator[Rows]:
    """Candidates with all that rows decide, some at a time."""
    funnel = Funnel()
    read = set().union(*(rule.reads for rule in space.launcher.rules)) if space.launcher.rules else set()
    if "micro_batches" in read:
        read |= {"micro_batch", "sequences"}
    merged = {*_MERGED} - read
    for batch in space.batches[:batch_sizes]:
        frame = _distinct(frames(space, funnel, (batch,)), merged)
        for at in range(0, len(frame), _AT_ONCE):
            rows = with_experts(space, frame[at : at + _AT_ONCE], funnel)
            rows = concatenate([_chosen(space, offloading(rows, offload)) for offload in space.offloads])
            rows = _distinct(with_choices_kept(space, rows, funnel), {*_MERGED} - (read - {"recompute"}))
            for part in range(0, len(rows), _AT_ONCE):
                yield with_sharding(space, rows[part : part + _AT_ONCE], funnel)[1]


def _chosen(space: Space, rows: Rows) -> Rows:
    """Rows with every named policy that is allowed, where the launcher has rules about them; else as they are."""
    if not any("recompute" in rule.reads for rule in space.launcher.rules):
        return rows
    codes = space.policies
    if len(rows) and "activations" in OFFLOADS[int(rows.offload[0])].split("+"):
        codes = np.array([away(int(code)) for code in codes], np.int64)
    for kind in range(rows.policies.shape[1]):
        row, code = (x.ravel() for x in np.meshgrid(np.arange(len(rows)), codes, indexing="ij"))
        rows = rows[row]
        policies = rows.policies.copy()
        policies[:, kind] = code
        rows = rows.with_columns(policies=policies)
    return rows


def _distinct(rows: Rows, merged: set[str]) -> Rows:
    """The first of rows that differ in merged decisions alone."""
    if not len(rows):
        return rows
    columns = [getattr(rows, f.name).reshape(len(rows), -1) for f in fields(rows) if f.name not in merged]
    _, first = np.unique(np.hstack(columns), axis=0, return_index=True)
    return rows[np.sort(first)]


def _telling(case: Case, limit: Limit, batch_sizes: int, effort: Effort) -> Limit:
    """The limit with what it says to a layout that nothing else forbids."""
    row, _ = legal_row(limit.drop(case), batch_sizes, effort)
    if row is None:
        return limit
    try:
        layout = _layout_of(case, row)
    except LayoutError as broken:
        return replace(limit, says=str(broken))
    if limit.text == _NETWORK:
        return replace(limit, says=unplaceable(layout, case.setting.cluster.levels))
    rules = (*case.rules, *launcher_of(case.setting).rules)
    rule = next(rule for rule in rules if rule.name == limit.text)
    return replace(limit, says=rule.message(case.setting, layout))


def _layout_of(case: Case, row: Rows) -> Layout:
    setting = case.setting
    codes = [CODES["none"] if code & OPEN else code for code in row.policies[0].tolist()]
    found = Found(row, (), (), (tuple(((code, 1),) for code in codes),), 0.0, 0.0, 0.0)
    layout = layout_of(setting, found)
    return with_stages(layout, setting.model.layers, chunk_unit(setting, layout.vpp))
