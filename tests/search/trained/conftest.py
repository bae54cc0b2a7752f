"""Exhaustive answers by every choice of tensors need few tensors that can be chosen."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from meshwright.costmodel.framework import FRAMEWORKS


@pytest.fixture(scope="module")
def few_tensors() -> Iterator[None]:
    """What jax saves and offloads by name: two tensors of the layer, and the intermediate results."""
    jax = FRAMEWORKS["jax"]
    FRAMEWORKS["jax"] = replace(
        jax, chooses=frozenset({"core", "up", "unfused"}), offloads=frozenset({"core"})
    )
    yield
    FRAMEWORKS["jax"] = jax
