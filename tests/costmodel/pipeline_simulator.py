"""An independent oracle for pipeline schedules: every rank's order of work, and the longest path through it.

Knows nothing of the cost model. Stages are ranks 0..p-1, each with v chunks; chunk c of rank s runs the
model's part c * p + s, so a micro-batch meets part 0, 1, ... forward and the reverse backward.
Orders: GPipe and 1F1B as published (Huang et al. 2019, Narayanan et al. 2019), interleaved 1F1B as
Megatron-LM deals it (groups of p micro-batches per chunk, Narayanan et al. 2021).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Work:
    """One forward (or backward) of one micro-batch through one chunk of a rank."""

    forward: bool
    chunk: int
    micro_batch: int


def order(schedule: str, rank: int, p: int, m: int, v: int = 1) -> list[Work]:
    """What a rank runs, in order."""
    forwards = [Work(True, *_deal(k, p, v)) for k in range(m * v)]
    backwards = [Work(False, v - 1 - w.chunk, w.micro_batch) for w in forwards]
    if schedule == "gpipe":
        return forwards + backwards
    warm_up = p - rank - 1 if schedule == "1f1b" else 2 * (p - rank - 1) + (v - 1) * p
    warm_up = min(warm_up, m * v)
    steady = [w for pair in zip(forwards[warm_up:], backwards, strict=False) for w in pair]
    return forwards[:warm_up] + steady + backwards[m * v - warm_up :]


def _deal(k: int, p: int, v: int) -> tuple[int, int]:
    """(chunk, micro-batch) of a rank's k-th forward: p micro-batches through one chunk, then the next."""
    if v == 1:
        return 0, k
    return k % (p * v) // p, k // (p * v) * p + k % p


def peak_in_flight(schedule: str, rank: int, p: int, m: int, v: int = 1) -> float:
    """Most activations a rank holds at once, in whole stages (chunks held / v)."""
    held = accumulate(1 if w.forward else -1 for w in order(schedule, rank, p, m, v))
    return max(held) / v


def makespan(
    schedule: str,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    m: int,
    v: int = 1,
    hop_s: float = 0.0,
) -> float:
    """Seconds of a step: longest path through order on a rank and dependence between ranks.

    `forward_s[s]` and `backward_s[s]` are of a whole stage, each of its chunks taking 1/v. `hop_s` passes
    between the end of a part on one rank and the start of the next part on another; it keeps nobody busy.
    """
    p = len(forward_s)
    plans = [order(schedule, s, p, m, v) for s in range(p)]
    done: dict[tuple[bool, int, int], float] = {}  # (forward, part, micro-batch) -> end
    at, clock = [0] * p, [0.0] * p
    while any(at[s] < len(plans[s]) for s in range(p)):
        moved = False
        for s in range(p):
            while at[s] < len(plans[s]):
                ready = _ready(plans[s][at[s]], s, p, v, done, hop_s)
                if ready is None:
                    break
                work = plans[s][at[s]]
                seconds = (forward_s if work.forward else backward_s)[s] / v
                clock[s] = max(clock[s], ready) + seconds
                done[work.forward, work.chunk * p + s, work.micro_batch] = clock[s]
                at[s], moved = at[s] + 1, True
        assert moved, "the schedule waits for itself"
    return max(clock)


def _ready(
    work: Work, rank: int, p: int, v: int, done: dict[tuple[bool, int, int], float], hop_s: float
) -> float | None:
    """When the input of a piece of work is there; None if nobody has made it yet."""
    part, last = work.chunk * p + rank, p * v - 1
    if work.forward:
        before = (True, part - 1, work.micro_batch) if part else None
    elif part == last:
        return done.get((True, last, work.micro_batch))
    else:
        before = (False, part + 1, work.micro_batch)
    if before is None:
        return 0.0
    return None if before not in done else done[before] + (hop_s if p > 1 else 0.0)
