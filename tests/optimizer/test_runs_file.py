"""Step times as a table: what reads, what is refused and with which words, and the file that comes out."""

from pathlib import Path

import numpy as np
import pytest
import yaml

import meshwright as mw
from meshwright.costmodel.estimate import complete, seconds_of
from meshwright.hardware.calibration import load_efficiency
from meshwright.hardware.chip import load_chip
from meshwright.hardware.errors import InputError
from meshwright.optimizer.calibrate_runs import scaled
from meshwright.optimizer.cli import main
from meshwright.optimizer.question import resolve

HEAD = "model,cluster,batch,seq,layout,step_s\n"
LINES = (
    ("h100:8x1", "128seq", 8192, "dp=8,zero=3,recompute=full"),
    ("h100:8x1", "512seq", 2048, "dp=8,zero=3,micro_batch=4,recompute=full"),
    ("h100:8x4", "512seq", 8192, "dp=32,zero=3,recompute=full"),
)


def _seconds(line: tuple[str, str, int, str], factors: dict[str, float]) -> float:
    cluster, batch, seq, layout = line
    training = mw.Training(int(batch.removesuffix("seq")) * seq, seq)
    given = resolve("llama-3-8b", cluster, training)
    moved = given.__class__(**{**vars(given), "efficiency": scaled(given.efficiency, factors)})
    return seconds_of(moved, complete(moved, mw.parse_layout(layout)))


def _table(path: Path, factors: dict[str, float]) -> Path:
    rows = [f'llama-3-8b,{c},{b},{s},"{x}",{_seconds((c, b, s, x), factors):.6g}' for c, b, s, x in LINES]
    path.write_text(HEAD + "\n".join(rows) + "\n")
    return path


def test_rates_come_back_through_the_file(tmp_path: Path) -> None:
    true = {"matmul": 0.85, "attention": 1.3}
    made = mw.calibrate_runs(_table(tmp_path / "runs.csv", true))
    mw.save_runs_calibration(made, str(tmp_path / "mine.yaml"))
    got, base = (
        load_efficiency(name, load_chip("h100"), "jax") for name in (str(tmp_path / "mine.yaml"), "default")
    )
    # Priors hold each number back a little; others take the rest.
    for name, factor in true.items():
        moved = np.log(getattr(got, name) / getattr(base, name)) / np.log(factor)
        assert 0.5 < moved < 1.2, name
    assert made.fitted.after < 0.02 < made.fitted.before
    untold = set(made.fitted.factors) - set(made.told)
    assert untold, "three runs on one kind of network do not tell every number"
    assert got.scale_out == base.scale_out
    written = yaml.safe_load((tmp_path / "mine.yaml").read_text())
    assert set(written["chips"]) == {"h100"} and written["extends"] == "default"


def test_tokens_per_s_are_step_seconds(tmp_path: Path) -> None:
    one = _table(tmp_path / "a.csv", {"matmul": 0.9})
    rows = one.read_text().splitlines()[1:]
    rates = [
        f"{r.rpartition(',')[0]},{int(b[:-3]) * s / float(r.rpartition(',')[2]):.8g}"
        for r, (_, b, s, _) in zip(rows, LINES, strict=True)
    ]
    other = tmp_path / "b.csv"
    other.write_text(HEAD.replace("step_s", "tokens_per_s") + "\n".join(rates) + "\n")
    a, b = mw.calibrate_runs(one), mw.calibrate_runs(other)
    assert a.fitted.factors == pytest.approx(b.fitted.factors, rel=1e-4)


GOOD = 'llama-3-8b,h100:8x1,128seq,8192,"dp=8,zero=3,recompute=full",14.5\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no column model, cluster, batch, seq, layout"),
        (HEAD, "has 0 runs; give 1 to 2,000"),
        (HEAD.replace("step_s", "steps") + GOOD, "column"),
        ("model,cluster,batch,seq,layout\n" + GOOD, "step_s or tokens_per_s"),
        (HEAD + GOOD.replace("14.5", "-1"), "line 2: step_s is '-1'; give a number above 0"),
        (HEAD + GOOD.replace("14.5", "nan"), "line 2: step_s is 'nan'; give a number above 0"),
        (HEAD + GOOD.replace("14.5", ""), "line 2: gives neither step_s nor tokens_per_s"),
        (HEAD + GOOD.replace("8192", "8k"), "line 2: seq is '8k'; give a whole number"),
        (HEAD + GOOD.replace("dp=8", "dp=7"), "line 2: "),
        (HEAD + GOOD.replace("h100:8x1", "h900:8x1"), "line 2: unknown chip 'h900'"),
        (HEAD + GOOD + "llama-3-8b\n", "line 3: has more or fewer fields"),
    ],
)
def test_what_does_not_read_is_refused_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(InputError) as no:
        mw.calibrate_runs(path)
    assert told in str(no.value)


def test_runs_of_two_programs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    line = 'llama-3-8b,h100:8x1,128seq,8192,"dp=8,zero=1,recompute=full",14.5,{}\n'
    path.write_text(HEAD.strip() + ",framework\n" + line.format("jax") + line.format("megatron"))
    with pytest.raises(InputError, match="2 programs"):
        mw.calibrate_runs(path)


def test_the_command_writes_what_the_planner_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _table(tmp_path / "runs.csv", {"matmul": 0.85})
    assert main(["calibrate", "runs.csv", "-o", "mine.yaml"]) == 0
    assert "3 runs of jax" in capsys.readouterr().out
    ask = ["estimate", "llama-3-8b", "--cluster", "h100:8x1", "--batch", "128seq", "--seq", "8192"]
    assert main([*ask, "--layout", "dp=8,zero=3,recompute=full", "--efficiency", "mine.yaml"]) == 0
    assert "rates mine" in capsys.readouterr().out
    assert main(["calibrate", "runs.csv", "-o", "mine.yaml", "--chip", "h100"]) == 2
    assert "--chip is for a trace" in capsys.readouterr().err
