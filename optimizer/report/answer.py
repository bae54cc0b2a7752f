"""The page for a plan or an estimate. Reads the answer only, so a plan from a file shows the same."""

from collections.abc import Iterator, Sequence
from typing import Any

from meshwright.costmodel.estimate import StepEstimate
from meshwright.costmodel.layout import DIMENSIONS, Layout
from meshwright.hardware.units import human_bytes, human_count
from meshwright.optimizer.plan import Plan, Priced
from meshwright.optimizer.report import words
from meshwright.optimizer.report.launcher import cost
from meshwright.optimizer.report.page import Block, alarm, bullet, faint, headline, line, table, title
from meshwright.optimizer.report.proof import certificate, funnel, next_best
from meshwright.optimizer.report.recompute import by_stage, summed

_BAR = 28
_MOST_RUNS = 16  # of equal stages, told one by one
_NAMES = len("dp_replicate")


def answer(plan: Priced) -> Iterator[Block]:
    """The whole page."""
    yield from question(plan.inputs)
    yield from does_not_fit(plan.estimate)
    yield from _layout(plan)
    yield from _step(plan)
    yield from _memory(plan)
    yield from _idle(plan)
    if plan.run is not None:
        yield from _run(plan.run)
    if isinstance(plan, Plan):
        yield from next_best(plan)
        if plan.launcher is not None:
            yield from cost(plan.launcher, plan.certificate.value_s)
        yield from certificate(plan.certificate, plan.runner_ups)
    yield from _warnings(plan)
    if isinstance(plan, Plan):
        yield from funnel(plan.certificate.entered, plan.certificate.removed, plan.certificate.solved)


def question(inputs: dict[str, Any]) -> Iterator[Block]:
    """What was asked, as understood."""
    model, cluster, training = inputs["model"], inputs["cluster"], inputs["training"]
    size = words.devices_and_chips(cluster["devices"], cluster)
    yield headline(
        f"{model['name']} ({words.size_of(model['params'])} parameters) on {cluster['name']}: {size}"
    )
    sequences = training["global_batch_tokens"] // training["seq_len"]
    tolerance = f" within {training['batch_tolerance']:.2%}" if training["batch_tolerance"] else ""
    yield line(
        f"batch {human_count(training['global_batch_tokens'])} tokens{tolerance} = {sequences:,} sequences of "
        f"{training['seq_len']:,}; {training['compute_dtype']}, {training['optimizer']}"
        + (f"; trains {what}" if (what := training.get("trainable", "all")) != "all" else "")
    )
    yield line(
        f"rates {inputs['efficiency']}, overlap {inputs['overlap']}, streams {inputs['comm_streams']}, "
        f"memory as {inputs['framework']} holds it"
        + (f"; launcher {name}" if (name := inputs.get("launcher", "any")) not in ("any", "jax") else "")
        + (f"; constraints {inputs['constraints']}" if inputs["constraints"] else "")
    )
    yield faint(cluster["fabric"])


def does_not_fit(estimate: StepEstimate) -> Iterator[Block]:
    """Which memory is too small: what is needed, what there is, and by how much it is short; nothing where all fits."""
    if estimate.short_bytes:
        stage = estimate.heaviest_stage
        yield alarm(
            f"\nDOES NOT FIT: stage {stage} is {human_bytes(estimate.short_bytes)} short "
            f"({human_bytes(estimate.stage_bytes[stage])} needed, {human_bytes(estimate.capacity_bytes)} usable)"
        )
    if estimate.host_short_bytes:
        yield alarm(
            f"\nDOES NOT FIT: the memory of the fullest host is {human_bytes(estimate.host_short_bytes)} short "
            f"({human_bytes(estimate.fullest_host_bytes)} needed by its devices, "
            f"{human_bytes(estimate.host_capacity_bytes or 0)} on each host)"
        )


def _layout(plan: Priced) -> Iterator[Block]:
    layout, levels = plan.layout, plan.idle.levels
    used = words.share_of(layout.devices, plan.inputs["cluster"])
    goal = (
        f"; goal {plan.certificate.goal}"
        if isinstance(plan, Plan) and plan.certificate.goal != "step"
        else ""
    )
    yield title("Plan" if isinstance(plan, Plan) else "Layout", f"uses {used}{goal}")
    notes = {
        "tp": "norms split along the sequence (sp)" if layout.sp else "norms repeated (no sp)",
        "cp": layout.cp_kind,
        "dp_shard": f"ZeRO {layout.zero} shards {words.ZERO[layout.zero]}{words.kept(layout)}",
        "pp": f"{layout.schedule}" + (f", {layout.vpp} chunks a stage" if layout.vpp > 1 else ""),
    }
    rows: list[tuple[str, ...]] = [
        (name, str(getattr(layout, name)), words.sits_on(layout, levels, name), notes.get(name, ""))
        for name in DIMENSIONS
        if getattr(layout, name) > 1
    ]
    if layout.ep > 1:
        inside = f", {layout.etp} ways inside each" if layout.etp > 1 else ""
        same = (
            f"{layout.edp:,} ranks hold the same experts"
            if layout.edp > 1
            else "no other rank holds the same experts"
        )
        rows.append(("ep", str(layout.ep), words.experts_sit_on(layout, levels), same + inside))
    rows = [(name.ljust(_NAMES), *rest) for name, *rest in rows]
    yield table(rows, "lrll", header=("degree", "", "network level, inner to outer", ""))
    yield table(((name.ljust(_NAMES), text) for name, text in _knobs(plan)), "ll")
    yield faint(words.layout_option(layout))


def _knobs(plan: Priced) -> Iterator[tuple[str, str]]:
    layout, estimate = plan.layout, plan.estimate
    if ones := [name for name in (*DIMENSIONS, "ep") if getattr(layout, name) == 1]:
        yield "of degree 1", ", ".join(ones)
    steps = estimate.sequences // (layout.dp * layout.micro_batch)
    yield (
        "micro-batch",
        f"{words.plural(layout.micro_batch, 'sequence')}, {words.plural(steps, 'micro-batch')} a step",
    )
    training = plan.inputs["training"]
    nominal = training["global_batch_tokens"] // training["seq_len"]
    if estimate.sequences != nominal:
        moved = estimate.sequences / nominal - 1
        yield "batch", f"moved to {words.plural(estimate.sequences, 'sequence')} ({moved:+.2%})"
    yield "stages", words.stages(layout)
    if layout.dp_shard == 1:
        yield "ZeRO", f"{layout.zero}: {words.ZERO[layout.zero]}{words.kept(layout)}"
    yield from _recompute(layout, plan.inputs["model"].get("kinds", ()))
    yield "offload", layout.offload


def _recompute(layout: Layout, kinds: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A line for each run of equal stages; of very many only what they come to."""
    lines = by_stage(layout, kinds)
    if len(lines) > _MOST_RUNS:
        lines = [
            f"{summed(layout.policy_words, layout.layers_per_stage, kinds)}; {len(lines)} runs of stages differ"
        ]
    yield "recompute", lines[0]
    yield from (("", text) for text in lines[1:])


def _step(plan: Priced) -> Iterator[Block]:
    e = plan.estimate
    lower, expected, upper = (words.seconds(s) for s in (e.lower_s, e.step_s, e.upper_s))
    yield title("Step time", f"expected {expected}   lower {lower}   upper {upper}")
    chips = plan.inputs["cluster"]["chips"]
    yield line(
        f"{words.percent(e.mfu)} MFU (of the {plan.inputs['training']['compute_dtype']} peak of the used devices), "
        f"{e.tokens_per_s:,.0f} tokens/s, "
        f"{e.tokens_per_s / chips:,.0f} tokens/s per chip of the cluster"
    )
    if e.band_s is not None:
        low, high = (words.seconds(s) for s in e.band_s)
        yield line(f"80% of published runs of this kind would take {low} to {high}")
    decimals = words.decimals_for(e.step_s)
    shown = {p: s for p, s in e.parts.items() if s > 1e-7 * e.step_s}
    yield table(
        [
            (
                part,
                words.fixed(s, decimals),
                words.percent(s / e.step_s),
                _bar(s / e.step_s),
                words.PARTS[part],
            )
            for part, s in sorted(shown.items(), key=lambda item: -item[1])
        ]
        + [("sum", words.fixed(e.step_s, decimals), "100.0%", "", "")],
        "lrrbl",
        header=("exposed part", "s", "", "", ""),
    )
    yield faint("lower: peak rates, everything hidden. upper: the same rates as expected, nothing hidden.")


def _bar(share: float) -> str:
    return "#" * round(share * _BAR)


def _memory(plan: Priced) -> Iterator[Block]:
    e = plan.estimate
    stage = e.heaviest_stage
    which = f"stage {stage} of {len(e.memory)}, the heaviest" if len(e.memory) > 1 else "one stage"
    need = e.stage_bytes[stage]
    yield title(
        "Memory of a device",
        f"{which}: {words.gib(need)} of {words.gib(e.capacity_bytes)} GiB usable ({need / e.capacity_bytes:.0%})",
    )
    parts = sorted(((p, b) for p, b in e.memory[stage].items() if b > 0), key=lambda item: -item[1])
    whole, full = e.capacity_bytes, max(e.capacity_bytes, need)
    rows = [(part, words.gib(b), words.percent(b / whole), _bar(b / full)) for part, b in parts]
    left = whole - need
    rows.append(
        ("free" if left >= 0 else "SHORT", words.gib(abs(left)), words.percent(abs(left) / whole), "")
    )
    yield table(rows, "lrrb", header=("part", "GiB", "", ""))
    if len(e.memory) > 1:
        least, most = words.gib(min(e.stage_bytes)), words.gib(need)
        yield line(f"all stages: {most} GiB" if least == most else f"all stages: {least} to {most} GiB")
    if max(e.host_bytes) > 0:
        room = f" of {human_bytes(e.host_capacity_bytes)}" if e.host_capacity_bytes is not None else ""
        yield line(
            f"on the host: at most {human_bytes(max(e.host_bytes))} per device; the fullest host keeps "
            f"{human_bytes(e.fullest_host_bytes)}{room}"
        )


def _idle(plan: Priced) -> Iterator[Block]:
    cluster = plan.inputs["cluster"]
    if plan.idle.devices == 0:
        yield title("Idle", "none: every device is used")
        return
    yield title("Idle", words.share_of(plan.idle.devices, cluster))
    part = [f"{name} {used} of {size}" for name, used, size in plan.idle.levels if used != size]
    yield line(f"used: {', '.join(part)}")
    yield line(plan.idle.reason)


def _run(run: dict[str, Any]) -> Iterator[Block]:
    yield title("Whole run", f"{human_count(run['total_tokens'])} tokens")
    yield line(f"{run['steps']:,} steps, {run['days']:,.1f} days")
    if run["price"] is None:
        yield line("money: no source gives an on-demand list price for this chip")
        return
    price = run["price"]
    yield line(
        f"{run['usd']:,.0f} USD for all {run['chips']:,} chips (idle ones too) at {price['usd_per_chip_hour']:g} USD "
        f"per chip-hour"
    )
    yield faint(f"{price['kind']}, {price['provider']}; {price['date']}; {price['source']}")


def _warnings(plan: Priced) -> Iterator[Block]:
    if plan.warnings:
        yield title("Warnings")
        for warning in plan.warnings:
            yield bullet(warning)
    yield title("Sources", f"rates: {plan.provenance['efficiency']}")
    yield faint(
        f"{words.plural(len(plan.provenance['sources']), 'source')} of hardware figures; --json lists them"
    )
