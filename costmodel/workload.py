"""What the cluster is asked to do: a training job, and how its batch is written.

Batch strings: `4Mi` counts tokens, `1024seq` counts sequences, `4Mi~5%` lets the planner move the batch by
5% either way.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, get_args

from meshwright.costmodel.trainable import parse_trainable
from meshwright.hardware.errors import WorkloadError, check_type, shown
from meshwright.hardware.numbers import is_whole, make_plain

Optimizer = Literal["adamw", "adamw8bit", "sgd"]
ComputeDtype = Literal["bf16", "fp16", "fp8", "fp4"]

# Bytes of state per parameter beside the fp32 master copy: two fp32 moments, two one-byte moments, one fp32
# momentum. The fp32 master itself is counted apart.
OPTIMIZER_STATE_BYTES: dict[str, int] = {"adamw": 8, "adamw8bit": 2, "sgd": 4}

_MAX_TOKENS = 2**40
_MOST_TOLERANCE = 0.5
_MOST_MODULES = 1000
_MOST_IMAGES = 100_000
_SUFFIX = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


@dataclass(frozen=True)
class Training:
    """A training job.

    Attributes:
        global_batch_tokens: tokens per optimizer step.
        seq_len: tokens per sequence; divides `global_batch_tokens`.
        batch_tolerance: share by which the planner may move the batch (0.05 is 5% either way).
        compute_dtype: dtype of the large matrix products; attention and the head are in bf16, under fp16 in fp16. Copies,
            activations and traffic take two bytes under each.
        optimizer: kind of optimizer state; an input, never a decision.
        moe_imbalance: tokens on the fullest expert rank over the mean, >= 1; of a dropless mixture.
        expert_capacity: rows that every expert computes over the mean, where tokens beyond are dropped and what is
            missing is padded (the capacity factor); None drops nothing. An input, never a decision.
        total_tokens: length of the whole run, for days and money; None leaves them out.
        mtp: multi-token-prediction modules that are trained, of those the model carries; an input, never a decision.
        images: of every sequence, whose tokens are among those of the sequence; with some the model's vision tower is trained.
        trainable: what of the model is trained, in a form of `costmodel.trainable`: all, all-embedding-tower, lora:16,
            lora:16:qkv+out.

    Raises:
        WorkloadError: a number out of range, or a batch that is not whole sequences.
    """

    global_batch_tokens: int
    seq_len: int
    batch_tolerance: float = 0.0
    compute_dtype: ComputeDtype = "bf16"
    optimizer: Optimizer = "adamw"
    moe_imbalance: float = 1.0
    expert_capacity: float | None = None
    total_tokens: int | None = None
    mtp: int = 0
    images: int = 0
    trainable: str = "all"

    def __post_init__(self) -> None:
        make_plain(self)
        _whole("seq_len", self.seq_len, 2**24)
        _whole("global batch in tokens", self.global_batch_tokens, _MAX_TOKENS)
        if self.global_batch_tokens % self.seq_len:
            below = self.global_batch_tokens // self.seq_len * self.seq_len
            nearest = f"are {below} and {below + self.seq_len}" if below else f"is {self.seq_len}"
            raise WorkloadError(
                f"a batch of {self.global_batch_tokens} tokens is not a whole number of sequences of "
                f"{self.seq_len}; the nearest {nearest} tokens"
            )
        _share("batch tolerance", self.batch_tolerance, 0, _MOST_TOLERANCE, "0% to 50%")
        _share("moe_imbalance", self.moe_imbalance, 1, 100, "fullest over mean")
        if self.expert_capacity is not None:
            _share("expert_capacity", self.expert_capacity, 0.1, 100, "rows of every expert over the mean")
            if self.moe_imbalance != 1:
                raise WorkloadError(
                    f"expert_capacity {self.expert_capacity:g} gives every expert as many rows, moe_imbalance "
                    f"{self.moe_imbalance:g} the fullest more; give one of them"
                )
        _one_of("optimizer", self.optimizer, tuple(OPTIMIZER_STATE_BYTES))
        _one_of("compute dtype", self.compute_dtype, get_args(ComputeDtype))
        if self.total_tokens is not None:
            _whole("total tokens", self.total_tokens, 2**60)
        _whole("mtp", self.mtp, _MOST_MODULES, least=0)
        _whole("images", self.images, _MOST_IMAGES, least=0)
        object.__setattr__(self, "trainable", str(parse_trainable(self.trainable)))

    @property
    def sequences(self) -> int:
        """Sequences per optimizer step."""
        return self.global_batch_tokens // self.seq_len

    @property
    def expert_load(self) -> float:
        """Rows that an expert rank computes over the mean: of the fullest, or what every expert is padded to."""
        return self.moe_imbalance if self.expert_capacity is None else self.expert_capacity

    @property
    def sequence_range(self) -> range:
        """Sequences per step that the planner may choose from."""
        slack = int(self.sequences * self.batch_tolerance)
        return range(self.sequences - slack, self.sequences + slack + 1)


def _whole(what: str, value: int, most: int, least: int = 1) -> None:
    if not is_whole(value):
        raise WorkloadError(f"{what} must be a whole number, not {shown(value)}")
    if not least <= value <= most:
        raise WorkloadError(f"{what} is {shown(value)}; give a number from {least} to {most}")


def _share(what: str, value: float, least: float, most: float, meaning: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WorkloadError(f"{what} is {shown(value)}; give a number from {least} to {most} ({meaning})")
    if not least <= value <= most:  # also where it is no number
        raise WorkloadError(f"{what} {shown(value)} is outside {least} to {most} ({meaning})")


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise WorkloadError(f"unknown {what} {shown(value)}; known: {', '.join(known)}")


def parse_batch(text: str, seq_len: int) -> tuple[int, float]:
    """`4Mi`, `1024seq`, `4Mi~5%` -> (tokens, tolerance).

    Raises:
        WorkloadError: anything else.
    """
    written = "tokens like 4Mi or 4194304, sequences like 1024seq, and a tolerance like 4Mi~5%"
    check_type("batch", text, str, written, WorkloadError)
    match = re.fullmatch(
        r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|k|M|G|seq)?(?:~(\d+(?:\.\d+)?)%)?", text.strip(), re.ASCII
    )
    if match is None or len(text) > 40:
        raise WorkloadError(f"cannot read batch {text[:40]!r}; write {written}")
    number, suffix, tolerance = Decimal(match[1]), match[2] or "", float(match[3] or 0) / 100
    if suffix == "seq":
        _whole("seq_len", seq_len, 2**24)
        number, suffix = number * seq_len, ""
    if tolerance > _MOST_TOLERANCE:
        raise WorkloadError(
            f"batch {text!r}: a tolerance of {match[3]}% is outside 0% to {_MOST_TOLERANCE:.0%}; write one like 4Mi~5%"
        )
    tokens = number * _SUFFIX[suffix]
    if tokens != int(tokens):
        raise WorkloadError(f"batch {text!r} is {tokens:g} tokens, not a whole number")
    return int(tokens), tolerance
