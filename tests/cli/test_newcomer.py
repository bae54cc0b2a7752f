"""What a newcomer's trial found: refusals that tell the cause, and outputs that cannot be written."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.optimizer import cli
from meshwright.optimizer.files import to_json
from meshwright.optimizer.plan import Plan
from meshwright.optimizer.report.page import render
from meshwright.optimizer.report.proof import certificate, next_best

QUESTION = ["llama-3-8b", "--cluster", "h100:8x8", "--batch", "1Mi", "--seq", "8192"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["recommend", *QUESTION, "--constraint", "zero==7"], "constraint 'zero==7': zero is 0 to 3, not 7"),
        (
            ["recommend", *QUESTION, "--constraint", "offload==activations"],
            (
                "offload=activations needs the host's memory and h100:8x8 gives none (field host_memory_bytes); "
                "say it with --host-memory 2TB, or use offload=none"
            ),
        ),
        (
            ["recommend", "gpt2", *QUESTION[1:]],
            "seq_len 8192 is more than the 1024 positions gpt2 has learned; use seq_len <= 1024",
        ),
        (
            ["estimate", *QUESTION, "--layout", "dp=64,zero=3,sequences=640"],
            "sequences=640 is not the batch asked for, 128 sequences; give that batch, or a tolerance like 4Mi~5%",
        ),
    ],
    ids=["zero", "offload", "positions", "batch"],
)
def test_the_cause_is_told(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert capsys.readouterr().err == f"meshwright: {text}\n"


def test_rules_not_memory_are_blamed_where_rules_leave_nothing() -> None:
    with pytest.raises(mw.Infeasible) as no:
        mw.recommend(
            "llama-3-8b", "h100:8x8", mw.Training(2**20, 8192), constraints="zero==3, dp_shard==1, cp==1"
        )
    assert no.value.short_bytes is None
    assert no.value.reason == (
        "constraints 'zero==3', 'dp_shard==1' and 'cp==1' leave no layout: zero above 0 needs dp_shard*cp above 1 to shard "
        "over. Drop or widen one of the constraints."
    )


def test_what_would_unlock_an_infeasible_question_is_said() -> None:
    with pytest.raises(mw.Infeasible, match=r"Offload was no option: .*--host-memory 2TB"):
        mw.recommend("llama-3.1-405b", "h100:8x8", mw.Training(4 * 2**20, 8192))


def test_offload_that_was_tried_is_not_said_to_be_no_option() -> None:
    cluster = mw.parse_cluster("h100:8x8", host_memory="2 TB")
    with pytest.raises(mw.Infeasible) as no:
        mw.recommend("llama-3.1-405b", cluster, mw.Training(4 * 2**20, 8192))
    assert no.value.reason == (
        "the device memory is too small for every layout. Offload of activations and parameters is not enough; more was no option: "
        "offload=optimizer needs the host's optimizer rate and h100:8x8 gives none (field cpu_update_params_per_s); say "
        "it with --cpu-update '1 Gparam/s'."
    )


def test_devices_and_hosts_that_hold_a_layout_only_apart_are_told_together() -> None:
    """All on the hosts overfills them, all on the devices those; no rule forbids the layout."""
    cluster = mw.parse_cluster("v5e:16x16", host_memory="20GB")
    text = "pp==1, recompute==none, offload==activations, tp==4, cp==1, dp_shard==64, zero==3"
    with pytest.raises(mw.Infeasible) as no:
        mw.recommend("llama-3-70b", cluster, mw.Training(4 * 2**20, 8192), constraints=text)
    assert no.value.reason.endswith(
        "that fits the device memory overfills a host of 18.63 GiB; give more with --host-memory, or allow offload=none."
    )


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (
            "--refinements=3",
            (
                "the search ended at its limit of 3 refinements with no plan found yet; raise it with --refinements "
                "(refinements of SolveOptions)"
            ),
        ),
        (
            "--work-limit=1e-9",
            (
                "the solver's work limit of 1e-09 per candidate left so many candidates open that the search ended (64), "
                "with no plan found yet; raise it with --work-limit (work_limit of SolveOptions)"
            ),
        ),
    ],
)
def test_a_search_that_is_cut_short_names_the_limit_and_its_option(
    option: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["recommend", *QUESTION, option]) == 4
    assert capsys.readouterr().err == f"meshwright: {text}\n"


def test_a_gap_names_the_limit_too() -> None:
    with pytest.raises(mw.Undecided) as cut:
        mw.recommend(
            "llama-3-70b", "h100:8x8", mw.Training(2**20, 4096), options=mw.SolveOptions(refinements=20)
        )
    assert cut.value.best is not None
    assert re.fullmatch(
        r"the search ended at its limit of 20 refinements with a gap of \d+\.\d\d% left; raise it with "
        r"--refinements \(refinements of SolveOptions\)",
        str(cut.value),
    )


def test_what_an_option_does_not_do_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", *QUESTION, "--layout", "dp=64,zero=1", "--tokens", "1000", "--moe-imbalance", "1.5"]
    assert cli.main([*words, "--json"]) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert "moe_imbalance 1.5 changes nothing: llama-3-8b has no experts" in warnings
    assert (
        "the run of 1,000 tokens is less than one step of 1,048,576; days and money are of that share of a step"
        in warnings
    )
    assert cli.main(["estimate", *QUESTION, "--layout", "dp=64,zero=1", "--tokens", "1Mi", "--json"]) == 0
    assert not any("less than one step" in w for w in json.loads(capsys.readouterr().out)["warnings"])


def test_a_layout_that_does_not_fit_is_answered_and_help_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["estimate", *QUESTION, "--layout", "dp=64", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["fits"] is False and answer["short_bytes"] > 0
    with pytest.raises(SystemExit):
        cli.main(["estimate", "--help"])
    assert "the JSON has fits: false" in " ".join(capsys.readouterr().out.split())


def test_power_is_listed_where_a_source_gives_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["chips", "h100", "v5p", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["h100"]["device"]["power_w"] == 700 and data["h100"]["power"]["source"]
    assert data["v5p"]["device"]["power_w"] is None
    assert cli.main(["chips", "h100", "v5p"]) == 0
    header, _, h100, v5p = capsys.readouterr().out.splitlines()[1:5]
    assert header.split()[-2:] == ["power", "price"]
    assert (h100.split()[-2], v5p.split()[-2]) == ("700", "-")


def test_a_tie_is_called_one() -> None:
    plan = mw.recommend("llama-3-8b", "h100:8x1", mw.Training(2**18, 8192))
    tied, other = (
        replace(plan.runner_ups[0], value_s=plan.certificate.value_s * share) for share in (1 + 1e-9, 1.001)
    )
    text = render(next_best(replace(plan, runner_ups=(tied, other))))
    assert "a tie" in text and "+0.10%" in text and "+0.00%" not in text


def test_value_and_bound_have_the_same_digits() -> None:
    plan = mw.recommend("llama-3-8b", "h100:8x1", mw.Training(2**18, 8192))
    proof = replace(plan.certificate, value_s=1.692581, bound_s=1.69258)
    assert "value 1.692581 s; no plan of the space is modelled below 1.692580 s" in render(
        certificate(proof, ())
    )


KEYS = [
    (("idle",), None, "the key idle is missing; expected a mapping"),
    (("idle", "levels"), 3, "idle.levels is 3; expected a list of [name, used, size]"),
    (("estimate", "step_s"), "soon", "estimate.step_s is 'soon'; expected a number"),
    (("estimate", "parts"), ["tp"], "estimate.parts is ['tp']; expected a mapping from names to numbers"),
    (
        ("estimate", "steps"),
        3,
        "the key estimate.steps is not known; estimate has lower_s, step_s, upper_s, mfu, ",
    ),
    (("certificates",), {}, "the key 'certificates' is not known; a plan has inputs, layout, "),
    (("schema_version",), True, "schema_version is True, this program reads 1; write it again"),
    (("memory",), {}, "memory is {}; expected a list with a mapping from names to bytes per stage"),
    (("certificate", "status"), None, "the key certificate.status is missing; expected a text"),
    (("certificate", "solved"), "many", "certificate.solved is 'many'; expected a whole number"),
    (("runner_ups",), [3], "runner_ups[0] is 3; expected a mapping"),
    (("runner_ups",), [{}], "the key runner_ups[0].layout is missing; expected a mapping"),
    (("layout", "tp"), "8", "tp='8' is not a degree; give a whole number of 1 or more"),
    (("layout", "placement"), 3, "placement is 3; give a list as `to_dict` writes it"),
    (("run",), "long", "run is 'long'; expected a mapping"),
    (("memory",), [], "the plan contradicts itself: memory of 0 stages for pp=1"),
    (("inputs",), "llama", "inputs is 'llama'; expected a mapping"),
    (("layout", "tp"), 16, "the plan contradicts itself: tp=16 is placed as "),
]


@pytest.mark.parametrize(("path", "value", "text"), KEYS, ids=[k[2][:40] for k in KEYS])
def test_a_plan_that_does_not_read_names_file_key_and_what_is_expected(
    path: tuple[str, ...], value: object, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(to_json(a_plan()))
    *outer, key = path
    part = data
    for step in outer:
        part = part[step]
    if value is None:
        del part[key]
    else:
        part[key] = value
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(to_json(a_plan()))
    bad.write_text(json.dumps(data))
    for read in (mw.load_plan, mw.load_priced):
        with pytest.raises(mw.InputError) as caught:
            read(bad)
        assert str(caught.value).startswith(f"{bad}: {text}")
    assert cli.main(["compare", str(good), str(bad)]) == 2
    assert capsys.readouterr().err.startswith(f"meshwright: {bad}: {text}")


def test_an_estimate_is_no_plan(tmp_path: Path) -> None:
    data = json.loads(to_json(a_plan()))
    del data["certificate"]
    (tmp_path / "own.json").write_text(json.dumps(data))
    with pytest.raises(
        mw.InputError, match=r"own.json: the key certificate is missing; give a file that .* load_priced"
    ):
        mw.load_plan(tmp_path / "own.json")


@cache
def a_plan() -> Plan:
    return mw.recommend("llama-3-8b", "h100:8x1", mw.Training(2**18, 8192))


@pytest.mark.parametrize(("redirection", "line"), [(">/dev/full", "cannot write"), (">&-", "is closed")])
def test_an_output_that_takes_nothing_is_one_line(redirection: str, line: str) -> None:
    command = f"{sys.executable} -m meshwright.optimizer chips h100 {redirection}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert line in done.stderr


def test_a_plan_whose_parts_disagree_is_refused() -> None:
    data = mw.recommend("llama-3-8b", "h100:8x1", mw.Training(2**18, 8192)).to_dict()
    for path, value in ((("layout", "placement"), []), (("estimate", "parts"), {}), (("layout", "tp"), 16)):
        broken = {**data, path[0]: {**data[path[0]], path[1]: value}}
        with pytest.raises(mw.InputError):
            Plan.from_dict(broken)
