"""recommend(): model, cluster and batch in; proven best layout out."""

from dataclasses import replace

from meshwright.costmodel.doors import ModelSource
from meshwright.costmodel.estimate import seconds_of
from meshwright.costmodel.goals import STEP, goal_of
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.limits.run_time import DAY_S
from meshwright.costmodel.limits.token_cost import cost_unit, per_million_tokens, run_days
from meshwright.costmodel.setting import Overlap, Setting, Streams
from meshwright.costmodel.workload import Training
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.errors import MissingFigureError, check_type
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.decode import decode, layout_of, value_of
from meshwright.optimizer.goals.fewest import ROOM, Fewest
from meshwright.optimizer.goals.ties import preferred
from meshwright.optimizer.launchers.catalogue import launcher_of
from meshwright.optimizer.launchers.cost import cost_of
from meshwright.optimizer.plan import (
    Certificate,
    Idle,
    Interrupted,
    LimitMissed,
    Plan,
    RunnerUp,
    Undecided,
)
from meshwright.optimizer.question import (
    barrier_note,
    error_band,
    inputs_of,
    levels_used,
    provenance_of,
    resolve,
    space_hash,
    versions,
    warnings_of,
)
from meshwright.optimizer.reasons.headline import asked_of, infeasible, not_considered
from meshwright.optimizer.run_cost import run_of
from meshwright.optimizer.settled import visible
from meshwright.optimizer.solve import GIVE_UP, TOO_LARGE, Found, Search, SolveOptions, Watch
from meshwright.optimizer.space import Space
from meshwright.optimizer.validate import violations
from meshwright.optimizer.wishes import refuse_impossible

# Effort on the second question, what more devices would bring; the answer itself is proven either way.
_IDLE_REFINEMENTS = 60


def recommend(
    model: ModelSource,
    cluster: Cluster | str,
    training: Training,
    *,
    constraints: str | None = None,
    goal: str = "step",
    deadline_s: float | None = None,
    within_s: float | None = None,
    efficiency: str = "default",
    overlap: Overlap = "calibrated",
    comm_streams: Streams = "shared",
    framework: str | None = None,
    launcher: str | None = None,
    options: SolveOptions | None = None,
) -> Plan:
    """The proven best training layout.

    Args:
        model: a built-in name, a config.json, its folder, a dict or a ModelSpec.
        cluster: a cluster string such as 'h100:8x64', or a Cluster.
        constraints: for example 'tp<=8, pp in {1,2,4}, offload == none'.
        goal: 'step' least step time, 'cost' least money per token, 'chips' fewest chips within a limit.
        deadline_s: of 'chips': seconds of the whole run, with total_tokens of `training`; or
        within_s: of 'chips': seconds of a step of the batch asked for.
        efficiency: 'default', 'ideal', 'mfu=0.4' or a calibration file.
        overlap: 'calibrated', 'full' or 'none'. comm_streams: 'shared' or 'independent'.
        framework: whose memory habits apply; None takes the launcher's.
        launcher: whose limits bound the plan: 'megatron', 'maxtext', 'torchtitan', 'deepspeed', 'calculon', 'jax' (our own
            program, which runs all) or 'any'. What its limits cost is in the plan.

    Raises:
        InputError: the question is wrong. MissingFigureError: a figure it needs has no source.
        Infeasible: proven that nothing fits; LimitMissed that nothing is in time. Undecided: the work limit came first.
    """
    given = resolve(
        model,
        cluster,
        training,
        efficiency=efficiency,
        overlap=overlap,
        comm_streams=comm_streams,
        framework=framework,
        launcher=launcher,
    )
    chosen = goal_of(goal, given.training, deadline_s=deadline_s, within_s=within_s)
    return bounded(replace(given, goal=chosen), constraints, options)


def bounded(
    given: Setting,
    constraints: str | None = None,
    options: SolveOptions | None = None,
    watch: Watch | None = None,
) -> Plan:
    """`recommend_in`, and with goal `step` what the launcher's limits cost.

    Raises: as `recommend_in`.
    """
    plan = recommend_in(given, constraints, options, watch)
    if not launcher_of(given).bounds or given.goal != STEP:
        return plan
    return replace(plan, launcher=cost_of(given, plan, constraints, options or SolveOptions(), watch))


def recommend_in(
    given: Setting,
    constraints: str | None = None,
    options: SolveOptions | None = None,
    watch: Watch | None = None,
) -> Plan:
    """The same for a resolved Setting; `watch` looks on between refinements and may end the search.

    Raises: Interrupted where it did before the proof; else as `recommend`.
    """
    check_type("options", options, (SolveOptions, type(None)), "a SolveOptions, or None")
    options = options or SolveOptions()
    space = space_of(given, constraints)
    fewest = None if given.goal.limit_s is None else Fewest(space, options, given.goal.limit_s, watch)
    if fewest is None:
        search = Search(space, options, watch=watch)
        whole = search.run()
    else:
        fewest.run()
        search, whole = fewest.search, fewest.whole
    open_devices, left_open = (fewest.open_devices, fewest.left_open) if fewest else (None, None)
    cut, was_whole = left_open or (search, whole)
    ended = Interrupted if cut.stopped else Undecided
    if not search.best:
        if cut.undecided:
            raise ended(cut_short(cut, was_whole, "no plan found yet"), None)
        if fewest:
            raise _missed(recommend_in(replace(given, goal=STEP), constraints, options, watch), given, search)
        raise infeasible(search)
    plan = plan_of(search, constraints, open_devices)
    if plan.certificate.status != "OPTIMAL":
        raise ended(cut_short(cut, was_whole, f"a gap of {plan.certificate.gap:.2%} left"), plan)
    return plan


def space_of(given: Setting, constraints: str | None) -> Space:
    """The space of a question.

    Raises: LayoutError, UnknownNameError, MissingFigureError for constraints that leave it nothing.
    """
    wishes = parse_constraints(constraints)
    refuse_impossible(given, wishes)
    space = Space(given, wishes)
    if not space.offloads and (refusals := not_considered(space)):
        raise MissingFigureError(refusals[0].removeprefix("not considered: "))
    return space


def _missed(fastest: Plan, given: Setting, search: Search) -> LimitMissed:
    """No plan is in time: what the fastest takes, and the ways out."""
    goal, takes_s = given.goal, fastest.certificate.value_s
    limit, takes = f"{goal.limit_s:.4g} s a step", f"{takes_s:.4g} s a step"
    days, option = run_days(given.training, takes_s), "--within"
    if goal.deadline_s is not None and days is not None:
        limit, takes = f"{goal.deadline_s / DAY_S:.4g} days ({limit})", f"{days:.4g} days ({takes})"
        option = "--deadline"
    return LimitMissed(
        f"no plan{asked_of(search.space)} takes at most {limit}: the fastest takes {takes} on {fastest.layout.devices} of "
        f"{given.cluster.devices} devices; give a longer {option}, or more chips.",
        goal, fastest, search.funnel.removed,
    )  # fmt: skip


def cut_short(search: Search, whole: bool, left: str) -> str:
    """Which limit ended the search, its value, and the option that raises it.

    Candidates that the solver's work limit left open end a search too, once there are too many of them.
    """
    options, count = search.options, len(search.undecided)
    if search.stopped:
        return f"interrupted, with {left}"
    if not whole and count <= GIVE_UP:
        return (
            f"the search ended at its limit of {options.refinements:,} refinements with {left}; raise it with "
            f"--refinements (refinements of SolveOptions)"
        )
    open_ones = (
        f"{count:,} candidates open"
        if whole
        else f"so many candidates open that the search ended ({GIVE_UP})"
    )
    if search.settler.unlisted:
        return (
            f"short hosts allow more mixes of policies than are looked at, which left {open_ones}, with {left}; more host memory "
            f"closes it, or a constraint on recompute or offload"
        )
    return (
        f"the solver's work limit of {options.work_limit:g} per candidate left {open_ones}, with {left}; "
        f"raise it with --work-limit (work_limit of SolveOptions)"
    )


def plan_of(search: Search, constraints: str | None, open_devices: int | None = None) -> Plan:
    """The answer of a finished search that found something; fewer devices from `open_devices` on were left open."""
    space, inputs = search.space, inputs_of(search.setting, constraints)
    given, best = space.setting, preferred(search)
    ranked = [best, *(f for f in search.ranked if visible(f.row) != visible(best.row))]
    layout, priced = decode(given, best)
    if broken := list(violations(given, layout, priced)):
        raise AssertionError(f"the chosen plan breaks its own rules: {broken}")
    band, source = error_band(given)
    first = search.ranked[0]  # of plans that are equally good another may be preferred
    least = min(first.value_s - first.slack_s, best.value_s - best.slack_s)
    left = min(search.undecided, default=least)
    proven = left >= least and open_devices is None
    bound = min(least, left)
    value, unit = in_unit(given, best.value_s, layout.devices)
    certificate = Certificate(
        status="OPTIMAL" if proven else "FEASIBLE",
        value_s=best.value_s,
        bound_s=bound,
        # Where something was left open the bound lies below what rounding hides, and a reader of the file can tell.
        slack_s=best.value_s - least,
        goal=given.goal.name,
        value=value,
        bound=in_unit(given, bound, open_devices or layout.devices)[0],
        unit=unit,
        limit_s=given.goal.limit_s,
        deadline_s=given.goal.deadline_s,
        space_hash=space_hash(inputs, given.goal, versions()),
        entered=search.funnel.entered,
        removed=search.funnel.removed,
        solved=search.solved,
        error_band=band,
        band_source=source,
    )
    others = []
    for found in ranked[1 : search.options.runner_ups + 1]:
        other = layout_of(given, found)
        step_s = seconds_of(given, other)
        value_s = value_of(given, found.row, step_s)
        others.append(RunnerUp(other, step_s, value_s, value_s <= best.value_s * (1 + band)))
    return Plan(
        inputs=inputs,
        layout=layout,
        estimate=priced,
        certificate=certificate,
        runner_ups=tuple(others),
        idle=idle_of(search, layout, best),
        warnings=(
            *warnings_of(given, priced.stage_bytes),
            *barrier_note(layout),
            *not_considered(space),
            *batches_left_out(search),
            *_past_limit(given, value_of(given, best.row, priced.step_s)),
        ),
        provenance=provenance_of(given),
        run=run_of(given, priced),
    )


def idle_of(search: Search, layout: Layout, best: Found) -> Idle:
    """Which devices the plan leaves idle, and what the best plan on more of them would take."""
    space, given = search.space, search.setting
    total, levels = given.cluster.devices, levels_used(given, layout)
    if layout.devices == total:
        return Idle(0, levels, "every device is used")
    if given.goal.limit_s is not None:
        return Idle(
            total - layout.devices,
            levels,
            "the goal is fewest chips: this plan is within its limit without them",
        )
    more = Search(space, replace(search.options, runner_ups=0), least_devices=layout.devices + 1)
    more.watch = search.watch
    whole = more.run(_IDLE_REFINEMENTS)
    if more.best:
        other = more.ranked[0]
        value, unit = in_unit(given, other.value_s, int(other.row.devices[0]))
        reason = (
            f"the best layout {'' if whole else 'found '}on more devices uses {int(other.row.devices[0])} and takes {value:.4g} {unit}, "
            f"{other.value_s / best.value_s - 1:.1%} more than this one"
        )
    elif not whole:
        better = "cheaper" if given.goal.name == "cost" else "faster"
        reason = f"layouts on more devices exist, but none is {better}; a short search found none that fits"
    elif TOO_LARGE in more.funnel.removed:
        reason = "layouts on more devices exist, but none of them fits the device memory"
    else:
        reason = (
            f"no legal layout can be placed on more than {layout.devices} of {total} devices: degrees must divide the "
            f"batch of {given.training.sequences} sequences, the heads and the sequence, pp is at most the "
            f"{given.model.layers} layers, and each network level holds a whole factor of every degree"
        )
    return Idle(total - layout.devices, levels, reason)


def in_unit(given: Setting, value_s: float, devices: int) -> tuple[float, str]:
    """A value of the search in the goal's own unit."""
    cluster = given.cluster
    if given.goal.name == "cost":
        return per_million_tokens(cluster, given.training, value_s), cost_unit(cluster)
    if given.goal.name == "chips":
        return cluster.chip.chips_of(devices), "chips"
    return value_s, "s a step"


def _past_limit(given: Setting, step_s: float) -> tuple[str, ...]:
    """What rounding in the solver let pass: less than its slack."""
    limit_s = given.goal.limit_s
    if limit_s is None or step_s <= limit_s * ROOM:
        return ()
    return (
        f"the step passes the limit of {limit_s:.10g} s by {step_s - limit_s:.1e} s, less than rounding in the solver hides",
    )


def batches_left_out(search: Search) -> tuple[str, ...]:
    """Whether a tolerance lets in more batches than the search takes."""
    there, taken = len(search.space.batches), search.options.batch_sizes
    told = (
        f"batch: {taken} of the {there} sizes that the tolerance lets in were considered, the one asked for and those "
        "with most divisors; narrow the tolerance, or raise --batch-sizes"
    )
    return (told,) if there > taken else ()
