"""What a launcher's limits cost, and what a launcher cannot run of a plan, for the page."""

from collections.abc import Iterator
from typing import Any

from meshwright.costmodel.layout import Layout
from meshwright.optimizer.launchers.check import Runs
from meshwright.optimizer.report import words
from meshwright.optimizer.report.page import Block, bullet, line, title


def cost(told: dict[str, Any], value_s: float) -> Iterator[Block]:
    """The best plan without the launcher's limits, beside this one of `value_s`."""
    yield title("Launcher", told["name"])
    free = f"without {told['name']}'s limits"
    if told["layout"] is None:
        found = "no plan is faster" if told["proven"] else "a search cut short found no faster plan"
        yield line(f"{free} {found}: they cost nothing")
        return
    least = "" if told["proven"] else "at most "
    yield line(
        f"{free}: {least}{words.seconds(told['value_s'])}, {told['faster']:.1%} less than this plan's "
        f"{words.seconds(value_s)}; {words.layout_option(Layout.from_dict(told['layout']))}"
    )
    yield line(f"what costs it ({words.plural(len(told['limits']), 'limit')} that it breaks):")
    for limit in told["limits"]:
        yield bullet(f"{limit['rule']}: {limit['message']}")


def runs(found: Runs, whose: str) -> Iterator[Block]:
    """Whether a launcher can run a layout."""
    if not found.limits:
        yield line(f"{found.launcher} can run {whose}")
        return
    yield line(f"{found.launcher} cannot run {whose}:")
    for limit in found.limits:
        yield bullet(f"{limit['rule']}: {limit['message']}")
