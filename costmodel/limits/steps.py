"""The thresholds of `limits` by name: what was put in, those of a torus or of switches, and what a batch makes of them."""

from collections.abc import Mapping
from math import ceil

import numpy as np

from meshwright.costmodel.limits.thresholds import (
    Array,
    exact_tensor_ways,
    expert_width_needed,
    nearest_powers,
    tensor_ways,
)
from meshwright.costmodel.limits.training import Limits, memory_steps
from meshwright.costmodel.setting import Streams
from meshwright.costmodel.working import Step
from meshwright.hardware.network import TorusAxis

Steps = dict[str, Step]
NEEDS = "tokens/chip"
_STAGE_DOMAINS = 8  # that a model replica spans where pipelining is told, as in the book's quiz


def given(of: Limits, with_batch: bool) -> Steps:
    """Model, rates of one chip, batch."""
    setting, (experts, met) = of.setting, of.copies
    chip, training = setting.cluster.chip, setting.training
    peak = chip.peak.get(training.compute_dtype)
    out = {
        "D, F, L": Step(
            f"{setting.model.hidden}, {of.ffn}, {setting.model.layers}",
            note="model width, feed-forward width" + (" of one expert" if experts > 1 else "") + ", layers",
        ),
        "P": Step(setting.model.params, "params"),
        "C": Step(
            of.per_chip * setting.rates.matmul_flop_per_s,
            "FLOP/s",
            note=f"{training.compute_dtype}, one chip" + (f" ({peak.source})" if peak else ""),
        ),
    }
    if experts > 1:
        out["E, k"] = Step(f"{experts}, {met}", note="experts, of which a token meets k")
    out |= _links(of)
    if of.whole.cluster.slices > 1:
        out["slices"] = Step(
            of.whole.cluster.slices, "slices", note="data parallelism over the network between them"
        )
    if with_batch:
        whole = of.whole.training
        out["B, S"] = Step(
            f"{whole.global_batch_tokens}, {whole.seq_len}", note=f"tokens; {whole.sequences} sequences of S"
        )
    return out


def _links(of: Limits) -> Steps:
    """Rates of one chip into every level; torus axes that are alike in one line."""
    out: dict[tuple[float, str], list[str]] = {}
    for index, level in enumerate(of.network.levels):
        rate = of.network.rate(index) * of.per_chip
        if not isinstance(level, TorusAxis):
            how = "one chip, one way"
        elif level.wraps:
            rate, how = 2 * rate, "ring, both ways"
        else:
            how = "no wraparound, one way"
        out.setdefault((rate, how), []).append(f"{level.name} {level.size}")
    return {
        "W" if len(out) == 1 else f"W_{names[0].split()[0]}": Step(
            rate, "B/s", note=f"{', '.join(names)}; {how}"
        )
        for (rate, how), names in out.items()
    }


def torus(of: Limits) -> Steps:
    """By number of whole axes, and for a mixture times E/k."""
    groups, (experts, met) = of.groups, of.copies
    more, times = " E/k" if experts > 1 else "", " k" if met > 1 else ""
    whole = list(groups.data.values())[-1]
    steps = {"alpha": Step(of.data(of.dense, next(iter(groups.data.values()))), "FLOP/B", "C / W")}
    for count, (label, factors) in enumerate(groups.data.items(), 1):
        steps[f"fsdp_{label}"] = Step(of.data(of.book, factors), NEEDS, f"alpha{more} / {count}")
    steps["fsdp_exact"] = Step(of.data(of.book, whole, True), NEEDS, note="with (X-1)/X, all axes")
    steps["fsdp_model"] = Step(of.data(of.own, whole, True), NEEDS, note="of this model's layers")
    for count, (label, factors) in enumerate(groups.tensor.items(), 1):
        ways = float(tensor_ways(of.book, of.gather(factors)))
        steps[f"tp_{label}"] = Step(ways, "ways", f"{count} F{times} / alpha")
    one = next(iter(groups.tensor.values()))
    exact = float(exact_tensor_ways(of.book, of.network, one).min())
    steps["tp_exact"] = Step(exact, "ways", note="with (Y-1)/Y, one axis")
    steps["tp_model"] = Step(
        float(tensor_ways(of.own, of.gather(one))), "ways", note="of this model's layers, one axis"
    )
    if groups.mixed is not None:
        mx, my = groups.mixed.axes
        rule = f"alpha^2{more} / ({mx} x {my} F{times})"
        steps["mixed"] = _mixed(of, "independent", rule, "FSDP and TP traffic overlap")
        steps["mixed_added"] = _mixed(of, "shared", f"4 {rule}", "they queue (book, 1st edition)")
        own = of.mixed(of.own, of.setting.streams, True) or 0.0
        steps["mixed_model"] = Step(own, NEEDS, note=f"this model, streams {of.setting.streams}")
        stages = int(np.prod(groups.mixed.tensor))
        if stages <= of.setting.model.layers:
            needed = of.data(of.book, groups.mixed.data, cut=stages)
            steps[f"zero1_pp{stages}"] = Step(
                needed, NEEDS, f"alpha{more} / ({mx} x {stages})", "stages on an axis, DP beside"
            )
    if experts > 1:
        steps |= _experts_on_a_torus(of)
    if of.slice_tokens is not None:
        steps["dcn_tokens_per_slice"] = Step(
            of.slice_tokens, "tokens/slice", f"C / W_dcn{more}", "DP over slices"
        )
    return steps


def _mixed(of: Limits, streams: Streams, rule: str, note: str) -> Step:
    return Step(of.mixed(of.book, streams) or 0.0, NEEDS, rule, note)


def _experts_on_a_torus(of: Limits) -> Steps:
    """F that expert parallelism needs over one axis and over all, as far as there are experts."""
    (experts, met), steps = of.copies, {}
    for label, factors in of.groups.tensor.items():
        ways = int(np.prod(factors))
        if ways > experts or (label != "1_axis" and ways < experts):
            continue
        needed = expert_width_needed(of.setting.rates.matmul_flop_per_s, of.network, factors, met)
        steps[f"ep_{ways}_needs_F"] = Step(needed, "elements", "", f"experts here have {of.ffn}")
    return steps


def switched(of: Limits) -> Steps:
    """Within a domain of switches, and across domains over their NICs."""
    groups, (experts, met) = of.groups, of.copies
    more, times = " E/k" if experts > 1 else "", " k" if met > 1 else ""
    name, inside = next(iter(groups.data.items()))
    wide, alpha = groups.data.get("all"), f"alpha_{name}"
    steps = {alpha: Step(of.data(of.dense, inside), "FLOP/B", f"C / W_{name}")}
    if wide is not None:
        steps["alpha_domains"] = Step(
            of.beyond(of.dense), "FLOP/B", f"C / (W {of.network.sizes[0]})", "all NICs of a domain"
        )
    steps[f"tp_{name}"] = Step(
        float(tensor_ways(of.book, of.gather(inside))), "ways", f"F{times} / {alpha}", f"over {name}"
    )
    if wide is not None:
        steps["tp_two_domains"] = _beyond_a_domain(of, wide, times)
    steps["tp_model"] = Step(
        float(tensor_ways(of.own, of.gather(inside))), "ways", note="of this model's layers"
    )
    steps[f"fsdp_{name}"] = Step(of.data(of.book, inside), NEEDS, f"{alpha}{more}", f"over {name}")
    if wide is not None:
        rule = f"max({alpha}, alpha_domains){more}"
        steps["fsdp_all"] = Step(of.data(of.book, wide), NEEDS, rule, "across domains")
        if groups.mixed is not None:
            replica = _STAGE_DOMAINS * of.network.sizes[0]
            steps[f"zero1_{_STAGE_DOMAINS}_domains"] = Step(
                of.data(of.book, groups.mixed.data, cut=replica),
                NEEDS,
                f"alpha_domains{more} / {_STAGE_DOMAINS}",
                "TP x PP over so many a replica",
            )
        steps["dp_in_switches"] = Step(of.reduced(of.book, wide), NEEDS, "fsdp_all / 2", "SHARP, in theory")
    widest = inside if wide is None else wide
    steps["fsdp_exact"] = Step(of.data(of.book, widest, True), NEEDS, note="with (X-1)/X")
    steps["fsdp_model"] = Step(of.data(of.own, widest, True), NEEDS, note="of this model's layers")
    return steps | (_experts(of, wide) if experts > 1 and wide is not None else {})


def _beyond_a_domain(of: Limits, wide: Array, times: str) -> Step:
    by_level = exact_tensor_ways(of.book, of.network, wide)
    return Step(
        float(by_level[1:][np.isfinite(by_level[1:])].min()),
        "ways",
        f"F{times} / alpha_domains + {of.network.sizes[0]}",
        f"inner links end at {float(by_level[0]):.3g}",
    )


def _experts(of: Limits, wide: Array) -> Steps:
    """F that expert parallelism needs over two domains, eight, and as many as there are experts for."""
    (experts, met), domain = of.copies, of.network.sizes[0]
    steps = {}
    for domains in sorted({2, 8, max(2, experts // domain)}):
        factors = np.ones_like(wide)
        factors[0], factors[-1], ways = domain, domains, domain * domains
        if ways > experts:
            continue
        rule = "(Z-8)/k" if met * domain >= ways else "8 (Z-8)/Z"
        needed = expert_width_needed(of.setting.rates.matmul_flop_per_s, of.network, factors, met)
        steps[f"ep_{ways}_needs_F"] = Step(
            needed,
            "elements",
            f"alpha_domains {rule}".replace("8", str(domain)),
            f"experts here have {of.ffn}",
        )
    return steps


def for_batch(of: Limits, steps: Mapping[str, Step]) -> Steps:
    """What the batch makes of the thresholds."""
    tokens, training = of.tokens_per_chip, of.whole.training
    fsdp = data_rule(steps)
    out = {
        "tokens_per_chip": Step(tokens, NEEDS, "B / N"),
        "chips_fsdp": Step(training.global_batch_tokens / fsdp, "chips", "B / fsdp", "more wait for weights"),
    }
    if "mixed" in steps:
        key = mixed_key(of)
        chips = training.global_batch_tokens / number(steps[key])
        out["chips_mixed"] = Step(chips, "chips", f"B / {key}", "more wait under FSDP x TP")
    if of.whole.cluster.slices > 1:
        share = of.setting.training.global_batch_tokens
        out["tokens_per_slice"] = Step(share, "tokens/slice", "B / slices")
    ways, devices = of.best_tensor(of.book), of.setting.cluster.devices
    if ways is not None and of.groups.mixed is not None and of.network.torus:
        mx, my = of.groups.mixed.axes
        x, y = nearest_powers(devices / ways, devices)
        width = "(E F)" if of.copies[0] > 1 else "F"
        out["X_opt"] = Step(devices / ways, "ways", f"sqrt(B/{width} {mx}/{my} N)", f"Y = N/X = {ways:.3g}")
        out["X_rounded"] = Step(x, "ways", "nearest power of two", f"Y = {y}")
        out["context_ways"] = Step(
            ceil(x / of.setting.training.sequences), "ways", "X / sequences", "context parallelism for that X"
        )
    elif "alpha_domains" in steps:
        out["domains_per_replica"] = Step(
            max(1, ceil(fsdp / tokens - 1e-9)),
            "domains",
            "fsdp_all / tokens_per_chip",
            "for TP x PP with ZeRO-1",
        )
    return out | memory_steps(of)


def number(step: Step) -> float:
    """The value of a step that is a number."""
    assert not isinstance(step.value, str)
    return float(step.value)


def data_rule(steps: Mapping[str, Step]) -> float:
    """Tokens per chip that pure FSDP over the whole network needs."""
    names = [n for n in steps if n.startswith("fsdp_") and n not in ("fsdp_exact", "fsdp_model")]
    return number(steps[names[-1]])


def mixed_key(of: Limits) -> str:
    """The step of the overlap convention that was asked for."""
    return "mixed" if of.setting.streams == "independent" else "mixed_added"
