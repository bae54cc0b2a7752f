"""Whether a launcher can run a finished layout, and which of its rules say no."""

from dataclasses import dataclass, replace
from typing import Any

from meshwright.costmodel.estimate import complete
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.hardware.errors import LayoutError
from meshwright.optimizer.launchers.catalogue import launcher_of
from meshwright.optimizer.launchers.launcher import LauncherRule


def broken_rules(setting: Setting, layout: Layout) -> tuple[LauncherRule, ...]:
    """Rules of the setting's launcher that a legal layout breaks, in their order."""
    rows = Rows.of([layout], setting)
    return tuple(
        rule
        for rule in launcher_of(setting).rules
        if not (rule.holds(setting, rows).all() and rule.layout_holds(setting, layout))
    )


def told(setting: Setting, layout: Layout, rule: LauncherRule) -> str:
    """One broken rule as a sentence with its source."""
    return f"{rule.message(setting, layout)} ({rule.source})"


@dataclass(frozen=True)
class Runs:
    """What a launcher says to a layout: the rules that it breaks as `{rule, message}`; none where it can run it."""

    launcher: str
    limits: tuple[dict[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"name": self.launcher, "runs": not self.limits, "limits": list(self.limits)}


def runs_on(setting: Setting, layout: Layout) -> Runs:
    """What the setting's launcher says to a complete layout."""
    broken = broken_rules(setting, layout)
    return Runs(
        setting.launcher,
        tuple({"rule": rule.name, "message": told(setting, layout, rule)} for rule in broken),
    )


def runnable(setting: Setting, layout: Layout) -> Layout:
    """The layout completed as `complete` does, where the launcher can run it.

    Raises:
        LayoutError: it breaks a rule of every layout, or one of the launcher's. InputError: no Setting, or no Layout.
    """
    free = complete(setting, layout)  # first: it says what is no setting
    launcher = launcher_of(setting)
    if broken := broken_rules(setting, replace(free, placement=layout.placement)):
        raise LayoutError(_refusal(setting, free, broken[0]))
    if layout.placement or not launcher.bounds_placement:
        return free
    try:
        return complete(setting, layout, launcher.orders)
    except LayoutError:  # it has placements, but none of the launcher's
        rule = next(rule for rule in launcher.rules if not rule.reads)
        raise LayoutError(_refusal(setting, free, rule)) from None


def _refusal(setting: Setting, layout: Layout, rule: LauncherRule) -> str:
    return f"{setting.launcher} cannot run this layout: {told(setting, layout, rule)}; or price it with --launcher any"
