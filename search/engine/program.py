"""The program of one row: which option of each side (CP-SAT).

Sets      F feed-forward options whose bound leaves them open, A attention options, R rules
Data      s_f, s_a score in ticks above the row's least; q_rf, p_ra what a rule counts; u_f, u_a activations, in ticks
Variables y_f, z_a in {0,1}; c joint part of the score, m activations: integers
Minimise  sum_f s_f y_f + sum_a s_a z_a + c
Subject   sum_f y_f = 1, sum_a z_a = 1                                        `_one_of_each_side`
          sum_f q_rf y_f + sum_a p_ra z_a (+ m) <= room of r, m = max(u)      `_limits`
          c >= sum_f c_f y_f, c_f the least joint part of f                   `_joint`
          c + M_f (1 - y_f) >= sum_a c_fa z_a   for options f met so far      `spell_out`
          y_f + z_a <= 1                      for pairs met so far            `put_out`

All data are rounded so that the program is below the model: scores and what is taken down, room up. So each optimum is
a bound, and the pair that it names is priced by the model; then the joint part of its option is spelled out over A, the
pair is put out, and the program solved again, until the next optimum is above the best pair.

OR-Tools 9.15.6755 called some 1% of such programs optimal at a pair that was not, against all pairs listed: with presolve
where coefficients pass 2^30 (google/or-tools issue 5293 is of the kind), and without it where a linear constraint has an
enforcement literal. Without either, none of 6,500 solves was wrong, with coefficients from 2^20 to 2^40; so it is here.

Columns of all pairs do the same (`engine.rows`) and are faster at every size measured (`benchmarks/shapes.py`: 12 times at
6 million pairs of a row, 25 times at 61 million): nothing is coupled beyond two sides, and bounds leave few options. So
columns are the rule up to `Effort.pairs` pairs that bounds leave open in a row. The program serves rows past that, where
columns would be gone through in full, and is the check that shares no code with them but the tables.
"""

from collections.abc import Callable, Sequence

import numpy as np
from ortools.sat.python import cp_model

from meshwright.search.engine.exact import Candidate
from meshwright.search.engine.parts import ACTIVATIONS
from meshwright.search.engine.question import Rule
from meshwright.search.engine.rows import NEAR, Rows
from meshwright.search.engine.table import EXACT
from meshwright.search.shape import Array, Floats, Ints

_TICKS = 2**28  # of the row's scores from the least sum to the most, and of the room of a rule
_MOST = 2**32  # ticks of a joint part; one that passes it counts as less
_SPELLED = 64  # options whose joint part is spelled out from the start

Price = Callable[[Ints, Ints, Floats], list[Candidate]]


class Program:
    """The model of one row over indices of its open feed-forward options and of all attention options."""

    def __init__(self, rows: Rows, layers: int, ffn: Ints, rules: Sequence[Rule]) -> None:
        self.rows, self.layers, self.ffn = rows, layers, ffn
        self.attention = np.arange(len(rows.table.attention_shapes))
        self.model = cp_model.CpModel()
        self.y = [self.model.new_bool_var(f"ffn {f}") for f in ffn.tolist()]
        self.z = [self.model.new_bool_var(f"attention {a}") for a in self.attention.tolist()]
        self._score_data()
        self._one_of_each_side()
        for rule in rules:
            if np.isfinite(rule.limit):
                self._limits(rule)
        self._joint()
        self.model.minimize(_sum(self.s_ffn, self.y) + _sum(self.s_attention, self.z) + self.joint)

    def value(self, ticks: float) -> float:
        """What a sum of ticks stands for, from below."""
        return float(self.rows.objective.value(np.asarray(self.base + round(ticks) * self.tick)))

    def put_out(self, f: int, a: int) -> None:
        self.model.add_bool_or([~self.y[f], ~self.z[a]])

    def spell_out(self, f: int) -> None:
        """The joint part of an option, over attention."""
        if f not in self.spelled:
            self.spelled.add(f)
            ticks = np.minimum(self._down(self._joint_of(f) - self.least), _MOST)
            most = int(ticks.max())
            self.model.add(self.joint + most * (1 - self.y[f]) >= _sum(ticks, self.z))

    def _joint_of(self, f: int) -> Floats:
        part = np.asarray(self.rows.objective.joint(self.layers, self.ffn[f], self.attention))
        return np.broadcast_to(part, self.attention.shape)

    def _score_data(self) -> None:
        objective, table, one = self.rows.objective, self.rows.table, np.array([self.layers])
        ffn = objective.separable(one)[0][self.ffn]
        attention = objective.scale(one)[0] * objective.attention
        params, shape = table.attention["params"], (1, len(table.ffn_shapes))
        low, high = (np.full(shape, x) for x in (params.min(), params.max()))
        joint = np.broadcast_to(objective.joint_least(one, low, high), shape)[0][self.ffn]
        parts = (ffn, attention, joint)
        self.least = float(joint.min())
        self.base = float(sum(part.min() for part in parts))
        spread = sum(float(np.ptp(part)) for part in (*parts, self._joint_of(0)))
        self.tick = max(spread, 1e-9 * abs(self.base), 1e-300) / _TICKS
        self.s_ffn, self.s_attention, self.c_ffn = (self._down(part - part.min()) for part in parts)
        self.spelled: set[int] = set()

    def _down(self, parts: Array) -> Ints:
        return np.floor(parts / self.tick).astype(np.int64)

    def _one_of_each_side(self) -> None:
        self.model.add_exactly_one(self.y)
        self.model.add_exactly_one(self.z)

    def _limits(self, rule: Rule) -> None:
        table = self.rows.table
        parts = [
            rule.sign * self.layers * side
            for side in (table.ffn[rule.resource][self.ffn], table.attention[rule.resource])
        ]
        room = rule.sign * (rule.limit - table.ends[rule.resource]) + EXACT * (
            abs(rule.limit) + table.ends[rule.resource]
        )
        room -= sum(float(part.min()) for part in parts)
        widest = [table.ffn[ACTIVATIONS][self.ffn], table.attention[ACTIVATIONS]]
        beside = rule.resource == "memory_bytes" and max(w.max() for w in widest) > 0
        tick = max(abs(room), *(float(w.max()) for w in widest if beside), 1e-300) / _TICKS
        ticks = [
            np.minimum(np.floor((part - part.min()) / tick), 4 * _TICKS).astype(np.int64) for part in parts
        ]
        taken = _sum(ticks[0], self.y) + _sum(ticks[1], self.z)
        if beside:
            wide = self.model.new_int_var(0, _TICKS + 1, "activations")
            held = [np.floor(w / tick).astype(np.int64) for w in widest]
            self.model.add_max_equality(wide, [_sum(held[0], self.y), _sum(held[1], self.z)])
            taken = taken + (wide if rule.sign > 0 else -wide - 1)
        self.model.add(taken <= int(np.ceil(room / tick)))

    def _joint(self) -> None:
        self.joint = self.model.new_int_var(0, _MOST, "joint")
        self.model.add(self.joint >= _sum(np.minimum(self.c_ffn, _MOST), self.y))


def settle_by_program(
    rows: Rows,
    layers: int,
    ffn: Ints,
    rules: Sequence[Rule],
    cutoff: float,
    wanted: int,
    work: float,
    price: Price,
) -> tuple[list[Candidate], float | None]:
    """The row's shapes up to the cutoff that may be among the best, and a bound where the work limit left it open.

    ffn: open options, lowest bound first.
    """
    program = Program(rows, layers, ffn, rules)
    for f in range(min(_SPELLED, len(ffn))):
        program.spell_out(f)
    found: list[Candidate] = []
    values: list[float] = []
    while True:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers, solver.parameters.random_seed = 1, 0
        solver.parameters.max_deterministic_time = work
        solver.parameters.cp_model_presolve = False
        solver.parameters.catch_sigint_signal = False  # Ctrl-C is Python's
        status = solver.solve(program.model)
        if status == cp_model.MODEL_INVALID:
            raise RuntimeError(f"the program of a row is invalid: {program.model.validate()}")
        if status == cp_model.INFEASIBLE:
            return found, None
        limit = min(cutoff, sorted(values)[wanted - 1] if len(values) >= wanted else np.inf)
        bound = program.value(solver.best_objective_bound)
        if bound > limit + NEAR * abs(limit):
            return found, None
        if status != cp_model.OPTIMAL:
            return found, bound
        f, a = (next(i for i, lit in enumerate(lits) if solver.value(lit)) for lits in (program.y, program.z))
        pair = ffn[[f]], program.attention[[a]]
        told = rows.values(layers, *pair)
        candidate = price(*pair, told)[0]
        if candidate.keeps(rules):
            found.append(candidate)
            values.append(float(told[0]))
        program.put_out(f, a)
        program.spell_out(f)


def _sum(ticks: Ints, literals: Sequence[cp_model.IntVar]) -> cp_model.LinearExpr:
    return cp_model.LinearExpr.weighted_sum(literals, ticks.tolist())
