"""Each subcommand on small questions: exit codes, JSON that loads back, files."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import meshwright as mw
from meshwright.hardware.errors import MissingExtraError
from meshwright.optimizer.cli import main
from meshwright.optimizer.files import load_priced, to_json
from meshwright.optimizer.plan import Priced

ASK = "tiny.json --cluster h100:8x1 --batch 64Ki --seq 4096"
RECOMMEND = f"recommend {ASK}"
ESTIMATE = f"estimate {ASK} --layout tp=2,dp=4,zero=1"

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.usefixtures("folder")


def run(capsys: Capture, line: str) -> tuple[int, str, str]:
    code = main(line.split())
    return code, *capsys.readouterr()


def json_of(capsys: Capture, line: str) -> Any:
    code, out, err = run(capsys, f"{line} --json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_recommend_prints_a_plan_that_loads_back(capsys: Capture) -> None:
    data = json_of(capsys, f"{RECOMMEND} --tokens 1B")
    plan = mw.Plan.from_dict(data)
    assert plan.to_dict() == data
    assert plan.certificate.status == "OPTIMAL"
    assert data["fits"] is True and data["short_bytes"] == 0
    assert sum(data["estimate"]["parts"].values()) == pytest.approx(data["estimate"]["step_s"], rel=1e-8)


def test_the_command_line_answers_as_the_library_does(capsys: Capture) -> None:
    asked = mw.Training(64 * 1024, 4096)
    assert json_of(capsys, RECOMMEND) == mw.recommend("tiny.json", "h100:8x1", asked).to_dict()


def test_the_same_question_gives_the_same_bytes(capsys: Capture) -> None:
    assert run(capsys, f"{RECOMMEND} --json") == run(capsys, f"{RECOMMEND} --json")


@pytest.mark.parametrize("name", ["plan.yaml", "plan.json"])
@pytest.mark.parametrize("line", [RECOMMEND, ESTIMATE])
def test_a_written_file_holds_what_json_prints(capsys: Capture, folder: Path, line: str, name: str) -> None:
    code, out, err = run(capsys, f"{line} --json -o {name}")
    assert (code, err) == (0, "")
    assert load_priced(folder / name).to_dict() == json.loads(out)
    assert sorted(p.name for p in folder.iterdir()) == sorted(["huge.json", "tiny.json", name])  # no leavings


def test_a_file_is_replaced_whole(capsys: Capture, folder: Path) -> None:
    (folder / "plan.yaml").write_text("old" * 100_000)
    assert run(capsys, f"{RECOMMEND} -o plan.yaml")[0] == 0
    assert mw.load_plan(folder / "plan.yaml").certificate.status == "OPTIMAL"


def test_money_counts_idle_chips_and_names_the_price(capsys: Capture) -> None:
    data = json_of(capsys, f"{ESTIMATE} --tokens 1T --cluster h100:8x4")
    run_, chips = data["run"], 32
    assert data["idle"]["devices"] == 24 and run_["chips"] == chips
    assert run_["days"] == pytest.approx(1e12 / data["estimate"]["tokens_per_s"] / 86400, rel=1e-8)
    assert run_["usd"] == pytest.approx(
        run_["days"] * 24 * chips * run_["price"]["usd_per_chip_hour"], rel=1e-8
    )
    assert run_["steps"] == -(-(10**12) // 65536)
    assert {"provider", "date", "source", "kind"} <= run_["price"].keys()


def test_a_chip_without_a_price_gives_days_but_no_money(capsys: Capture) -> None:
    asked = json_of(capsys, f"{ESTIMATE} --tokens 1T --cluster tpu7x:2x2x1")["run"]
    assert asked["days"] > 0 and asked["usd"] is None and asked["price"] is None


def test_no_length_no_run(capsys: Capture) -> None:
    assert json_of(capsys, ESTIMATE)["run"] is None


def test_options_reach_the_question(capsys: Capture) -> None:
    line = (
        f"{RECOMMEND} --efficiency mfu=0.4 --overlap none --comm-streams independent --framework megatron "
        "--optimizer sgd --dtype fp8 --trainable lora:4:out+qkv --moe-imbalance 1.2 --host-memory 2TB --cpu-update 1Gparam/s "
        "--constraint tp<=2 --constraint pp==1 --runner-ups 1 --work-limit 5 --seed 7 --batch 64Ki~10%"
    )
    inputs = json_of(capsys, line)["inputs"]
    assert inputs["efficiency"] == "mfu=0.4"
    assert (inputs["overlap"], inputs["comm_streams"], inputs["framework"]) == (
        "none",
        "independent",
        "megatron",
    )
    assert inputs["constraints"] == "tp<=2,pp==1"
    assert inputs["cluster"]["host_memory_bytes"] == 2 * 10**12
    assert inputs["cluster"]["cpu_update_params_per_s"] == 1e9
    training = inputs["training"]
    assert (training["optimizer"], training["compute_dtype"], training["moe_imbalance"]) == (
        "sgd",
        "fp8",
        1.2,
    )
    assert training["batch_tolerance"] == 0.1
    assert training["trainable"] == "lora:4:qkv+out"


def test_runner_ups_are_counted(capsys: Capture) -> None:
    assert len(json_of(capsys, f"{RECOMMEND} --runner-ups 1")["runner_ups"]) == 1
    assert json_of(capsys, f"{RECOMMEND} --runner-ups 0")["runner_ups"] == []


def test_a_fabric_option_is_the_fabric_of_the_cluster(capsys: Capture) -> None:
    a = json_of(capsys, f"{ESTIMATE} --cluster h100:8x4@roce")
    assert a == json_of(capsys, f"{ESTIMATE} --cluster h100:8x4 --fabric roce")


def test_estimate_of_a_layout_that_does_not_fit_is_an_answer(capsys: Capture) -> None:
    line = "estimate huge.json --cluster h100:8x1 --batch 64Ki --seq 4096 --layout tp=4"
    data = json_of(capsys, line)
    assert data["fits"] is False and data["short_bytes"] > 2**30
    assert "certificate" not in data
    code, out, _ = run(capsys, line)
    assert code == 0 and "DOES NOT FIT: stage 0 is" in out


def test_compare_lines_two_files_up(capsys: Capture) -> None:
    assert run(capsys, f"{RECOMMEND} -o a.yaml")[0] == 0
    assert run(capsys, f"{ESTIMATE} -o b.json")[0] == 0
    data = json_of(capsys, "compare a.yaml b.json")
    a, b = load_priced("a.yaml"), load_priced("b.json")
    assert data["question"] == {}
    assert data["totals"]["step_s"]["a"] == a.estimate.step_s
    assert data["totals"]["step_s"]["ratio"] == pytest.approx(b.estimate.step_s / a.estimate.step_s)
    assert {p: v["b"] for p, v in data["parts"].items()} == b.estimate.parts
    assert data["layout"]["tp"] == {"a": a.layout.tp, "b": 2, "ratio": 2 / a.layout.tp}
    assert data["memory"]["sum"]["a"] == max(a.estimate.stage_bytes)


def test_compare_says_when_the_questions_differ(capsys: Capture) -> None:
    assert run(capsys, f"{ESTIMATE} -o a.yaml")[0] == 0
    assert run(capsys, f"{ESTIMATE} --batch 128Ki -o b.yaml")[0] == 0
    assert set(json_of(capsys, "compare a.yaml b.yaml")["question"]) == {"training.global_batch_tokens"}
    assert "answer different questions" in run(capsys, "compare a.yaml b.yaml")[1]


def test_catalogues_as_json(capsys: Capture) -> None:
    chip = json_of(capsys, "chips TPU-7x")["tpu7x"]
    assert chip["device"]["peak_flop_per_s"]["bf16"] * 2 == 2307e12
    assert chip["peak"]["bf16"]["source"]
    assert len(json_of(capsys, "chips")) > 10
    known = json_of(capsys, "clusters")
    assert {"cluster", "title", "source"} == known["clusters"][0].keys() and "ib400" in known["fabrics"]
    model = json_of(capsys, "models llama-3-8b")["llama-3-8b"]
    assert model["params"] == 8_030_261_248 and model["source"]
    assert (
        model["embedding_params"] + model["head_params"] + 32 * model["kinds"][0]["params"] == model["params"]
    )
    assert len(json_of(capsys, "models")) > len(json_of(capsys, "models llama")) > 10


def test_a_config_of_the_user_as_json(capsys: Capture) -> None:
    found = json_of(capsys, "models ./tiny.json")
    tiny = mw.load_model("tiny.json")
    assert list(found) == ["./tiny.json"]
    (kind,) = found["./tiny.json"].pop("kinds")
    assert (kind["name"], kind["layers"], kind["heads"], kind["kv_heads"]) == ("dense", 4, 8, 4)
    assert found["./tiny.json"] == {
        "model_type": "llama",
        "params": tiny.params,
        "active_params": tiny.params,
        "embedding_params": 1024 * 256,
        "head_params": 1024 * 256 + 256,
        "tied": False,
        "layers": 4,
        "hidden": 256,
        "vocab": 1024,
        "max_seq_len": 8192,
        "mtp": None,
        "tower": None,
        "notes": [],
        "source": "./tiny.json",
    }


def test_a_proven_no_ends_with_3(capsys: Capture) -> None:
    line = "recommend huge.json --cluster h100:8x1 --batch 64Ki --seq 4096"
    code, out, err = run(capsys, line)
    assert code == 3
    assert err.startswith("meshwright: no layout fits: ") and err.count("\n") == 1
    assert "INFEASIBLE (proven)" in out and "short" in out and "no cut fits the device memory" in out
    code, out, again = run(capsys, f"{line} --json")
    data = json.loads(out)
    assert (code, again) == (3, err)
    assert data["status"] == "INFEASIBLE" and data["short_bytes"] > 2**30
    assert mw.Layout.from_dict(data["layout"]).devices <= 8
    assert data["removed"]["no cut fits the device memory"] > 0


@pytest.mark.parametrize("name", ["plan.yaml", "plan.json"])
def test_a_no_takes_the_place_of_an_older_plan(capsys: Capture, folder: Path, name: str) -> None:
    assert run(capsys, f"{RECOMMEND} -o {name}")[0] == 0
    no = f"recommend huge.json --cluster h100:8x1 --batch 64Ki --seq 4096 -o {name}"
    code, out, err = run(capsys, f"{no} --json")
    assert code == 3 and err.startswith("meshwright: no layout fits: ")
    written = (folder / name).read_text()
    told = json.loads(out)
    assert told.pop("why")["clash"]["proven"]  # reasons are printed; the file holds the answer
    assert (json.loads(written) if name.endswith("json") else yaml.safe_load(written)) == told
    assert told["schema_version"] == 1 and told["status"] == "INFEASIBLE"
    for load in (mw.load_plan, mw.load_priced):
        with pytest.raises(mw.InputError) as caught:
            load(folder / name)
        assert str(caught.value) == f"{folder / name} holds no plan but INFEASIBLE: {told['reason']}"
    assert f"written to {name}" in run(capsys, no)[1]


def test_a_proven_no_is_saved_by_the_library(folder: Path) -> None:
    with pytest.raises(mw.Infeasible) as no:
        mw.recommend("huge.json", "h100:8x1", mw.Training(64 * 1024, 4096))
    mw.save_plan(no.value, folder / "no.json")
    assert json.loads((folder / "no.json").read_text()) == no.value.to_dict()


def test_constraints_that_leave_nothing_are_named(capsys: Capture) -> None:
    code, out, err = run(capsys, f"{RECOMMEND} --constraint vpp==1,schedule==interleaved")
    assert code == 3 and "'vpp==1' and 'schedule==interleaved' leave no layout" in err and "vpp==1" in out


@pytest.mark.parametrize("found", [True, False])
def test_an_undecided_search_ends_with_4(capsys: Capture, monkeypatch: Patch, found: bool) -> None:
    best = mw.recommend("tiny.json", "h100:8x1", mw.Training(64 * 1024, 4096)) if found else None

    def cut_short(*_: object) -> None:
        raise mw.Undecided("the work limit left a gap of 1.00%; raise it", best)

    monkeypatch.setattr("meshwright.optimizer.recommend.recommend_in", cut_short)
    code, out, err = run(capsys, f"{RECOMMEND} --json -o plan.json")
    assert code == 4 and err == "meshwright: the work limit left a gap of 1.00%; raise it\n"
    assert out == to_json(best) if best else json.loads(out)["status"] == "UNKNOWN"
    assert Path("plan.json").read_text() == out
    code, page, again = run(capsys, RECOMMEND)
    assert (code, again) == (4, err)
    assert ("Step time" in page) == found and (page == "") == (not found)


def test_timings_go_to_stderr_only(capsys: Capture) -> None:
    plain = run(capsys, f"{RECOMMEND} --json")
    code, out, err = run(capsys, f"{RECOMMEND} --json --timings")
    assert (code, out) == plain[:2]
    assert err.startswith("timings: imports ") and "search" in err and err.count("\n") == 1


def test_version_and_help(capsys: Capture) -> None:
    for words, text in (
        (["--version"], "meshwright 0."),
        (["--help"], "recommend"),
        (["estimate", "--help"], "--layout"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        assert text in capsys.readouterr().out


def entry(name: str, load: Callable[[], Any]) -> SimpleNamespace:
    return SimpleNamespace(name=name, load=load)


def commands_from(monkeypatch: Patch, *entries: SimpleNamespace) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries)


def registers(run: Callable[[Any], int]) -> Callable[[], Any]:
    """What an entry point loads to: a function that adds `shape --size N`."""

    def register(subparsers: Any) -> None:
        parser = subparsers.add_parser("shape")
        parser.add_argument("--size", type=int, default=0)
        parser.set_defaults(run=run)

    return lambda: register


def test_other_packages_add_commands(capsys: Capture, monkeypatch: Patch) -> None:
    def shape(args: Any) -> int:
        print(args.size)
        return 0

    commands_from(monkeypatch, entry("shape", registers(shape)))
    assert run(capsys, "shape --size 7") == (0, "7\n", "")


def test_a_broken_command_of_another_package_breaks_nothing(capsys: Capture, monkeypatch: Patch) -> None:
    def broken() -> Any:
        raise ImportError("no module named gone")

    commands_from(monkeypatch, entry("gone", broken), entry("shape", registers(lambda args: 0)))
    assert run(capsys, "chips h100")[0] == 0
    code, _, err = run(capsys, "shape")
    assert code == 0
    assert (
        err
        == "meshwright: command 'gone' does not load (ImportError: no module named gone); it is left out\n"
    )


def test_a_missing_optional_part_ends_with_5_and_the_pip_line(capsys: Capture, monkeypatch: Patch) -> None:
    def plot(args: Any) -> int:
        raise MissingExtraError("shape", "plot")

    commands_from(monkeypatch, entry("shape", registers(plot)))
    assert run(capsys, "shape") == (
        5,
        "",
        "meshwright: shape needs an optional part; install it with: pip install 'meshwright[plot]'\n",
    )


def test_an_estimate_does_not_load_as_a_plan(capsys: Capture) -> None:
    assert run(capsys, f"{ESTIMATE} -o own.yaml")[0] == 0
    with pytest.raises(mw.InputError, match="certificate"):
        mw.load_plan("own.yaml")
    assert type(load_priced("own.yaml")) is Priced


@pytest.mark.parametrize("field", ["estimate.step_s", "layout.tp", "idle.devices", "memory", "inputs"])
def test_a_damaged_plan_is_refused(capsys: Capture, folder: Path, field: str) -> None:
    data = json_of(capsys, RECOMMEND)
    *path, last = field.split(".")
    at = data
    for name in path:
        at = at[name]
    at[last] = "many"
    (folder / "damaged.json").write_text(json.dumps(data))
    code, out, err = run(capsys, "compare damaged.json damaged.json")
    assert (code, out) == (2, "") and err.count("\n") == 1
