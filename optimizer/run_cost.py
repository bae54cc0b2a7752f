"""What a whole training run takes: steps, days, and money at list price."""

from math import ceil
from typing import Any

from meshwright.costmodel.estimate import StepEstimate, digits
from meshwright.costmodel.setting import Setting

_SECONDS_PER_DAY, _HOURS_PER_DAY = 86_400, 24


def run_of(given: Setting, priced: StepEstimate) -> dict[str, Any] | None:
    """Steps, days and USD for `total_tokens`; None where no length was asked.

    Every chip of the cluster is paid for, idle ones too. Without a sourced price `usd` and `price` are None.
    """
    training, cluster = given.training, given.cluster
    if training.total_tokens is None:
        return None
    days = training.total_tokens / priced.tokens_per_s / _SECONDS_PER_DAY
    price, per_hour = cluster.chip.price, cluster.price_usd_per_hour
    return {
        "total_tokens": training.total_tokens,
        "steps": ceil(training.total_tokens / (priced.sequences * training.seq_len)),
        "days": digits(days),
        "chips": cluster.chips,
        "usd": None if per_hour is None else digits(days * _HOURS_PER_DAY * per_hour),
        "price": None if price is None else price.model_dump(exclude={"note"}),
    }
