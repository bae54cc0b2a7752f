"""What choosing recompute and offload by tensor buys over the five named policies: `python benchmarks/tensors.py`.

Prints, for each question, step seconds of the proven best plan with named policies alone (`recompute != tensors`) and
with every choice of tensors, the share saved, policies of the better plan, and CPU seconds of both proofs; then one
JSON line. Named policies that keep a part of what they save on the host count as choices by tensor.
"""

import json
import time
from dataclasses import replace
from typing import Any

import meshwright as mw
from meshwright.costmodel.setting import Setting
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.decode import decode
from meshwright.optimizer.question import resolve
from meshwright.optimizer.solve import Search, SolveOptions
from meshwright.optimizer.space import Space

MI = 2**20
# model, cluster, tokens per step, sequence length; the first four are short of memory
QUESTIONS = [
    ("llama-3.1-405b", "h100:8x64", 4 * MI, 8192),
    ("llama-3-70b", "v5e:16x16*4", 4 * MI, 4096),
    ("deepseek-v3", "h800:8x32", 1920 * 4096, 4096),
    ("llama-3-70b", "v5e:16x16", 2 * MI, 8192),
    ("llama-3.1-405b", "h100:8x2048", 16 * MI, 8192),
    ("deepseek-v3", "h800:8x256", 15360 * 4096, 4096),
    ("mixtral-8x7b", "v5p:4x4x4", MI, 4096),
    ("llama-3-8b", "h100:8x8", MI, 8192),
]


def proven(setting: Setting) -> dict[str, Any]:
    """The best plan of a question."""
    start = time.process_time()
    search = Search(Space(setting, parse_constraints(None)), SolveOptions(runner_ups=0))
    search.run()
    spent = time.process_time() - start
    if not search.best:
        return {"step_s": None, "cpu_s": round(spent, 2)}
    layout, priced = decode(setting, search.ranked[0])
    return {
        "step_s": priced.step_s, "recompute": "/".join(layout.policies), "offload": layout.offload,
        "proven": not search.undecided, "cpu_s": round(spent, 2),
    }  # fmt: skip


def main() -> None:
    rows = []
    print(f"{'question':42} {'named':>9} {'tensors':>9} {'saved':>6} {'cpu':>5} {'cpu':>5}  recompute")
    for model, cluster, tokens, seq_len in QUESTIONS:
        setting = resolve(model, cluster, mw.Training(tokens, seq_len))
        none: frozenset[str] = frozenset()
        named = proven(replace(setting, framework=replace(setting.framework, chooses=none, offloads=none)))
        free = proven(setting)
        saved = None if None in (named["step_s"], free["step_s"]) else 1 - free["step_s"] / named["step_s"]
        rows.append(
            {
                "question": f"{model} {cluster} {tokens}/{seq_len}",
                "named": named,
                "tensors": free,
                "saved": saved,
            }
        )
        print(
            f"{rows[-1]['question']:42} {_shown(named['step_s'])} {_shown(free['step_s'])} "
            f"{'' if saved is None else f'{saved:.2%}':>6} {named['cpu_s']:>5} {free['cpu_s']:>5}  "
            f"{named.get('recompute')}, {named.get('offload')} -> {free.get('recompute')}, {free.get('offload')}",
            flush=True,
        )
    print(json.dumps({"rows": rows}, sort_keys=True))


def _shown(seconds: float | None) -> str:
    return f"{'none fits':>9}" if seconds is None else f"{seconds:>9.4f}"


if __name__ == "__main__":
    main()
