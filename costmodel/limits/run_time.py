"""How long a training run takes and what it costs: FLOPs, days, chip-hours, money, energy, and time lost to failures.

    days        F / (N C mfu), with F the model's own FLOPs, beside the rule 6 P T
    goodput     tau / E(tau): with failures at random, one per M on average over all chips, and a checkpoint of delta
                after every tau of work, tau of work takes E = M e^(R/M) (e^((tau + delta)/M) - 1)
    tau         sqrt(2 delta M) (Young), or the higher-order optimum (Daly)

Sources: jax-ml/scaling-book, chapters 1, 6, 8 and 12; J. W. Young, CACM 17 (1974); J. T. Daly, Future Generation
Computer Systems 22 (2006).
"""

from dataclasses import dataclass
from math import exp, expm1, sqrt

from meshwright.costmodel.counting.counts import rule_flops
from meshwright.hardware.errors import WorkloadError, shown
from meshwright.hardware.numbers import is_number, make_plain

DAY_S, HOUR_S, YEAR_DAYS = 86_400.0, 3_600.0, 365.0
MILLION = 1e6


@dataclass(frozen=True)
class Failures:
    """Failures of a whole cluster.

    Attributes:
        mean_s: between two failures of anything that stops the job.
        checkpoint_s: that the job stands while it writes one.
        restart_s: from a failure to the first new step.

    Raises:
        WorkloadError: a time that is not above zero (restart may be zero).
    """

    mean_s: float
    checkpoint_s: float
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        make_plain(self)
        for name, value in (("mtbf", self.mean_s), ("checkpoint", self.checkpoint_s)):
            _above_zero(name, value, "seconds")
        if not is_number(self.restart_s) or self.restart_s < 0:
            raise WorkloadError(f"restart is {shown(self.restart_s)} seconds; give zero or more")

    @property
    def young_s(self) -> float:
        """Work between checkpoints, first order: sqrt(2 delta M)."""
        return sqrt(2.0 * self.checkpoint_s * self.mean_s)

    @property
    def daly_s(self) -> float:
        """The same to higher order; M where writing takes more than twice the time between failures."""
        part = self.checkpoint_s / (2.0 * self.mean_s)
        if part >= 1.0:
            return self.mean_s
        return self.young_s * (1.0 + sqrt(part) / 3.0 + part / 9.0) - self.checkpoint_s

    def goodput(self, interval_s: float) -> float:
        """Share of the time that ends in work kept, with a checkpoint after every `interval_s` of work."""
        _above_zero("interval", interval_s, "seconds")
        stretch = (interval_s + self.checkpoint_s) / self.mean_s
        if stretch > 700.0 or self.restart_s > 700.0 * self.mean_s:  # nothing is ever finished
            return 0.0
        return interval_s / (self.mean_s * exp(self.restart_s / self.mean_s) * expm1(stretch))


def train_s(flops: float, chips: float, flop_per_s: float, mfu: float) -> float:
    """Seconds of a run (or a step) of so many FLOPs."""
    return flops / effective_flop_per_s(chips, flop_per_s, mfu)


def effective_flop_per_s(chips: float, flop_per_s: float, mfu: float) -> float:
    """What the chips do together at a share of their peak.

    Raises:
        WorkloadError: an mfu that is no share, or nothing to compute with.
    """
    check_mfu(mfu)
    _above_zero("chips", chips, "chips")
    _above_zero("the peak", flop_per_s, "FLOP/s")
    return chips * flop_per_s * mfu


def check_mfu(mfu: float) -> None:
    """Raises WorkloadError for an mfu that is no share of peak."""
    if not is_number(mfu) or not 0 < mfu <= 1:
        raise WorkloadError(f"mfu is {shown(mfu)}; give a share of peak above 0 and at most 1, such as 0.4")


def chips_for(flops: float, seconds: float, flop_per_s: float, mfu: float) -> float:
    """Chips that finish a run in time, not rounded."""
    _above_zero("the deadline", seconds, "seconds")
    return flops / (seconds * effective_flop_per_s(1, flop_per_s, mfu))


def step_flops(params: float, tokens: float) -> float:
    """The rule of 6 FLOPs per parameter and token."""
    return rule_flops(params, tokens)


def chip_hours(chips: float, seconds: float) -> float:
    """Hours that are paid for."""
    return chips * seconds / HOUR_S


def flops_per_usd(flop_per_s: float, usd_per_hour: float) -> float:
    """FLOPs at peak for one USD."""
    _above_zero("the price", usd_per_hour, "USD per hour")
    return flop_per_s * HOUR_S / usd_per_hour


def usd_per_million_tokens(tokens_per_s: float, usd_per_hour: float) -> float:
    """Price of a million tokens where so many are made per second for that price, both of one chip or both of all."""
    _above_zero("the throughput", tokens_per_s, "tokens per second")
    return usd_per_hour / (tokens_per_s * HOUR_S) * MILLION


def energy_j(chips: float, seconds: float, watts: float) -> float:
    """Energy of the chips at a constant power."""
    return chips * seconds * watts


def _above_zero(what: str, value: float, unit: str) -> None:
    if not is_number(value) or value <= 0:
        raise WorkloadError(f"{what} is {shown(value)} {unit}; give a number above zero")
