"""Money: questions of the topic cost."""

from book_answers import Given, UnansweredError, Value, answers
from book_answers.counts import chip_of
from meshwright.costmodel.limits import run_time as run

TOPIC = "cost"


def peak(given: Given) -> float:
    return given.number("flops_per_s_bf16", 0.0) or chip_of(given).peak_flop_per_s("bf16")


def usd_per_hour(given: Given) -> float:
    """Of one chip: given, else its list price."""
    for key in ("usd_per_chip_hour", "usd_per_hour"):
        if given.has(key):
            return given.number(key)
    listed = chip_of(given).price_usd_per_hour if given.has("chip") else None
    if listed is None:
        raise UnansweredError("no price")
    return listed


@answers(TOPIC, "flops_per_usd")
def flops_per_usd(given: Given) -> Value:
    return run.flops_per_usd(peak(given) * given.number("mfu", 1.0), usd_per_hour(given))


@answers(TOPIC, "usd_per_million_tokens")
def usd_per_million_tokens(given: Given) -> Value:
    return run.usd_per_million_tokens(given.number("throughput_per_chip"), usd_per_hour(given))


@answers(TOPIC, "chip_hours")
def chip_hours(given: Given) -> Value:
    """Whatever the number of chips: one takes as long as they take together."""
    seconds = run.train_s(given.number("total_flops"), 1, peak(given), given.number("mfu", 1.0))
    return run.chip_hours(1, seconds)


@answers(TOPIC, "usd")
def usd(given: Given) -> Value:
    return float(chip_hours(given)) * usd_per_hour(given)
