"""Whether a launcher can run the layout of a plan file."""

from dataclasses import replace

from meshwright.optimizer.launchers.catalogue import check_machine, check_trained
from meshwright.optimizer.launchers.check import Runs, runs_on
from meshwright.optimizer.plan import Priced
from meshwright.optimizer.reasons.question import reopen


def plan_runs_on(
    plan: Priced, launcher: str, *, model: str | None = None, efficiency: str | None = None
) -> Runs:
    """What `launcher` says to the plan's layout, whatever the plan was made for.

    Errors: UnknownNameError; InputError as `reopen`, and for chips, modules or a vision tower that the launcher does not run.
    """
    given = reopen(plan, model=model, efficiency=efficiency)
    check_machine(launcher, given.cluster)
    check_trained(launcher, given.training)
    return runs_on(replace(given, launcher=launcher), plan.layout)
