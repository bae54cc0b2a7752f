"""`meshwright fit-law`: a file in, a law out that loads and that `search` takes."""

import csv
import json
import sys

import pytest

from meshwright.optimizer.cli import main
from meshwright.search.law import load_law


@pytest.fixture
def runs_csv(plas_runs, tmp_path):
    def write(noise=0.0):
        runs, path = plas_runs(noise), tmp_path / "runs.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(runs.given)
            writer.writerows(zip(*(column.tolist() for column in runs.given.values()), strict=True))
        return str(path)

    return write


def test_a_law_is_fitted_written_loaded_and_searched_with(runs_csv, tmp_path, capsys):
    out = str(tmp_path / "law.yaml")
    told = ["fit-law", runs_csv(), "--out", out, "--bootstrap", "5", "--name", "mine", "--json"]
    assert main(told) == 0
    first = capsys.readouterr().out
    answer = json.loads(first)
    assert answer["given"]["form"]["value"] == "plas"
    assert answer["given"]["form"]["note"] == "its terms are separable"
    assert answer["given"]["form"]["formula"].startswith("kl/l^al + kr rho^arho/(r^ar d^b1)")
    assert answer["steps"]["r2_held_out"]["value"] == 1
    rows = {row["coefficient"]: row for row in answer["table"]}
    assert rows["arho"]["value"] == pytest.approx(1.09)
    assert answer["binds"] == "every coefficient is identified by these runs"
    law = load_law(out)
    assert (law.name, law.confidence, law.box["layers"].basis) == ("mine", "fitted", "fitted")
    shipped = load_law("plas-10b")
    assert law.coefficients == pytest.approx(shipped.coefficients, rel=1e-5)
    with open(out) as file:
        text = file.read()
    assert main(told) == 0
    assert capsys.readouterr().out == first
    with open(out) as file:
        assert file.read() == text
    assert main(["search", "--cluster", "jetson-agx-orin-64gb", "--prompt", "1024", "--output", "16",
                 "--total", "100ms", "--law", out, "--json"]) == 0  # fmt: skip
    found = json.loads(capsys.readouterr().out)["steps"]
    assert found["best_loss"]["value"] > 2.5


def test_the_page_names_what_is_not_identified(runs_csv, capsys):
    assert main(["fit-law", runs_csv(0.02), "--bootstrap", "20"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "identifiability: these runs do not identify" in page
    assert "low confidence: the closed form gqa* reads km, am" in page
    assert "move together (correlation): " in page
    assert main(["fit-law", runs_csv(0.02), "--bootstrap", "0", "--correlations", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["table"]
    assert len(rows) == 11 and rows[0]["kl"] == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--out", "law.txt"], "'law.txt' ends in neither .yaml nor .yml; name it like law.yaml"),
        (["--out", "nowhere/law.yaml"], "there is no folder nowhere; make it first"),
        (["--form", "pals"], "unknown form 'pals'; did you mean plas"),
        (["--bootstrap", "many"], "--bootstrap: 'many' is not a whole number from 0 to 100000"),
        (
            ["--form", "width_depth"],
            "form width_depth cannot be fitted to these runs: its term of tokens needs",
        ),
    ],
)
def test_refusals(words, told, runs_csv, capsys):
    assert main(["fit-law", runs_csv(), *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and told in err, err


def test_a_file_that_is_not_there(capsys):
    assert main(["fit-law", "nowhere.csv"]) == 2
    assert "cannot read nowhere.csv: No such file or directory" in capsys.readouterr().err


def test_without_scipy(runs_csv, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert main(["fit-law", runs_csv()]) == 5
    assert "pip install 'meshwright[fit]'" in capsys.readouterr().err
