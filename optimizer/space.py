"""The space of layouts, in refinements, each listed only where the one before survives its bound.

    frame   dp, cp, tp, pp, vpp, micro-batch, sequences
    shape   + ep, etp, cp_kind
    class   + offload, and the recompute policies where they have names alone (else they stay open: `optimizer.menus`)
    row     + dp split into dp_replicate and dp_shard, ZeRO level, reshard after forward
    plan    + placement, then policies that were open; the solver adds the layers of each stage

Limits of the space, by name: the rules of `costmodel.legal`; dp divides the batch and micro-batches are equal;
sp goes with tp unless asked otherwise (no layer is slower or larger with it); schedules other than 1F1B and interleaved
only if asked for (GPipe takes the time of 1F1B and holds more micro-batches; not every program splits the backward
pass as the others need); chunks of a stage are equal but for `legal.chunk_periods`; expert ranks are the
innermost of a stage; policies are the same on all stages, and those by tensor are ones that no other beats; and the
rules of the launcher (`optimizer.launchers`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.layout import CP_KINDS
from meshwright.costmodel.legal import RULES, Rule, offload_refusal
from meshwright.costmodel.offloads import OFFLOADS
from meshwright.costmodel.policies import open_code
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.schedules import ALL as ALL_SCHEDULES
from meshwright.costmodel.schedules import INTERLEAVED, ONE_F_ONE_B
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.tensors import CODES, OTHER
from meshwright.optimizer.constraints import Constraint
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.launchers.catalogue import launcher_of
from meshwright.optimizer.launchers.launcher import Launcher, LauncherRule
from meshwright.optimizer.menus import Menus
from meshwright.optimizer.queue import concatenate

Ints = NDArray[np.int64]
_FRAME_NAMES = {
    "dp",
    "cp",
    "tp",
    "pp",
    "vpp",
    "micro_batch",
    "sequences",
    "devices",
    "micro_batches",
    "schedule",
    "sp",
}
_SHAPE_NAMES = {"ep", "etp", "cp_kind"}
_CHOICE_NAMES = {"recompute", "offload"}
_ROW_NAMES = {
    "dp_replicate",
    "dp_shard",
    "zero",
    "reshard",
}  # recompute and offload are listed as allowed; of rules only a launcher's speak of them


@dataclass(frozen=True)
class Space:
    """What may be chosen, for one question.

    With fewer `rules` than all (None) it holds layouts that nothing can run, with other `bounds` than those of the setting's
    launcher (None) such as that does not run; explanations ask for that.
    """

    setting: Setting
    constraints: tuple[Constraint, ...]
    rules: tuple[Rule, ...] | None = None
    bounds: Launcher | None = None

    @cached_property
    def launcher(self) -> Launcher:
        return self.bounds or launcher_of(self.setting)

    @property
    def offloads_asked(self) -> tuple[str, ...]:
        """Offload classes that the user and the launcher allow."""
        wishes = [c for c in self.constraints if c.name == "offload"]
        return tuple(
            o for o in OFFLOADS if self.launcher.takes("offload", o) and all(c.allowed(o) for c in wishes)
        )

    @property
    def offloads(self) -> tuple[int, ...]:
        """Offload classes that the cluster can price, and the user and the launcher allow; refused ones are reported."""
        return tuple(
            OFFLOADS.index(o) for o in self.offloads_asked if offload_refusal(self.setting, o) is None
        )

    @property
    def policies(self) -> Ints:
        """Codes of the allowed recompute policies that have a name."""
        return np.array([code for name, code in CODES.items() if self.allows_policy(name)], np.int64)

    @property
    def any_policy(self) -> bool:
        """Whether the user and the launcher leave any recompute policy, with a name or without."""
        return bool(len(self.policies)) or self.allows_policy(OTHER)

    def allows_policy(self, name: str) -> bool:
        """Whether the user and the launcher allow a named recompute policy, or those without a name."""
        return self.launcher.takes("recompute", name) and all(
            c.allowed(name) for c in self.constraints if c.name == "recompute"
        )

    @property
    def kinds_by_weight(self) -> tuple[int, ...]:
        """Layer kinds, the one with most layers first."""
        counts = self.setting.model.layers_by_kind
        return tuple(sorted(range(len(counts)), key=lambda k: -counts[k]))

    @cached_property
    def batches(self) -> tuple[int, ...]:
        """Sequences per step to choose from: the batch asked for, then those of the tolerance that divide best."""
        training = self.setting.training
        near = np.array(training.sequence_range)
        for wish in self.constraints:
            if wish.name == "sequences":
                near = near[wish.allows(near)]
        asked = training.sequences
        order = np.lexsort((near, abs(near - asked), -_divisor_counts(near), near != asked))
        return tuple(near[order].tolist())

    @cached_property
    def menus(self) -> Menus:
        """Policies that may be chosen, by layer kind and shape."""
        return Menus(self.setting, self.allows_policy, self.offloads, self.launcher.mixes)

    def asks(self, name: str) -> bool:
        """Whether the user speaks of it, or the launcher needs what is listed only then."""
        return name in self.launcher.opens or any(c.name == name for c in self.constraints)


def frames(space: Space, funnel: Funnel, batches: Iterable[int]) -> Rows:
    """Every frame of some batches (sequences per step), as rows with nothing sharded yet."""
    setting = space.setting
    devices, layers = setting.cluster.devices, setting.model.layers
    heads = max(k.attention.heads for k in setting.model.kinds)
    tp = np.arange(1, min(devices, heads) + 1)
    tp = tp[[heads % t == 0 for t in tp]]
    cp = np.array([c for c in divisors(setting.training.seq_len) if c <= devices])
    pp = np.arange(1, min(devices, layers) + 1)
    vpp = np.array(divisors(layers))
    parts: list[Rows] = []
    for sequences in batches:
        dp = np.array([d for d in divisors(sequences) if d <= devices])
        grid = [x.ravel() for x in np.meshgrid(dp, tp, cp, pp, indexing="ij")]
        funnel.enter("degrees", len(grid[0]))
        fits = np.prod(grid, axis=0) <= devices
        funnel.remove("uses at most the devices there are", int((~fits).sum()))
        dp_, tp_, cp_, pp_ = (x[fits] for x in grid)
        parts.append(_micro_batches(sequences, dp_, tp_, cp_, pp_, vpp, funnel))
    rows = concatenate(parts)
    rows = _variants(space, rows)
    return _filter(space, rows, funnel, _FRAME_NAMES)[1]


def _micro_batches(sequences: int, dp: Ints, tp: Ints, cp: Ints, pp: Ints, vpp: Ints, funnel: Funnel) -> Rows:
    """Cross degrees with micro-batches that divide the rank's share, and with chunks."""
    pieces = []
    for one in np.unique(dp):
        sizes = np.array(divisors(int(sequences // one)))
        row, mb = (x.ravel() for x in np.meshgrid(np.flatnonzero(dp == one), sizes, indexing="ij"))
        funnel.enter("frames", len(row) * len(vpp))
        # Of these rules of every layout the first ones, applied early to keep the table small.
        rounds = (pp[row] > 1) & (sequences // (one * mb) % pp[row] == 0)
        room = np.where(rounds, vpp.max() // pp[row], 1)
        at = [np.arange(len(row)) if v == 1 else np.flatnonzero(room >= v) for v in vpp]
        of, chunks = np.concatenate(at), np.repeat(vpp, [len(x) for x in at])
        funnel.remove("chunks need a pipeline, whole rounds and a layer each", len(row) * len(vpp) - len(of))
        pieces.append((row[of], mb[of], chunks))
    row, mb, v = (np.concatenate(x) for x in zip(*pieces, strict=True))
    one = np.ones(len(row), np.int64)
    zero = np.zeros(len(row), np.int64)
    return Rows(
        dp_replicate=dp[row], dp_shard=one, zero=zero, reshard=one, cp=cp[row], cp_kind=zero, tp=tp[row], sp=one,
        pp=pp[row], vpp=v, schedule=np.where(v > 1, INTERLEAVED, ONE_F_ONE_B), ep=one, etp=one, micro_batch=mb, sequences=one * sequences,
        policies=np.zeros((len(row), 1), np.int64), offload=zero,
    )  # fmt: skip


def _variants(space: Space, rows: Rows) -> Rows:
    """Further schedules and sp=false where the user speaks of them; the right number of policy columns."""
    kinds = len(space.setting.model.kinds)
    rows = rows.with_columns(policies=np.full((len(rows), kinds), open_code(False)))
    if space.asks("schedule"):
        plain, parts = rows[(rows.vpp == 1) & (rows.pp > 1)], [rows]
        for code, schedule in enumerate(ALL_SCHEDULES):
            if code not in (ONE_F_ONE_B, INTERLEAVED):
                columns = {"schedule": code, "vpp": schedule.chunks}
                parts.append(plain.with_columns(**{n: np.full(len(plain), v) for n, v in columns.items()}))
        rows = concatenate(parts)
    if space.asks("sp"):
        cut = rows[rows.tp > 1]
        rows = concatenate([rows, cut.with_columns(sp=np.zeros(len(cut), np.int64))])
    return rows


def _filter(space: Space, rows: Rows, funnel: Funnel, decided: set[str]) -> tuple[Ints, Rows]:
    """(index, rows) of those that keep every rule and every wish about what is decided.

    Each removed one counts under the first it breaks.
    """
    tests: list[tuple[str, Callable[[Rows], Any]]]
    tests = [
        (rule.name, partial(rule.holds, space.setting))
        for rule in (RULES if space.rules is None else space.rules)
    ]
    tests += [(rule.name, partial(rule.holds, space.setting)) for rule in _due(space, decided)]
    tests += [(wish.text, wish.holds) for wish in space.constraints if wish.name in decided]
    index, left = np.arange(len(rows)), np.ones(len(rows), bool)
    for number, (name, holds) in enumerate(tests):
        good = holds(rows)
        funnel.remove(name, int((left & ~good).sum()))
        left &= good
        # Copying rows costs more than testing a rule on a few that are gone already.
        if 10 * int(left.sum()) < 7 * len(left) or number == len(tests) - 1:
            index, rows = index[left], rows[left]
            left = np.ones(len(rows), bool)
    return index, rows


def _due(space: Space, decided: set[str]) -> list[LauncherRule]:
    """Rules of the launcher whose last open decision has just been taken."""
    steps = (_FRAME_NAMES, _SHAPE_NAMES, _CHOICE_NAMES, _ROW_NAMES)
    later = set().union(*steps[steps.index(decided) + 1 :])
    return [rule for rule in space.launcher.rules if rule.reads & decided and not rule.reads & later]


def with_experts(space: Space, frame: Rows, funnel: Funnel) -> Rows:
    """Frames with expert parallelism and kind of context parallelism."""
    experts = [k.ffn.experts for k in space.setting.model.kinds if k.ffn.experts]
    rows = _cross(frame, "cp_kind", range(len(CP_KINDS)), lambda r, v: (v == 0) | (r.cp > 1))
    if experts:
        choices = divisors(int(np.gcd.reduce(experts)))
        rows = _cross(rows, "ep", choices, lambda r, v: r.stage_devices % v == 0)
        inside = rows[rows.tp > 1]
        rows = concatenate([rows, inside.with_columns(etp=inside.tp)])
    funnel.enter("shapes", len(rows))
    return _filter(space, rows, funnel, _SHAPE_NAMES)[1]


def with_sharding(space: Space, rows: Rows, funnel: Funnel) -> tuple[Ints, Rows]:
    """(row of each, rows with every split of dp into dp_replicate and dp_shard and every ZeRO level;
    under ZeRO-3 with weights gathered again for backward, and with weights kept for it)."""
    row, shard, zero, reshard = [], [], [], []
    for dp in np.unique(rows.dp_replicate):
        at = np.flatnonzero(rows.dp_replicate == dp)
        split = at[rows.cp[at] > 1]  # without cp, ZeRO over a single data rank is no ZeRO
        for ways, level, again in _sharding(int(dp)):
            of = at if level == 0 or ways > 1 else split
            row.append(of)
            shard.append(np.full(len(of), ways))
            zero.append(np.full(len(of), level))
            reshard.append(np.full(len(of), again))
    of_row, sharded = np.concatenate(row), np.concatenate(shard)
    out = rows[of_row]
    out = out.with_columns(
        dp_replicate=out.dp_replicate // sharded,
        dp_shard=sharded,
        zero=np.concatenate(zero),
        reshard=np.concatenate(reshard),
    )
    funnel.enter("rows", len(out))
    kept, out = _filter(space, out, funnel, _ROW_NAMES)
    return of_row[kept], out


def with_offload(space: Space, rows: Rows, funnel: Funnel) -> Rows:
    """Rows crossed with every allowed offload class, where that leaves every layer kind a policy."""
    out = concatenate([offloading(rows, c) for c in space.offloads]) if space.offloads else rows[:0]
    wishes = [c.text for c in space.constraints if c.name == "recompute"]
    if not wishes or not len(out):
        return out
    some = [space.menus.of(out, kind).any_policy for kind in range(len(space.setting.model.kinds))]
    return funnel.keep(", ".join(wishes), out, np.all(some, axis=0))


def offloading(rows: Rows, offload: int) -> Rows:
    """Rows whose policies are open, with one offload class."""
    open_ = np.full_like(rows.policies, open_code("activations" in OFFLOADS[offload]))
    return rows.with_columns(offload=np.full(len(rows), offload), policies=open_)


def with_policy(space: Space, rows: Rows, kind: int, funnel: Funnel) -> Rows:
    """Rows crossed with every policy of one layer kind."""
    out = space.menus.of(rows, kind).chosen_rows(rows, kind, np.ones((len(rows), 1), bool))
    funnel.enter("choices", len(out))
    return with_choices_kept(space, out, funnel) if kind == space.kinds_by_weight[-1] else out


def with_choices_kept(space: Space, rows: Rows, funnel: Funnel) -> Rows:
    """Rows with all policies chosen that keep the launcher's rules about them."""
    for rule in _due(space, _CHOICE_NAMES):
        rows = funnel.keep(rule.name, rows, rule.holds(space.setting, rows))
    return rows


def with_leanest(space: Space, rows: Rows, kind: int) -> Rows:
    """Rows with the policy of one layer kind that saves least on the device: full recompute, where it is allowed."""
    menu = space.menus.of(rows, kind, named_only=space.allows_policy("full"))
    return menu.chosen_rows(rows, kind, menu.leanest())


def _sharding(dp: int) -> Iterable[tuple[int, int, int]]:
    """(dp_shard, zero, reshard): ZeRO-0 replicates everything, the others shard over any divisor."""
    yield 1, 0, 1
    for shard in divisors(dp):
        for zero, reshard in ((1, 1), (2, 1), (3, 1), (3, 0)):
            yield shard, zero, reshard


def _cross(rows: Rows, name: str, values: Sequence[int], legal: Callable[[Rows, int], Any]) -> Rows:
    parts = []
    for value in values:
        part = rows[legal(rows, value)]
        parts.append(part.with_columns(**{name: np.full(len(part), value)}))
    out: Rows = concatenate(parts)
    return out


def _divisor_counts(numbers: Ints) -> Ints:
    """How many divisors each of some consecutive or scattered numbers has."""
    counts = np.zeros_like(numbers)
    for d in range(1, int(numbers.max(initial=0)) + 1):
        if d * d > numbers.max(initial=0):
            break
        divides = (numbers % d == 0) & (numbers >= d * d)
        counts += divides * np.where(numbers == d * d, 1, 2)
    return counts


def divisors(n: int) -> list[int]:
    """All divisors of n, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})
