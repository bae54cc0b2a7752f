"""What a moment of a step is booked as: by hand, and by counting moments one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.optimizer.traces.events import COMPUTE, Event
from meshwright.optimizer.traces.timeline import Spent, Window, segments, spent


def event(kind: str, start: float, seconds: float, stream: str = "a") -> Event:
    return Event(kind, start, seconds, "GPU 0", stream, kind)


def booked(events: list[Event], *windows: Window) -> Spent:
    return spent(events, segments(events), windows, lambda e: e.kind)


def test_two_intervals_that_overlap_by_hand() -> None:
    # compute 0 to 10, a gather 6 to 14, nothing to 20: 4 of the gather hide, 4 do not, 6 are idle
    made = booked([event("matmul", 0, 10), event("all_gather", 6, 8, "b")], (0.0, 20.0))
    assert made == Spent({"matmul": 10.0}, {"all_gather": 4.0}, {"all_gather": 4.0}, 6.0)


def test_what_is_under_way_together_shares_the_moment() -> None:
    # two kinds of compute and two collectives, each pair side by side for 2 of its 4 seconds
    events = [
        event("matmul", 0, 4), event("attention", 2, 4, "b"), event("all_gather", 4, 4, "c"), event("all_reduce", 6, 4, "d"),
    ]  # fmt: skip
    made = booked(events, (0.0, 10.0))
    assert made.compute == {"matmul": 3.0, "attention": 3.0}
    assert made.hidden == {"all_gather": 2.0}
    assert made.exposed == {"all_gather": 1.0, "all_reduce": 3.0}
    assert made.idle_s == 0.0


def test_of_nested_operators_the_inner_counts() -> None:
    # as a CPU's trace has them; the last one reaches beyond what it began in, by rounding
    events = [
        event("other", 0, 10),
        event("matmul", 2, 4),
        event("elementwise", 3, 1),
        event("attention", 9, 2),
    ]
    assert booked(events, (0.0, 12.0)).compute == {
        "other": 5.0,
        "matmul": 3.0,
        "elementwise": 1.0,
        "attention": 2.0,
    }


def test_only_what_lies_in_the_windows_counts() -> None:
    events = [event("matmul", 0, 10), event("send_recv", 10, 10, "b")]
    made = booked(events, (1.0, 3.0), (8.0, 12.0), (19.0, 25.0))
    assert made == Spent({"matmul": 4.0}, {"send_recv": 3.0}, {}, 5.0)


_KINDS = st.sampled_from(["matmul", "elementwise", "all_gather", "all_reduce", "host_to_device"])
_EVENTS = st.lists(
    st.builds(event, _KINDS, st.integers(0, 30), st.integers(0, 9), st.sampled_from("abc")), max_size=14
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(_EVENTS, st.integers(0, 15), st.integers(1, 30))
def test_every_second_is_booked_as_the_events_under_way_in_it(
    events: list[Event], start: int, length: int
) -> None:
    made = booked(events, (float(start), float(start + length)))
    compute, exposed, hidden, idle = {}, {}, {}, 0.0
    for second in range(start, start + length):
        inner = []
        for stream in "abc":
            there = [e for e in events if e.stream == stream and e.start_s <= second < e.end_s]
            if there:  # what began last, of equals the shortest, of these the one listed last
                inner.append(max(enumerate(there), key=lambda x: (x[1].start_s, -x[1].seconds, x[0]))[1].kind)
        runs, carried = {k for k in inner if k in COMPUTE}, {k for k in inner if k not in COMPUTE}
        for kind in runs:
            compute[kind] = compute.get(kind, 0.0) + 1 / len(runs)
        for kind in carried:
            part = hidden if runs else exposed
            part[kind] = part.get(kind, 0.0) + 1 / len(carried)
        idle += not inner
    for found, wanted in ((made.compute, compute), (made.exposed, exposed), (made.hidden, hidden)):
        assert found == pytest.approx(wanted)
    assert made.idle_s == pytest.approx(idle)
    total = sum(made.compute.values()) + sum(made.exposed.values()) + made.idle_s
    assert total == pytest.approx(length)
