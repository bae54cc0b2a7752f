"""How much work the proof takes: `python benchmarks/solve.py [--only TEXT]`.

Prints, for each question, candidates listed at each refinement, removed by bound and by rule, solved exactly, and CPU
seconds of one worker: to prove the best plan alone, to prove three runner-ups with it, and to make the answer of them
(ties, idle devices, reasons); then how the search grows with the cluster; then one JSON summary line. Figures are CPU
seconds (`time.process_time`), so that other work on the machine shows less.
"""

import argparse
import json
import time

import meshwright as mw
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.plan import Infeasible
from meshwright.optimizer.question import resolve
from meshwright.optimizer.reasons.headline import infeasible
from meshwright.optimizer.recommend import plan_of
from meshwright.optimizer.solve import BEATEN, TOO_LARGE, Search, SolveOptions
from meshwright.optimizer.space import Space

MI = 2**20
# model, cluster, tokens per step, sequence length, constraints
QUESTIONS = [
    ("llama-3-70b", "v5p:16x20x28", 4 * MI, 4096, None),
    ("llama-3.1-405b", "h100:8x2048", 16 * MI, 8192, None),
    ("deepseek-v3", "h800:8x256", 15360 * 4096, 4096, None),
    ("mixtral-8x7b", "v5p:4x4x4", MI, 4096, None),
    *(
        ("llama-3-8b", f"h100:8x{gpus // 8}", 16384 * gpus, 8192, None)
        for gpus in (64, 512, 4096, 32768, 131072)
    ),
    # 131,072 devices, 126 layers
    ("llama-3.1-405b", "h100:8x16384", 128 * MI, 8192, None),
    ("llama-3.1-405b", "h100:8x16384", 128 * MI, 8192, "pp == 64"),
    # short of memory
    ("llama-3.1-405b", "h100:8x64", 4 * MI, 8192, None),
    ("llama-3-70b", "v5e:16x16*4", 4 * MI, 4096, None),
    ("deepseek-v3", "h800:8x32", 1920 * 4096, 4096, None),
    ("llama-3.1-405b", "h100:8x8", 4 * MI, 8192, "offload == none"),
]


def run(model: str, cluster: str, tokens: int, seq_len: int, constraints: str | None) -> dict[str, object]:
    """One question: the search and the plan made of it, timed apart from loading."""
    setting = resolve(model, cluster, mw.Training(tokens, seq_len))
    begin = time.process_time()
    Search(Space(setting, parse_constraints(constraints)), SolveOptions(runner_ups=0)).run()
    start = time.process_time()
    search = Search(Space(setting, parse_constraints(constraints)), SolveOptions())
    search.run()
    searched = time.process_time()
    answer: dict[str, object]
    if search.best:
        plan = plan_of(search, constraints)
        proof = plan.certificate
        answer = {
            "status": proof.status,
            "step_s": plan.estimate.step_s,
            "gap": proof.gap,
            "idle": plan.idle.devices,
        }
    else:
        no = infeasible(search)
        assert isinstance(no, Infeasible)
        answer = {"status": "INFEASIBLE", "short_gib": (no.short_bytes or 0) / 2**30}
    removed = search.funnel.removed
    return {
        "question": " ".join(filter(None, (model, cluster, f"{tokens}/{seq_len}", constraints))),
        **answer,
        "listed": search.funnel.entered,
        "beaten": removed.get(BEATEN, 0),
        "too_large": removed.get(TOO_LARGE, 0),
        "by_rule": sum(n for rule, n in removed.items() if rule not in (BEATEN, TOO_LARGE)),
        "solved": search.solved,
        "best_cpu_s": round(start - begin, 3),
        "search_cpu_s": round(searched - start, 3),
        "answer_cpu_s": round(time.process_time() - searched, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the questions whose text contains this")
    only = parser.parse_args().only
    rows = []
    head = (
        "question",
        "status",
        "step s",
        "listed",
        "by rule",
        "beaten",
        "too large",
        "solved",
        "best",
        "search",
        "answer",
    )
    print("{:48} {:>10} {:>9} {:>9} {:>8} {:>9} {:>9} {:>6} {:>7} {:>7} {:>7}".format(*head))
    for question in QUESTIONS:
        if only not in " ".join(map(str, question)):
            continue
        row = run(*question)
        rows.append(row)
        listed = sum(row["listed"].values())  # type: ignore[attr-defined]
        step = f"{row['step_s']:.4f}" if "step_s" in row else f"{row['short_gib']:.1f} GiB"
        print(
            f"{row['question']:48} {row['status']:>10} {step:>9} {listed:>9} {row['by_rule']:>8} {row['beaten']:>9} "
            f"{row['too_large']:>9} {row['solved']:>6} {row['best_cpu_s']:>7.2f} {row['search_cpu_s']:>7.2f} {row['answer_cpu_s']:>7.2f}",
            flush=True,
        )
    slowest = {name: max((row[name] for row in rows), default=0.0) for name in ("best_cpu_s", "search_cpu_s")}  # type: ignore[type-var]
    print(json.dumps({"rows": rows, "slowest": slowest}, sort_keys=True))


if __name__ == "__main__":
    main()
