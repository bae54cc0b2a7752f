"""The whole program of a small question as one CP-SAT model: degrees are integer variables that multiply.

Knows nothing of the optimizer: no rows, no bounds, no order of decisions. Degrees, micro-batches, ranks' factors on the
network, layers of each stage and of each policy are integers; the rules of the space are products and remainders of
them (written again from the words of `docs/space.md`). Costs of a layer, of an end of the model and of what a stage does
once per step are looked up in tables (`monolithic_costs`); the seconds and bytes of stages, hosts and steps are products
and sums of those.

Seconds are whole ticks, rounded to the nearest; `slack_s` is what all roundings together can hide. Bytes are rounded up.
"""

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import prod
from typing import Any

import numpy as np
from exhaustive_oracle import DEGREES, Wishes, priced_offloads
from independent_rules import shortest_period
from monolithic_costs import Costs, Table, factor, mesh, stride
from ortools.sat.python import cp_model
from tensor_oracle import Listed

from meshwright.costmodel.layout import CP_KINDS, OFFLOADS, Placement
from meshwright.costmodel.schedules import SCHEDULES
from meshwright.costmodel.setting import Setting
from meshwright.hardware.network import TorusAxis

WORDS = {name: i for names in (CP_KINDS, SCHEDULES) for i, name in enumerate(names)} | {"true": 1, "false": 0}
COMPARE = {"<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt}
TERM = re.compile(r"(\w+)\s*(<=|>=|==|!=|<|>|in)\s*(\{[^}]*\}|[^,]+)")
INTERLEAVED, DUALPIPEV = SCHEDULES.index("interleaved"), SCHEDULES.index("dualpipev")
LEAST_ROUNDS = {"zb_h1": (1, 0), "zb_h2": (2, 1), "dualpipev": (2, 0)}  # (a, b): a pp - b micro-batches


@dataclass(frozen=True)
class Answer:
    """What the program proves: status of CP-SAT, seconds of the nominal batch, and the plan of its decisions.

    Attributes:
        mixes: (policy, layers) of each kind by stage.
    """

    status: str
    seconds: float = np.inf
    slack_s: float = 0.0
    decisions: dict[str, int] | None = None
    placement: Placement = ()
    lengths: tuple[int, ...] = ()
    mixes: tuple[tuple[tuple[tuple[int, int], ...], ...], ...] = ()


class Program(cp_model.CpModel):
    """A model whose integers know their least and largest values, so that products do."""

    def __init__(self) -> None:
        super().__init__()
        self._range: dict[int, tuple[int, int]] = {}

    def number(self, most: int, least: int = 0, name: str = "") -> Any:
        out = self.new_int_var(least, most, name)
        self._range[out.index] = least, most
        return out

    def among(self, values: Sequence[int], name: str) -> Any:
        out = self.new_int_var_from_domain(cp_model.Domain.from_values(list(values)), name)
        self._range[out.index] = min(values), max(values)
        return out

    def most(self, value: Any) -> int:
        return value if isinstance(value, int) else self._range[value.index][1]

    def least(self, value: Any) -> int:
        return value if isinstance(value, int) else self._range[value.index][0]

    def product(self, *factors: Any) -> Any:
        out = self.number(prod(map(self.most, factors)), prod(map(self.least, factors)))
        self.add_multiplication_equality(out, factors)
        return out

    def remainder(self, whole: Any, by: Any) -> Any:
        out = self.number(max(self.most(by) - 1, 0))
        self.add_modulo_equality(out, whole, by)
        return out

    def divides(self, by: Any, whole: Any) -> Any:
        """How often `by` goes into `whole`, which it must do without a rest."""
        out = self.number(self.most(whole))
        self.add_multiplication_equality(whole, [by, out])
        return out

    def is_true(self, condition: Any, otherwise: Any) -> Any:
        """A literal of a condition and its opposite."""
        out = self.new_bool_var("")
        self.add(condition).only_enforce_if(out)
        self.add(otherwise).only_enforce_if(~out)
        return out

    def where(self, literal: Any, then: Any, otherwise: int = 0) -> Any:
        out = self.number(max(self.most(then), otherwise), min(self.least(then), otherwise))
        self.add(out == then).only_enforce_if(literal)
        self.add(out == otherwise).only_enforce_if(~literal)
        return out

    def looked_up(self, table: Table, of: dict[str, Any]) -> list[Any]:
        """The numbers of a table that decisions tell."""
        width = len(table.tuples[0]) - len(table.keys)
        numbers = [self.number(max(t[len(table.keys) + i] for t in table.tuples)) for i in range(width)]
        self.add_allowed_assignments([of[k] for k in table.keys] + numbers, table.tuples)
        return numbers


def wished(text: str) -> list[tuple[str, Any]]:
    """(name, whether a value is allowed) of each constraint on a number."""
    out = []
    for name, sign, right in TERM.findall(text):
        if name not in ("recompute", "offload"):
            values = [WORDS[w] if w in WORDS else int(w) for w in re.findall(r"\w+", right)]
            compare = COMPARE.get(sign)
            out.append((name, lambda x, c=compare, v=values: x in v if c is None else c(x, v[0])))
    return out


class Whole:
    """The program of a question."""

    def __init__(self, setting: Setting, text: str, wishes: Wishes) -> None:
        self.setting, self.program, self.wishes = setting, Program(), wishes
        self.wished, self.offloads = wished(text), priced_offloads(setting, wishes)
        self.at: dict[str, Any] = {}
        domains, p = self._domains(), self.program
        made = mesh(setting, domains)
        self.whole = bool(len(made)) and all(domains.values())
        if not self.whole:
            return
        self.costs = Costs(setting, Listed(setting, wishes.policy), self.offloads, made)
        for name, values in domains.items():
            self.at[name] = p.among(values, name)
        self._degrees()
        self._schedule()
        self._model()
        self._zero()
        self._network()
        for name, allowed in self.wished:
            values = [v for v in range(p.most(self.at[name]) + 1) if allowed(v)]
            p.add_linear_expression_in_domain(self.at[name], cp_model.Domain.from_values(values))
        self._stages()
        self._layers()
        self._seconds()
        self._memory()
        self._step()

    def _domains(self) -> dict[str, list[int]]:
        """Values of each decision, less those that a constraint on it alone takes away."""
        setting = self.setting
        devices, layers = setting.cluster.devices, setting.model.layers
        experts = any(k.ffn.experts for k in setting.model.kinds)
        one_to = list(range(1, devices + 1))
        domains = {d: one_to for d in DEGREES} | {
            "pp": list(range(1, min(devices, layers) + 1)),
            "zero": [0, 1, 2, 3], "reshard": [0, 1], "cp_kind": [0, 1, 2],
            "sp": [0, 1] if self.wishes.asks_sp else [1],
            "vpp": list(range(1, layers + 1)),
            "schedule": list(range(len(SCHEDULES))) if self.wishes.asks_schedule else [1, INTERLEAVED],
            "ep": one_to if experts else [1], "etp": one_to if experts else [1],
            "sequences": list(setting.training.sequence_range),
            "micro_batch": list(range(1, max(setting.training.sequence_range) + 1)),
            "offload": [OFFLOADS.index(o) for o in self.offloads],
        }  # fmt: skip
        for name, allowed in self.wished:
            if name in domains:
                domains[name] = [v for v in domains[name] if allowed(v)]
        return domains

    def _degrees(self) -> None:
        p, at, devices = self.program, self.at, self.setting.cluster.devices
        at["dp"] = p.product(at["dp_replicate"], at["dp_shard"])
        at["shard"] = p.product(at["dp_shard"], at["cp"])
        at["stage"] = p.product(at["dp"], at["cp"], at["tp"])
        at["devices"] = p.number(devices, 1)
        p.add_multiplication_equality(at["devices"], [at["stage"], at["pp"]])
        batch = p.number(p.most(at["sequences"]), 1)
        p.add_multiplication_equality(batch, [at["dp"], at["micro_batch"]])
        at["micro_batches"] = p.divides(batch, at["sequences"])
        at["edp"] = p.divides(p.product(at["ep"], at["etp"]), at["stage"])

    def _schedule(self) -> None:
        p, at, setting = self.program, self.at, self.setting
        layers, period = setting.model.layers, shortest_period(setting.model.pattern)
        self.flat = flat = p.is_true(at["vpp"] == 1, at["vpp"] >= 2)
        self.turns = p.is_true(at["schedule"] == DUALPIPEV, at["schedule"] != DUALPIPEV)
        dealt = p.is_true(at["schedule"] == INTERLEAVED, at["schedule"] != INTERLEAVED)
        p.add_bool_or(dealt, self.turns).only_enforce_if(~flat)
        p.add_implication(dealt, ~flat)
        p.add(at["vpp"] == 2).only_enforce_if(self.turns)
        alone = p.is_true(at["pp"] == 1, at["pp"] >= 2)
        p.add(at["schedule"] == SCHEDULES.index("1f1b")).only_enforce_if(alone)  # with one stage all are one
        p.add(p.remainder(at["micro_batches"], at["pp"]) == 0).only_enforce_if(dealt)
        splits = []
        for name, (times, less) in LEAST_ROUNDS.items():
            number = SCHEDULES.index(name)
            runs = p.is_true(at["schedule"] == number, at["schedule"] != number)
            p.add(at["micro_batches"] >= times * at["pp"] - less).only_enforce_if(runs)
            splits.append(runs)
        self.splits = p.new_bool_var("splits")
        p.add_max_equality(self.splits, splits)
        # A stage holds whole layers, or whole rounds of the pattern in each chunk.
        self.unit = p.number(layers * period, 1)
        p.add(self.unit == 1).only_enforce_if(flat)
        p.add(self.unit == period * at["vpp"]).only_enforce_if(~flat)

    def _model(self) -> None:
        p, at, setting = self.program, self.at, self.setting
        together = p.product(at["cp"], at["tp"])
        turned = p.is_true(at["cp_kind"] == CP_KINDS.index("all_to_all"), at["cp_kind"] != CP_KINDS.index("all_to_all"))
        for kind in setting.model.kinds:
            heads, kv, ffn = kind.attention.heads, kind.attention.kv_heads, kind.ffn
            p.divides(at["tp"], heads)
            # One of the two divides the other.
            p.add_multiplication_equality(0, [p.remainder(kv, at["tp"]), p.remainder(at["tp"], kv)])
            for number in (heads, kv):
                p.add(p.remainder(number, together) == 0).only_enforce_if(turned)
            p.add(p.remainder(ffn.width, at["tp"]) == 0)
            if ffn.experts:
                p.divides(at["ep"], ffn.experts)
                p.divides(at["etp"], ffn.expert_width)
        cut = p.is_true(at["etp"] >= 2, at["etp"] == 1)
        p.add(at["etp"] == at["tp"]).only_enforce_if(cut)
        self.experts_cut = cut
        apart = p.is_true(at["cp"] >= 2, at["cp"] == 1)
        p.add(at["cp_kind"] == 0).only_enforce_if(~apart)  # with cp = 1 all kinds are one
        pieces = p.where(apart, p.product(2, at["cp"]), 1)
        spread = p.is_true(at["sp"] == 1, at["sp"] == 0)
        p.divides(p.product(pieces, p.where(spread, at["tp"], 1)), setting.training.seq_len)
        p.add(at["tp"] >= 2).only_enforce_if(~spread)

    def _zero(self) -> None:
        p, at = self.program, self.at
        none = p.is_true(at["zero"] == 0, at["zero"] >= 1)
        p.add(at["dp_shard"] == 1).only_enforce_if(none)
        p.add(at["shard"] >= 2).only_enforce_if(~none)
        stays = p.is_true(at["reshard"] == 0, at["reshard"] == 1)
        p.add(at["zero"] == 3).only_enforce_if(stays)
        parts = p.is_true(at["zero"] >= 2, at["zero"] <= 1)
        ranks = p.product(at["dp"], at["cp"])
        for code in (OFFLOADS.index(o) for o in self.offloads):
            away = p.is_true(at["offload"] == code, at["offload"] != code)
            if "parameters" in OFFLOADS[code]:
                p.add(at["zero"] == 3).only_enforce_if(away)
            if "gradients" in OFFLOADS[code]:
                p.add(at["dp_replicate"] == 1).only_enforce_if(away, parts)
                p.add(ranks == 1).only_enforce_if(away, ~parts)
                if any(k.ffn.experts for k in self.setting.model.kinds):
                    p.add(at["edp"] == 1).only_enforce_if(away, ~parts)

    def _network(self) -> None:
        """Factors of the degrees on each level, their order on a torus axis, and room for expert ranks."""
        p, at, levels = self.program, self.at, self.setting.cluster.levels
        on: list[dict[str, Any]] = []
        for number, level in enumerate(levels):
            here = {d: p.number(min(level.size, p.most(at[d])), 1, factor(d, number)) for d in DEGREES}
            used = p.number(level.size, 1)
            p.add_multiplication_equality(used, list(here.values()))
            on.append(here)
            at |= {factor(d, number): f for d, f in here.items()}
            if isinstance(level, TorusAxis):
                self._order(here, number)
        for d in DEGREES:
            p.add_multiplication_equality(at[d], [here[d] for here in on])
        ranks = []
        for here in on:
            inside = p.where(self.experts_cut, here["tp"], 1)
            stage = p.product(*(here[d] for d in DEGREES if d != "pp"))
            room = p.divides(inside, stage)
            own = p.number(p.most(at["ep"]), 1)
            p.divides(own, room)
            ranks.append(own)
        p.add_multiplication_equality(at["ep"], ranks)

    def _order(self, here: dict[str, Any], number: int) -> None:
        p = self.program
        inside = {}
        for a, b in combinations(DEGREES, 2):
            inside[a, b] = p.new_bool_var(f"{a} inside {b}")
            inside[b, a] = ~inside[a, b]
        for a, b, c in permutations(DEGREES, 3):
            p.add_bool_or(~inside[a, b], ~inside[b, c], inside[a, c])
        for d in DEGREES:
            within = p.product(*(p.where(inside[e, d], here[e], 1) for e in DEGREES if e != d))
            there = p.is_true(here[d] >= 2, here[d] == 1)
            self.at[stride(d, number)] = p.where(there, within, 1)

    def _stages(self) -> None:
        """Layers of each stage, in all and of each kind."""
        p, at, model = self.program, self.at, self.setting.model
        pattern = np.array(model.pattern)
        self.length, self.counts, self.used, self.last = [], [], [], []
        at_end = p.number(p.most(at["pp"]) - 1)
        p.add(at_end == at["pp"] - 1)
        last = p.where(~self.turns, at_end)
        stop: Any = 0
        for s in range(self.costs.stages):
            length = p.number(model.layers, 0, f"layers of stage {s}")
            p.divides(self.unit, length)
            used = p.is_true(at["pp"] >= s + 1, at["pp"] <= s)
            p.add(length >= 1).only_enforce_if(used)
            p.add(length == 0).only_enforce_if(~used)
            start, stop = stop, p.number(model.layers)
            p.add(stop == start + length)
            counts = []
            for k, of_kind in enumerate(model.layers_by_kind):
                before = np.concatenate([[0], np.cumsum(pattern == k)]).tolist()
                ends = [p.number(of_kind) for _ in range(2)]
                for place, sum_before in zip((start, stop), ends, strict=True):
                    p.add_element(place, before, sum_before)
                count = p.number(of_kind)
                p.add(count == ends[1] - ends[0]).only_enforce_if(self.flat)
                p.add(model.layers * count == of_kind * length).only_enforce_if(~self.flat)
                counts.append(count)
            self.length.append(length)
            self.counts.append(counts)
            self.used.append(used)
            is_last = p.new_bool_var("")
            p.add(last == s).only_enforce_if(is_last)
            p.add(last != s).only_enforce_if(~is_last)
            self.last.append(is_last)
        p.add(stop == model.layers)

    def _layers(self) -> None:
        """Policies of each stage's layers: n - x layers the one, x the other; all layers one where they may not differ."""
        p = self.program
        self.seconds: list[list[Any]] = [[] for _ in self.length]
        self.saved: list[list[Any]] = [[] for _ in self.length]
        self.kept: list[list[Any]] = [[] for _ in self.length]
        self.working: list[list[tuple[Any, Any]]] = [[] for _ in self.length]
        self.picks: list[list[tuple[Any, Any, Any]]] = [[] for _ in self.length]
        self.codes = []
        for k in range(self.costs.kinds):
            layer = self.costs.layer(k)
            self.codes.append(layer.codes)
            if not layer.of_policy:
                p.add_bool_or([])  # no policy is allowed
                continue
            (kind_class,) = p.looked_up(layer.classes, self.at)

            def policy(of=kind_class, rows=layer.of_policy) -> list[Any]:  # type: ignore[no-untyped-def]
                numbers = [p.number(max(r[i] for r in rows)) for i in range(1, 6)]
                p.add_allowed_assignments([of, *numbers], rows)
                return numbers

            alike = None if self.setting.framework.chooses else policy()
            for s, counts in enumerate(self.counts):
                self._mix(s, counts[k], *((alike, alike) if alike else (policy(), policy())))

    def _mix(self, s: int, count: Any, one: list[Any], other: list[Any]) -> None:
        p = self.program
        more = p.number(max(p.most(count) - 1, 0))
        rest = p.number(p.most(count))
        p.add(rest == count - more)
        there = p.is_true(count >= 1, count == 0)
        p.add(more < count).only_enforce_if(there)
        if one is other:
            p.add(more == 0)
        else:
            p.add(one[0] <= other[0])  # a pair and its mirror are one
            two = p.is_true(more >= 1, more == 0)
            p.add(one[0] < other[0]).only_enforce_if(two)
            p.add(one[0] == other[0]).only_enforce_if(~two)
        self.picks[s].append((one[0], other[0], more))
        for numbers, column in ((self.seconds, 1), (self.saved, 2), (self.kept, 3)):
            numbers[s] += [p.product(rest, one[column]), p.product(more, other[column])]
        self.working[s] += [(there, x[4]) for x in (one, other)]

    def _seconds(self) -> None:
        p = self.program
        first, last, hop, self.hidden = p.looked_up(self.costs.ends(), self.at)
        of, once = self.costs.once()
        (once_class,) = p.looked_up(of, self.at)
        self.stage_s, self.once_s = [], []
        for s, parts in enumerate(self.seconds):
            ends = [p.where(self.used[s], hop), p.where(self.last[s], last), *([first] if s == 0 else [])]
            seconds = p.number(sum(p.most(x) for x in (*parts, *ends)))
            p.add(seconds == sum((*parts, *ends)))
            self.stage_s.append(seconds)
            at_end = p.number(max(r[-1] for r in once[s]))
            p.add_allowed_assignments([once_class, *self.counts[s], at_end], once[s])
            self.once_s.append(at_end)

    def _memory(self) -> None:
        """Devices hold state, what is in flight and what runs; hosts what devices keep there."""
        p, costs, kinds = self.program, self.costs, self.costs.kinds
        first, last, gathers, loss, *of_layer = p.looked_up(costs.state(), self.at)
        flight, stages = p.looked_up(costs.flight(), self.at), costs.stages
        for s, counts in enumerate(self.counts):
            state = [p.where(self.last[s], last), *([first] if s == 0 else [])]
            state += [p.product(n, b) for n, b in zip(counts, of_layer[:kinds], strict=True)]
            runs = p.number(costs.cap)
            for there, bytes_ in self.working[s]:
                p.add(runs >= bytes_ + gathers).only_enforce_if(there)
            p.add(runs >= loss).only_enforce_if(self.last[s])
            saved, late = self._sum(self.saved[s]), self._sum([p.product(n, b) for n, b in zip(counts, of_layer[kinds:], strict=True)])
            for moment in (stages * 1, stages * 3):
                held = p.product(flight[moment + s], saved) + p.product(flight[moment + stages + s], late)
                p.add(costs.parts * (sum(state) + runs) + held <= costs.parts * costs.cap)
        room = self.setting.cluster.host_memory_bytes
        if room is None or self.offloads == ["none"]:
            return
        first, last, *of_layer = p.looked_up(costs.host_state(), self.at)
        table, hosts = costs.hosts()
        shares, kept = p.looked_up(table, self.at), []
        for s, counts in enumerate(self.counts):
            state = [p.where(self.last[s], last), *([first] if s == 0 else [])]
            state += [p.product(n, b) for n, b in zip(counts, of_layer, strict=True)]
            flying = p.product(flight[s], self._sum(self.kept[s]))
            kept.append(self._sum([*(p.product(costs.parts, x) for x in state), flying]))
        for h in range(hosts):
            p.add(sum(p.product(shares[h * stages + s], kept[s]) for s in range(stages)) <= costs.parts * room)

    def _sum(self, parts: Sequence[Any]) -> Any:
        out = self.program.number(sum(self.program.most(x) for x in parts))
        self.program.add(out == sum(parts))
        return out

    def _step(self) -> None:
        """In ticks, times `whole`: (m v - 1) T + sum_s t_s + v G, or m p T + (p - 1) sum_s t_s + p G less what is hidden."""
        p, at = self.program, self.at
        slowest, latest = (p.number(max(map(p.most, x))) for x in (self.stage_s, self.once_s))
        for s in range(self.costs.stages):
            p.add(slowest >= self.stage_s[s])
            p.add(latest >= self.once_s[s])
        whole = p.number(max(p.most(at["pp"]), p.most(at["vpp"])), 1)
        p.add(whole == at["vpp"]).only_enforce_if(~self.splits)
        p.add(whole == at["pp"]).only_enforce_if(self.splits)
        every = p.product(at["micro_batches"], whole)
        rounds, share = p.number(p.most(every)), p.number(p.most(at["pp"]), 1)
        p.add(rounds == every - 1).only_enforce_if(~self.splits)
        p.add(rounds == every).only_enforce_if(self.splits)
        p.add(share == 1).only_enforce_if(~self.splits)
        p.add(share == at["pp"] - 1).only_enforce_if(self.splits)
        step = p.product(rounds, slowest) + p.product(share, self._sum(self.stage_s)) + p.product(whole, latest)
        nominal = self.setting.training.sequences
        times = p.product(whole, at["sequences"])
        least = min(self.setting.training.sequence_range)
        most = p.most(rounds) * p.most(slowest) + p.most(share) * sum(map(p.most, self.stage_s)) + p.most(latest)
        self.goal = p.number(most * nominal // least + 1)
        p.add(p.product(times, self.goal) >= nominal * (step - p.product(whole, self.hidden)))
        p.minimize(self.goal)

    def solve(self, work_limit: float = 200.0) -> Answer:
        if not self.whole:
            return Answer("INFEASIBLE")
        if problem := self.program.validate():
            raise AssertionError(problem)
        solver = cp_model.CpSolver()
        options = solver.parameters
        options.num_workers, options.random_seed, options.max_deterministic_time = 1, 0, work_limit
        options.cp_model_presolve = False  # presolve of 9.15 can lose an optimum (google/or-tools issue 5293)
        status = solver.status_name(solver.solve(self.program))
        if status not in ("OPTIMAL", "FEASIBLE"):
            return Answer(status)
        value = {name: solver.value(x) for name, x in self.at.items()}
        pp, layers = value["pp"], self.setting.model.layers
        mixes = tuple(
            tuple(
                self._told(solver, self.codes[k], self.picks[s][k], solver.value(self.counts[s][k]))
                for k in range(self.costs.kinds)
            )
            for s in range(pp)
        )
        # Half a tick for each layer and end of the slowest stage in every micro-batch, of all stages once, and per step.
        halves = value["micro_batches"] * (layers + 3) + layers + 3 * pp + 2
        scale = self.setting.training.sequences / value["sequences"]
        tick = self.costs.tick_s
        return Answer(
            status, round(solver.objective_value) * tick, (1 + 0.5 * halves * scale) * tick, value,
            self._placement(value), tuple(solver.value(n) for n in self.length[:pp]), mixes,
        )  # fmt: skip

    @staticmethod
    def _told(solver: Any, codes: Sequence[int], pick: Sequence[Any], count: int) -> tuple[tuple[int, int], ...]:
        one, other, more = map(solver.value, pick)
        return tuple((codes[c], n) for c, n in ((one, count - more), (other, more)) if n)

    def _placement(self, value: dict[str, int]) -> Placement:
        out = []
        for number in range(len(self.setting.cluster.levels)):
            here = [(value.get(stride(d, number), 1), d, value[factor(d, number)]) for d in DEGREES]
            out.append(tuple((d, f) for _, d, f in sorted((x for x in here if x[2] > 1), key=lambda x: x[0])))
        return tuple(out)
