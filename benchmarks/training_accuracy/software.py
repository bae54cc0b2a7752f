"""What a run's row says of its software, in names of the calibration: programs with their habits."""

from collections.abc import Mapping
from typing import Any

MEGATRON, OLD_MEGATRON, OLD_DEEPSPEED, FSDP, FOUNDRY, JAX = (
    "megatron-core", "megatron-2021", "deepspeed-2021", "torch-fsdp", "llm-foundry", "jax",
)  # fmt: skip
# First part of a row's id.
BY_SOURCE = {
    "lf": FOUNDRY,
    "bs": OLD_MEGATRON,
    "vtrain": OLD_MEGATRON,
    "narayanan": OLD_MEGATRON,
    "korthikanti": OLD_MEGATRON,
    "mtnlg": OLD_MEGATRON,
    "dsazure": OLD_MEGATRON,
    "tt": FSDP,
    "automodel": FSDP,
    "pax": JAX,
    "gpurecipes": JAX,
    "jaxtoolbox": JAX,
}


def source_of(row: Mapping[str, Any]) -> str:
    """The source as a group: rows of one come from one cluster and one team."""
    start = row["id"].split("-")[0]
    if start == "dgxc":
        text = row["software"]
        return "dgxc-maxtext" if "MaxText" in text else "dgxc-pax" if "Pax" in text else "dgxc-nemo"
    if start == "maxtext":
        return "maxtext-" + ("gpu" if "GPU" in row["software"] else "v5e" if "v5e" in row["id"] else "tpu")
    if start == "mlm" and "a100" in row["id"]:
        return "megatron-papers"
    groups = {
        "narayanan": "megatron-papers",
        "korthikanti": "megatron-papers",
        "mtnlg": "megatron-papers",
        "dsazure": "megatron-papers",
        "ironwood": "tpu-recipes",
        "v5p": "tpu-recipes",
        "gpurecipes": "jax-gpu-recipes",
        "jaxtoolbox": "jax-gpu-recipes",
        "pax": "jax-toolbox",
        "nemolong": "nemo-docs",
        "nemo2407": "nemo-docs",
        "nemodocs": "nemo-docs",
        "bs": "bigscience",
        "lf": "llm-foundry",
        "tt": "torchtitan",
        "mb": "megatron-bridge",
        "mbskill": "megatron-bridge-notes",
        "mlm": "megatron-lm",
        "nmlaunch": "nemo-launcher",
    }
    return groups.get(start, start)


def software_of(row: Mapping[str, Any]) -> str:
    """The name under which the calibration knows the program of a run."""
    start, text = row["id"].split("-")[0], row["software"]
    gpu = not row["hardware"]["chip"].startswith("TPU")
    if "MaxText" in text or "Pax" in text:
        return JAX
    if start in ("narayanan", "dsazure") and row["layout"].get("zero_stage") == 3:
        return OLD_DEEPSPEED
    if start in BY_SOURCE:
        return BY_SOURCE[start]
    if not gpu:
        return JAX
    if start == "mlm" and "a100" in row["id"]:
        return OLD_MEGATRON
    return MEGATRON + _state(row)


def _state(row: Mapping[str, Any]) -> str:
    """How a mixture is dispatched and launched, as far as a row says so."""
    if not row["model"].get("experts"):
        return ""
    note = f"{row.get('note') or ''} {row['software']}".lower()
    if "full_iteration" in note or _release(row) >= (0, 5):
        return "/graphs"
    if "tokendrop" in row["id"] or "capacity factor" in note:
        return "/static"
    if "alltoall" in note or "all-to-all" in note or "recipe v25" in note:
        return "/all-to-all"
    return "/layer-graphs" if "cuda graphs" in note else ""


def _release(row: Mapping[str, Any]) -> tuple[int, ...]:
    """Of Megatron-Bridge; (0,) where the row names none."""
    _, _, version = row["software"].partition("Megatron-Bridge v")
    return tuple(int(n) for n in version.split(".")) if version else (0,)


def dispatches_once(row: Mapping[str, Any]) -> bool:
    """Whether tokens go to a node once for all of their experts there."""
    note = f"{row.get('note') or ''} {row['software']}".lower()
    return "hybridep" in note or "deepep" in note or _release(row) >= (0, 5)
