"""`limits` and `scaling`: the limits of training as workings, for the command line and as functions."""

from collections.abc import Mapping

import numpy as np

from meshwright.costmodel.flops import BF16
from meshwright.costmodel.limits import steps as limit_steps
from meshwright.costmodel.limits.steps import data_rule, mixed_key, number
from meshwright.costmodel.limits.strong_scaling import Curve, Reach, curve
from meshwright.costmodel.limits.thresholds import nearest_powers
from meshwright.costmodel.limits.tilings import Tiling, batch_for_whole, tilings
from meshwright.costmodel.limits.training import Limits
from meshwright.costmodel.placement import placeable
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.trainable import ALL
from meshwright.costmodel.working import Step, Value, Working, told
from meshwright.hardware.chip import ELEMENT_BYTES
from meshwright.hardware.errors import ClusterError, WorkloadError, check_type
from meshwright.hardware.units import human_count

_SHOWN = 3  # tilings of each sort on the page


def limits(setting: Setting, *, with_batch: bool = True) -> Working:
    """When each scheme stops being compute bound on this cluster, and with a batch how it is split best.

    Args:
        setting: rates of its efficiency; its `streams` decide which overlap convention the verdict takes.
        with_batch: whether the training's batch is meant, or only its sequence length.

    Raises:
        ClusterError: a single device. WorkloadError: a batch that does not split over the slices, or prediction modules.
    """
    _check(setting)
    of = Limits.of(setting)
    steps = _rules(of)
    steps |= limit_steps.narrow_traffic(of, steps)
    notes = _conventions(of)
    table: tuple[Mapping[str, Value], ...] = ()
    asked = f"limits of training {setting.model.name} on {setting.cluster.name}"
    binds = _without_batch(of, steps)
    if with_batch:
        steps |= limit_steps.for_batch(of, steps)
        found = tilings(of.setting, of.own)
        binds = _verdict(of, steps, found)
        table = tuple(_row(t) for t in _chosen(of, found))
        notes += _tiling_notes(of, found, steps)
        asked += f", {human_count(setting.training.global_batch_tokens)} tokens a step"
    return Working(asked, limit_steps.given(of, with_batch), steps, binds, tuple(notes), table)


def scaling(setting: Setting) -> tuple[Working, Curve]:
    """The layers of a step on ever more chips at the same batch, and where communication binds."""
    _check(setting)
    of = Limits.of(setting)
    shared = of.groups.mixed
    if shared is None:
        raise ClusterError(
            f"{of.setting.cluster.name} has one network level, which FSDP and TP cannot share whole; give a larger one"
        )
    whole = list(of.groups.data.values())[-1]
    reach = Reach(of.gather(whole, True), of.gather(shared.data, True), of.gather(shared.tensor, True))
    tokens = setting.training.global_batch_tokens
    chips = np.array(_chip_counts(setting.cluster.chips), float)
    drawn = curve(of.own, reach, tokens, chips * of.per_chip, setting.streams)
    rules = _rules(of)
    named = (limit_steps.data_rule_name(rules), mixed_key(of))
    steps = {
        name: step for name, step in rules.items() if name in ("alpha", *named) or name.startswith("alpha_")
    }
    steps |= limit_steps.most_chips(of, rules)
    own = {"fsdp_model": limit_steps.fsdp_model(of), "mixed_model": limit_steps.mixed_model(of)}
    alone, mixed = (number(step) for step in own.values())
    steps |= own | {
        "chips_fsdp_model": Step(
            tokens / alone, "chips", "B / fsdp_model", "more wait for weights under FSDP"
        ),
        "chips_mixed_model": Step(tokens / mixed, "chips", "B / mixed_model", "more wait under FSDP x TP"),
        "chips_sequences": Step(
            setting.training.sequences, "chips", "B / S", "more data ranks cut sequences"
        ),
    }
    note = (
        f"ms of one forward pass over this model's layers ({setting.model.layers}), a step has three times the products; "
        "whole axes of this cluster at every size: legal tilings of a real slice are in `limits`"
    )
    return Working(
        question=f"strong scaling of {setting.model.name} on {setting.cluster.chip.title}, {human_count(tokens)} tokens a step",
        given=limit_steps.given(of, True),
        steps=steps,
        binds=f"communication binds beyond {tokens / mixed:,.0f} chips ({tokens / mixed * of.per_chip:,.0f} devices): a step then shortens by less than chips are added",
        notes=(note,),
        table=tuple(_points(chips, tokens, drawn)),
    ), drawn  # fmt: skip


def _rules(of: Limits) -> dict[str, Step]:
    return limit_steps.torus(of) if of.network.torus else limit_steps.switched(of)


def _without_batch(of: Limits, steps: Mapping[str, Step]) -> str:
    """Below which tokens a step, and beyond which ways, communication binds."""
    cluster, rule = of.setting.cluster, data_rule(steps)
    on = f"on {cluster.chips:,} chips ({cluster.devices:,} devices)"
    alone = f"{told(rule)} tokens per chip, {told(rule * cluster.chips)} a step {on}"
    said = [f"communication binds under FSDP alone below {alone}"]
    if (key := mixed_key(of)) in steps:
        needed = number(steps[key])
        said.append(f"under FSDP x TP below {told(needed)}, {told(needed * cluster.chips)} a step")
    name = next(name for name in steps if name.startswith("tp_"))
    said.append(f"under TP beyond {told(number(steps[name]))} devices ({name}); --batch tells which it is")
    return "; ".join(said)


def _check(setting: Setting) -> None:
    check_type("setting", setting, Setting, "that of resolve(model, cluster, training)")
    for name in ("mtp", "images"):
        if asked := getattr(setting.training, name):
            raise WorkloadError(
                f"limits are those of the layers alone, and {name} is {asked}; ask with {name}=0"
            )
    if (asked := setting.training.trainable) != ALL:
        raise WorkloadError(
            f"limits are those of training all weights, and trainable is {asked}; ask with all"
        )


def _chip_counts(most: int) -> list[int]:
    """Doublings from a 64th of the cluster to four times it, the cluster itself among them."""
    start = max(1, most // 64)
    return sorted({start * 2**k for k in range(10) if start * 2**k <= 4 * most} | {most})


def _points(chips: np.ndarray, tokens: int, drawn: Curve) -> list[Mapping[str, Value]]:
    columns = zip(
        chips,
        drawn.math_s,
        drawn.fsdp_s,
        drawn.tensor_s,
        drawn.mixed_s,
        drawn.tensor_ways,
        drawn.scheme,
        strict=True,
    )
    return [
        {
            "chips": int(n),
            "tokens/chip": float(f"{tokens / n:.4g}"),
            "products": _ms(math),
            "FSDP": _ms(fsdp),
            "TP": _ms(tensor),
            "FSDP x TP": _ms(mixed),
            "at Y": float(f"{ways:.3g}"),
            "best": scheme,
        }
        for n, math, fsdp, tensor, mixed, ways, scheme in columns
    ]


def _ms(seconds: float) -> float:
    return float(f"{seconds * 1e3:.4g}")


def _verdict(of: Limits, steps: Mapping[str, Step], found: tuple[Tiling, ...]) -> str:
    """Which scheme is enough and by how much, and what becomes of it on the real network."""
    tokens, fsdp = of.tokens_per_chip, number(steps["fsdp_model"])
    said = [f"{told(tokens)} tokens per chip"]
    if tokens >= fsdp:
        said.append(f"FSDP alone is compute bound: {_times(tokens, fsdp, data_rule(steps))}")
    else:
        said.append(
            f"FSDP alone waits for weights: {_ratio(fsdp, tokens)}x as many needed, {told(fsdp)} by this model's layers and "
            f"{told(data_rule(steps))} by the rule"
        )
        if "mixed" in steps:
            needed, rule = number(steps["mixed_model"]), number(steps[mixed_key(of)])
            bound = f"is compute bound: {_times(tokens, needed, rule)}"
            waits = f"waits too: {told(needed)} by this model's layers and {told(rule)} by the rule needed"
            said.append(f"FSDP x TP {bound if tokens >= needed else waits}")
        elif "domains_per_replica" in steps:
            count = steps["domains_per_replica"].value
            said.append(
                f"with TP x PP over {count} domains a replica and ZeRO-1 DP is compute bound, bubbles apart"
            )
    if of.whole.cluster.slices > 1 and of.slice_tokens is not None:
        have, need = of.setting.training.global_batch_tokens, of.slice_tokens
        verb = "hides" if have >= need else "does not hide"
        said.append(
            f"DP over {of.whole.cluster.slices} slices {verb}: {have:,} tokens a slice, it needs {need:,.0f}"
        )
    legal = next((t for t in found if t.fits_batch), None)
    if legal is not None:
        late = legal.seconds / legal.math_s - 1
        said.append(
            f"of FSDP x TP that slice and batch hold, {legal.ways} x {legal.tensor} on {legal.devices:,} devices is "
            f"fastest, {'compute bound' if legal.compute_bound else f'{late:.0%} over its products'}"
        )
    return "; ".join(said)


def _times(tokens: float, needed: float, rule: float) -> str:
    return f"{_ratio(tokens, needed)}x the {told(needed)} of this model's layers, {_ratio(tokens, rule)}x the rule's {told(rule)}"


def _ratio(over: float, under: float) -> str:
    """Three digits, and thousands apart where there are more."""
    found = over / under
    return told(found) if found >= 1e3 else f"{found:.3g}"


def _conventions(of: Limits) -> list[str]:
    text = "rules: the book's layer, two matrices D x F, forward; backward doubles products and FSDP traffic alike"
    experts, met = of.copies
    if experts > 1:
        text += f"; a mixture gathers E experts and multiplies k, E/k = {experts / met:g} times the tokens"
    notes, dtype = [text], of.setting.training.compute_dtype
    if ELEMENT_BYTES[dtype] != BF16:
        notes.append(
            f"products in {dtype}, traffic in bf16 as the planner moves it; *_traffic_{dtype} are the book's rule, in which "
            "bytes shrink as the rate grows, so that the TP limit does not depend on precision"
        )
    return notes


def _chosen(of: Limits, found: tuple[Tiling, ...]) -> list[Tiling]:
    """The fastest that the batch allows, and the fastest that use every device."""
    devices = of.setting.cluster.devices
    legal = [t for t in found if t.fits_batch][:_SHOWN]
    whole = [t for t in found if t.devices == devices and t not in legal][:_SHOWN]
    return sorted([*legal, *whole], key=lambda t: (t.seconds, t.weights_s + t.residual_s))


def _row(t: Tiling) -> Mapping[str, Value]:
    return {
        "X": t.ways,
        "Y": t.tensor,
        "data x context": f"{t.data} x {t.context}" if t.fits_batch else "batch: no",
        "devices": t.devices,
        "products": _ms(t.math_s),
        "FSDP": _ms(t.weights_s),
        "TP": _ms(t.residual_s),
        "layers": _ms(t.seconds),
        "compute bound": t.compute_bound,
    }


def _tiling_notes(of: Limits, found: tuple[Tiling, ...], steps: Mapping[str, Step]) -> list[str]:
    setting = of.setting
    first = (
        f"table: ms of one forward pass over this model's layers, fastest placement, streams {setting.streams}; "
        "'batch: no' fits the network and not the batch"
    )
    notes = [first]
    sizes = tuple(level.size for level in setting.cluster.levels)
    if "X_opt" in steps:
        x, y = nearest_powers(number(steps["X_opt"]), setting.cluster.devices)
        if not placeable((y, 1, x, 1, 1), sizes):
            shape = " x ".join(map(str, sizes))
            notes.append(
                f"{x} x {y} = {x * y:,} is no tiling of {shape}: every axis must hold whole factors of both"
            )
    most = max((t.devices for t in found if t.fits_batch), default=0)
    if most < setting.cluster.devices:
        notes.append(_idle_note(setting, most, found))
    return notes


def _idle_note(setting: Setting, most: int, found: tuple[Tiling, ...]) -> str:
    note = (
        f"{setting.training.sequences:,} sequences of {setting.training.seq_len:,} let FSDP x TP use {most:,} of "
        f"{setting.cluster.devices:,} devices at most"
    )
    if (other := batch_for_whole(setting, found)) is not None:
        sequences, data, context, tensor = other
        note += f"; {sequences:,} sequences allow {data} data x {context} context x {tensor} TP on all"
    return note + "; pipeline stages use more too: meshwright recommend"
