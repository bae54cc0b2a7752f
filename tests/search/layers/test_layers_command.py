"""`meshwright layers` from files to files, and its refusals."""

import json
from pathlib import Path

import pytest

from meshwright.costmodel.readers import load_model
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


def test_a_written_config_reads_back_as_the_model_that_was_chosen(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the other commands: the parameters to the last, and the same exact time of a token."""
    out = str(tmp_path / "out")
    experts = "  - {name: moe, experts: 8, top_k: 2, expert_width: 3584, shared_width: 1000}\n  - {name: odd, width: 5000}\n"
    (tmp_path / "v.yaml").write_text(
        VARIANTS.replace("full}", "full}\n  - {name: near, window: 1024}") + experts
    )
    scores = "layer,variant,score\n*,full,0\n*,kv2,1\n*,near,0.9\n*,whole,0\n*,half,1\n*,odd,1.5\n*,moe,0.1\n"
    (tmp_path / "s.csv").write_text(scores)
    limit = ["--limit", "decode_ms <= 60, params <= 8e9, kv_bytes <= 300MiB"]
    assert main([*words, *limit, "--scores", str(tmp_path / "s.csv"), "--config", out, "--json"]) == 0
    asked = json.loads(capsys.readouterr().out)
    steps = asked["steps"]
    assert main(["count", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"]["params"]["value"] == steps["params"]["value"]
    assert len(load_model(out).kinds) >= 3
    decode = [
        "decode",
        out,
        "--cluster",
        "jetson-agx-orin-64gb",
        "--batch",
        "1",
        "--context",
        "4096",
        "--compute",
        "fp16",
    ]
    assert main([*decode, "--json"]) == 0
    exact = json.loads(capsys.readouterr().out)["steps"]["t_exact"]["value"]
    # Apart from the row of the token table, 2 * 4,096 elements of 2 bytes, which `decode` leaves out.
    assert exact + 16384 / 204.8e9 == pytest.approx(steps["decode_s"]["value"], rel=1e-9)


def test_a_base_that_the_class_cannot_say_is_not_written(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words[1] = "qwen3-8b"
    table = str(tmp_path / "t.json")
    assert main([*words, "--config", str(tmp_path / "out"), "--save-table", table]) == 2
    assert (
        "has attn.k_norm, attn.q_norm, which a nemotron-nas config.json cannot say" in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()
    data = json.loads(Path(table).read_text()) | {"schema_version": 1}
    Path(table).write_text(json.dumps(data))
    assert main(["layers", "--table", table]) == 2
    assert "schema_version is 1, this program reads 2; write it again" in capsys.readouterr().err


def test_a_time_read_off_an_answer_is_a_limit_that_its_choice_keeps(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, steps = str(tmp_path / "t.json"), []
    assert main([*words, "--save-table", table, "--json"]) == 0
    capsys.readouterr()
    for limit in ("decode_ms <= 45", "decode_ms <= 50", "decode_ms <= 57"):
        assert main(["layers", "--table", table, "--limit", limit, "--json"]) == 0
        first = json.loads(capsys.readouterr().out)["steps"]
        for name in ("decode_s", "prefill_s", "kv_bytes", "params"):
            again = f"{limit}, {name} <= {first[name]['value']}"
            assert main(["layers", "--table", table, "--limit", again, "--json"]) == 0
            steps.append(json.loads(capsys.readouterr().out)["steps"])
            assert steps[-1]["score"]["value"] == first["score"]["value"], again


def test_a_sweep_without_a_choice_is_a_proven_no(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--sweep", "decode_ms=1..2:3"]) == 3
    assert "infeasible 3" in " ".join(capsys.readouterr().out.split())


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


@pytest.mark.parametrize(
    ("variant", "told"),
    [
        ("{name: b, colour: red}", "attention.0: the key 'colour' is not known; allowed: name, kv_heads, window, linear, none"),
        ("{name: b, kv_heads: 0}", "attention.0.kv_heads is 0; expected greater than or equal to 1"),
        ("{name: b, none: true, linear: true}", "attention.0: b "),
    ],
)  # fmt: skip
def test_a_wrong_variant_is_told_once(
    variant: str, told: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "v.yaml").write_text(f"attention: [{variant}]\nffn: [{{name: full}}]\n")
    assert main(words) == 2
    line = capsys.readouterr().err
    assert told in line and "at least 1 of them" not in line and line.count("attention") == 1, line
