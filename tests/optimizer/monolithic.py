"""The whole program of a small question as one CP-SAT model: degrees are integer variables that multiply.

Knows nothing of the optimizer: no rows, no bounds, no order of decisions. Degrees, micro-batches, ranks' factors on the
network, layers of each stage and of each policy are integers; the rules of the space are products and remainders of
them (written again from the words of `docs/space.md`). Costs of a layer, of an end of the model and of what a stage does
once per step are looked up in tables (`monolithic_costs`); the seconds and bytes of stages, hosts and steps are products
and sums of those.

Seconds are whole ticks, rounded to the nearest; `slack_s` is what all roundings together can hide. Bytes are rounded up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from exhaustive_oracle import DEGREES, Wishes
from independent_rules import must_host
from monolithic_costs import Costs, factor, mesh, stride
from monolithic_rules import Decisions
from ortools.sat.python import cp_model
from tensor_oracle import Listed

from meshwright.costmodel.layout import OFFLOADS, Placement
from meshwright.costmodel.setting import Setting


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


class Whole(Decisions):
    """The program of a question."""

    def __init__(self, setting: Setting, text: str, wishes: Wishes) -> None:
        super().__init__(setting, text, wishes)
        made = mesh(setting, self.domains)
        self.whole = bool(len(made))  # else no degrees multiply to anything
        if not self.whole:
            return
        self.costs = Costs(setting, Listed(setting, wishes.policy), made)
        self.decide()
        self._stages()
        self._layers()
        self._seconds()
        self._memory()
        self._step()

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
        kept = [x for stage in self.kept for x in stage]
        for offload in (o for o in self.offloads if must_host(self.setting, o, self.offloads)):
            code = OFFLOADS.index(offload)
            away = p.is_true(self.at["offload"] == code, self.at["offload"] != code)
            p.add(sum(kept) >= 1).only_enforce_if(away)

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
        first, last, gathers, tower, loss, *of_layer = p.looked_up(costs.state(), self.at)
        flight, stages = p.looked_up(costs.flight(), self.at), costs.stages
        for s, counts in enumerate(self.counts):
            state = [p.where(self.last[s], last), *([first] if s == 0 else [])]
            state += [p.product(n, b) for n, b in zip(counts, of_layer[:kinds], strict=True)]
            runs = p.number(costs.cap)
            for there, bytes_ in self.working[s]:
                p.add(runs >= bytes_ + gathers).only_enforce_if(there)
            p.add(runs >= loss).only_enforce_if(self.last[s])
            if s == 0:
                p.add(runs >= tower)
            saved, late = (
                self._sum(self.saved[s]),
                self._sum([p.product(n, b) for n, b in zip(counts, of_layer[kinds:], strict=True)]),
            )
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
            p.add(
                sum(p.product(shares[h * stages + s], kept[s]) for s in range(stages)) <= costs.parts * room
            )

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
        step = (
            p.product(rounds, slowest) + p.product(share, self._sum(self.stage_s)) + p.product(whole, latest)
        )
        nominal = self.setting.training.sequences
        times = p.product(whole, at["sequences"])
        least = min(self.setting.training.sequence_range)
        most = (
            p.most(rounds) * p.most(slowest) + p.most(share) * sum(map(p.most, self.stage_s)) + p.most(latest)
        )
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
        # Presolve of 9.15 can lose an optimum (google/or-tools issue 5293). Without it a few programs of another kind
        # with enforced linear constraints were called optimal at less; here such an answer would disagree.
        options.cp_model_presolve = False
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
    def _told(
        solver: Any, codes: Sequence[int], pick: Sequence[Any], count: int
    ) -> tuple[tuple[int, int], ...]:
        one, other, more = map(solver.value, pick)
        return tuple((codes[c], n) for c, n in ((one, count - more), (other, more)) if n)

    def _placement(self, value: dict[str, int]) -> Placement:
        out = []
        for number in range(len(self.setting.cluster.levels)):
            here = [(value.get(stride(d, number), 1), d, value[factor(d, number)]) for d in DEGREES]
            out.append(tuple((d, f) for _, d, f in sorted((x for x in here if x[2] > 1), key=lambda x: x[0])))
        return tuple(out)
