"""Multi-token-prediction modules of a configuration, which counts them and says nothing else of them.

All families that are read build them alike (`costmodel.model.Mtp`): the layer is one of the last layer's kind.
"""

from dataclasses import replace

from meshwright.costmodel.model import ModelSpec, Mtp, Shard
from meshwright.costmodel.readers.blocks import MAX_PARAMS, linear, norm
from meshwright.costmodel.readers.fields import Fields


def left_out(modules: int) -> str:
    """What a user is told of modules that are left out."""
    return f"{modules} multi-token-prediction layer{'s'[: modules > 1]} not counted"


def read_modules(f: Fields, *keys: str) -> int:
    """How many modules the file counts under one of the keys; notes that they are not counted as parameters."""
    key = f.first(keys)
    modules = f.count(key) if key else 0
    if modules:
        f.note(left_out(modules))
    return modules


def with_modules(f: Fields, spec: ModelSpec, modules: int) -> ModelSpec:
    """The model with so many modules beside it."""
    if not modules:
        return spec
    hidden = spec.hidden
    weights = (
        norm("mtp.embed_norm", hidden)
        + norm("mtp.hidden_norm", hidden)
        + linear("mtp.join", 2 * hidden, hidden, Shard.COLUMN)
        + norm("mtp.final_norm", hidden)
    )
    spec = replace(spec, mtp=Mtp(modules, spec.pattern[-1], weights))
    if spec.params + modules * spec.mtp_params >= MAX_PARAMS:
        f.fail(
            f"{modules} multi-token-prediction layers make {spec.params + modules * spec.mtp_params:.3e} parameters and the "
            f"cost model is exact below {MAX_PARAMS:.1e}; check the sizes"
        )
    return spec
