"""Fits hardware/data/inference/edge.yaml to benchmarks/data/edge_tokens.yaml: `python benchmarks/fit_edge.py [--write]`.

Prints the file: values, 80% intervals over samples of devices (seeded), bands from devices left out in turn, and the
speed of every measured device over that of its kind.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from edge_accuracy.cases import Case, groups, read_cases
from edge_accuracy.classes import SHIPPED
from edge_accuracy.fit import LeftOut, bands, fit, member, rates_file, row_weights, speeds
from edge_accuracy.predict import Columns

from meshwright.hardware.inference_rates import Fitted, RatesFile

WRITTEN = Path(__file__).parents[1] / "hardware" / "data" / "inference" / "edge.yaml"
SAMPLES, SEED = 100, 20260210
DIGITS = 4
HEADER = """\
# What serving engines reach of edge devices and cards with one sequence, fitted to published token rates.
# Written by benchmarks/fit_edge.py from benchmarks/data/edge_tokens.yaml; change those and not this file.
# low, high: 80% interval over samples of devices. band: of measured over predicted, each device left out in turn.
"""
NOTES = {
    "server": "HBM cards under builds of 2024: kernels of one sequence fill neither their memory nor their matrix units",
    "integrated": "bandwidth is shared with the host; no measured prefill of a known length, so its flop share is a prior "
    "and what rows with prefill in their average tell",
    "cpu": "no 16-bit peak is sourced, so prefill is not measured and stands on what all kinds share",
}
WIDE_NOTE = "heads wider than 128 under MLC: two rows of Gemma 2 on one device, an effect of its kernels"
EXPERT_NOTES = {
    "vllm": "one row, which alone asks for 0.43: Qwen3-30B-A3B on Jetson AGX Orin",
    "llama.cpp": "two rows that disagree: gpt-oss-20b on Apple M3 Ultra asks for 0.67, on GB10 for more than 1",
}
FLOP_NOTE = (
    "above 1: products accumulate in 16 bits, faster than the listed peak; a rate never passes the peak"
)


def fitted_file(cases: list[Case], samples: int = SAMPLES) -> tuple[RatesFile, LeftOut]:
    """The file, and the fits with devices left out behind its bands."""
    done = LeftOut.of(cases)
    drawn = _drawn(cases, samples)
    file = rates_file(
        done.full.values,
        provenance=f"fit to {len(cases)} published token rates of {len(list(groups(cases)))} devices at one sequence",
        devices=speeds(done.columns, done.full),
    )
    widths = bands(done)
    kinds = {
        name: kind.model_copy(update={**widths[name], "note": NOTES.get(name, "")})
        for name, kind in file.kinds.items()
    }
    file = file.model_copy(update={"kinds": kinds})
    return RatesFile.model_validate(
        _with_intervals(file.model_dump(), [one.model_dump() for one in drawn])
    ), done


def _drawn(cases: list[Case], samples: int) -> list[RatesFile]:
    """Fits to devices drawn with replacement."""
    columns, weight, names = Columns.of(cases), row_weights(cases), list(groups(cases))
    random, out = np.random.default_rng(SEED), []
    for _ in range(samples):
        picked = random.integers(len(names), size=len(names))
        often = sum(np.count_nonzero(picked == i) * member(cases, name) for i, name in enumerate(names))
        out.append(fit(columns, weight * often).file)
    return out


def _with_intervals(value: Any, drawn: list[Any]) -> Any:
    """The dump of a file, every fitted value rounded and with the interval of the drawn ones."""
    if isinstance(value, dict) and set(value) == set(Fitted.model_fields):
        over = [d["value"] for d in drawn if d is not None]
        low, high = (_round(q) for q in np.quantile(over, (0.1, 0.9))) if over else (None, None)
        return {"value": _round(value["value"]), "low": low, "high": high, "note": value["note"]}
    if isinstance(value, dict):
        return {
            key: _with_intervals(part, [d.get(key) for d in drawn if d is not None])
            for key, part in value.items()
        }
    return _round(value) if isinstance(value, float) else value


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def written(file: RatesFile) -> str:
    """The file's text: defaults left out, one line per fitted value."""
    dump = file.model_dump(exclude_defaults=True)
    dump["engines"]["mlc"]["wide_heads"]["note"] = WIDE_NOTE
    dump["kinds"]["discrete"]["flop_share"]["note"] = FLOP_NOTE
    for name, engine in dump["engines"].items():
        engine["expert_share"]["note"] = EXPERT_NOTES.get(name, "no row of its own: what all share")
    return HEADER + "\n".join(_block(dump, 0)) + "\n"


def _block(part: dict[str, Any], depth: int) -> list[str]:
    out = []
    for key, value in part.items():
        if isinstance(value, dict) and any(isinstance(v, dict) for v in value.values()):
            out += [f"{' ' * depth}{key}:", *_block(value, depth + 2)]
        else:
            text = (
                yaml.dump(value, default_flow_style=True, sort_keys=False, width=10**6)
                .replace("\n...\n", "")
                .strip()
            )
            out.append(f"{' ' * depth}{key}: {text}")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="replace the shipped file")
    args = parser.parse_args()
    cases, _ = read_cases(SHIPPED, rates_file({}))
    text = written(fitted_file(cases)[0])
    if args.write:
        WRITTEN.parent.mkdir(exist_ok=True)
        WRITTEN.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
