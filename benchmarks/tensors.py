"""What recompute and offload by tensor, stage by stage, buys over named policies: `python benchmarks/tensors.py`.

Prints, for each question, step seconds of the proven best plan with one named policy per layer kind, with up to two named
ones per stage and kind (`recompute != tensors`), and with every choice of tensors; the shares saved, and CPU seconds of the
proofs; then one JSON line.
"""

import json
import time
from dataclasses import replace
from typing import Any

import meshwright as mw
from meshwright.costmodel.layout import layout_text
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


def proven(setting: Setting, constraints: str | None = None) -> dict[str, Any]:
    """The best plan of a question."""
    start = time.process_time()
    search = Search(Space(setting, parse_constraints(constraints)), SolveOptions(runner_ups=0))
    search.run()
    spent = time.process_time() - start
    if not search.best:
        return {"step_s": None, "cpu_s": round(spent, 2)}
    layout, priced = decode(setting, search.ranked[0])
    return {
        "step_s": priced.step_s, "layout": layout_text(layout),
        "proven": not search.undecided, "cpu_s": round(spent, 2),
    }  # fmt: skip


def main() -> None:
    rows = []
    print(
        f"{'question':40} {'one':>9} {'mixed':>9} {'tensors':>9} {'saved':>6} {'saved':>6} {'cpu':>5} {'cpu':>5} {'cpu':>5}"
    )
    for model, cluster, tokens, seq_len in QUESTIONS:
        setting = resolve(model, cluster, mw.Training(tokens, seq_len))
        none: frozenset[str] = frozenset()
        uniform = replace(setting, framework=replace(setting.framework, chooses=none, offloads=none))
        found = [proven(uniform), proven(setting, "recompute != tensors"), proven(setting)]
        seconds = [x["step_s"] for x in found]
        saved = [None if None in (seconds[0], s) else 1 - s / seconds[0] for s in seconds[1:]]
        rows.append(
            {"question": f"{model} {cluster} {tokens}/{seq_len}", "saved": saved}
            | dict(zip(("one", "mixed", "tensors"), found, strict=True))
        )
        cpu = " ".join(f"{x['cpu_s']:>5}" for x in found)
        print(
            f"{rows[-1]['question']:40} {' '.join(map(_shown, seconds))} "
            f"{' '.join(f'{x:>6.2%}' if x is not None else '      ' for x in saved)} "
            f"{cpu}",
            flush=True,
        )
    print(json.dumps({"rows": rows}, sort_keys=True))


def _shown(seconds: float | None) -> str:
    return f"{'none fits':>9}" if seconds is None else f"{seconds:>9.4f}"


if __name__ == "__main__":
    main()
