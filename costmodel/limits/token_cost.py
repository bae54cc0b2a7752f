"""What a million tokens of training cost by the devices that a plan uses, and days of a run by its step.

A device is its share of a chip, 1/2 of one with two devices; idle ones are not paid for.
"""

from meshwright.costmodel.limits.run_time import DAY_S, MILLION, usd_per_million_tokens
from meshwright.costmodel.workload import Training
from meshwright.hardware.cluster import Cluster


def cost_unit(cluster: Cluster) -> str:
    """What `per_million_tokens` counts in: without a sourced price it is no money."""
    return f"{'chip-seconds' if cluster.chip.price is None else 'USD'} per million tokens"


def per_million_tokens(cluster: Cluster, training: Training, device_s: float) -> float:
    """List price of a million tokens where a step of the batch asked for takes so many device seconds; chip seconds
    where no source prices the chip."""
    per_chip, each = cluster.chip.price_usd_per_hour, cluster.chip.devices_per_chip
    if per_chip is None:
        return device_s / each / training.global_batch_tokens * MILLION
    return usd_per_million_tokens(training.global_batch_tokens / device_s, per_chip / each)


def run_days(training: Training, step_s: float) -> float | None:
    """Days of the whole run at so many seconds for the batch asked for; None where its length is not said."""
    if training.total_tokens is None:
        return None
    return step_s * training.total_tokens / training.global_batch_tokens / DAY_S
