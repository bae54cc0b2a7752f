"""TPU slices: which exist, which axes wrap, how cloud names read."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.hardware.chip import Torus, load_chip
from meshwright.hardware.errors import ClusterError
from meshwright.hardware.slices import find_slice, shape_of_cloud_size, slice_table, wrap_flags

TPUS = ("v4", "v5e", "v5p", "v6e", "tpu7x")


def torus_of(name: str) -> Torus:
    torus = load_chip(name).scale_up
    assert isinstance(torus, Torus)
    return torus


def found(name: str, *dims: int):
    return find_slice(load_chip(name), torus_of(name), dims)


# The scaling book, chapter on TPUs: v5e and v6e wrap only an axis of 16; v4 and v5p only whole 4x4x4 cubes.
# Same flags in AI-Hypercomputer/maxtext src/maxtext/utils/accelerator_to_spec_map.py.
@pytest.mark.parametrize(
    ("name", "dims", "wraps"),
    [
        ("v5e", (16, 16), (True, True)),
        ("v5e", (8, 16), (False, True)),
        ("v5e", (4, 8), (False, False)),
        ("v5e", (4, 4), (False, False)),
        ("v5e", (2, 2), (False, False)),
        ("v6e", (8, 16), (False, True)),
        ("v6e", (8, 8), (False, False)),
        ("v5p", (4, 4, 4), (True, True, True)),
        ("v5p", (4, 4, 8), (True, True, True)),
        ("v5p", (16, 20, 28), (True, True, True)),
        ("v5p", (2, 4, 4), (False, False, False)),
        ("v5p", (2, 2, 4), (False, False, False)),
        ("v5p", (2, 2, 2), (False, False, False)),
        ("v5p", (2, 2, 1), (False, False, False)),
        ("v4", (16, 16, 16), (True, True, True)),
        ("tpu7x", (16, 16, 32), (True, True, True)),
        ("tpu7x", (2, 4, 4), (False, False, False)),
    ],
)
def test_wraparound_table(name, dims, wraps):
    assert found(name, *dims).wraps == wraps


@pytest.mark.parametrize("name", TPUS)
def test_every_listed_slice_is_found_under_its_own_shape_and_name(name):
    chip, table = load_chip(name), slice_table().generations[name]
    for size, text in table.shapes.items():
        dims = tuple(int(d) for d in text.split("x"))
        assert prod(dims) * table.per_chip == size
        assert found(name, *dims).text == text
        assert found(name, *reversed(dims)).text == text
        shape, sentence = shape_of_cloud_size(chip, size)
        assert shape == dims
        assert sentence.endswith(f"read as {name}:{text}")
        assert prod(dims) <= torus_of(name).pod_chips.count


def test_dims_in_any_order_are_one_slice():
    assert found("v5p", 28, 16, 20) == found("v5p", 16, 20, 28)
    assert found("v5e", 16, 8).shape == (8, 16)
    assert found("v5p", 1, 2, 2).shape == (2, 2, 1)  # as Google writes it


@given(st.tuples(*[st.integers(1, 12)] * 3))
def test_v5p_rule_for_whole_cubes(cubes):
    dims = tuple(4 * c for c in cubes)
    if prod(dims) <= 8960:
        assert all(found("v5p", *dims).wraps)
    else:
        with pytest.raises(ClusterError):
            found("v5p", *dims)


def test_unlisted_cubes_are_accepted_with_a_sentence():
    assert found("v5p", 16, 16, 28).notes[0] == (
        "v5p:16x16x28 is not in Google's list of slices; accepted because its sides are multiples of 4 "
        "and it has at most 8,960 chips"
    )
    assert found("v5p", 16, 16, 16).notes == ()


@pytest.mark.parametrize(
    ("name", "dims", "message"),
    [
        (
            "v5e",
            (16, 32),
            (
                "v5e:16x32 does not exist: v5e slices are 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16; "
                "nearby: v5e:16x16, v5e:8x16, v5e:8x8, v5e:4x8; join slices with v5e:16x16*2"
            ),
        ),
        (
            "v5p",
            (3, 5, 7),
            (
                "v5p:3x5x7 does not exist: v5p slices are 2x2x1, 2x2x2, 2x2x4, 2x4x4, or whole 4x4x4 cubes (each side "
                "a multiple of 4, at most 8,960 chips); nearby: v5p:4x4x8, v5p:4x8x8, v5p:4x4x12, v5p:4x4x4"
            ),
        ),
        (
            "v5p",
            (16, 16),
            (
                "v5p:16x16 does not exist: v5p is a 3D torus; "
                "nearby: v5p:4x8x8, v5p:4x4x20, v5p:4x4x12, v5p:4x8x12"
            ),
        ),
    ],
)
def test_slices_that_do_not_exist(name, dims, message):
    with pytest.raises(ClusterError) as caught:
        found(name, *dims)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "dims"),
    [("v5p", (2, 2, 8)), ("v5p", (2, 4, 8)), ("v4", (16, 16, 20)), ("v6e", (2, 8)), ("v5e", (32, 32))],
)
def test_more_slices_that_do_not_exist(name, dims):
    with pytest.raises(ClusterError, match="does not exist"):
        found(name, *dims)


# What the number in a name counts: AI-Hypercomputer/maxtext accelerator_to_spec_map.py.
@pytest.mark.parametrize(
    ("name", "size", "sentence"),
    [
        ("v5p", 128, "v5p-128 names 128 TensorCores = 64 chips: read as v5p:4x4x4"),
        ("v4", 8, "v4-8 names 8 TensorCores = 4 chips: read as v4:2x2x1"),
        ("v5e", 256, "v5e-256 names 256 chips: read as v5e:16x16"),
        ("tpu7x", 128, "tpu7x-128 names 128 devices = 64 chips: read as tpu7x:4x4x4"),
    ],
)
def test_cloud_names_say_what_they_count(name, size, sentence):
    assert shape_of_cloud_size(load_chip(name), size)[1] == sentence


def test_unknown_cloud_size_names_its_neighbours():
    with pytest.raises(ClusterError) as caught:
        shape_of_cloud_size(load_chip("v5p"), 130)
    assert str(caught.value) == (
        "no slice is called v5p-130 (the number counts TensorCores); the neighbours are v5p-128 (4x4x4) and "
        "v5p-256 (4x4x8); or write the shape in chips, like v5p:16x20x28"
    )


def test_wrap_flags_do_not_depend_on_the_table():
    assert wrap_flags(torus_of("v5e"), (16, 8)) == (True, False)
    assert wrap_flags(torus_of("v5p"), (4, 4, 2)) == (False, False, False)
