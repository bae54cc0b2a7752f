"""A model stated by letters counts as the published configuration of the same sizes does; bad letters are refused."""

import pytest

from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.readers import load_model
from meshwright.costmodel.textbook import parse_shape, textbook_model
from meshwright.hardware.errors import InputError, ModelError

LLAMA_70B = "D=8192,F=28672,L=80,N=64,K=8,H=128,V=128256"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("llama-3-70b", LLAMA_70B),
        ("llama-2-13b", "D=5120,F=13824,L=40,N=40,K=40,H=128,V=32000"),
        ("gemma-7b", "D=3072,F=24576,L=28,N=16,K=16,H=256,V=256000,tied=yes"),
        ("mixtral-8x7b", "D=4096,F=14336,L=32,N=32,K=8,H=128,V=32000,E=8,k=2"),
    ],
)
def test_letters_make_the_published_model(name: str, shape: str) -> None:
    stated, published = parse_shape(shape), load_model(name)
    assert (stated.params, stated.active_params) == (published.params, published.active_params)
    assert sorted(map(_size, stated.kinds[0].weights)) == sorted(map(_size, published.kinds[0].weights))


def _size(weight: object) -> tuple[object, ...]:
    return tuple(getattr(weight, field) for field in ("rows", "cols", "shard", "matmul", "count"))


def params_of(model: ModelSpec, *prefixes: str) -> int:
    return sum(w.params for w in model.kinds[0].weights if w.name.startswith(prefixes))


def test_a_plain_feed_forward_part_has_two_matrices_dense_or_of_experts() -> None:
    assert params_of(parse_shape(f"{LLAMA_70B},mlp=plain"), "mlp") == 2 * 8192 * 28672
    assert params_of(parse_shape(f"{LLAMA_70B},mlp=plain,E=4,k=1"), "experts") == 4 * 2 * 8192 * 28672


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("X=1", "unknown letter 'X'"),
        ("D=8192,D=8192", "D is given twice"),
        ("D=8192,F", "cannot read 'F' in a shape; write D="),
        (LLAMA_70B.replace("K=8,", ""), r"a shape needs K \(kv heads\); write D="),
        (LLAMA_70B.replace("K=8", "K=7"), "N=64 is not a multiple of K=7.*make K a divisor of 64"),
        (LLAMA_70B.replace("K=8", "K=1.5"), "K in a shape: '1.5' is not a whole number"),
        (LLAMA_70B.replace("L=80", "L=1M"), r"L \(layers\) is 1000000; give a number from 1 to"),
        (f"{LLAMA_70B},E=8", r"E needs k \(experts that a token meets\) too"),
        (f"{LLAMA_70B},E=8,k=9", "k=9 is more than the E=8 experts; use k <= 8"),
        (f"{LLAMA_70B},mlp=swiglu", "mlp='swiglu' in a shape; write mlp=gated or mlp=plain"),
    ],
)
def test_a_bad_shape_is_refused_with_the_way_out(shape: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_shape(shape)


def test_sizes_must_be_whole_numbers_in_the_library_too() -> None:
    with pytest.raises(ModelError, match=r"D \(model width\) must be a whole number, not 8192.0"):
        textbook_model(8192.0, 28672, 80, 64, 8, 128, 128256)  # type: ignore[arg-type]
