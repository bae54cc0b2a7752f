"""What a whole training run takes: steps, days, and money at list price."""

from math import ceil
from typing import Any

from meshwright.costmodel.estimate import StepEstimate, digits
from meshwright.costmodel.limits.run_time import DAY_S, chip_hours
from meshwright.costmodel.setting import Setting


def run_of(given: Setting, priced: StepEstimate) -> dict[str, Any] | None:
    """Steps, days and USD for `total_tokens`; None where no length was asked.

    Every chip of the cluster is paid for, idle ones too. Without a sourced price `usd` and `price` are None.
    """
    training, cluster = given.training, given.cluster
    if training.total_tokens is None:
        return None
    seconds = training.total_tokens / priced.tokens_per_s
    price, per_chip = cluster.chip.price, cluster.chip.price_usd_per_hour
    return {
        "total_tokens": training.total_tokens,
        "steps": ceil(training.total_tokens / (priced.sequences * training.seq_len)),
        "days": digits(seconds / DAY_S),
        "chips": cluster.chips,
        "usd": None if per_chip is None else digits(chip_hours(cluster.chips, seconds) * per_chip),
        "price": None if price is None else price.model_dump(exclude={"note"}),
    }
