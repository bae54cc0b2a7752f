"""Typed, strict access to one JSON object of a model configuration.

A key that a reader asks for is remembered as understood. What is left over at the end is either harmless
(token ids, dropout, rope ...), worth a note, or, when its name sounds like a size, refused: a size that
nobody read would make every later figure silently wrong.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from meshwright.hardware.errors import ModelError

MAX_SIZE: Final = 10**9  # a width, a vocabulary: a thousand times the largest published
MAX_LAYERS: Final = 10**5

# Keys without any bearing on weights or arithmetic, in every family.
HARMLESS: Final = re.compile(
    r"""(.*_)?token_(id|ids|index) | .*dropout.* | .*_pdrop | layerdrop | initializer_.* | init_.*
    | rope_.* | rotary_.* | partial_rotary_factor | .*_(eps|epsilon) | original_max_position_embeddings
    | (hidden_act|hidden_activation|activation|activation_function|pooler_act)
    | (torch_)?dtype | torchscript | transformers_version | transformers\.js_config | use_bfloat16 | use_cache
    | architectures | auto_map | tokenizer_class | cache_implementation | _?attn_implementation.*
    | _name_or_path | _commit_hash | _source | _kind | _note | prefix | problem_type | finetuning_task
    | id2label | label2id | num_labels | task_specific_params | summary_.* | return_dict(_in_generate)?
    | output_(attentions|hidden_states|scores|router_logits) | (forced_)?(bos|eos)_token.* | max_length
    | min_length | do_sample | early_stopping | num_beams | num_beam_groups | diversity_penalty | temperature
    | top_k | top_p | typical_p | repetition_penalty | length_penalty | (encoder_)?no_repeat_ngram_size
    | bad_words_ids | num_return_sequences | chunk_size_feed_forward | remove_invalid_values
    | exponential_decay_length_penalty | suppress_tokens | begin_suppress_tokens | tf_legacy_loss
    | is_decoder | tie_encoder_decoder | predict_special_tokens | n_special | gradient_checkpointing
    | pretraining_tp | slow_but_exact | attention_softmax_in_fp32 | masked_softmax_fusion | bias_dropout_fusion
    | skip_bias_add(_qkv)? | offset_alibi | alibi | scale_attn.* | reorder_and_upcast_attn
    | apply_residual_connection_post_layernorm | query_pre_attn_scalar | (attn|final)_logit_softcapping
    | clip_qkv | norm_topk_prob | topk_(group|method) | n_group | scoring_func | routed_scaling_factor
    | seq_aux | aux_loss_alpha | router_(aux_loss_coef|jitter_noise|z_loss_coef) | ep_size | swiglu_.*
    | interpolate_factor | initial_context_length | is_llama_config | rope_interleaved
    | selective_checkpoint_enabled | sequence_parallel_enabled | move_model_to_cpu.*
    | context_window_size | prefill_chunk_size | attention_sink_size | tensor_parallel_shards
    """,
    re.VERBOSE,
)

# Keys that would change the arithmetic, with the only values under which they do not.
NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "pruned_heads": ({}, None),
    "use_bidirectional_attention": (False, None),
}

SOUNDS_LIKE_A_SIZE: Final = re.compile(
    r"hidden|size|dim|layer|head|expert|moe|rank|lora|width|inner|mlp|ffn|vocab|window|bias|norm|topk|share"
    r"|embd|embed|proj|pattern|depth|vision|audio|tower|(^|_)tied?(_|$)"
)


def show(value: object) -> str:
    """A value as a person would find it in the file, short and on one line."""
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case int() if abs(value) >= 10**18:  # printing a very long integer is an error in Python
            return f"{'a negative' if value < 0 else 'a'} number of {value.bit_length()} bits"
        case str():
            return ascii(value if len(value) <= 60 else value[:57] + "...")
        case int() | float():
            return str(value)
        case Mapping():
            return "an object" if value else "{}"
        case Sequence():
            return f"a list of {len(value)}" if value else "[]"
    return f"a {type(value).__name__}"


def check_finite(raw: Mapping[str, object], where: str) -> None:
    """Raises ModelError at the first number that JSON cannot hold (NaN, Infinity, 1e400), naming its key."""
    waiting: list[tuple[Any, object]] = [
        ((), raw)
    ]  # (path as nested pairs, value); nested deeper than the stack
    seen: set[int] = set()
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, float) and not math.isfinite(value):
            word = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            raise ModelError(f"{where}: {_dotted(path)} is {word}; write a finite number or null")
        if isinstance(value, Mapping | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
            waiting += reversed([((path, key), inner) for key, inner in pairs])


def _dotted(path: Any) -> str:
    """`rope_scaling.factor`, `limits[1]`; the innermost eight steps."""
    steps: list[str] = []
    while path and len(steps) < 8:
        path, key = path
        plain = isinstance(key, str) and re.fullmatch(r"\w{1,60}", key, re.ASCII)
        steps.insert(0, f"[{key}]" if isinstance(key, int) else f".{key if plain else show(key)}")
    return "".join(steps).removeprefix(".")


class Fields:
    """One object of a configuration, called `where` in messages."""

    def __init__(self, raw: Mapping[str, object], where: str, model_type: str) -> None:
        for key in raw:
            if not isinstance(key, str):
                raise ModelError(f"{where}: every key must be a string, got {show(key)}")
        self.raw = raw
        self.where = where
        self.model_type = model_type
        self.notes: list[str] = []
        self._read: set[str] = {"model_type"}

    def fail(self, text: str) -> NoReturn:
        raise ModelError(f"{self.where}: {text}")

    def note(self, text: str) -> None:
        self.notes.append(text)

    def has(self, key: str) -> bool:
        self._read.add(key)
        return key in self.raw

    def skip(self, *keys: str) -> None:
        """Mark keys as understood although this model needs no value from them."""
        self._read.update(keys)

    def first(self, keys: Sequence[str]) -> str | None:
        """The key that is present, of several spellings; two that disagree are refused."""
        self._read.update(keys)
        present = [k for k in keys if k in self.raw]
        for k in present[1:]:
            if show(self.raw[k]) != show(self.raw[present[0]]):  # == may recurse without end on nested values
                self.fail(
                    f"{present[0]} {show(self.raw[present[0]])} and {k} {show(self.raw[k])} mean the same "
                    f"and disagree; keep one"
                )
        return present[0] if present else None

    def size(
        self, *keys: str, missing: int | None = None, null: int | None = None, most: int = MAX_SIZE
    ) -> int:
        """A whole number from 1 to `most`. `missing` and `null` stand in for no key and for null."""
        key = self.first(keys)
        if key is None:
            if missing is None:
                self.fail(
                    f"the key {' (or '.join(keys)}{')' * (len(keys) - 1)} is missing; "
                    f"give it as a whole number"
                )
            return missing
        if self.raw[key] is None and null is not None:
            return null
        return self._whole(key, self.raw[key], 1, most)

    def size_or_none(self, *keys: str, missing: int | None = None) -> int | None:
        """A whole number, or none where the key is null; `missing` stands in for no key."""
        key = self.first(keys)
        if key is None or self.raw[key] is None:
            return missing if key is None else None
        return self._whole(key, self.raw[key], 1, MAX_SIZE)

    def count(self, key: str, missing: int = 0, most: int = MAX_LAYERS) -> int:
        """A whole number from 0 to `most`; null is 0."""
        if not self.has(key):
            return missing
        return 0 if self.raw[key] is None else self._whole(key, self.raw[key], 0, most)

    def flag(self, key: str, missing: bool) -> bool:
        if not self.has(key):
            return missing
        value = self.raw[key]
        if not isinstance(value, bool):
            self.fail(f"{key} must be true or false, got {show(value)}")
        return value

    def only(self, key: str, *allowed: object) -> None:
        """A key that may be absent or hold one of these values; no other is read exactly."""
        if self.has(key) and not any(same(self.raw[key], a) for a in allowed):
            self.fail(
                f"{key} {show(self.raw[key])} is not read for this model type; it may be "
                f"{' or '.join(show(a) for a in allowed)}, or absent"
            )

    def items(self, key: str, length: int, what: str, check: Callable[[object], bool]) -> list[object] | None:
        """A list of exactly `length` values that pass `check`; none where the key is missing or null."""
        if not self.has(key) or self.raw[key] is None:
            return None
        value = self.raw[key]
        if not isinstance(value, list | tuple):
            self.fail(f"{key} must be a list of {what}, got {show(value)}")
        if len(value) != length:
            self.fail(f"{key} lists {len(value)} layers and the model has {length}; make the two agree")
        for i, v in enumerate(value):
            if not check(v):
                self.fail(f"{key}[{i}] must be {what}, got {show(v)}")
        return list(value)

    def indices(self, key: str, below: int) -> frozenset[int]:
        """A list of layer numbers; empty where the key is missing or null."""
        if not self.has(key) or self.raw[key] is None:
            return frozenset()
        value = self.raw[key]
        if not isinstance(value, list | tuple):
            self.fail(f"{key} must be a list of layer numbers, got {show(value)}")
        return frozenset(self._whole(f"{key}[{i}]", v, 0, below - 1) for i, v in enumerate(value))

    def inner(self, key: str, model_type: str) -> "Fields":
        """A nested object."""
        if not self.has(key):
            self.fail(f"the key {key} is missing; give the object that describes the language model")
        value = self.raw[key]
        if not isinstance(value, Mapping):
            self.fail(f"{key} must be an object, got {show(value)}")
        if (given := value.get("model_type", model_type)) != model_type:
            self.fail(f"{key} has model_type {show(given)} and {self.model_type} needs {model_type}")
        return Fields(value, f"{self.where}, {key}", model_type)

    def finish(self) -> tuple[str, ...]:
        """Refuse leftover keys that sound like sizes; return the notes, with other leftovers among them."""
        ignored = []
        for key in self.raw:
            if key in NEUTRAL:
                self.only(key, *NEUTRAL[key])
            elif key in self._read or HARMLESS.fullmatch(key):
                continue
            elif key == "quantization_config":
                if self.raw[key] is not None:
                    self.note("quantization_config is left out: parameters are counted as unpacked weights")
            elif SOUNDS_LIKE_A_SIZE.search(key.lower()):
                self.fail(
                    f"the key {show(key)} is not known for this model type and may change the arithmetic; "
                    f"remove it if it does not"
                )
            else:
                ignored.append(show(key))
        if ignored:
            more = f" and {len(ignored) - 10} more" if len(ignored) > 10 else ""
            self.note(f"keys not read: {', '.join(sorted(ignored)[:10])}{more}")
        return tuple(self.notes)

    def _whole(self, key: str, value: object, least: int, most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            hint = "; write it without quotes" if isinstance(value, str) and value.strip().isdigit() else ""
            self.fail(f"{key} must be a whole number, got {show(value)}{hint}")
        if not least <= value <= most:
            self.fail(f"{key} is {show(value)}; it must be from {least} to {most}")
        return value


def same(value: object, allowed: object) -> bool:
    """Equality in which true is not 1."""
    return type(value) is type(allowed) and value == allowed
