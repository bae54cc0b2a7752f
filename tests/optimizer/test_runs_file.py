"""Step times as a table: what reads, what is refused and with which words, and the file that comes out."""

from dataclasses import replace
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
    ("h100:8x1", "32seq", 32768, "dp=8,zero=3,recompute=full"),
)


def _seconds(
    line: tuple[str, str, int, str], factors: dict[str, float], efficiency: str = "default"
) -> float:
    """Of the factors over the shipped numbers, or of a file as it is."""
    cluster, batch, seq, layout = line
    training = mw.Training(int(batch.removesuffix("seq")) * seq, seq)
    given = resolve("llama-3-8b", cluster, training, efficiency=efficiency)
    if efficiency == "default":
        given = replace(given, efficiency=scaled(given.efficiency, factors))
    return seconds_of(given, complete(given, mw.parse_layout(layout)))


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
    fitted = made.fitted["h100"]
    assert fitted.after < 0.02 < fitted.before
    untold = set(fitted.factors) - set(fitted.told)
    assert {"scale_out", "launch"} <= untold and all(fitted.factors[n] == 1.0 for n in untold)
    assert got.scale_out == base.scale_out
    # The file gives the error that is announced: what the runs do not tell takes no part of it.
    after = [_seconds(line, true, str(tmp_path / "mine.yaml")) / _seconds(line, true) - 1 for line in LINES]
    assert np.mean(np.abs(after)) == pytest.approx(fitted.after, abs=2e-5)
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
    assert a.fitted["h100"].factors == pytest.approx(b.fitted["h100"].factors, rel=1e-4)


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
        (
            HEAD + GOOD.replace("14.5", "1e300"),
            "line 2: its step takes 1e+300 s; give one of 1e-06 to 1e+07 s",
        ),
        (HEAD + GOOD.replace("14.5", "1_4.5"), "line 2: step_s is '1_4.5'"),
        (HEAD + GOOD.replace("14.5", "१४"), "line 2: step_s is"),
        (HEAD.strip() + ",step_s\n" + GOOD.strip() + ",14.5\n", "has the column step_s twice; keep one"),
        (HEAD + "x" * 200_000 + GOOD, "is no CSV: field larger than field limit"),
    ],
)
def test_what_does_not_read_is_refused_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(InputError) as no:
        mw.calibrate_runs(path)
    assert told in str(no.value)


def test_each_chip_is_fitted_by_its_own_runs(tmp_path: Path) -> None:
    both = tmp_path / "both.csv"
    lines = []
    for chip, factor in (("h100", 0.8), ("a100", 1.1)):
        for cluster, batch, seq, layout in LINES:
            line = (cluster.replace("h100", chip), batch, seq, layout)
            seconds = _seconds(line, {"matmul": factor})
            lines.append(f'llama-3-8b,{line[0]},{batch},{seq},"{layout}",{seconds:.6g}')
    both.write_text(HEAD + "\n".join(lines) + "\n")
    made = mw.calibrate_runs(both)
    assert made.runs == {"a100": 3, "h100": 3}
    assert made.fitted["h100"].factors["matmul"] < 0.9
    assert made.fitted["a100"].factors["matmul"] > 1.02
    assert all(fitted.after < 0.03 for fitted in made.fitted.values())


def test_a_mark_of_byte_order_is_no_name(tmp_path: Path) -> None:
    path = _table(tmp_path / "runs.csv", {"matmul": 0.85})
    plain = mw.calibrate_runs(path).to_dict()
    path.write_text("\ufeff" + path.read_text(), encoding="utf-8")
    assert mw.calibrate_runs(path).to_dict() == plain


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
