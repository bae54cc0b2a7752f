"""The thresholds of `limits` by name: what was put in, those of a torus or of switches, and what a batch makes of them."""

from collections.abc import Mapping
from math import ceil

import numpy as np

from meshwright.costmodel.flops import BF16
from meshwright.costmodel.limits.groups import slice_level
from meshwright.costmodel.limits.thresholds import (
    Array,
    exact_tensor_ways,
    expert_width_needed,
    nearest_powers,
    tensor_ways,
)
from meshwright.costmodel.limits.training import Limits, memory_given, memory_steps
from meshwright.costmodel.setting import Streams
from meshwright.costmodel.working import Step
from meshwright.hardware.chip import ELEMENT_BYTES
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
    chips, devices = setting.cluster.chips, setting.cluster.devices
    sliced = "of one slice, " if of.whole.cluster.slices > 1 else ""
    out["N"] = Step(chips, "chips", note=f"{sliced}{devices:,} devices; ways count devices")
    if of.per_chip > 1:
        out["d"] = Step(of.per_chip, "devices/chip")
    out |= _links(of)
    if of.whole.cluster.slices > 1:
        out["slices"] = Step(
            of.whole.cluster.slices, "slices", note="data parallelism over the network between them"
        )
    if with_batch:
        out |= memory_given(of)
        whole = of.whole.training
        out["B, S"] = Step(
            f"{whole.global_batch_tokens}, {whole.seq_len}", note=f"tokens; {whole.sequences} sequences of S"
        )
    return out


def _links(of: Limits) -> Steps:
    """Rates of one chip into every level and between slices; torus axes that are alike in one line."""
    steps = {
        _label(of, members): Step(
            rate,
            "B/s",
            note=f"{', '.join(f'{of.network.levels[i].name} {of.network.levels[i].size}' for i in members)}; {how}",
        )
        for (rate, how), members in _alike(of).items()
    }
    if (beyond := slice_level(of.whole.cluster, of.whole.network)) is not None:
        network, _, level = beyond
        steps["W_dcn"] = Step(
            network.rate(level) * of.per_chip, "B/s", note="between slices; one chip, one way"
        )
    return steps


def _label(of: Limits, members: list[int]) -> str:
    name = of.network.levels[members[0]].name.replace("-", "_")
    return "W" if len(_alike(of)) == 1 else f"W_{name}"


def _rates(of: Limits, factors: Array) -> tuple[str, bool]:
    """What the torus axes of a group carry together, in the symbols of `given`; and whether all axes are alike."""
    terms, alike = [], 0
    for members in _alike(of).values():
        if axes := [i for i in members if i in of.network.torus]:
            alike += 1
            if count := sum(1 for i in axes if factors[i] > 1):
                terms.append(f"{count} {_label(of, members)}" if count > 1 else _label(of, members))
    return " + ".join(terms), alike == 1


def _alike(of: Limits) -> dict[tuple[float, str], list[int]]:
    """Levels by the rate of one chip and how it is counted."""
    out: dict[tuple[float, str], list[int]] = {}
    for index, level in enumerate(of.network.levels):
        rate = of.network.rate(index) * of.per_chip
        if not isinstance(level, TorusAxis):
            how = "one chip, one way"
        elif level.wraps:
            rate, how = 2 * rate, "ring, both ways"
        else:
            how = "no wraparound, one way"
        out.setdefault((rate, how), []).append(index)
    return out


def torus(of: Limits) -> Steps:
    """By number of whole axes, and for a mixture times E/k. Tokens are per chip, ways count devices."""
    groups, (experts, met) = of.groups, of.copies
    more, times = " E/k" if experts > 1 else "", " k" if met > 1 else ""
    ffn = ("d F" if of.per_chip > 1 else "F") + times
    whole, first = list(groups.data.values())[-1], next(iter(groups.data.values()))
    steps = {"alpha": Step(of.data(of.dense, first), "FLOP/B", f"C / {_rates(of, first)[0]}")}
    for count, (label, factors) in enumerate(groups.data.items(), 1):
        rates, alike = _rates(of, factors)
        rule = f"alpha{more} / {count}" if alike else f"C{more} / ({rates})"
        steps[f"fsdp_{label}"] = Step(of.data(of.book, factors), NEEDS, rule)
    steps["fsdp_exact"] = Step(of.data(of.book, whole, True), NEEDS, note="with (X-1)/X, all axes")
    steps["fsdp_model"] = fsdp_model(of)
    for count, (label, factors) in enumerate(groups.tensor.items(), 1):
        ways = float(tensor_ways(of.book, of.gather(factors)))
        rates, alike = _rates(of, factors)
        rule = f"{count} {ffn} / alpha" if alike else f"{ffn} ({rates}) / C"
        steps[f"tp_{label}"] = Step(ways, "ways", rule)
    one = next(iter(groups.tensor.values()))
    exact = float(exact_tensor_ways(of.book, of.network, one).min())
    steps["tp_exact"] = Step(exact, "ways", note="with (Y-1)/Y, one axis")
    steps["tp_model"] = Step(float(tensor_ways(of.own, of.gather(one))), "ways", note="this model, one axis")
    if groups.mixed is not None:
        (mx, my), (x, alike) = groups.mixed.axes, _rates(of, groups.mixed.data)
        y = _rates(of, groups.mixed.tensor)[0]
        rule = f"alpha^2{more} / ({mx} x {my} F{times})" if alike else f"C^2{more} / (({x}) ({y}) F{times})"
        steps["mixed"] = _mixed(of, "independent", rule, "FSDP and TP traffic overlap")
        steps["mixed_added"] = _mixed(of, "shared", f"4 {rule}", "they queue (book, 1st ed.)")
        steps["mixed_model"] = mixed_model(of)
        stages = int(np.prod(groups.mixed.tensor))
        if stages <= of.setting.model.layers:
            needed = of.data(of.book, groups.mixed.data, cut=stages)
            each = "d " if of.per_chip > 1 else ""
            rule = f"{each}alpha{more} / ({mx} x {stages})" if alike else f"{each}C{more} / (({x}) {stages})"
            steps[f"zero1_pp{stages}"] = Step(needed, NEEDS, rule, "stages on an axis, DP beside")
    if experts > 1:
        steps |= _experts_on_a_torus(of, number(steps["alpha"]))
    if of.slice_tokens is not None:
        steps["dcn_tokens_per_slice"] = Step(
            of.slice_tokens,
            "tokens/slice",
            f"C / W_dcn{more}" if not more else f"C{more} / W_dcn",
            "DP over slices",
        )
    return steps


def fsdp_model(of: Limits) -> Step:
    """Tokens per chip that FSDP over the whole network needs of this model's layers."""
    widest = list(of.groups.data.values())[-1]
    return Step(of.data(of.own, widest, True), NEEDS, note="this model's layers")


def mixed_model(of: Limits) -> Step:
    """The same of FSDP x TP, in the overlap convention that was asked for."""
    value = of.mixed(of.own, of.setting.streams, True) or 0.0
    return Step(value, NEEDS, note=f"this model, {of.setting.streams}")


def narrow_traffic(of: Limits, steps: Mapping[str, Step]) -> Steps:
    """The same rules where the bytes on the wire shrink with the dtype of the products, as the book's do."""
    dtype = of.setting.training.compute_dtype
    less = BF16 / ELEMENT_BYTES[dtype]
    if less == 1:
        return {}
    out = {}
    for name, step in steps.items():
        rule = name.startswith(("tp_", "fsdp_")) and not name.endswith(("_exact", "_model", "_domains"))
        if rule and (name.startswith("tp_") or name == data_rule_name(steps)):
            grows = name.startswith("tp_")
            value = number(step) * (less if grows else 1 / less)
            formula = f"{less:g} {name}" if grows else f"{name} / {less:g}"
            out[f"{name}_traffic_{dtype}"] = Step(value, step.unit, formula, f"book: {dtype} on the wire too")
    return out


def _mixed(of: Limits, streams: Streams, rule: str, note: str) -> Step:
    return Step(of.mixed(of.book, streams) or 0.0, NEEDS, rule, note)


def _experts_on_a_torus(of: Limits, alpha: float) -> Steps:
    """F that expert parallelism needs over one axis and over all, as far as there are experts."""
    (experts, met), steps = of.copies, {}
    for label, factors in of.groups.tensor.items():
        ways = int(np.prod(factors))
        if ways > experts or (label != "1_axis" and ways < experts):
            continue
        needed = expert_width_needed(of.setting.rates.matmul_flop_per_s, of.network, factors, met)
        rule = f"{needed / alpha:.6g} alpha"
        note = f"dispatch and combine over the axes; experts here have {of.ffn}"
        steps[f"ep_{ways}_needs_F"] = Step(needed, "elements", rule, note)
    return steps


def switched(of: Limits) -> Steps:
    """Within a domain of switches, and across domains over their NICs."""
    groups, (experts, met) = of.groups, of.copies
    more, times = " E/k" if experts > 1 else "", " k" if met > 1 else ""
    name, inside = next(iter(groups.data.items()))
    wide, alpha = groups.data.get("all"), f"alpha_{name}"
    steps = {alpha: Step(of.data(of.dense, inside), "FLOP/B", f"C / {_rate_of(of, 0)}")}
    if wide is not None:
        steps["alpha_domains"] = Step(
            of.beyond(of.dense),
            "FLOP/B",
            f"C / ({of.network.sizes[0]} {_beyond(of)})",
            "all NICs of a domain",
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
    steps["fsdp_model"] = fsdp_model(of)
    return steps | (_experts(of, wide) if experts > 1 and wide is not None else {})


def _beyond(of: Limits) -> str:
    """The rate that binds beyond a domain, by its symbol."""
    return _rate_of(of, min(range(1, len(of.network.levels)), key=of.network.rate))


def _rate_of(of: Limits, level: int) -> str:
    return next(_label(of, members) for members in _alike(of).values() if level in members)


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
        left = f"({ways} - {domain})"  # of the group's devices, those beyond a token's own domain
        rule = f"{left} / k" if met * domain >= ways else f"{domain} {left} / {ways}"
        needed = expert_width_needed(of.setting.rates.matmul_flop_per_s, of.network, factors, met)
        steps[f"ep_{ways}_needs_F"] = Step(
            needed,
            "elements",
            f"alpha_domains {rule}",
            f"experts here have {of.ffn}",
        )
    return steps


def for_batch(of: Limits, steps: Mapping[str, Step]) -> Steps:
    """What the batch makes of the thresholds."""
    tokens = of.tokens_per_chip
    fsdp, slices = data_rule(steps), of.whole.cluster.slices > 1
    out = {"tokens_per_chip": Step(tokens, NEEDS, "B / (slices N)" if slices else "B / N")}
    out |= most_chips(of, steps)
    if of.whole.cluster.slices > 1:
        share = of.setting.training.global_batch_tokens
        out["tokens_per_slice"] = Step(share, "tokens/slice", "B / slices")
    ways, devices = of.best_tensor(of.book), of.setting.cluster.devices
    if ways is not None and of.groups.mixed is not None and of.network.torus:
        mx, my = of.groups.mixed.axes
        x, y = nearest_powers(devices / ways, devices)
        width = "E F" if of.copies[0] > 1 else "F"
        batch = "B / slices" if slices else "B"
        everyone = "d N" if of.per_chip > 1 else "N"
        (over_x, alike), over_y = _rates(of, of.groups.mixed.data), _rates(of, of.groups.mixed.tensor)[0]
        axes = f"{mx}/{my}" if alike else f"({over_x})/({over_y})"
        width = width if width == "F" else f"({width})"
        rule = f"sqrt({batch} / {width} {axes} N)"
        if ways == 1:
            rule = f"min({everyone}, {rule})"
        out["X_opt"] = Step(devices / ways, "ways", rule, f"Y = {everyone} / X = {ways:.3g}")
        out["X_rounded"] = Step(x, "ways", "nearest power of two", f"Y = {y}")
        out["context_ways"] = Step(
            ceil(x / of.setting.training.sequences),
            "ways",
            f"ceil(X_rounded / {of.setting.training.sequences})",
            "context parallelism then",
        )
    elif "alpha_domains" in steps:
        out["domains_per_replica"] = Step(
            max(1, ceil(fsdp / tokens - 1e-9)),
            "domains",
            "max(1, ceil(fsdp_all / tokens_per_chip))",
            "for TP x PP with ZeRO-1",
        )
    return out | memory_steps(of)


def number(step: Step) -> float:
    """The value of a step that is a number."""
    assert not isinstance(step.value, str)
    return float(step.value)


def data_rule(steps: Mapping[str, Step]) -> float:
    """Tokens per chip that pure FSDP over the whole network needs."""
    return number(steps[data_rule_name(steps)])


def data_rule_name(steps: Mapping[str, Step]) -> str:
    """The step of that rule."""
    not_rules = ("_exact", "_model")
    return [n for n in steps if n.startswith("fsdp_") and not n.endswith(not_rules) and "_traffic_" not in n][
        -1
    ]


def most_chips(of: Limits, steps: Mapping[str, Step]) -> Steps:
    """Chips beyond which the batch's schemes wait, by the rules."""
    tokens, rule = of.whole.training.global_batch_tokens, data_rule_name(steps)
    out = {"chips_fsdp": Step(tokens / number(steps[rule]), "chips", f"B / {rule}", "more wait for weights")}
    if (key := mixed_key(of)) in steps:
        chips = tokens / number(steps[key])
        out["chips_mixed"] = Step(chips, "chips", f"B / {key}", "more wait under FSDP x TP")
    return out


def mixed_key(of: Limits) -> str:
    """The step of the overlap convention that was asked for."""
    return "mixed" if of.setting.streams == "independent" else "mixed_added"
