"""What a newcomer's trial found: refusals that tell the cause, and outputs that cannot be written."""

import subprocess
import sys

import pytest

import meshwright as mw
from meshwright.optimizer import cli
from meshwright.optimizer.plan import Plan

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
            "sequences=640 is not the batch asked for, 128 to 128 sequences; give that batch, or a tolerance like 4Mi~5%",
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
    assert "the rules leave no layout" in str(no.value)


def test_what_would_unlock_an_infeasible_question_is_said() -> None:
    with pytest.raises(mw.Infeasible, match=r"Offload was no option: .*--host-memory 2TB"):
        mw.recommend("llama-3.1-405b", "h100:8x8", mw.Training(4 * 2**20, 8192))


def test_a_search_that_is_cut_short_says_so() -> None:
    options = mw.SolveOptions(refinements=3)
    with pytest.raises(mw.Undecided) as cut:
        mw.recommend("llama-3-70b", "h100:8x8", mw.Training(2**20, 4096), options=options)
    assert cut.value.exit_code == 4


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
