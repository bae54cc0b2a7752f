"""A layout: how one training step is cut over the devices, and where each degree sits on the network.

`dp_replicate * dp_shard * cp * tp * pp` devices are used. Inside a stage `ep * etp * edp` equals
`dp_replicate * dp_shard * cp * tp`: expert parallelism reuses those ranks and never multiplies the world.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from meshwright.costmodel.offloads import OFFLOADS, in_order
from meshwright.costmodel.placement_text import placement_text, read_placement
from meshwright.costmodel.schedules import ALL as ALL_SCHEDULES
from meshwright.costmodel.schedules import SCHEDULES
from meshwright.costmodel.tensors import Mix, code_of, lists_offload, mix_of
from meshwright.hardware.errors import LayoutError, UnknownNameError, check_type, shown
from meshwright.hardware.numbers import is_whole, make_plain

DIMENSIONS = ("tp", "cp", "dp_shard", "dp_replicate", "pp")  # usual nesting, innermost first
CP_KINDS = ("ring", "all_to_all", "all_gather")

# For each level, innermost first: the dimensions on it with their factors, inner to outer.
Placement = tuple[tuple[tuple[str, int], ...], ...]

_MAX_DEGREE = 2**24
_PAIR = r"\s*([a-z_]+)\s*=\s*([\w/+.():;*|-]+)\s*"
_DEGREES = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "vpp", "ep", "etp", "micro_batch")
_OTHERS: tuple[tuple[str, Any, str], ...] = (
    ("sequences", int | None, "a whole number of sequences, or None for the batch as asked"),
    ("layers_per_stage", tuple, "a tuple with the layers of each stage, such as (16, 16)"),
    ("policies", tuple, "a tuple with one policy, such as ('full',), or one per layer kind"),
    (
        "stage_policies",
        tuple,
        "per stage a tuple with one policy, such as (('full*3|none*5',), ('none',)), or one per layer kind",
    ),
    (
        "placement",
        tuple,
        "per network level a tuple of pairs, such as ((('tp', 8),), ()), or () to leave it open",
    ),
)


@dataclass(frozen=True)
class Layout:
    """One way to run a step.

    Attributes:
        zero: ZeRO level over `dp_shard * cp` (0 none, 1 optimizer, 2 + gradients, 3 + parameters = FSDP).
        reshard: under zero=3, weights gathered for forward are freed after it and gathered again for backward; False
            keeps them until backward has used them.
        sp: norms and residual split over tp along the sequence.
        cp_kind: how attention meets the other sequence shards.
        vpp: chunks per stage; above 1 the schedule is interleaved, or dualpipev with 2.
        schedule: order of the pipeline's work, one of SCHEDULES (schedules.py).
        etp: tensor parallelism inside an expert, 1 or tp.
        micro_batch: sequences per micro-batch and data rank.
        sequences: sequences per step; None takes the workload's.
        layers_per_stage: layers of each stage in order; empty means as even as can be.
        policies: recompute policy of each layer kind, by kind order; one entry serves all kinds. A name, or
            `save(core+up)` with the tensors that are saved (`costmodel.tensors`).
        stage_policies: the same stage by stage, or one entry for all, in place of `policies`: `full*3|none*5` are three
            layers of one policy and five of another; `-` stands for a kind that has no layer on the stage.
        offload: which classes of tensors live in host memory, see `costmodel.hostlink`. Of activations all that is
            saved, unless policies list it tensor by tensor: `full:offload(input)`.
        placement: where each degree sits; empty means not chosen.
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    zero: int = 0
    reshard: bool = True
    cp: int = 1
    cp_kind: str = "ring"
    tp: int = 1
    sp: bool = True
    pp: int = 1
    vpp: int = 1
    schedule: str = "1f1b"
    ep: int = 1
    etp: int = 1
    micro_batch: int = 1
    sequences: int | None = None
    layers_per_stage: tuple[int, ...] = ()
    policies: tuple[str, ...] = ("none",)
    stage_policies: tuple[tuple[str, ...], ...] = ()
    offload: str = "none"
    placement: Placement = ()

    def __post_init__(self) -> None:
        make_plain(self)
        _check_values(self)
        if self.zero == 0 and self.dp_shard > 1:
            raise LayoutError(
                f"zero=0 shards nothing, and dp_shard={self.dp_shard} (dp = dp_shard*dp_replicate = {self.dp}); "
                f"use zero=1, 2 or 3, or dp_shard=1,dp_replicate={self.dp}"
            )
        if self.zero > 0 and self.dp_shard * self.cp == 1:
            sharded = f", or dp_shard={self.dp},dp_replicate=1" if self.dp > 1 else ""
            raise LayoutError(
                f"zero={self.zero} has nothing to shard over: dp_shard*cp is 1; use zero=0{sharded}"
            )
        if not self.reshard and self.zero != 3:
            raise LayoutError(
                f"reshard=false keeps weights gathered, but zero={self.zero} gathers none; use zero=3 or reshard=true"
            )
        runs = ALL_SCHEDULES[SCHEDULES.index(self.schedule)]
        if self.vpp == 1 if runs.chunks == 0 else self.vpp != runs.chunks:
            raise LayoutError(
                f"vpp={self.vpp} does not go with schedule={self.schedule}; "
                "interleaved takes vpp above 1, dualpipev vpp=2, any other vpp=1"
            )
        if self.vpp > 1 and self.pp == 1:
            raise LayoutError(f"vpp={self.vpp} needs a pipeline, but pp is 1; use vpp=1")
        if self.schedule != "1f1b" and self.pp == 1:
            raise LayoutError(f"schedule={self.schedule} needs a pipeline, but pp is 1; use schedule=1f1b")
        if self.etp not in (1, self.tp):
            raise LayoutError(f"etp={self.etp} is neither 1 nor tp={self.tp}; use one of them")
        if self.stage_devices % (self.ep * self.etp):
            raise LayoutError(
                f"ep*etp={self.ep * self.etp} does not divide the {self.stage_devices} devices of a stage "
                "(dp_replicate*dp_shard*cp*tp); use a divisor"
            )
        if self.layers_per_stage and len(self.layers_per_stage) != self.pp:
            count, given = len(self.layers_per_stage), "/".join(map(str, self.layers_per_stage[:12]))
            raise LayoutError(
                f"layers={given}{'/...' if count > 12 else ''} has {count} {'entry' if count == 1 else 'entries'} for pp={self.pp} stages; "
                f"give one each, or pp={count}"
            )

    @property
    def dp(self) -> int:
        return self.dp_replicate * self.dp_shard

    @property
    def stage_devices(self) -> int:
        """Devices of one pipeline stage."""
        return self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def devices(self) -> int:
        """Devices used."""
        return self.stage_devices * self.pp

    @property
    def edp(self) -> int:
        """Copies of each expert inside a stage."""
        return self.stage_devices // (self.ep * self.etp)

    @property
    def policy_words(self) -> tuple[tuple[str, ...], ...]:
        """Policies of every stage by kind; a single entry where all stages have the same."""
        return self.stage_policies or (self.policies,)

    def mix(self, stage: int, kind: int) -> Mix:
        """(policy with what the host keeps, as `costmodel.tensors` counts it; layers) of a kind on a stage."""
        everywhere = self.policy_words
        words = everywhere[stage if len(everywhere) > 1 else 0]
        listed = any(lists_offload(word) for words in everywhere for word in words)
        word = words[kind if len(words) > 1 else 0]
        return mix_of(word, "activations" in self.offload and not listed)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; keys are the attribute names."""
        out: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        out["layers_per_stage"] = list(self.layers_per_stage)
        out["policies"] = list(self.policies)
        out["stage_policies"] = [list(words) for words in self.stage_policies]
        out["placement"] = [[[d, f] for d, f in level] for level in self.placement]
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Layout":
        """Inverse of `to_dict`.

        Raises:
            LayoutError: a key that is not an attribute, or a value that is not legal.
        """
        check_type("layout", data, Mapping, "a mapping as `to_dict` makes it", LayoutError)
        known = {f.name for f in fields(cls)}
        for key in data:
            if key not in known:
                raise UnknownNameError("layout key", str(key), known)
        values = dict(data)
        for name in ("layers_per_stage", "policies", "placement"):
            if name in values:
                check_type(name, values[name], (list, tuple), "a list as `to_dict` writes it", LayoutError)
                values[name] = tuple(values[name])
        if "placement" in values:
            values["placement"] = tuple(map(_level, values["placement"]))
        stages = values.get("stage_policies", ())
        check_type("stage_policies", stages, (list, tuple), "a list as `to_dict` writes it", LayoutError)
        values["stage_policies"] = tuple(tuple(x) if isinstance(x, list) else x for x in stages)
        return cls(**values)


def _level(level: object) -> object:
    """Pairs of one level as tuples; what is none stays, for the check of values to name it."""
    if not isinstance(level, list | tuple):
        return level
    return tuple(tuple(pair) if isinstance(pair, list) else pair for pair in level)


def _check_values(layout: Layout) -> None:
    """Raises LayoutError where a field cannot hold its value, whatever the other fields say."""
    for name in _DEGREES:
        value = getattr(layout, name)
        if not is_whole(value) or not 1 <= value <= _MAX_DEGREE:
            raise LayoutError(f"{name}={shown(value)} is not a degree; give a whole number of 1 or more")
    _one_of("zero", layout.zero, (0, 1, 2, 3))
    _one_of("reshard", layout.reshard, (False, True))
    _one_of("cp_kind", layout.cp_kind, CP_KINDS)
    _one_of("sp", layout.sp, (False, True))
    _one_of("schedule", layout.schedule, SCHEDULES)
    _one_of("offload", layout.offload, OFFLOADS)
    for name, kinds, taken in _OTHERS:
        check_type(name, getattr(layout, name), kinds, taken, LayoutError)
        if name == "policies" and not layout.policies:
            raise LayoutError(f"policies is (); give {taken}")
        one = 1 if layout.sequences is None else layout.sequences
        if name == "sequences" and not (is_whole(one) and 1 <= one <= _MAX_DEGREE):
            raise LayoutError(
                f"sequences={shown(layout.sequences)} is not from 1 to {_MAX_DEGREE}; give {taken}"
            )
    for policy in layout.policies:
        code_of(policy, False)
    _check_stage_policies(layout)
    for policy in (word for words in layout.policy_words for word in words):
        if lists_offload(policy) and "activations" not in layout.offload:
            raise LayoutError(
                f"recompute={shown(policy)} lists tensors for the host, but offload={layout.offload}; use "
                f"offload={'activations' if layout.offload == 'none' else 'optimizer+activations'}, or drop the list"
            )
    for layers in layout.layers_per_stage:
        if not is_whole(layers):
            raise LayoutError(
                f"an entry of layers_per_stage is {shown(layers)}; give a whole number of layers"
            )
    for level in layout.placement:
        pairs = isinstance(level, tuple) and all(isinstance(p, tuple) and len(p) == 2 for p in level)
        if not (pairs and all(isinstance(d, str) and is_whole(f) for d, f in level)):
            raise LayoutError(
                f"an entry of placement is {shown(level)}; give a tuple of pairs such as (('tp', 8),)"
            )


def _check_stage_policies(layout: Layout) -> None:
    """Raises LayoutError where policies stage by stage do not read, or are not those of the stages."""
    for words in layout.stage_policies:
        check_type("an entry of stage_policies", words, tuple, "a tuple of policies", LayoutError)
        for word in words or ("",):
            mix_of(word, False)
    if layout.stage_policies and len(layout.stage_policies) not in (1, layout.pp):
        raise LayoutError(
            f"recompute is given for {len(layout.stage_policies)} stages, pp is {layout.pp}; give one each, or one for all"
        )
    if layout.stage_policies and layout.policies != ("none",):
        raise LayoutError("policies and stage_policies are both given; leave one out")


def _one_of(name: str, value: object, known: tuple[object, ...]) -> None:
    if type(value) is not type(known[0]) or value not in known:  # True is no ZeRO level
        raise LayoutError(f"{name}={shown(value)} is not one of {', '.join(map(str, known))}")


def parse_layout(text: str) -> Layout:
    """`tp=8,pp=8,dp=8,micro_batch=1,zero=1,recompute=full` -> Layout.

    `dp=N` means dp_replicate * dp_shard = N: all shard when zero >= 1 and dp_replicate is not given, all
    replicate when zero is 0. `recompute` is the policy of every kind; `recompute=full/none` one per kind;
    `recompute=save(core+up):offload(up)` lists what is saved beside the layer's input, and what of that on the host;
    `recompute=full*3|none*5;none` says it stage by stage;
    `layers=10/11/11` the layers of each stage; `placement=tp*8;pp*3` where each degree sits (`costmodel.placement_text`).
    Blanks and line ends beside a comma or one of `; | / + :` do not count.

    Raises:
        LayoutError, UnknownNameError: what does not read, and how to write it.
    """
    check_type("layout", text, str, "a string such as 'tp=8,pp=4'", LayoutError)
    pairs = layout_pairs(text)
    values: dict[str, Any] = {}
    others = "dp zero reshard cp_kind sp schedule sequences recompute offload layers placement"
    known = {*_DEGREES, *others.split()}
    for name, word in pairs.items():
        if name not in known:
            raise UnknownNameError("layout key", name, known)
        values[name] = _value(name, word)
    if "recompute" in values:
        stages = tuple(tuple(words.split("/")) for words in str(values.pop("recompute")).split(";"))
        plain = len(stages) == 1 and not any("*" in word for word in stages[0])
        values |= {"policies": stages[0]} if plain else {"stage_policies": stages}
    if "layers" in values:
        values["layers_per_stage"] = tuple(
            int(_value("layers", w)) for w in str(values.pop("layers")).split("/")
        )
    if "placement" in values:
        values["placement"] = read_placement(values["placement"])
    if "dp" in values:
        _split_dp(values)
    if values.get("vpp", 1) != 1:
        values.setdefault("schedule", "interleaved")
    if values.get("schedule") == "dualpipev":
        values.setdefault("vpp", 2)
    return Layout(**values)


def layout_text(layout: Layout) -> str:
    """A layout as `parse_layout` reads it; what is not said is 1 or the default."""
    plain = Layout()
    words = {
        name: getattr(layout, name)
        for name in (*_DEGREES, "zero", "reshard", "cp_kind", "sp", "schedule", "offload", "sequences")
        if getattr(layout, name) != getattr(plain, name)
    }
    if layout.layers_per_stage:
        words["layers"] = "/".join(map(str, layout.layers_per_stage))
    words["recompute"] = ";".join("/".join(stage) for stage in layout.policy_words)
    if layout.placement:
        words["placement"] = placement_text(layout.placement)
    return ",".join(f"{name}={str(word).lower()}" for name, word in words.items())


def layout_pairs(text: str) -> dict[str, str]:
    """`tp=8,pp=8` as names and words, as yet unchecked. Errors: LayoutError."""
    pairs: dict[str, str] = {}
    for part in re.sub(r"\s*([,;|/+:])\s*", r"\1", text).split(","):
        match = re.fullmatch(_PAIR, part)
        if match is None:
            corrected = part.strip().lower().replace("==", "=")
            slip = len(corrected) <= 40 and re.fullmatch(_PAIR, corrected)
            way_out = corrected if slip else "name=value, like tp=8,pp=4"
            raise LayoutError(f"cannot read {part.strip()[:40]!r} in the layout; write {way_out}")
        if match[1] in pairs:
            raise LayoutError(f"layout gives {match[1]} twice; give it once")
        pairs[match[1]] = match[2]
    return pairs


def _value(name: str, word: str) -> Any:
    if name in ("sp", "reshard"):
        if word.lower() not in ("true", "false"):
            raise LayoutError(f"{name}={word} is neither true nor false")
        return word.lower() == "true"
    if name == "offload":
        return in_order(word)
    if name in ("cp_kind", "schedule", "recompute", "placement") or (name == "layers" and "/" in word):
        return word
    if not re.fullmatch(r"\d{1,9}", word, re.ASCII):
        if re.fullmatch(r"-\d+", word, re.ASCII):
            rule = "is below zero" if name == "zero" else "is not a whole number of 1 or more"
        else:
            rule = "has more than 9 digits" if word.isdigit() and word.isascii() else "is not a whole number"
        raise LayoutError(
            f"{name}={word[:40]} {rule}; write {name}={'0, 1, 2 or 3' if name == 'zero' else 8}"
        )
    return int(word)


def _split_dp(values: dict[str, Any]) -> None:
    """Turn `dp` into its two parts."""
    dp = values.pop("dp")
    if dp < 1:
        raise LayoutError(f"dp={dp} is not a degree; give a whole number of 1 or more")
    if "dp_replicate" in values and "dp_shard" in values:
        product = values["dp_replicate"] * values["dp_shard"]
        if product != dp:
            raise LayoutError(
                f"dp={dp} is not dp_shard*dp_replicate, which is {product}; leave dp out, or write dp={product}"
            )
    elif "dp_replicate" in values or "dp_shard" in values:
        given = "dp_replicate" if "dp_replicate" in values else "dp_shard"
        other = "dp_shard" if given == "dp_replicate" else "dp_replicate"
        if values[given] < 1 or dp % values[given]:
            raise LayoutError(
                f"{given}={values[given]} does not divide dp={dp}, which is dp_shard*dp_replicate; use a divisor, or leave dp out"
            )
        values[other] = dp // values[given]
    else:
        values["dp_shard" if values.get("zero", 0) else "dp_replicate"] = dp


def with_stages(layout: Layout, layers: int, unit: int) -> Layout:
    """The layout with even stages written out where none were given, in groups of `unit` layers.

    Earlier stages take the remainder: the last one has the head. Where `unit` does not divide, plain counts
    are given, for a rule to refuse.
    """
    if layout.layers_per_stage:
        return layout
    unit = unit if layers % unit == 0 else 1
    base, extra = divmod(layers // unit, layout.pp)
    return replace(layout, layers_per_stage=tuple(unit * (base + (s < extra)) for s in range(layout.pp)))
