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


RATES = "name: {name}\nprovenance: a test\nextends: default\ncommon: {{matmul: {matmul}}}\n"


def written(capsys: Capture) -> None:
    """a.json with the default rates, b.json with those of a file, own.json of a model from a file."""
    Path("mine.yaml").write_text(RATES.format(name="mine", matmul=0.5))
    Path("other.yaml").write_text(RATES.format(name="other", matmul=0.4))
    layout = ["--layout", "dp=8,zero=3,recompute=full"]
    ask = ["llama-3-8b", *ASK[1:]]
    assert run(capsys, "estimate", *ask, *layout, "-o", "a.json")[0] == 0
    assert run(capsys, "estimate", *ask, *layout, "-o", "b.json", "--efficiency", "mine.yaml")[0] == 0
    assert run(capsys, "estimate", *ASK, *layout, "-o", "own.json")[0] == 0


OTHERS = [
    (["explain", "a.json", "--efficiency", "ideal"], "the plan was written with efficiency 'default', here it is 'ideal'; leave --efficiency out, or plan again with it"),
    (["explain", "b.json", "--efficiency", "other.yaml"], "the plan was written with efficiency 'mine', here it is 'other'; give --efficiency the file that is called mine, or plan again"),
    (["explain", "a.json", "--efficiency", "nix"], "unknown efficiency 'nix'"),
    (["explain", "a.json", "--model", "llama-3-70b"], "the plan was made with another model: its params is 8030261248, here it is 70553706496; leave --model out"),
    (["compare", "a.json", "b.json", "--efficiency", "/nonexistent"], "cannot read /nonexistent: No such file or directory"),
    (["compare", "a.json", "b.json", "--efficiency", "other.yaml"], "--efficiency other.yaml: no plan was made with it, but with efficiency default and mine; leave it out, or give that one"),
    (["compare", "a.json", "b.json", "--model", "."], "the folder '.' holds no config.json"),
    (["compare", "a.json", "b.json", "--model", "llama-3-70b"], "--model llama-3-70b: no plan was made with it, but with model llama-3-8b; leave it out, or give that one"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "told"), OTHERS, ids=[" ".join(words) for words, _ in OTHERS])
def test_other_files_than_those_of_a_plan_are_told_as_such(
    capsys: Capture, words: list[str], told: str
) -> None:
    written(capsys)
    for launcher in ([], ["--launcher", "jax"]):
        code, out, err = run(capsys, *words, *launcher)
        assert (code, out) == (2, "") and err.startswith(f"meshwright: {told}") and err.count("\n") == 1


def test_compare_gives_each_plan_the_files_that_are_its_own(capsys: Capture) -> None:
    written(capsys)
    for pair, files in (
        (("a.json", "b.json"), ["--efficiency", "mine.yaml"]),
        (("own.json", "b.json"), ["--efficiency", "mine.yaml", "--model", "tiny.json"]),
    ):
        made = json.loads(run(capsys, "compare", *pair, *files, "--json")[1])
        assert "unchecked" not in made
    assert list(json.loads(run(capsys, "compare", "a.json", "b.json", "--json")[1])["unchecked"]) == ["b"]


def test_a_question_with_other_words_is_no_edited_file() -> None:
    job = mw.Training(2**18, 8192)
    plan = mw.recommend("llama-3-8b", "h100:8x1", job)
    for word, value in (("overlap", "none"), ("comm_streams", "independent"), ("launcher", "maxtext")):
        other = mw.resolve("llama-3-8b", "h100:8x1", job, **{word: value})
        with pytest.raises(
            mw.InputError, match=f"^the plan was written with {word} '.*', here it is '{value}'; "
        ):
            mw.explain(plan, other)


HOSTS_IN_VAIN = [
    (["llama-3-8b", *ASK[1:], "--cpu-update", "1Gparam/s"], "cpu_update_params_per_s (--cpu-update) 1e+09 changes nothing: h100:8x1 gives no host memory"),
    (["llama-3-8b", "--cluster", "jetson-agx-orin-64gb", "--batch", "4Ki", "--seq", "4096", "--host-memory", "1TB"], "host_memory_bytes (--host-memory) changes nothing: jetson-agx-orin-64gb gives no host link"),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "told"), HOSTS_IN_VAIN, ids=["no memory", "no link"])
def test_what_is_said_of_hosts_in_vain_is_refused(capsys: Capture, ask: list[str], told: str) -> None:
    for command in (
        ["recommend"],
        ["estimate", "--layout", "tp=1"],
        ["balance"],
        ["front", "--axes", "time,cost"],
    ):
        code, out, err = run(capsys, command[0], *ask, *command[1:])
        assert (code, out) == (2, "") and err.startswith(f"meshwright: {told}") and err.count("\n") == 1
