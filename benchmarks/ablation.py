"""What each decision buys: `python benchmarks/ablation.py [--only TEXT]`.

For each question the proven best plan with all decisions open, then with one of them taken away (a degree held at 1, every
stage alike, one named policy of recompute, a fixed order of ranks on the network, ...): how much longer the best step is
then, `none fits` where nothing fits any more, `-` where the decision is no matter. Four of the eight questions are short of
memory. Hosts have the memory said beside each question. Last, one JSON line.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import meshwright as mw
from meshwright.costmodel.layout import layout_text
from meshwright.costmodel.setting import Setting
from meshwright.hardware.cluster import parse_cluster
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.decode import decode
from meshwright.optimizer.launchers.catalogue import JAX, LAUNCHERS
from meshwright.optimizer.launchers.launcher import even_stages
from meshwright.optimizer.question import resolve
from meshwright.optimizer.solve import Search, SolveOptions
from meshwright.optimizer.space import Space

MI = 2**20


@dataclass(frozen=True)
class Question:
    model: str
    cluster: str
    tokens: int
    seq_len: int
    host_memory: str = "2 TB"

    def __str__(self) -> str:
        return f"{self.model} {self.cluster} {self.tokens}/{self.seq_len}"

    def resolve(self) -> Setting:
        cluster = parse_cluster(self.cluster, host_memory=self.host_memory, cpu_update="1 Gparam/s")
        return resolve(self.model, cluster, mw.Training(self.tokens, self.seq_len))


# The first four are short of memory. A TPU v5e host has 192 GB, a v5p host 448 GB.
QUESTIONS = (
    Question("llama-3.1-405b", "h100:8x64", 4 * MI, 8192),
    Question("llama-3-70b", "v5e:16x16*4", 4 * MI, 4096, "192 GB"),
    Question("deepseek-v3", "h800:8x32", 1920 * 4096, 4096),
    Question("llama-3-70b", "v5e:16x16", 2 * MI, 8192, "192 GB"),
    Question("llama-3.1-405b", "h100:8x2048", 16 * MI, 8192),
    Question("deepseek-v3", "h800:8x256", 15360 * 4096, 4096),
    Question("mixtral-8x7b", "v5p:4x4x4", MI, 4096, "448 GB"),
    Question("llama-3-8b", "h100:8x8", MI, 8192),
)

# A launcher of no one's that gives every stage the same layers, and one that numbers ranks in the usual order alone.
EVEN = replace(
    JAX, name="even", even_stages=True, rules=(even_stages("even", "stages are alike", "the benchmark"),)
)
IN_ORDER = replace(JAX, name="in order", rank_orders=(("tp", "cp", "dp_shard", "dp_replicate", "pp"),))

Without = Callable[[Setting], tuple[Setting, str | None]]


def pinned(constraints: str) -> Without:
    return lambda given: (given, constraints)


def launched(name: str) -> Without:
    return lambda given: (replace(given, launcher=name), None)


def one_policy(given: Setting) -> tuple[Setting, str | None]:
    none: frozenset[str] = frozenset()
    return replace(given, framework=replace(given.framework, chooses=none, offloads=none)), None


WITHOUT: dict[str, Without] = {
    "tensor parallel": pinned("tp == 1"),
    "pipeline": pinned("pp == 1"),
    "context parallel": pinned("cp == 1"),
    "expert parallel": pinned("ep == 1"),
    "chunks of stages": pinned("vpp == 1"),
    "ZeRO 2 and 3": pinned("zero in {0,1}"),
    "ZeRO": pinned("zero == 0"),
    "replicas of shards": pinned("dp_replicate == 1"),
    "weights kept": pinned("reshard == true"),
    "micro-batch": pinned("micro_batch == 1"),
    "uneven stages": launched("even"),
    "placement": launched("in order"),
    "recompute by tensor": pinned("recompute != tensors"),
    "policies by stage": one_policy,
    "recompute": pinned("recompute == none"),
    "offload": pinned("offload == none"),
    "gradients, weights away": pinned("offload in {none,activations,optimizer,optimizer+activations}"),
}
# Listed only when asked for, so that leaving them open is what is tried.
WITH = {
    "split schedules": pinned("schedule in {1f1b,interleaved,zb_h1,zb_h2,dualpipev}"),
}


def proven(given: Setting, constraints: str | None = None) -> dict[str, Any]:
    """The best plan of a question: its step, its layout, and whether the search came to its end."""
    start = time.process_time()
    search = Search(Space(given, parse_constraints(constraints)), SolveOptions(runner_ups=0))
    whole = search.run() and not search.undecided
    out: dict[str, Any] = {"proven": whole, "cpu_s": round(time.process_time() - start, 2), "step_s": None}
    if search.best:
        layout, priced = decode(given, search.ranked[0])
        out |= {"step_s": priced.step_s, "layout": layout_text(layout)}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="What each decision buys.")
    parser.add_argument("--only", default="", help="questions that hold this text")
    asked = [q for q in QUESTIONS if parser.parse_args().only in str(q)]
    LAUNCHERS.update({x.name: x for x in (EVEN, IN_ORDER)})
    rows = []
    for question in asked:
        given = question.resolve()
        best = proven(given)
        row: dict[str, Any] = {"question": str(question), "best": best, "without": {}, "with": {}}
        print(f"{question}: {_step(best)}, {best['cpu_s']} CPU s", flush=True)
        for kind, tried in (("without", WITHOUT), ("with", WITH)):
            for name, change in tried.items():
                found = proven(*change(given))
                row[kind][name] = found
                print(
                    f"  {kind} {name:22} {_change(best, found):>10}   {found['cpu_s']:>6} CPU s", flush=True
                )
        rows.append(row)
    print(json.dumps({"rows": rows}, sort_keys=True))


def _step(found: dict[str, Any]) -> str:
    if found["step_s"] is None:
        return "none fits" if found["proven"] else "none found"
    return f"{found['step_s']:.4f} s"


def _change(best: dict[str, Any], found: dict[str, Any]) -> str:
    if None in (best["step_s"], found["step_s"]):
        return _step(found)
    change = found["step_s"] / best["step_s"] - 1
    return "-" if abs(change) < 1e-6 else f"{change:+.2%}" + ("" if found["proven"] else "?")


if __name__ == "__main__":
    main()
