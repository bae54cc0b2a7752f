"""What the commands check before they solve and write, and what they say of files that were changed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.optimizer.cli import main
from meshwright.optimizer.plan import Undecided
from meshwright.optimizer.reasons import asked
from meshwright.optimizer.solve import Search

ASK = ["tiny.json", "--cluster", "h100:8x1", "--batch", "64Ki", "--seq", "4096"]
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.usefixtures("folder")


def run(capsys: Capture, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    return main(list(words)), *capsys.readouterr()


def no_search(self: Search, *args: Any) -> bool:
    raise AssertionError("a search was begun")


HOSTS = "offload=activations needs the host's memory and h100:8x1 gives none"
EARLY = [
    (["recommend", *ASK, "-o", "out.yaml", "--why-not", "offload=activations"], HOSTS),
    (["recommend", *ASK, "-o", "out.yaml", "--json", "--why-not", "offload=optimizer"], "offload=optimizer needs"),
    (["recommend", *ASK, "-o", "out.yaml", "--why-not", "tp=2,placement=tp*2"], "placement is the solver's to choose"),
    (["recommend", *ASK, "-o", "out.yaml", "--why-not", "tp=2", "--constraint", "tp<=8,pp"], "cannot read constraint"),
    (["recommend", *ASK, "-o", "out.yaml", "--why-not", "tp=2", "--goal", "cost"], "--why-not compares step times"),
    (["recommend", *ASK, "-o", "out.yaml", "--constraint", "offload==parameters"], "offload=parameters needs"),
    (["front", *ASK, "--csv", "a.svg", "--plot", "./a.svg"], "a.svg is to hold two answers; give each a file of its own"),
    (["front", *ASK, "--csv", "out.yaml", "--points", "0"], "--points"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "told"), EARLY, ids=[" ".join(words[5:])[-50:] for words, _ in EARLY])
def test_what_is_wrong_is_told_before_a_search(
    capsys: Capture, folder: Path, monkeypatch: Patch, words: list[str], told: str
) -> None:
    before = sorted(folder.iterdir())
    monkeypatch.setattr(Search, "run", no_search)
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "") and told in err and err.count("\n") == 1
    assert sorted(folder.iterdir()) == before, "a file was written"


def test_explain_reads_the_launcher_before_it_solves(capsys: Capture, monkeypatch: Patch) -> None:
    mw.save_plan(mw.recommend("llama-3-8b", "h100:8x1", mw.Training(2**18, 8192)), "plan.json")
    monkeypatch.setattr(Search, "run", no_search)
    code, out, err = run(capsys, "explain", "plan.json", "--shadow", "--launcher", "megatrn")
    assert (code, out) == (2, "") and "unknown launcher 'megatrn'" in err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reason_that_is_not_found_costs_the_answer_nothing(
    capsys: Capture, monkeypatch: Patch, form: list[str]
) -> None:
    def cut(*given: Any) -> Iterator[asked.Reason]:
        raise Undecided("the search ended at its limit", None)
        yield

    monkeypatch.setattr(asked, "reasons_of", cut)
    code, out, err = run(capsys, "recommend", *ASK, "-o", "plan.json", "--why-not", "tp=2", *form)
    assert (code, err) == (4, "meshwright: the search ended at its limit\n")
    if form:
        assert json.loads(out) == json.loads(Path("plan.json").read_text())
    else:
        assert "Certificate   OPTIMAL" in out


def test_a_host_that_is_too_small_is_told_by_every_door(capsys: Capture) -> None:
    hosts = ["--host-memory", "1MB", "--layout", "dp=8,zero=3,offload=activations"]
    code, out, _ = run(capsys, "estimate", *ASK, *hosts, "-o", "own.json", "--json")
    data = json.loads(out)
    assert code == 0 and not data["fits"] and data["short_bytes"] == 0
    needs = data["estimate"]["fullest_host_bytes"]
    assert data["host_short_bytes"] == pytest.approx(needs - 1e6) and needs == pytest.approx(
        8 * data["estimate"]["host_bytes"][0]
    )
    assert (
        run(capsys, "estimate", *ASK, *hosts)[1].count("DOES NOT FIT: the memory of the fullest host is") == 1
    )
    code, out, _ = run(capsys, "explain", "own.json", "--model", "tiny.json")
    assert code == 0 and "DOES NOT FIT: the memory of the fullest host is" in out
    told = json.loads(run(capsys, "explain", "own.json", "--model", "tiny.json", "--json")[1])
    assert (told["fits"], told["host_short_bytes"]) == (False, data["host_short_bytes"])
    totals = json.loads(run(capsys, "compare", "own.json", "own.json", "--json")[1])["totals"]
    assert totals["fits"]["a"] is False
    pins = "dp_shard==8, zero==3, offload==activations, tp==1"
    code, _, err = run(
        capsys, "recommend", *ASK, "--host-memory", "1MB", "--constraint", pins, "--no-ways-out"
    )
    assert code == 3 and "overfills a host of 976.6 KiB" in err


def test_compare_holds_files_to_their_figures_where_it_can(capsys: Capture) -> None:
    for name, tp in (("a.json", 1), ("b.json", 2)):
        layout = f"tp={tp},dp={8 // tp},zero=1,recompute=full"
        question = "llama-3-8b --cluster h100:8x1 --batch 512Ki --seq 8192"
        assert run(capsys, "estimate", *question.split(), "--layout", layout, "-o", name)[0] == 0
    assert "unchecked" not in json.loads(run(capsys, "compare", "a.json", "b.json", "--json")[1])
    data = json.loads(Path("b.json").read_text())
    data["memory"][0]["loss"] /= 2
    Path("b.json").write_text(json.dumps(data))
    code, out, err = run(capsys, "compare", "a.json", "b.json")
    told = "b.json: the plan says that memory[0].loss is"
    assert (code, out) == (2, "") and err.startswith(f"meshwright: {told}") and err.endswith("plan again\n")
    data["provenance"]["versions"]["meshwright"] = "0.0.9"  # whose figures nobody can make again
    Path("b.json").write_text(json.dumps(data))
    code, out, err = run(capsys, "compare", "a.json", "b.json")
    assert (code, err) == (0, "") and "b: as its file says it; it was made by meshwright 0.0.9, " in out
    made = json.loads(run(capsys, "compare", "a.json", "b.json", "--json")[1])
    assert list(made["unchecked"]) == ["b"] and made["memory"]["loss"]["ratio"] < 1
