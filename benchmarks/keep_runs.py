"""Makes benchmarks/data/training_runs.yaml.gz: `python benchmarks/keep_runs.py RUNS.yaml`.

Of published runs it keeps what the judge reads: what was run, where, and one step time; not rates, memory or checks.
"""

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

from training_accuracy.cases import read_rows
from training_accuracy.shipped import RUNS

ALWAYS = (
    "id",
    "model",
    "hardware",
    "layout",
    "dtype",
    "global_batch",
    "micro_batch",
    "remat",
    "offload",
    "measured",
)
WHERE_GIVEN = (
    "source", "derived_step_time_s", "step_time_from_rate_s", "flops_convention", "software", "date", "note", "task",
)  # fmt: skip
OF_MODEL = ("shape_source", "params_B_reported")  # not kept


def kept(row: dict[str, Any]) -> dict[str, Any]:
    out = {name: row[name] for name in ALWAYS} | {n: row[n] for n in WHERE_GIVEN if row.get(n) is not None}
    out["model"] = {k: v for k, v in row["model"].items() if k not in OF_MODEL}
    out["measured"] = {k: v for k, v in (row["measured"] or {}).items() if k == "step_time_s"}
    for name in ("derived_step_time_s", "step_time_from_rate_s") if out["measured"] else ():
        out.pop(name, None)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    rows = [kept(row) for row in read_rows(parser.parse_args().file)]
    lines = ",\n".join(json.dumps(row, default=str, ensure_ascii=False) for row in rows)
    RUNS.write_bytes(gzip.compress(f"[\n{lines}\n]\n".encode(), mtime=0))


if __name__ == "__main__":
    main()
