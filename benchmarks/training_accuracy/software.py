"""What a run's row says of its software, in names of the calibration: programs with their habits."""

from collections.abc import Mapping
from typing import Any

MEGATRON, OLD_MEGATRON, FSDP, FOUNDRY, JAX, JAX_GPU = (
    "megatron-core", "megatron-2021", "torch-fsdp", "llm-foundry", "jax", "jax-gpu",
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
    "pax": JAX_GPU,
    "gpurecipes": JAX_GPU,
    "jaxtoolbox": JAX_GPU,
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
        return JAX_GPU if gpu else JAX
    if start in BY_SOURCE:
        return BY_SOURCE[start]
    if not gpu:
        return JAX
    if start == "mlm" and "a100" in row["id"]:
        return OLD_MEGATRON
    return MEGATRON + _graphs(row)


def _graphs(row: Mapping[str, Any]) -> str:
    """How the layers of a mixture are launched, where a row says so."""
    if not row["model"].get("experts"):
        return ""
    note = f"{row.get('note', '')} {row['software']}".lower()
    if "full_iteration" in note or "full iteration" in note or "local" in note and "graphs: local" in note:
        return "/full-graphs"
    if "cuda graphs" in note:
        return "/te-graphs"
    return ""
