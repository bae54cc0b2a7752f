"""`meshwright layers` from files to files, and its refusals."""

import json
from pathlib import Path

import pytest

from meshwright.optimizer.cli import main

VARIANTS = """
attention:
  - {name: full}
  - {name: kv2, kv_heads: 2}
ffn:
  - {name: whole}
  - {name: half, width: 7168}
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "v.yaml").write_text(VARIANTS)
    return ["layers", "llama-3-8b", "--cluster", "jetson-agx-orin-64gb", "--variants", str(tmp_path / "v.yaml"),
            "--context", "4096"]  # fmt: skip


def test_from_variants_to_a_config_and_again_from_the_table(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, limit = str(tmp_path / "t.json"), "decode_ms <= 60, params >= 4e9"
    ask = ["--limit", limit, "--json"]
    assert (
        main([*words, *ask, "--save-table", table, "--config", str(tmp_path / "out"), "--solutions", "2"])
        == 0
    )
    first = json.loads(capsys.readouterr().out)
    assert first["steps"]["status"]["value"] == "OPTIMAL"
    assert first["steps"]["decode_s"]["value"] <= 0.06
    assert any("stand-in" in note for note in first["notes"])
    assert {row["solution"] for row in first["table"]} == {1, 2}
    assert len(json.loads((tmp_path / "out" / "config.json").read_text())["block_configs"]) == 32
    assert main(["layers", "--table", table, *ask]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["steps"]["score"] == first["steps"]["score"]
    csv = tmp_path / "sweep.csv"
    assert main(["layers", "--table", table, "--sweep", "decode_ms=40..80:3", "--csv", str(csv)]) == 0
    assert "OPTIMAL" in capsys.readouterr().out and csv.read_text().count("\n") == 4
    assert main(["layers", "--table", table, "--limit", "decode_ms <= 5"]) == 3
    assert "no choice keeps decode_ms <= 5: the least decode_s reachable is" in capsys.readouterr().err


def test_the_devices_memory_is_a_limit(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words[words.index("--cluster") + 1] = "jetson-orin-nano-8gb"
    assert main([*words]) == 3
    assert "memory_bytes <= the device's memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--table", "t.json"], "--table holds what --cluster, --variants, --context, MODEL would say"),
        (["--csv", "x.csv"], "--csv holds what --sweep found; give --sweep"),
        (["--higher-is-better"], "--higher-is-better speaks of --scores; give them"),
        (["--limit", "decode_ms < 3"], "cannot read limit 'decode_ms < 3'"),
        (["--sweep", "decode_ms=1..2:3", "--solutions", "2"], "--sweep finds one choice per point"),
        (["--differ", "33"], "differ is 33 and the model has 32 layers"),
        (["--config", "nowhere/deep/out"], "no folder nowhere/deep; make it first"),
        (["--law", "no-such"], "unknown loss law 'no-such'"),
    ],
)
def test_refusals(words: list[str], more: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, *more]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and told in err, err


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layers"]) == 2
    assert "give MODEL, --cluster, --variants, --context, or --table" in capsys.readouterr().err


def test_without_a_proof_the_best_so_far_is_printed_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Path(__file__).parents[3] / "benchmarks" / "data" / "layers"
    words = ["layers", "llama-3-70b", "--cluster", "jetson-agx-orin-64gb", "--variants", str(data / "variants.yaml"),
             "--scores", str(data / "scores.csv"), "--weights", "int4", "--context", "8192", "--prompt", "1024",
             "--limit", "decode_ms <= 165, params >= 38e9, kv_bytes <= 3GiB, memory_bytes <= 26GiB", "--json"]  # fmt: skip
    assert main(words) == 0
    proven = json.loads(capsys.readouterr().out)["steps"]
    assert main([*words, "--labels", "3", "--work-limit", "0.0001"]) == 4
    out, err = capsys.readouterr()
    rushed = json.loads(out)["steps"]
    assert rushed["status"]["value"] == "FEASIBLE" and rushed["gap"]["value"] > 0
    assert rushed["score_bound"]["value"] <= proven["score"]["value"] <= rushed["score"]["value"]
    assert "the work limit of 0.0001 came before a proof" in err
