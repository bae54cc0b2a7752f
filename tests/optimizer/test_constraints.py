"""The constraint string: its grammar, what it refuses and how, and what each name means on each row."""

from dataclasses import replace

import numpy as np
import pytest
from exhaustive_oracle import Wishes, candidates
from independent_rules import Candidate
from instances import instance
from wishes import (
    ANY_WISHES,
    CHUNK_WISHES,
    HOST_WISHES,
    NAME_WISHES,
    PIPELINE_WISHES,
    SCHEDULE_WISHES,
    STATE_WISHES,
    Wish,
)

from meshwright.costmodel.layout import CP_KINDS, Layout
from meshwright.costmodel.offloads import OFFLOADS
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.schedules import SCHEDULES
from meshwright.costmodel.tensors import CODES, away
from meshwright.costmodel.workload import Training
from meshwright.hardware.errors import LayoutError, UnknownNameError
from meshwright.optimizer.constraints import NUMBERS, WORDS, parse_constraints

SETTING = replace(instance(1).setting, training=Training(24 * 1024, 1024))
KINDS = len(SETTING.model.kinds)
LAYOUTS = [
    Layout(),
    Layout(tp=2, sp=False, micro_batch=2),
    Layout(dp_replicate=3, dp_shard=2, zero=2, policies=("mlp",), offload="activations"),
    Layout(cp=2, cp_kind="all_to_all", zero=1, policies=("full",)),
    Layout(pp=2, schedule="gpipe", dp_replicate=2, sequences=8, policies=("none", "full")[:KINDS]),
    Layout(pp=4, vpp=2, schedule="interleaved", tp=4, ep=2, etp=4, dp_replicate=2, sequences=12),
    Layout(dp_shard=4, zero=3, cp=3, cp_kind="all_gather", offload="optimizer+activations"),
]
ROWS = Rows.of(LAYOUTS, SETTING)


def holding(text: str) -> list[int]:
    """Which of the layouts satisfy all constraints of the text."""
    verdicts = [c.holds(ROWS) for c in parse_constraints(text)]
    return np.flatnonzero(np.all(verdicts, axis=0)).tolist()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("tp<=8", [("tp", "<=", ("8",))]),
        ("  tp  <=  8  ", [("tp", "<=", ("8",))]),
        ("tp>=2,pp==4", [("tp", ">=", ("2",)), ("pp", "==", ("4",))]),
        ("pp in {1,2,4}", [("pp", "in", ("1", "2", "4"))]),
        ("pp in { 1 , 2 }, tp<4", [("pp", "in", ("1", "2")), ("tp", "<", ("4",))]),
        ("offload == none", [("offload", "==", ("none",))]),
        ("offload == optimizer+activations", [("offload", "==", ("optimizer+activations",))]),
        ("recompute in {none,full}, zero>2", [("recompute", "in", ("none", "full")), ("zero", ">", ("2",))]),
        ("sp != true", [("sp", "!=", ("true",))]),
        ("tp<=8, tp>=2", [("tp", "<=", ("8",)), ("tp", ">=", ("2",))]),
        ("offload != activations+optimizer", [("offload", "!=", ("optimizer+activations",))]),
        ("", []),
        ("  ", []),
    ],
)
def test_what_is_read(text: str, parts: list[tuple[str, str, tuple[str, ...]]]) -> None:
    assert [(c.name, c.compare, c.values) for c in parse_constraints(text)] == parts


def test_none_is_no_constraint() -> None:
    assert parse_constraints(None) == ()


def test_a_constraint_reads_in_the_funnel_as_it_was_written() -> None:
    assert [c.text for c in parse_constraints(" tp <= 8 ,pp in {1, 2}")] == ["tp <= 8", "pp in {1, 2}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp", "cannot read constraint 'tp'; write name <= value, name == word or name in {1,2,4}"),
        ("tp=8", "cannot read constraint 'tp=8'; write tp==8"),
        ("TP <= 4", "cannot read constraint 'TP <= 4'; write tp <= 4"),
        ("Zero=3", "cannot read constraint 'Zero=3'; write zero==3"),
        ("tp=>2", "cannot read constraint 'tp=>2'; write tp>=2"),
        ("tp<=", "cannot read constraint 'tp<='; write name <= value, name == word or name in {1,2,4}"),
        ("tp in 1,2", "cannot read constraint 'tp in 1'; write name <= value, name == word or name in {1,2,4}"),
        ("tp in {1", "cannot read constraint 'tp in {1'; write name <= value, name == word or name in {1,2,4}"),
        ("8>=tp", "cannot read constraint '8>=tp'; write name <= value, name == word or name in {1,2,4}"),
        ("tp<=8 and pp", "cannot read constraint 'tp<=8 and pp'; write name <= value, name == word or name in {1,2,4}"),
        ("tp<=-1", "constraint 'tp<=-1': tp is a whole number of at most 9 digits, '-1' is not"),
        ("f('x')", "cannot read constraint \"f('x')\"; write name <= value, name == word or name in {1,2,4}"),
        ("tp<=many", "constraint 'tp<=many': tp is a whole number of at most 9 digits, 'many' is not"),
        ("tp in {1,two}", "constraint 'tp in {1,two}': tp is a whole number of at most 9 digits, 'two' is not"),
        ("tp in {}", "constraint 'tp in {}': a value is missing between the braces; write tp in {1,2,4}"),
        ("offload in {none,}", "constraint 'offload in {none,}': a value is missing between the braces; write offload in {none,activations}"),
        ("tp<=1234567890", "constraint 'tp<=1234567890': tp is a whole number of at most 9 digits, '1234567890' is not"),
        ("offload <= none", "constraint 'offload <= none': offload is a word; compare it with ==, != or in {..}"),
        ("sp > 1", "constraint 'sp > 1': sp is a word; compare it with ==, != or in {..}"),
    ],
)  # fmt: skip
def test_what_is_refused_and_how(text: str, message: str) -> None:
    with pytest.raises(LayoutError) as caught:
        parse_constraints(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "starts", "suggests"),
    [
        ("tpp<=8", "unknown constraint name 'tpp'", "tp"),
        ("offload == activation", "unknown value of offload 'activation'", "activations"),
        ("recompute in {none,ful}", "unknown value of recompute 'ful'", "full"),
        ("cp_kind != rings", "unknown value of cp_kind 'rings'", "ring"),
    ],
)
def test_a_name_that_is_unknown_gets_the_nearest(text: str, starts: str, suggests: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        parse_constraints(text)
    assert str(caught.value).startswith(starts)
    assert suggests in str(caught.value).removeprefix(starts)


def test_a_string_without_end_is_refused() -> None:
    with pytest.raises(LayoutError, match="the constraint string has 5000 characters; at most 4000 are read"):
        parse_constraints("x" * 5000)


@pytest.mark.parametrize(
    ("text", "which"),
    [
        ("tp <= 2", [0, 1, 2, 3, 4, 6]),
        ("tp < 2", [0, 2, 3, 4, 6]),
        ("tp > 1", [1, 5]),
        ("tp >= 4", [5]),
        ("tp == 2", [1]),
        ("tp != 1", [1, 5]),
        ("tp in {2,4}", [1, 5]),
        ("dp == 6", [2]),
        ("dp_replicate == 3", [2]),
        ("dp_shard in {2,4}", [2, 6]),
        ("zero >= 2", [2, 6]),
        ("cp > 1", [3, 6]),
        ("pp > 1", [4, 5]),
        ("vpp == 2", [5]),
        ("ep == 2", [5]),
        ("etp == 4", [5]),
        ("micro_batch == 2", [1]),
        ("sequences == 12", [5]),
        ("devices == 32", [5]),
        ("devices == 12", [6]),
        ("micro_batches == 4", [2, 4]),  # 24 sequences over 6 ranks, 8 over 2
        ("cp_kind == all_to_all", [3]),
        ("cp_kind in {all_to_all,all_gather}", [3, 6]),
        ("offload == none", [0, 1, 3, 4, 5]),
        ("offload != none", [2, 6]),
        ("schedule == gpipe", [4]),
        ("schedule == interleaved", [5]),
        ("schedule == 1f1b", [0, 1, 2, 3, 6]),
        ("sp == false", [1]),
        ("recompute == full", [3]),
        ("tp > 1, pp > 1", [5]),
    ],
)
def test_what_holds(text: str, which: list[int]) -> None:
    assert holding(text) == which


def test_a_recompute_wish_holds_for_every_kind_of_layer() -> None:
    """(none, full) satisfies neither `== full` nor `!= full`, but `in {none,full}`."""
    two = instance(_two_kinds()).setting
    rows = Rows.of([Layout(policies=("none", "full")), Layout(policies=("full",))], two)

    def verdict(text: str) -> list[bool]:
        return parse_constraints(text)[0].holds(rows).tolist()

    assert verdict("recompute == full") == [False, True]
    assert verdict("recompute != full") == [False, False]
    assert verdict("recompute in {none,full}") == [True, True]


def _two_kinds() -> int:
    return next(seed for seed in range(100) if len(instance(seed).setting.model.kinds) == 2)


def test_every_name_can_be_said() -> None:
    for name in NUMBERS:
        assert parse_constraints(f"{name} >= 1")[0].holds(ROWS).shape == (len(LAYOUTS),)
    for name, words in WORDS.items():
        for word in words:
            assert parse_constraints(f"{name} == {word}")[0].holds(ROWS).shape == (len(LAYOUTS),)


@pytest.mark.parametrize("seed", range(0, 32, 4))
@pytest.mark.parametrize(
    "wish",
    (
        *ANY_WISHES,
        *NAME_WISHES,
        *PIPELINE_WISHES,
        *CHUNK_WISHES,
        *HOST_WISHES,
        *SCHEDULE_WISHES,
        *STATE_WISHES,
    ),
    ids=lambda w: w.text,
)
def test_text_and_python_agree_on_every_row(wish: Wish, seed: int) -> None:
    """The wishes of the random instances mean the same to the planner and to the oracle."""
    setting = instance(seed).setting
    asks = Wishes(asks_schedule="schedule" in wish.text, asks_sp="sp in" in wish.text)
    found: list[Candidate] = list(candidates(setting, asks))[:500]
    if not found:
        return
    coded = [
        x._replace(cp_kind=CP_KINDS.index(x.cp_kind), schedule=SCHEDULES.index(x.schedule))  # type: ignore[arg-type]
        for x in found
    ]
    columns = {n: np.array([getattr(x, n) for x in coded], np.int64) for n in Candidate._fields}
    for policy, offload in (("none", "none"), ("full", "activations"), ("mlp", "none")):
        rows = Rows(
            **columns,
            policies=np.full(
                (len(found), len(setting.model.kinds)),
                away(CODES[policy]) if offload == "activations" else CODES[policy],
            ),
            offload=np.full(len(found), OFFLOADS.index(offload)),
        )
        theirs = np.all([c.holds(rows) for c in parse_constraints(wish.text)], axis=0)
        ours = [wish.candidate(x) and wish.policy(policy) and wish.offload(offload) for x in found]
        assert theirs.tolist() == ours
