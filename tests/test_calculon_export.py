"""benchmarks/calculon_export.py writes plans that Calculon's vocabulary can say, best first."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_plans_of_the_small_case(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-P",
        str(ROOT / "benchmarks" / "calculon_export.py"),
        str(tmp_path),
        "--only",
        "22B",
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    (case,) = json.loads(run.stdout.splitlines()[-1])["calculon"]
    assert case["proven"] and case["plans"] == 20 and case["best_s"] <= case["theirs_here_s"]
    files = sorted(tmp_path.iterdir())
    assert len(files) == 20
    plans = [json.loads(file.read_text()) for file in files]
    for x in plans:
        assert x["tensor_par"] * x["pipeline_par"] * x["data_par"] == x["num_procs"] == 8
        assert 4 % (x["data_par"] * x["microbatch_size"]) == 0
        assert 48 % x["pipeline_par"] == 0 and 48 // x["pipeline_par"] % x["pipeline_interleaving"] == 0
        assert x["activation_recompute"] in ("none", "attn_only", "full")
        assert (x["tensor_par_overlap"] == "ring") == (x["tensor_par"] > 1)
        assert not x["optimizer_sharding"] or x["data_par"] > 1
        assert x["pipeline_par"] > 1 or x["pipeline_interleaving"] == 1
    # What Calculon found best of its whole space is among them.
    theirs = {
        "tensor_par": 4,
        "pipeline_par": 2,
        "pipeline_interleaving": 24,
        "microbatch_size": 2,
        "activation_recompute": "none",
    }
    assert any(theirs.items() <= x.items() for x in plans)
