"""The judge of single operators: bars on shapes left out, refusals, and that the shipped numbers are the fit's.

Rows: benchmarks/data/operators. Bars: medians over chips of the mean absolute error, set before the fit.
"""

import csv
import gzip
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from meshwright.hardware.errors import InputError, MissingExtraError
from meshwright.hardware.kernel_rates import LAWS, load_law

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import accuracy
import fit_operators
from operator_accuracy.cases import FOLDS, cases_of
from operator_accuracy.fit import fit_law
from operator_accuracy.page import with_table
from operator_accuracy.score import BARS, Scored
from operator_accuracy.shipped import SHIPPED, known, shipped_cases
from operator_accuracy.tables import hashed, read_table

GEMM = "chip,backend,dtype,m,n,k,time_us,source\n"


@pytest.fixture(scope="module")
def shipped() -> Scored:
    return Scored.of(shipped_cases())


def judged(tmp_path: Path, text: str) -> Scored:
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return accuracy.operators(path)


def test_bars_on_shapes_left_out(shipped: Scored) -> None:
    summary = shipped.summary()
    assert summary["rows"] > 250_000
    assert summary["priced"] + sum(summary["refused"].values()) == summary["rows"]
    assert summary["priced"] / summary["rows"] > 0.99
    for law, bar in BARS.items():
        one = summary["laws"][law]
        assert one["data_centre"]["mape"] <= bar, law
        assert one["all_chips"]["mape"] <= bar, law
        assert one["data_centre"]["mape"] < one["data_centre"]["family"] < one["data_centre"]["flat"], law


def test_the_page_has_the_numbers_of_the_command(shipped: Scored) -> None:
    page = ROOT / "docs" / "operators.md"
    assert with_table(page, shipped) == page.read_text(encoding="utf-8")


def test_the_example_on_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """An H100 at about 0.75 of 989 TFLOP/s: 5.5e11 FLOPs in 0.74 ms."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "operators.md").read_text(), re.DOTALL)
    exec(compile(code, "docs/operators.md", "exec"), {})  # noqa: S102
    us = float(capsys.readouterr().out.split()[0])
    assert us == pytest.approx(740, rel=0.05)


def test_the_shipped_numbers_are_the_ones_the_fit_makes() -> None:
    """One case of each of three laws, fitted anew; and every file has the text that the fit writes."""
    pytest.importorskip("scipy")
    for law, key in {
        "memory": ("h200_sxm", "trtllm", "any", "quantize_fp8"),
        "matmul": ("gb300", "vllm", "any", "fp8"),
        "domain": ("a100_sxm", "nccl nvlink3", "any", "all"),
    }.items():
        every = shipped_cases().cases[law]
        fitted = fit_law(every.some(every.key == every.keys.index(key))).whole[key]
        chip, engine, kernel, case = key
        written = load_law(law).entries[chip][engine][kernel][case]
        assert fitted.rows == written.rows
        for name, value in written.values.items():
            if name not in written.loose:
                assert fitted.values[name] == pytest.approx(value, rel=0.02), (law, name)
    for law in LAWS:
        path = ROOT / "hardware" / "data" / "kernels" / f"{law}.yaml"
        assert fit_operators.written(load_law(law)) == path.read_text(encoding="utf-8")


def test_a_row_is_predicted_by_the_fit_without_its_shape(shipped: Scored) -> None:
    """The numbers without a part differ from the shipped ones, every part is there, and shapes fall in one part only."""
    cases = shipped_cases().cases["matmul"]
    assert sorted(set(cases.fold.tolist())) == list(range(FOLDS))
    by = known("matmul")
    values = [file.entries["h100_sxm"]["vllm"]["any"]["bf16"].values for file in (*by.parts, by.shipped)]
    assert len({json.dumps(v, sort_keys=True) for v in values}) == FOLDS + 1
    shape = np.array([4096.0, 4096.0]), np.array([512.0, 512.0])
    assert hashed(*shape)[0] == hashed(*shape)[1] != hashed(*reversed(shape))[0]


def test_other_rows_are_predicted_by_the_shipped_numbers(tmp_path: Path) -> None:
    """A shape that no shipped row has: the shipped law itself; an engine that was not measured: all engines together."""
    done = judged(
        tmp_path, GEMM + "h100_sxm,vllm,bf16,1000,1234,5678,50,x\nh100_sxm,new,bf16,1000,1234,5678,50,x\n"
    )
    law = done.laws["matmul"]
    assert law.priced.all()
    from meshwright.costmodel.kernels import matmul_s
    from meshwright.hardware.kernel_rates import kernel_rates

    for seconds, engine in zip(law.ways["left_out"], ("vllm", "any"), strict=True):
        rates = kernel_rates("matmul", "h100", "bf16", engine).rates
        assert seconds == pytest.approx(matmul_s(rates, 1000, 1234, 5678, 989.4e12, 3352e9))


def test_refusals_with_their_reasons(tmp_path: Path) -> None:
    done = judged(
        tmp_path,
        GEMM + "h100_sxm,vllm,bf16,1,2,3,10,x\nmi455,vllm,bf16,1,2,3,10,x\na100_sxm,vllm,fp8,1,2,3,10,x\n"
        "h100_sxm,vllm,fp7,1,2,3,10,x\nh100_sxm,vllm,bf16,1,two,3,10,x\nh100_sxm,vllm,bf16,1,2,3,0,x\n"
        "h100_sxm,vllm,bf16,1,2,3,nan,x\nh100_sxm,vllm,bf16\n",
    )  # fmt: skip
    assert done.summary()["refused"] == {
        "dtype without a peak: a100_sxm has no fp8 peak, which fp8 needs; it has bf16, int8": 1,
        "row malformed: a number is missing or not above 0": 3,
        "row malformed: cells missing or too many": 1,
        "unknown chip: no peaks, no numbers": 1,
        "unknown dtype: fp7": 1,
    }
    assert (done.rows, done.summary()["priced"]) == (8, 1)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a,b\n1,2\n", "has columns a, b; an operator table has those of one of gemm: chip, backend"),
        (b"", "has columns none"),
        (b"\x1f\x8b broken", "is no readable CSV table"),
        (gzip.compress(GEMM.encode(), mtime=0)[:-6], "is no readable CSV table"),
        (b"\xff\xfe\x00", "is no readable CSV table"),
        (("chip," + GEMM).encode(), "names a column twice"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, data: bytes, text: str) -> None:
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(data)
    with pytest.raises(InputError, match=text):
        accuracy.operators(path)
    with pytest.raises(InputError, match="is no readable CSV table"):
        accuracy.operators(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"holds no \.csv"):
        (tmp_path / "empty").mkdir()
        accuracy.operators(tmp_path / "empty")


@pytest.mark.parametrize("kind", ["gemm", "attention", "moe", "collective", "memory"])
def test_a_table_without_rows_and_one_of_few(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Header alone: nothing to price; the first 40 rows by the command, whose last line is the summary."""
    text = gzip.decompress((SHIPPED / f"{kind}.csv.gz").read_bytes()).decode()
    assert judged(tmp_path, text.splitlines()[0] + "\n").summary()["rows"] == 0
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(text.splitlines()[:41]), encoding="utf-8")
    assert accuracy.operators_page(path, None) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["judge"] == "operators"
    assert summary["rows"] == 40


def test_kept_rows_have_no_share_alike_source_and_stay_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 2_500_000
    for path in SHIPPED.glob("*.csv.gz"):
        rows = csv.DictReader(io.StringIO(gzip.decompress(path.read_bytes()).decode()))
        assert not any(re.match("mamf|ml-engineering", row["source"]) for row in rows)


def test_fitting_without_scipy_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    cases = cases_of([read_table(SHIPPED / "memory.csv.gz")]).cases["memory"]
    with pytest.raises(MissingExtraError, match=r"meshwright\[fit\]"):
        fit_law(cases)
