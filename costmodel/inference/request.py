"""What is asked of a served model: sequences at once, tokens in and out, bytes per element."""

from dataclasses import dataclass
from typing import Any

from meshwright.hardware.errors import WorkloadError, shown
from meshwright.hardware.numbers import is_number, is_whole, make_plain

_MOST_TOKENS = 1 << 40


@dataclass(frozen=True)
class Request:
    """A batch of equal sequences on one device.

    Attributes:
        batch: sequences at once. prompt, output: tokens in and out of each.
        weight_bytes: per element of a product's weights; 0.5 for int4. kv_bytes: per cached element.
        head_bytes: per element of the token table and the head; as the weights where None.

    Raises:
        WorkloadError: a count that is no whole number from 1, or bytes that are not above 0.
    """

    batch: int
    prompt: int
    output: int
    weight_bytes: float
    kv_bytes: float
    head_bytes: float | None = None

    def __post_init__(self) -> None:
        make_plain(self)
        for name in ("batch", "prompt", "output"):
            value: Any = getattr(self, name)
            if not is_whole(value) or not 1 <= value <= _MOST_TOKENS:
                raise WorkloadError(f"{name} is {shown(value)}; give a whole number from 1 to {_MOST_TOKENS}")
        for name in ("weight_bytes", "kv_bytes", "head_bytes"):
            value = getattr(self, name)
            if name == "head_bytes" and value is None:
                continue
            if not is_number(value) or not 0 < value <= 16:
                raise WorkloadError(
                    f"{name} is {shown(value)}; give bytes per element, above 0 and at most 16"
                )

    @property
    def mean_context(self) -> float:
        """Tokens that a decode step finds cached, its own with them, averaged over the output."""
        return self.prompt + (self.output + 1) / 2

    @property
    def prefill(self) -> "Pass":
        """All prompts at once."""
        return Pass(self.batch, self.prompt, 0, self.weight_bytes, self.kv_bytes, self._head)

    @property
    def decode(self) -> "Pass":
        """The mean step: what attention reads and computes is linear in the context."""
        return Pass(self.batch, 1, self.mean_context - 1, self.weight_bytes, self.kv_bytes, self._head)

    @property
    def _head(self) -> float:
        return self.weight_bytes if self.head_bytes is None else self.head_bytes


@dataclass(frozen=True)
class Pass:
    """One pass of a batch through a model: `new` tokens of each sequence after `cached` ones.

    Logits are made for the last token of each sequence.
    """

    sequences: float
    new: float
    cached: float
    weight_bytes: float
    kv_bytes: float
    head_bytes: float

    @property
    def tokens(self) -> float:
        return self.sequences * self.new
