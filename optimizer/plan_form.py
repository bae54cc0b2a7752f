"""What a plan's data must look like, so that a file that is none is refused by key and not by accident."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.hardware.errors import InputError, shown
from meshwright.hardware.numbers import is_number, is_whole


@dataclass(frozen=True)
class _Kind:
    """One kind of value, and how it is told."""

    told: str
    holds: Callable[[Any], bool]


def _tally(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(k, str) and is_whole(v) and v >= 0 for k, v in value.items()
    )


def _numbers_by_name(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(k, str) and is_number(v) for k, v in value.items())


def _level(value: object) -> bool:
    return isinstance(value, list) and len(value) == 3 and is_whole(value[1]) and is_whole(value[2])


_MAPPING = _Kind("a mapping", lambda v: isinstance(v, Mapping))
_NUMBER = _Kind("a number", is_number)
_WHOLE = _Kind("a whole number", is_whole)
_COUNT = _Kind("a whole number above 0", lambda v: is_whole(v) and v > 0)
_TALLY = _Kind("a mapping from names to whole numbers of 0 or more", _tally)
_NUMBER_OR_NONE = _Kind("a number or null", lambda v: v is None or is_number(v))
_WHOLE_OR_NONE = _Kind("a whole number or null", lambda v: v is None or is_whole(v))
_TEXT = _Kind("a text", lambda v: isinstance(v, str))
_FLAG = _Kind("true or false", lambda v: isinstance(v, bool))
_TEXTS = _Kind("a list of texts", lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v))
_NUMBERS = _Kind("a list of numbers", lambda v: isinstance(v, list) and all(map(is_number, v)))
_BY_NAME = _Kind("a mapping from names to numbers", _numbers_by_name)

_PRICED: dict[str, _Kind] = {
    "inputs": _MAPPING,
    "layout": _MAPPING,
    "estimate": _MAPPING,
    **dict.fromkeys((f"estimate.{n}" for n in ("lower_s", "step_s", "upper_s", "mfu", "tokens_per_s")), _NUMBER),
    "estimate.band_s": _Kind("two numbers, or null", lambda v: v is None or (isinstance(v, list) and len(v) == 2 and all(map(is_number, v)))),
    "estimate.parts": _BY_NAME,
    "estimate.host_bytes": _NUMBERS,
    "estimate.fullest_host_bytes": _NUMBER,
    "estimate.capacity_bytes": _WHOLE,
    "estimate.host_capacity_bytes": _WHOLE_OR_NONE,
    "estimate.sequences": _COUNT,
    "memory": _Kind(
        "a list with a mapping from names to bytes per stage",
        lambda v: isinstance(v, list) and all(map(_numbers_by_name, v)),
    ),
    "fits": _FLAG,
    "short_bytes": _NUMBER,
    "host_short_bytes": _NUMBER,
    "idle": _MAPPING,
    "idle.devices": _WHOLE,
    "idle.levels": _Kind("a list of [name, used, size]", lambda v: isinstance(v, list) and all(map(_level, v))),
    "idle.reason": _TEXT,
    "warnings": _TEXTS,
    "provenance": _MAPPING,
    "provenance.versions": _MAPPING,
    "inputs.model": _MAPPING,
    "inputs.cluster": _MAPPING,
    "inputs.cluster.devices": _COUNT,
    "inputs.training": _MAPPING,
    "inputs.training.global_batch_tokens": _COUNT,
    "inputs.training.seq_len": _COUNT,
}  # fmt: skip
_PLAN = _PRICED | {
    "certificate": _MAPPING,
    "certificate.status": _TEXT,
    **dict.fromkeys((f"certificate.{n}" for n in ("value_s", "bound_s", "slack_s", "error_band")), _NUMBER),
    "certificate.space_hash": _TEXT,
    "certificate.entered": _TALLY,
    "certificate.removed": _TALLY,
    "certificate.solved": _WHOLE,
    "certificate.band_source": _TEXT,
    "certificate.goal": _TEXT,
    "certificate.value": _NUMBER,
    "certificate.bound": _NUMBER,
    "certificate.unit": _TEXT,
    "certificate.limit_s": _NUMBER_OR_NONE,
    "certificate.deadline_s": _NUMBER_OR_NONE,
    "runner_ups": _Kind("a list of mappings", lambda v: isinstance(v, list)),
}  # fmt: skip
_RUNNER_UP = {"layout": _MAPPING, "step_s": _NUMBER, "value_s": _NUMBER, "in_band": _FLAG}

_BESIDE = ("schema_version", "run", "launcher", "why_not", "shadow_prices", "band")

_LAUNCHER = {
    "launcher": _MAPPING,
    "launcher.name": _TEXT,
    "launcher.proven": _FLAG,
    "launcher.value_s": _NUMBER,
    "launcher.faster": _NUMBER,
    "launcher.layout": _Kind("a mapping, or null", lambda v: v is None or isinstance(v, Mapping)),
    "launcher.limits": _Kind(
        "a list of mappings with a rule and a message",
        lambda v: isinstance(v, list) and all(isinstance(x, Mapping) and {"rule", "message"} <= set(x) for x in v),
    ),
}  # fmt: skip


def check_form(data: Mapping[str, Any], plan: bool) -> None:
    """Raises InputError at the first key that is missing, unknown or holds another kind of value."""
    form = _PLAN if plan else _PRICED
    _check(data, form, "")
    # What was asked beside the plan may stand beside it.
    whole = [*dict.fromkeys(path.partition(".")[0] for path in form), *_BESIDE[: None if plan else 2]]
    for key in data:
        if key not in whole:
            raise InputError(f"the key {shown(key)} is not known; a plan has {', '.join(whole)}")
    if data.get("run") is not None:
        _check(data, {"run": _MAPPING}, "")
    if plan and data.get("launcher") is not None:
        _check(data, _LAUNCHER, "")
    for part in ("estimate", "certificate")[: 1 + plan]:
        known = [key.removeprefix(f"{part}.") for key in form if key.startswith(f"{part}.")]
        for key in data[part]:
            if key not in known:
                raise InputError(f"the key {part}.{key} is not known; {part} has {', '.join(known)}")
    for number, runner_up in enumerate(data["runner_ups"] if plan else ()):
        where = f"runner_ups[{number}]"
        if not isinstance(runner_up, Mapping):
            raise InputError(f"{where} is {shown(runner_up)}; expected a mapping")
        _check(runner_up, _RUNNER_UP, f"{where}.")


def _check(data: Mapping[str, Any], form: Mapping[str, _Kind], prefix: str) -> None:
    for path, kind in form.items():
        *outer, key = path.split(".")
        part: Any = data
        for step in outer:
            part = part[step]
        if key not in part:
            raise InputError(f"the key {prefix}{path} is missing; expected {kind.told}")
        if not kind.holds(part[key]):
            raise InputError(f"{prefix}{path} is {shown(part[key])}; expected {kind.told}")
