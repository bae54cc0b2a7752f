"""The rules of the space on integer decisions: products, remainders and conditions, from the words of docs/space.md."""

from itertools import combinations, permutations
from typing import Any

from exhaustive_oracle import DEGREES, Wishes, priced_offloads
from independent_rules import shortest_period
from monolithic_costs import factor, stride
from monolithic_program import Program, wished
from ortools.sat.python import cp_model

from meshwright.costmodel.layout import CP_KINDS, OFFLOADS
from meshwright.costmodel.schedules import SCHEDULES
from meshwright.costmodel.setting import Setting
from meshwright.hardware.network import TorusAxis

INTERLEAVED, DUALPIPEV = SCHEDULES.index("interleaved"), SCHEDULES.index("dualpipev")
LEAST_ROUNDS = {"zb_h1": (1, 0), "zb_h2": (2, 1), "dualpipev": (2, 0)}  # (a, b): a pp - b micro-batches


class Decisions:
    """Decisions of a layout but stages and policies, by name in `at`, under the rules of the space.

    Attributes:
        domains: values of each decision, less those that a constraint on it alone takes away.
    """

    def __init__(self, setting: Setting, text: str, wishes: Wishes) -> None:
        self.setting, self.program, self.wishes = setting, Program(), wishes
        self.wished, self.offloads = wished(text), priced_offloads(setting, wishes)
        self.at: dict[str, Any] = {}
        self.domains = self._domains()

    def decide(self) -> None:
        p = self.program
        for name, values in self.domains.items():
            self.at[name] = p.among(values, name)
        self._degrees()
        self._schedule()
        self._model()
        self._zero()
        self._network()
        for name, allowed in self.wished:
            values = [v for v in range(p.most(self.at[name]) + 1) if allowed(v)]
            p.add_linear_expression_in_domain(self.at[name], cp_model.Domain.from_values(values))

    def _domains(self) -> dict[str, list[int]]:
        """Values of each decision, less those that a constraint on it alone takes away."""
        setting = self.setting
        devices, layers = setting.cluster.devices, setting.model.layers
        experts = any(k.ffn.experts for k in setting.model.kinds)
        one_to = list(range(1, devices + 1))
        domains = dict.fromkeys(DEGREES, one_to) | {
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
        turned = p.is_true(
            at["cp_kind"] == CP_KINDS.index("all_to_all"), at["cp_kind"] != CP_KINDS.index("all_to_all")
        )
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
        if setting.training.images:
            vision = setting.model.tower.kind  # type: ignore[union-attr]
            for number in (vision.attention.heads, vision.ffn.width):
                p.add(p.remainder(number, at["tp"]) == 0)
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
