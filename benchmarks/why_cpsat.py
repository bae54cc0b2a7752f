"""Where rows and a DP do, and where only CP-SAT serves: `python benchmarks/why_cpsat.py [--only TEXT] [--plans N]`.

Each question is searched; then pipelines among the placed plans that the search settled are answered again, each alone:

    rows      one named policy for all layers, layers shared as evenly as they go: the best that fits
    DP        over stages and units, on the shares (with their fastest policies) that the CP-SAT program of the plan has:
              least (rounds) T + (share) sum + G over caps on the slowest stage T and on what is done once G
    CP-SAT    the program of `optimizer.program` on the same shares

The DP is exact while stages share nothing but T, G and the layers: with several layer kinds (it goes by position), with even
stages or any rule on one stage (a filter on shares), and with one policy for all stages (a loop around it). Then hosts get
less than the fastest plan keeps there, on the fastest plan whose stages share hosts: a DP that knows of no hosts overfills
them, one that gives each device its equal part of its host is slower than need be, and CP-SAT proves what lies between.
Last, variants of each layer under several limits (`benchmarks/layers.py`): a DP over layers counts what one limit sums and
may break the others; for CP-SAT each limit is a row. CPU seconds of the choice alone; tables of costs, which all ways need,
are not counted. One JSON summary line at the end; null where nothing fits.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from ablation import MI, Question
from layers import instances
from plain_ways import dp, knapsack, rows_s

from meshwright.costmodel.layout import DIMENSIONS
from meshwright.costmodel.placement import joint_splits, least_strides
from meshwright.costmodel.setting import Setting
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.cuts import Cuts
from meshwright.optimizer.entries import Entries
from meshwright.optimizer.program import CutResult
from meshwright.optimizer.settle import Settler
from meshwright.optimizer.settled import Placed
from meshwright.optimizer.solve import Search, SolveOptions
from meshwright.optimizer.space import Space
from meshwright.search.layers.problem import Limit, Problem, one_sided
from meshwright.search.layers.solve import solve

# With constraints: the best plan of the first question has one stage, which leaves nothing to share out; mixes of two layer
# kinds with offload take minutes a plan, apart from how stages are shared out. Half of a v5e host's memory, so that it binds.
QUESTIONS = (
    (Question("llama-3.1-405b", "h100:8x64", 4 * MI, 8192), "pp > 1"),
    (Question("llama-3-70b", "v5e:16x16*4", 4 * MI, 4096, "96 GB"), "pp > 1"),
    (Question("deepseek-v3", "h800:8x32", 1920 * 4096, 4096), "pp > 1, offload == none"),
)
LAYERS = ("whole layers, as asked", "whole layers, tight", "random 0")
SQUEEZED = 0.7  # of what the fastest shares keep on the fullest host
BUCKETS = 100_000  # of the one limit that the DP over layers counts


@dataclass
class Watched(Settler):
    """A settler that remembers the plans it is given, and the programs and shares they lead to."""

    plans: list[tuple[float, Placed]] = field(default_factory=list)
    programs: list[tuple[Cuts, Entries, CutResult, Any]] = field(default_factory=list)
    asked: list[tuple[tuple[Any, ...], bool]] = field(default_factory=list)
    cpu_s: float = 0.0

    def settle(self, plan: Placed, cutoff_s: float, bound_s: float) -> Any:
        self.plans.append((bound_s, plan))
        return super().settle(plan, cutoff_s, bound_s)

    def _entries(self, *given: Any, hosting: bool, **more: Any) -> Entries:
        self.asked.append((given, hosting))
        return super()._entries(*given, hosting=hosting, **more)

    def _solve(
        self, cuts: Cuts, entries: Entries, trial_s: float, floor_s: float, hosts: Any, hosting: bool
    ) -> CutResult:
        start = time.process_time()
        result = super()._solve(cuts, entries, trial_s, floor_s, hosts, hosting)
        self.cpu_s = time.process_time() - start
        self.programs.append((cuts, entries, result, hosts))
        return result


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    found = run()
    return round(time.process_time() - start, 4), found


def fullest(hosts: Any, kept: Any) -> float:
    return max((sum(count * kept[stage] for stage, count in shares) for shares in hosts), default=0.0)


def with_hosts(setting: Setting, room: float) -> Setting:
    return replace(setting, cluster=replace(setting.cluster, host_memory_bytes=int(room)))


def equal_parts(own: Watched, plan: Placed, room: float) -> tuple[float, float]:
    """(CPU s, step seconds) of the DP where each device may fill its equal part of its host."""
    rooms = np.full(int(plan.rows.pp[0]), np.inf)
    for shares in own.hosts(plan):
        for stage, _ in shares:
            rooms[stage] = min(rooms[stage], room / sum(count for _, count in shares))
    (stages, offers, slowest, *_), hosting = own.asked[-1]
    for wider in (1.0, 1.05, 1.2, 2.0, 10.0):
        entries = own._entries(stages, offers, wider * slowest, np.inf, rooms, hosting=hosting)
        if len(set(entries.stage.tolist())) == len(rooms):
            cpu_s, (step_s, _) = timed(lambda: dp(stages.cuts, entries))  # noqa: B023
            if np.isfinite(step_s):
                return cpu_s, step_s
    return 0.0, np.inf


def apart(setting: Setting, menus: Any, bound_s: float, plan: Placed) -> dict[str, Any] | None:
    """One placed plan in three ways; None where nothing fits."""
    own = Watched(setting, SolveOptions(runner_ups=0), menus)
    if own.settle(plan, np.inf, bound_s)[1] is None:
        return None
    cuts, entries, result, shared = own.programs[-1]
    hosts, room = own.hosts(plan), float(setting.cluster.host_memory_bytes or np.inf)
    cpu_dp, (dp_s, chosen) = timed(lambda: dp(cuts, entries))
    cpu_rows, best_row_s = timed(lambda: rows_s(setting, plan, lambda kept: fullest(hosts, kept) <= room))
    cpu_safe, safe_s = equal_parts(own, plan, room) if shared else (None, None)
    return {
        "pp": int(plan.rows.pp[0]), "shares": len(entries), "hosts_shared": bool(shared), "equal_parts_s": safe_s, "cpu_equal_parts": cpu_safe,
        "rows_s": best_row_s, "dp_s": dp_s, "cpsat_s": result.value_s,
        "same": abs(dp_s - result.value_s) <= result.slack_s + 1e-9 * dp_s, "cpu_rows": cpu_rows, "cpu_dp": cpu_dp,
        "cpu_cpsat": round(own.cpu_s, 4), "dp_fills_hosts": round(fullest(hosts, entries.host[chosen]) / room, 3),
    }  # fmt: skip


def squeezed(search: Search, plans: list[tuple[float, Placed]]) -> dict[str, Any] | None:
    """A plan whose stages share hosts, with hosts of SQUEEZED of what its fastest shares keep there; None without one."""
    setting, menus = search.setting, search.space.menus
    free, found = with_hosts(setting, 1e15), []
    for bound_s, plan in plans:
        own = Watched(free, SolveOptions(runner_ups=0), menus)
        hosts = own.hosts(plan)
        if not any(len(shares) > 1 for shares in hosts) or own.settle(plan, np.inf, bound_s)[1] is None:
            continue
        cuts, entries, _, _ = own.programs[-1]
        value_s, chosen = dp(cuts, entries)
        if (kept := fullest(hosts, entries.host[chosen])) > 0:
            found.append((value_s, kept, bound_s, plan))
    if not found:
        return None
    fastest_s, kept, bound_s, plan = min(found, key=lambda x: x[0])
    room = SQUEEZED * kept
    own = Watched(with_hosts(setting, room), SolveOptions(runner_ups=0), menus)
    status, _, _ = own.settle(plan, np.inf, bound_s)
    _, entries, result, _ = own.programs[-1]
    cpu_safe, safe_s = equal_parts(own, plan, room)
    return {
        "pp": int(plan.rows.pp[0]), "host_bytes": int(room), "dp_s": fastest_s, "dp_fills_hosts": round(kept / room, 3), "status": status,
        "cpsat_s": result.value_s, "cpu_cpsat": round(own.cpu_s, 4), "shares": len(entries), "dp_equal_parts_s": safe_s,
        "cpu_dp_equal_parts": cpu_safe,
    }  # fmt: skip


def splits_of(search: Search, plan: Placed) -> list[tuple[float, Placed]]:
    """The row of a plan on every split of its degrees over a switched network, with bounds."""
    levels = search.setting.cluster.levels
    if search.setting.network.torus:
        return []
    degrees = tuple(int(getattr(plan.rows, d)[0]) for d in DIMENSIONS)
    factors = joint_splits(degrees, tuple(level.size for level in levels))
    rows = plan.rows[np.zeros(len(factors), np.int64)]
    placed = Placed(rows, factors, least_strides(factors, []))
    placed = placed[placed.groups.ep.size == rows.ep]
    bounds = search.refiner.placed_bounds(placed, np.inf, ordered=True)
    return [(float(b), placed[i : i + 1]) for i, b in enumerate(bounds) if np.isfinite(b)]


def per_layer(problem: Problem, limits: tuple[Limit, ...]) -> dict[str, Any]:
    """Variants of layers: one for all, a DP that counts the first upper limit, and CP-SAT; scores, lower is better."""
    whole, ones = problem.joined(), one_sided(limits)
    (part,), layers = whole.parts, whole.layers

    def breaks(taken: Any) -> list[str]:
        return [str(x) for x in ones if not x.keeps(whole.total_of(taken[:, None], x.total), 1e-12)]

    alike = [np.full(layers, v) for v in range(len(part.variants))]
    cpu_rows, uniform = timed(
        lambda: min((whole.score_of(t[:, None]) for t in alike if not breaks(t)), default=np.inf)
    )
    first = next(x for x in ones if np.isfinite(x.most))
    (column,), constant = whole.column(first.total)
    size = np.ceil(column / ((first.most - constant) / BUCKETS)).astype(np.int64)
    cpu_dp, taken = timed(lambda: knapsack(part.score, size, BUCKETS))
    cpu, best = timed(lambda: solve(problem, limits).best)
    return {
        "rows": uniform, "dp": whole.score_of(taken[:, None]), "dp_breaks": breaks(taken), "cpsat": best.proof.value,
        "status": best.proof.status, "limits": len(ones), "cpu_rows": cpu_rows, "cpu_dp": cpu_dp, "cpu_cpsat": cpu,
    }  # fmt: skip


def ask(question: Question, constraints: str | None, plans: int, most: int) -> dict[str, Any]:
    given = question.resolve()
    search = Search(Space(given, parse_constraints(constraints)), SolveOptions(runner_ups=0))
    watched = search.__dict__["settler"] = Watched(given, search.options, search.space.menus)
    search.watch = lambda *_: len(watched.plans) >= most
    cpu_s, whole = timed(search.run)
    best = search.ranked[0]
    met = sorted(watched.plans, key=lambda x: x[0])
    staged = [x for x in met if x[1].rows.pp[0] > 1]
    out: dict[str, Any] = {
        "best_s": best.value_s, "best_pp": len(best.lengths), "cpu_search": cpu_s, "search_ended": whole, "settled": len(met),
        "programs": len(watched.programs), "programs_with_hosts": sum(bool(hosts) for *_, hosts in watched.programs),
    }  # fmt: skip
    told: dict[Any, dict[str, Any]] = {}  # plans whose stages cost the same are one
    for one in staged:
        if len(told) < plans and (x := apart(given, search.space.menus, *one)):
            told.setdefault((x["pp"], x["shares"], x["cpsat_s"]), x)
    out["apart"] = list(told.values())
    away = next((x for _, x in staged if x.rows.offload[0] > 0), None)
    shared = [] if away is None else splits_of(search, away)
    out["squeezed"] = squeezed(search, [*staged[:50], *sorted(shared, key=lambda x: x[0])[:20]])
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows, a DP and CP-SAT on the same plans.")
    parser.add_argument("--only", default="", help="questions and instances that hold this text")
    parser.add_argument("--plans", type=int, default=12, help="placed plans of each question")
    parser.add_argument(
        "--settled", type=int, default=100, help="placed plans after which the search is ended"
    )
    args, summary = parser.parse_args(), dict[str, Any]()
    for question, constraints in (q for q in QUESTIONS if args.only in str(q[0])):
        name = f"{question}, {constraints or 'all open'}"
        summary[name] = found = ask(question, constraints, args.plans, args.settled)
        print(f"{name}: {found['best_s']:.4f} s with pp={found['best_pp']}, {found['cpu_search']:.1f} CPU s{'' if found['search_ended'] else ', not to the end'}; of "
              f"{found['programs']} programs {found['programs_with_hosts']} had hosts to share", flush=True)  # fmt: skip
        for x in found["apart"]:
            print(f"  pp={x['pp']:<3} {x['shares']:>4} shares   rows {x['rows_s']:9.4f}   DP {x['dp_s']:9.4f} ({x['cpu_dp']:.4f})   "
                  f"CP-SAT {x['cpsat_s']:9.4f} ({x['cpu_cpsat']:.4f})   DP fills hosts {x['dp_fills_hosts']:.0%}"
                  + (f", equal parts {x['equal_parts_s']:.4f}" if x["hosts_shared"] else ""))  # fmt: skip
        if x := found["squeezed"]:
            print(f"  hosts of {x['host_bytes'] / 1e9:.1f} GB, pp={x['pp']}: DP {x['dp_s']:.4f} fills them {x['dp_fills_hosts']:.0%}; "
                  f"equal parts {x['dp_equal_parts_s']:.4f} ({x['cpu_dp_equal_parts']:.4f}); CP-SAT {x['cpsat_s']:.4f} {x['status']} "
                  f"({x['cpu_cpsat']:.4f}, {x['shares']} shares)", flush=True)  # fmt: skip
    for name, problem, limits in (x for x in instances() if x[0] in LAYERS and args.only in x[0]):
        summary[name] = x = per_layer(problem, limits)
        print(f"{name}: one variant {x['rows']:.4f}, DP on one limit {x['dp']:.4f} ({x['cpu_dp']:.2f}) breaks {x['dp_breaks'] or 'none'}, "
              f"CP-SAT {x['cpsat']:.4f} {x['status']} ({x['cpu_cpsat']:.2f})", flush=True)  # fmt: skip
    print(json.dumps(json.loads(json.dumps(summary), parse_constant=lambda _: None), sort_keys=True))


if __name__ == "__main__":
    main()
