"""What a run's row says of its source and software, in names of the fit and of the calibration.

Both come from the texts `source` and `software` of a row, never from its id.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.hardware.errors import InputError, shown

MEGATRON, OLD_MEGATRON, OLD_DEEPSPEED, FSDP, FOUNDRY, JAX = (
    "megatron-core", "megatron-2021", "deepspeed-2021", "torch-fsdp", "llm-foundry", "jax",
)  # fmt: skip
PAPERS = "megatron-papers"
# Starts of `source` and the group of runs of one cluster and team; of several the first that fits.
SOURCES = (
    ("NVIDIA-NeMo/Automodel ", "automodel"),
    ("bigscience-workshop/bigscience ", "bigscience"),
    ("NVIDIA/dgxc-benchmarking maxtext/", "dgxc-maxtext"),
    ("NVIDIA/dgxc-benchmarking paxml/", "dgxc-pax"),
    ("NVIDIA/dgxc-benchmarking ", "dgxc-nemo"),
    ("AI-Hypercomputer/gpu-recipes ", "jax-gpu-recipes"),
    ("NVIDIA/JAX-Toolbox docs/frameworks/maxtext/", "jax-gpu-recipes"),
    ("NVIDIA/JAX-Toolbox ", "jax-toolbox"),
    ("mosaicml/llm-foundry ", "llm-foundry"),
    ("AI-Hypercomputer/maxtext MaxText/configs/a3/", "maxtext-gpu"),
    ("AI-Hypercomputer/maxtext MaxText/configs/v5e/", "maxtext-v5e"),
    ("AI-Hypercomputer/maxtext ", "maxtext-tpu"),
    ("NVIDIA-NeMo/Megatron-Bridge skills/", "megatron-bridge-notes"),
    ("NVIDIA-NeMo/Megatron-Bridge ", "megatron-bridge"),
    ("NVIDIA/Megatron-LM README.md @ v2.5 ", PAPERS),
    ("NVIDIA/Megatron-LM ", "megatron-lm"),
    ("deepspeedai/DeepSpeed docs/_posts/2022-07-26-deepspeed-azure.md", PAPERS),
    ("Narayanan et al. 2021", PAPERS),
    ("Korthikanti et al. 2022", PAPERS),
    ("Smith et al. 2022", PAPERS),
    ("NVIDIA/NeMo docs/", "nemo-docs"),
    ("docs.nvidia.com nemo-framework ", "nemo-docs"),
    ("NVIDIA/NeMo-Megatron-Launcher ", "nemo-launcher"),
    ("MooreThreads/SimuMax ", "simumax"),
    ("pytorch/torchtitan ", "torchtitan"),
    ("AI-Hypercomputer/tpu-recipes ", "tpu-recipes"),
    ("VIA-Research/vTrain ", "vtrain"),
)
# First words of `software` and the program; of several the first that fits. No letter may follow: Pax is not Paxos.
PROGRAMS = (
    ("MaxText", JAX),
    ("Pax", JAX),
    ("Paxml", JAX),
    ("Composer/llm-foundry", FOUNDRY),
    ("llm-foundry", FOUNDRY),
    ("NeMo AutoModel", FSDP),
    ("FSDP2", FSDP),
    ("torchtitan", FSDP),
    ("Megatron-DeepSpeed", OLD_MEGATRON),
    ("DeepSpeed+Megatron", OLD_MEGATRON),
    ("DeepSpeed 0.6", OLD_DEEPSPEED),
    ("DeepSpeed ZeRO-3 without model parallelism", OLD_DEEPSPEED),
    ("NeMo", MEGATRON),
    ("Megatron-Bridge", MEGATRON),
    ("Megatron-Core", MEGATRON),
    ("Megatron-LM", MEGATRON),
)


def source_of(row: Mapping[str, Any]) -> str:
    """The source as a group: rows of one come from one cluster and one team. An unknown one is a group of its own."""
    text = row.get("source") or "not stated"
    return next((group for start, group in SOURCES if text.startswith(start)), text)


def software_of(row: Mapping[str, Any]) -> str:
    """The name under which the calibration knows the program of a run.

    Errors: InputError for a program without an entry.
    """
    text = row["software"]
    found = _first(PROGRAMS, text)
    if found is None:
        starts = ", ".join(start for start, _ in PROGRAMS)
        raise InputError(f"software: no entry for {shown(text)}; known are texts that start with {starts}")
    if found != MEGATRON:
        return found
    # The papers of 2021 and 2022 name Megatron-LM as today's runs do.
    return OLD_MEGATRON if source_of(row) == PAPERS else MEGATRON + _state(row)


def _first(table: Sequence[tuple[str, str]], text: str) -> str | None:
    fits = (name for start, name in table if re.match(re.escape(start) + r"(?![a-z])", text, re.IGNORECASE))
    return next(fits, None)


def _state(row: Mapping[str, Any]) -> str:
    """How a mixture is dispatched and launched, as far as a row says so."""
    if not row["model"].get("experts"):
        return ""
    note = f"{row.get('note') or ''} {row['software']}".lower()
    if "full_iteration" in note or _release(row) >= (0, 5):
        return "/graphs"
    if "token drop" in note or "capacity factor" in note:
        return "/static"
    if "alltoall" in note or "all-to-all" in note or "recipe v25" in note:
        return "/all-to-all"
    return "/layer-graphs" if "cuda graphs" in note else ""


def _release(row: Mapping[str, Any]) -> tuple[int, ...]:
    """Of Megatron-Bridge; (0,) where the row names none."""
    found = re.search(r"Megatron-Bridge v(\d{1,6}(?:\.\d{1,6})*)", row["software"], re.ASCII)
    return tuple(int(n) for n in found[1].split(".")) if found else (0,)


def dispatches_once(row: Mapping[str, Any]) -> bool:
    """Whether tokens go to a node once for all of their experts there."""
    note = f"{row.get('note') or ''} {row['software']}".lower()
    return "hybridep" in note or "deepep" in note or _release(row) >= (0, 5)
