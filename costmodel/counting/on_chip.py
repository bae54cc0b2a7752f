"""What `meshwright count` answers of a model on a chip: state bytes and what fits, critical batch, MFU of a run.

Source of the rules: jax-ml/scaling-book, chapters 4, 5 and 7.
"""

from collections.abc import Mapping

from meshwright.costmodel.counting import counts
from meshwright.costmodel.counting.parts import letters
from meshwright.costmodel.doors import (
    ChipSource,
    ModelSource,
    check_positive,
    check_whole,
    chip_of,
    framework_of,
    model_of,
)
from meshwright.costmodel.flops import TRAIN, token_flops
from meshwright.costmodel.framework import Framework
from meshwright.costmodel.memory import STATE_PARTS, bytes_per_param
from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.roofline.intensity import critical_batch, critical_intensity
from meshwright.costmodel.roofline.operands import parse_dtype
from meshwright.costmodel.working import Step, Value, Working
from meshwright.costmodel.workload import OPTIMIZER_STATE_BYTES
from meshwright.hardware.chip import ELEMENT_BYTES, Chip
from meshwright.hardware.errors import UnknownNameError, check_type

ZERO_LEVELS = ("ZeRO-0 (pure DP)", "ZeRO-1", "ZeRO-2", "ZeRO-3 (FSDP)")


def count_state(
    model: ModelSource,
    framework: Framework | str = "jax",
    optimizer: str = "adamw",
    chip: ChipSource | None = None,
    shards: int = 1,
) -> Working:
    """Bytes of parameters, optimizer, gradients: as the book counts them and as the planner holds them.

    Args:
        chip: whose memory decides what fits; None leaves that out.
        shards: devices over which ZeRO shards.

    Raises:
        UnknownNameError: no such optimizer.
    """
    model, chip = model_of(model), None if chip is None else chip_of(chip)
    framework = framework_of(framework)
    check_whole(shards=shards)
    check_type("optimizer", optimizer, str, "a name such as 'adamw'")
    if optimizer not in OPTIMIZER_STATE_BYTES:
        raise UnknownNameError("optimizer", optimizer, OPTIMIZER_STATE_BYTES)
    ours, summed = (
        {part: float(size) for part, size in bytes_per_param(framework, optimizer, several).items()}
        for several in (False, True)
    )
    steps: dict[str, Step] = {}
    counted: tuple[tuple[str, Mapping[str, float]], ...] = (("book", counts.BOOK_STATE), ("planner", ours))
    for name, each in counted:
        steps[f"{name}_bytes_per_param"] = Step(sum(each.values()), "B", _terms(each))
        steps[f"{name}_state"] = Step(sum(counts.state_bytes(each, model.params).values()), "B", "P x that")
    if chip is not None:
        memory = {"book": chip.memory_bytes, "planner": framework.capacity_bytes(chip.memory_bytes)}
        for name, each in counted:
            most = counts.most_params(memory[name], each)
            fits = "fits" if model.params <= most else "does not fit"
            steps[f"{name}_most_params"] = Step(
                most, "", f"memory / {name}_bytes_per_param", f"pure DP, no activations: this model {fits}"
            )
    ways = (*counted, ("planner, several micro-batches", summed))
    rows = tuple(
        {"counted by": name, "bytes per parameter": sum(each.values())}
        | _by_level(each, model.params, shards)
        for name, each in ways
    )
    given = letters(model) | {"P": Step(model.params, "", note="parameters"), "optimizer": Step(optimizer)}
    given |= {"framework": Step(framework.name, note="whose gradient buffers are counted")}
    given |= {"shards": Step(shards, "devices", note="over which ZeRO shards")}
    if chip is not None:
        given["memory"] = Step(chip.memory_bytes, "B", note=f"of one device, {chip.name}")
    return Working(
        question=f"{model.name}: bytes of parameters, optimizer state and gradients on one device",
        given=given,
        steps=steps,
        binds=_what_fits(model, chip, steps),
        notes=("the book counts bf16 parameters and two fp32 moments, neither gradients nor a master copy",),
        table=rows,
    )


def _terms(each: Mapping[str, float]) -> str:
    return " + ".join(f"{part} {each[part]:g}" for part in STATE_PARTS if each.get(part))


def _by_level(each: Mapping[str, float], params: float, shards: int) -> dict[str, Value]:
    levels = enumerate(ZERO_LEVELS)
    return {
        f"B, {name}": sum(counts.state_bytes(each, params, level, shards).values()) for level, name in levels
    }


def _what_fits(model: ModelSpec, chip: Chip | None, steps: Mapping[str, Step]) -> str:
    if chip is None:
        return f"{counts.BOOK_STATE['optimizer']} of the book's bytes are the optimizer's; --chip tells what fits."
    most, book = float(steps["planner_most_params"].value), float(steps["book_most_params"].value)
    return (
        f"Under pure data parallelism a {chip.name} holds at most {most / 1e9:.2f}B parameters with gradients and "
        f"master copy ({book / 1e9:.2f}B by the book's count); {model.name} has {model.params / 1e9:.2f}B."
    )


def count_batch(
    model: ModelSource, chip: ChipSource, weights: str = "bf16", compute: str = "bf16"
) -> Working:
    """Tokens from which on products with weights take longer to compute than the weights take to arrive from HBM.

    Args:
        weights, compute: dtype of the weights in memory, and of the products.

    Raises:
        UnknownNameError: no such dtype.
        MissingFigureError: the chip has no peak for `compute`.
    """
    model, chip = model_of(model), chip_of(chip)
    weights, compute = parse_dtype(weights), parse_dtype(compute)
    size, peak, hbm = ELEMENT_BYTES[weights], chip.peak_flop_per_s(compute), chip.hbm_bytes_per_s
    dense = critical_batch(size, peak, hbm)
    steps = {
        "intensity": Step(critical_intensity(peak, hbm), "FLOP/B", "C / W", "of the device"),
        "dense": Step(dense, "tokens", "w C / (2 W)", "a dense product"),
    }
    for kind in model.kinds:
        if kind.ffn.experts:
            e, k = kind.ffn.experts, kind.ffn.top_k
            found = dense * counts.sparsity(e, k)
            steps["experts"] = Step(found, "tokens", "dense x E / k", f"{k} of {e} experts, evenly loaded")
    whole = dense * counts.sparsity(model.params, model.active_params)
    steps["model"] = Step(whole, "tokens", "dense x params / active_params", "all weights read, on average")
    name = "experts" if "experts" in steps else "dense"
    return Working(
        question=f"{model.name}: tokens in a batch that make its products compute bound on {chip.name}",
        given=letters(model)
        | {
            "C": Step(peak, "FLOP/s", note=f"{compute}, one device of {chip.title}"),
            "W": Step(hbm, "B/s", note="HBM"),
            "w": Step(size, "B", note=f"a weight in {weights}"),
        },
        steps=steps,
        binds=f"Below {float(steps[name].value):,.0f} tokens reading {weights} weights binds, above it {compute} "
        f"products; attention is apart: it reads a cache per sequence.",
        notes=(
            "activations are left out, as their bytes are few at such batches; over a network see limits",
        ),
    )


def count_utilisation(
    model: ModelSource, seq_len: int, tokens: int, chip_s: float, flop_per_s: float
) -> Working:
    """MFU of a run that trained on `tokens` in `chip_s` chip-seconds at a peak of `flop_per_s` each."""
    model = model_of(model)
    check_whole(seq_len=seq_len, tokens=tokens)
    check_positive(chip_s=chip_s, flop_per_s=flop_per_s)
    exact = TRAIN * token_flops(model, seq_len)
    rule = counts.rule_flops(model.active_params)
    steps = {
        "flops_per_token": Step(exact, "FLOP", "3 x forward", "causal half of attention only"),
        "flops_per_token_rule": Step(rule, "FLOP", "6 x active parameters"),
        "used_flops": Step(exact * tokens, "FLOP", "flops_per_token x tokens"),
        "used_flops_rule": Step(rule * tokens, "FLOP", "flops_per_token_rule x tokens"),
        "available_flops": Step(chip_s * flop_per_s, "FLOP", "chip-seconds x C"),
        "mfu": Step(counts.utilisation(exact * tokens, chip_s, flop_per_s), "ratio", "used / available"),
        "mfu_rule": Step(counts.utilisation(rule * tokens, chip_s, flop_per_s), "ratio", "by the rule"),
    }
    mfu = float(steps["mfu"].value)
    return Working(
        question=f"{model.name}: model FLOPs utilisation of a run of {tokens:,} tokens",
        given=letters(model)
        | {
            "T": Step(seq_len, "tokens", note="sequence length"),
            "active": Step(model.active_params, "", note="parameters that one token meets"),
            "tokens": Step(tokens, "tokens"),
            "chip_hours": Step(chip_s / 3600, "h"),
            "C": Step(flop_per_s, "FLOP/s", note="peak of one chip in the dtype trained in"),
        },
        steps=steps,
        binds=f"The run used {mfu:.1%} of the FLOPs it paid for."
        + (" That is more than there are: check chip-hours, peak and tokens." if mfu > 1 else ""),
        notes=model.notes,
    )
