"""`meshwright limits` and `meshwright train-time`: what they print, what they refuse."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from meshwright.optimizer.cli import main

Capture = pytest.CaptureFixture[str]
LIMITS = "limits llama-3-70b --cluster v5p:16x20x28 --profile book"
TRAIN = "train-time llama-3-70b --cluster v5p:16x20x28 --tokens 15T"
pytestmark = pytest.mark.usefixtures("folder")


def run(capsys: Capture, line: str) -> tuple[int, str, str]:
    code = main(line.split())
    return code, *capsys.readouterr()


def json_of(capsys: Capture, line: str) -> Any:
    code, out, err = run(capsys, f"{line} --json")
    assert (code, err) == (0, "")
    return json.loads(out)


def value(data: Any, name: str) -> Any:
    return data["steps"][name]["value"]


def test_the_thresholds_of_a_pod_fit_one_screen(capsys: Capture) -> None:
    code, out, err = run(capsys, LIMITS)
    assert (code, err) == (0, "") and len(out.splitlines()) < 45
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    for name, shown in (
        ("fsdp_3_axes", "850 tokens/chip"),
        ("tp_1_axis", "11.24 ways"),
        ("mixed", "113.4 tokens/chip"),
    ):
        assert shown in lines[name]


def test_a_batch_adds_the_best_split_and_its_tilings(capsys: Capture) -> None:
    data = json_of(capsys, f"{LIMITS} --batch 4Mi --seq 4096")
    assert value(data, "tokens_per_chip") == pytest.approx(468.1, rel=1e-3)
    assert value(data, "X_opt") == pytest.approx(1619, rel=1e-3) and value(data, "X_rounded") == 2048
    assert data["table"][0]["devices"] == 8960 and data["table"][0]["data x context"] == "batch: no"
    assert "4.13x the rule's 113.4" in data["binds"]
    assert any("2048 x 4 = 8,192 is no tiling" in note for note in data["notes"])
    assert json_of(capsys, f"{LIMITS} --batch 4Mi --seq 4096") == data


def test_streams_that_queue_need_four_times_the_batch(capsys: Capture) -> None:
    data = json_of(capsys, f"{LIMITS} --batch 1Mi --seq 4096 --comm-streams shared")
    assert value(data, "mixed_added") == pytest.approx(4 * value(data, "mixed"))
    assert "FSDP x TP waits too: " in data["binds"] and "453.6 by the rule" in data["binds"]


def test_a_model_by_its_letters(capsys: Capture) -> None:
    data = json_of(
        capsys,
        "limits --shape D=8192,F=30000,L=80,N=64,K=8,H=128,V=128256,mlp=plain --cluster v5p:4x4x4 --profile book",
    )
    assert value(data, "tp_1_axis") == pytest.approx(30000 / 2550)


def test_the_curve_and_its_drawing(capsys: Capture, folder: Path) -> None:
    pytest.importorskip("matplotlib")
    code, out, err = run(capsys, f"{LIMITS} --batch 4Mi --curve --plot curve.svg")
    assert (code, err) == (0, "") and "communication binds beyond 3" in out
    assert (folder / "curve.svg").read_text().count("FSDP x TP traffic") >= 1


def test_drawing_without_the_optional_part(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = run(capsys, f"{LIMITS} --batch 4Mi --plot curve.png")
    assert code == 5 and out == "" and "pip install 'meshwright[plot]'" in err
    assert not (folder / "curve.png").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"{LIMITS} --curve", "strong scaling keeps the batch and changes the chips; give --batch"),
        (f"{LIMITS} --batch 4Mi~5%", "limits are of one batch; leave out the tolerance"),
        (f"{LIMITS} --batch 4Mi --comm-streams both", "unknown comm_streams 'both'"),
        (f"{LIMITS} --batch 5000", "is not a whole number of sequences of 4096"),
        ("limits llama-3-70b --cluster v5e:1x1", "one device communicates with nobody"),
        (f"{LIMITS} --batch 4Mi --plot curve.pdf", "ends in neither .png nor .svg"),
        ("limits --cluster v5p:4x4x4", "give a model: either its name or file, or --shape"),
        (TRAIN, "the speed is missing: give --mfu, such as 0.4, or --batch"),
        (
            f"{TRAIN} --mfu 0.4 --batch 4Mi",
            "--mfu says the speed and --batch asks for the best plan's; keep one",
        ),
        (f"{TRAIN} --mfu 1.2", "mfu is 1.2; give a share of peak"),
        (
            f"{TRAIN} --mfu 40%",
            "--mfu: '40%' is not a finite number; write a share of peak above 0 and at most 1",
        ),
        (f"{TRAIN} --mfu 0", "--mfu: '0' is not above zero; write a share of peak above 0 and at most 1"),
        (f"{TRAIN} --mfu 0.4 --mtbf 1s --checkpoint 5min", "a failure every 1 s, checkpoints of 300 s"),
        (
            f"{TRAIN} --mfu 0.4 --cpu-update 1Gparam/s",
            "change the best plan and --mfu says the speed; give --batch",
        ),
        (
            "limits llama-3-70b --shape D=8 --cluster v5p:4x4x4",
            "(llama-3-70b) and --shape are two models; keep one",
        ),
        (f"{TRAIN} --mfu 0.4 --mtbf 3h", "--mtbf and --checkpoint belong together"),
        (f"{TRAIN} --mfu 0.4 --restart 3h", "--restart counts failures; give --mtbf and --checkpoint too"),
        (f"{TRAIN} --mfu 0.4 --mtbf 3 --checkpoint 5min", "--mtbf: '3' has no unit"),
        (f"{TRAIN} --mfu 0.4 --power 700", "--power: '700' has no unit; write a power like '700 W'"),
        (f"{TRAIN} --mfu 0.4 --price 0", "--price: '0' is not above zero"),
    ],
)
def test_what_is_refused(capsys: Capture, line: str, said: str) -> None:
    code, out, err = run(capsys, line)
    assert code == 2 and out == "" and said in err and err.count("\n") == 1


def test_a_run_at_an_mfu(capsys: Capture) -> None:
    data = json_of(capsys, f"{TRAIN} --mfu 0.4 --profile book --mtbf 3h --checkpoint 5min --deadline 30d")
    assert value(data, "days_rule") == pytest.approx(44.68, rel=1e-3)
    assert value(data, "goodput") == pytest.approx(0.7824, rel=1e-3)
    assert value(data, "usd_per_chip_hour") == 4.2 and any("2025-02" in note for note in data["notes"])
    assert value(data, "chips_for_deadline") > 8960


def test_a_run_by_its_best_plan(capsys: Capture) -> None:
    data = json_of(capsys, "train-time tiny.json --cluster h100:8x1 --tokens 1B --batch 64Ki --seq 4096")
    plan = json_of(capsys, "recommend tiny.json --cluster h100:8x1 --batch 64Ki --seq 4096 --tokens 1B")
    assert value(data, "days") == pytest.approx(plan["run"]["days"], rel=1e-8)
    assert value(data, "usd") == pytest.approx(plan["run"]["usd"], rel=1e-8)
    assert data["given"]["mfu"]["note"].startswith("best plan: ")


def test_several_clusters_are_compared(capsys: Capture) -> None:
    code, out, err = run(capsys, f"{TRAIN} --mfu 0.4 --cluster h100:8x512")
    assert (code, err) == (0, "") and "on 2 clusters" in out and "cheapest per token: h100:8x512" in out
