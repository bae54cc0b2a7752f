"""Which reader serves which `model_type`."""

import difflib
from collections.abc import Callable, Mapping
from typing import Final

from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.readers import block_configs, falcon, gpt_like, latent, llama_like, mixture
from meshwright.costmodel.readers.fields import Fields, check_finite, show
from meshwright.hardware.errors import ModelError

Reader = Callable[[Fields, str], ModelSpec]

READERS: Final[Mapping[str, Reader]] = {
    **dict.fromkeys(llama_like.STYLES, llama_like.read_llama_like),
    "gemma3_text": llama_like.read_gemma3_text,
    "gemma3": llama_like.read_gemma3,
    **dict.fromkeys(mixture.FAMILIES, mixture.read_mixture),
    "deepseek_v2": latent.read_latent,
    "deepseek_v3": latent.read_latent,
    "gpt2": gpt_like.read_gpt2,
    "gpt_neox": gpt_like.read_gpt_neox,
    "opt": gpt_like.read_opt,
    "bloom": gpt_like.read_bloom,
    "falcon": falcon.read_falcon,
    "nemotron-nas": block_configs.read_block_configs,
}

ARCHITECTURES: Final[Mapping[str, str]] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Phi3ForCausalLM": "phi3",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo3",
    "OlmoeForCausalLM": "olmoe",
    "Glm4MoeForCausalLM": "glm4_moe",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "GptOssForCausalLM": "gpt_oss",
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoXForCausalLM": "gpt_neox",
    "OPTForCausalLM": "opt",
    "BloomForCausalLM": "bloom",
    "FalconForCausalLM": "falcon",
    "DeciLMForCausalLM": "nemotron-nas",
}


def read_config(raw: Mapping[str, object], name: str, where: str) -> ModelSpec:
    """The model that a configuration object describes. `where` names its origin in messages."""
    model_type, notes = find_type(raw, where)  # first: a type that is not read is the whole story
    check_finite(raw, where)
    f = Fields(raw, where, model_type)
    f.notes = notes
    return READERS[model_type](f, name)


def find_type(raw: Mapping[str, object], where: str) -> tuple[str, list[str]]:
    """`model_type`, which `architectures` must not contradict; it is never guessed from them."""
    classes = raw.get("architectures")
    names = [c for c in classes if isinstance(c, str)] if isinstance(classes, list | tuple) else []
    implied = {ARCHITECTURES[c] for c in names if c in ARCHITECTURES}
    given = raw.get("model_type")
    if given is None:
        state = "is null" if "model_type" in raw else "is missing"
        way_out = f"give one of {', '.join(READERS)}"
        if len(implied) == 1 and len(names) == 1:
            way_out = f'architectures says {show(names[0])}, so add "model_type": "{implied.pop()}" if that is right'
        raise ModelError(f"{where}: the key model_type {state}; {way_out}")
    if not isinstance(given, str):
        raise ModelError(f"{where}: model_type must be a string, got {show(given)}")
    if given not in READERS:
        hint = f"correct it if it is a misspelling of {near}; " if (near := misspelt(given)) else ""
        raise ModelError(
            f"{where}: model_type {show(given)} is not read; {hint}supported: {', '.join(READERS)}"
        )
    if implied and given not in implied:
        raise ModelError(
            f"{where}: model_type {given} and architectures {', '.join(map(show, names[:3]))} disagree; "
            f"correct one of them"
        )
    unknown = [c for c in names if c not in ARCHITECTURES]
    return given, [
        f"architectures says {show(c)}; read as a language model of type {given}" for c in unknown[:1]
    ]


def misspelt(given: str) -> str | None:
    """The supported type that `given` may be a slip of. Another number is another architecture, not a slip."""

    def digits(text: str) -> list[str]:
        return [c for c in text if c.isdigit()]

    close = difflib.get_close_matches(given[:80].lower(), READERS, n=3, cutoff=0.8)
    return next((c for c in close if digits(c) == digits(given)), None)
