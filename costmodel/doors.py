"""What the answering functions take at the door: names where a chip, a cluster or a model is meant, and numbers in range.

Every refusal is one typed line that says what was given and what to give instead.
"""

import sys
from collections.abc import Mapping
from os import PathLike
from typing import Any

from meshwright.costmodel.framework import Framework, load_framework
from meshwright.costmodel.model import ModelSpec
from meshwright.hardware.chip import Chip, load_chip
from meshwright.hardware.cluster import Cluster, parse_cluster
from meshwright.hardware.errors import ClusterError, InputError, ModelError, check_type, shown
from meshwright.hardware.numbers import check_fields, is_number, is_whole

ChipSource = Chip | str
ClusterSource = Cluster | str
ModelSource = ModelSpec | str | PathLike[str] | Mapping[str, Any]


def chip_of(chip: ChipSource) -> Chip:
    """The chip itself, or the one of that name. Errors: InputError, UnknownNameError."""
    check_type("chip", chip, (Chip, str), "a name such as 'v5p', or a Chip")
    return load_chip(chip) if isinstance(chip, str) else chip


def cluster_of(cluster: ClusterSource) -> Cluster:
    """The cluster itself, or the one that the string describes. Errors: ClusterError, UnknownNameError."""
    check_type("cluster", cluster, (Cluster, str), "a string such as 'v5p:4x4x4', or a Cluster", ClusterError)
    return parse_cluster(cluster) if isinstance(cluster, str) else cluster


def model_of(model: ModelSource) -> ModelSpec:
    """The model itself, or the one of that name, file or content. Errors: ModelError, UnknownNameError."""
    from meshwright.costmodel.readers import load_model

    taken = "a built-in name, the path of a config.json or its folder, its content as a dict, or a ModelSpec"
    check_type("model", model, (ModelSpec, str, PathLike, Mapping), taken, ModelError)
    if not isinstance(model, ModelSpec):
        return load_model(model)
    check_fields(model, ModelError)  # here: inside, one spec may hold columns of models
    return model


def framework_of(framework: Framework | str) -> Framework:
    """The framework itself, or the one of that name. Errors: InputError, UnknownNameError."""
    check_type("framework", framework, (Framework, str), "'jax', 'megatron', or a Framework")
    return load_framework(framework) if isinstance(framework, str) else framework


def check_text(what: str, value: object, like: str) -> None:
    """Raises InputError where a text is meant and something else came in."""
    check_type(what, value, str, f"a text such as {like!r}")


def check_whole(error: type[InputError] = InputError, least: int = 1, /, **values: object) -> None:
    """Raises `error` for the first value that is no whole number or below `least`."""
    for what, value in values.items():
        if not is_whole(value) or not least <= int(value) < 2**63:  # type: ignore[call-overload]
            raise error(f"{what} is {shown(value)}; give a whole number, at least {least}")


def check_positive(error: type[InputError] = InputError, /, **values: object) -> None:
    """Raises `error` for the first value that is given and is no finite number above zero."""
    for what, value in values.items():
        if value is None:
            continue
        number: Any = value  # whole numbers may pass what a float holds
        if not is_number(value) or not 0 < number <= sys.float_info.max:
            raise error(f"{what} is {shown(value)}; give a number above zero")
