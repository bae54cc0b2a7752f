"""A search that lasts is told about; one that is ended gives what it has, with an honest gap."""

import json
import os
import signal
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.costmodel.setting import Setting
from meshwright.optimizer import progress
from meshwright.optimizer.cli import main
from meshwright.optimizer.plan import Interrupted, Undecided
from meshwright.optimizer.progress import Progress, line_of, watching
from meshwright.optimizer.question import resolve
from meshwright.optimizer.queue import Level
from meshwright.optimizer.reasons import band
from meshwright.optimizer.reasons.asked import reasons_of
from meshwright.optimizer.recommend import recommend_in
from meshwright.optimizer.solve import Search

LINE = ["recommend", "llama-3-70b", "--cluster", "h100:8x8", "--batch", "1Mi", "--seq", "8192"]


@pytest.fixture(scope="module")
def given() -> Setting:
    return resolve("llama-3-70b", "h100:8x8", mw.Training(2**20, 8192))


def test_a_search_that_is_ended_gives_the_best_so_far(given: Setting) -> None:
    best_s = recommend_in(given).certificate.value_s
    seen: list[tuple[float, int]] = []

    def watch(search: Search, bound_s: float, levels: Sequence[Level]) -> bool:
        seen.append((bound_s, sum(map(len, levels))))
        return bool(search.best)

    with pytest.raises(Interrupted) as ended:
        recommend_in(given, watch=watch)
    plan = ended.value.best
    assert ended.value.exit_code == 130 and plan is not None
    assert plan.certificate.status == "FEASIBLE" and plan.certificate.gap > 0
    assert plan.certificate.bound_s <= best_s <= plan.certificate.value_s
    assert str(ended.value) == f"interrupted, with a gap of {plan.certificate.gap:.2%} left"
    assert all(bound <= best_s for bound, _ in seen) and all(count > 0 for _, count in seen)

    with pytest.raises(Interrupted) as ended:
        recommend_in(given, watch=lambda search, bound_s, levels: True)
    assert ended.value.best is None and str(ended.value) == "interrupted, with no plan found yet"


def test_ctrl_c_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The signal comes once there is a plan; page, file and exit code say so. The next one acts as before."""
    plain = Progress.__call__

    def hit(self: Progress, search: Search, bound_s: float, levels: Sequence[Level]) -> bool:
        if search.best:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, search, bound_s, levels)

    monkeypatch.setattr(Progress, "__call__", hit)
    path = tmp_path / "plan.json"
    # The plan's second question, about idle devices, is over as soon as it is asked: a signal each time.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        assert main([*LINE, "-o", str(path)]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    out, err = capsys.readouterr()
    assert "Certificate   FEASIBLE" in out and err.startswith("meshwright: interrupted, with a gap of ")
    assert json.loads(path.read_text())["certificate"]["status"] == "FEASIBLE"
    assert mw.load_plan(path).certificate.status == "FEASIBLE"


def test_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with watching(False) as progress_:
        assert signal.getsignal(signal.SIGINT) is not before
        os.kill(os.getpid(), signal.SIGINT)
        assert progress_._stop and signal.getsignal(signal.SIGINT) is before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_line_tells_bound_best_and_what_is_open(given: Setting) -> None:
    lines: list[str] = []

    def watch(search: Search, bound_s: float, levels: Sequence[Level]) -> bool:
        lines.append(line_of(search, bound_s, levels))
        return False

    recommend_in(given, watch=watch)
    assert lines[0].startswith("no plan yet, none below ")
    assert (
        " s a step, none below " in lines[-1]
        and "(gap " in lines[-1]
        and lines[-1].endswith(" candidates open")
    )


def test_lines_are_for_stderr_and_only_where_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_QUIET_S", 1e9)
    assert main([*LINE, "--progress", "--json"]) == 0
    quick = capsys.readouterr()
    assert quick.err == ""  # it ends before anything needs saying
    monkeypatch.setattr(progress, "_QUIET_S", 0.0)
    monkeypatch.setattr(progress, "_EVERY_S", {True: 0.0, False: 0.0})
    assert main([*LINE, "--progress", "--json"]) == 0
    told = capsys.readouterr()
    assert told.out == quick.out and "candidates open\n" in told.err and "\r" not in told.err
    assert main([*LINE, "--json"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("ends", [False, True])
def test_a_band_that_was_interrupted_is_none(monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    """Neither as a list that seems whole, nor as a search that found nothing."""

    def cut(*args: Any, watch: Any, **kwargs: Any) -> None:
        watch.stop()
        if ends:
            raise Undecided("the search ended with no plan found yet", None)

    monkeypatch.setattr(band, "in_band", cut)
    given = resolve("llama-3-8b", "h100:8x1", mw.Training(65536, 8192))
    plan = mw.recommend("llama-3-8b", "h100:8x1", mw.Training(65536, 8192))
    args = Namespace(why_not=None, shadow=False, in_band=0.0, robust=False, progress=False)
    with pytest.raises(KeyboardInterrupt):
        list(reasons_of(args, given, None, mw.SolveOptions(), plan))
