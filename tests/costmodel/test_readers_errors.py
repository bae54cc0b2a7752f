"""What a reader refuses, in its own words: one line, the rule, both numbers, the way out."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from meshwright.costmodel.readers import load_model
from meshwright.hardware.errors import InputError, ModelError, UnknownNameError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 12,
    "vocab_size": 20,
    "num_hidden_layers": 2,
}
DEEPSEEK = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 2,
    "v_head_dim": 4,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 6,
    "first_k_dense_replace": 1,
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN = {**LLAMA, "model_type": "qwen2"}
FALCON = {k: LLAMA[k] for k in ("hidden_size", "num_attention_heads", "vocab_size", "num_hidden_layers")}
FALCON["model_type"] = "falcon"
TYPES = (
    "llama, mistral, qwen2, qwen3, phi3, olmo2, olmo3, gemma, gemma2, gemma3_text, gemma3, mixtral, qwen3_moe, olmoe, "
    "gpt_oss, glm4_moe, deepseek_v2, deepseek_v3, gpt2, gpt_neox, opt, bloom, falcon, nemotron-nas"
)


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in keys}


VALUES: list[tuple[dict[str, Any], str]] = [
    # which model
    (without(LLAMA, "model_type"), f"the key model_type is missing; give one of {TYPES}"),
    (
        without(LLAMA, "model_type") | {"architectures": ["LlamaForCausalLM", "OPTForCausalLM"]},
        f"the key model_type is missing; give one of {TYPES}",
    ),
    (
        LLAMA | {"model_type": None, "architectures": ["LlamaForCausalLM"]},
        (
            'the key model_type is null; architectures says \'LlamaForCausalLM\', so add "model_type": "llama" if that '
            "is right"
        ),
    ),
    (LLAMA | {"model_type": 3}, "model_type must be a string, got 3"),
    (LLAMA | {"model_type": "rwkv5"}, f"model_type 'rwkv5' is not read; supported: {TYPES}"),
    (LLAMA | {"model_type": "qwen3_5"}, f"model_type 'qwen3_5' is not read; supported: {TYPES}"),
    (
        LLAMA | {"model_type": "gpt-neox"},
        f"model_type 'gpt-neox' is not read; correct it if it is a misspelling of gpt_neox; supported: {TYPES}",
    ),
    (
        LLAMA | {"architectures": ["OPTForCausalLM"]},
        "model_type llama and architectures 'OPTForCausalLM' disagree; correct one of them",
    ),
    # one number
    (without(LLAMA, "vocab_size"), "the key vocab_size is missing; give it as a whole number"),
    (
        without(FALCON, "num_hidden_layers"),
        "the key num_hidden_layers (or n_layer) is missing; give it as a whole number",
    ),
    (LLAMA | {"hidden_size": "8"}, "hidden_size must be a whole number, got '8'; write it without quotes"),
    (LLAMA | {"hidden_size": "wide"}, "hidden_size must be a whole number, got 'wide'"),
    (LLAMA | {"hidden_size": 8.0}, "hidden_size must be a whole number, got 8.0"),
    (LLAMA | {"hidden_size": float("nan")}, "hidden_size is NaN; write a finite number or null"),
    (
        LLAMA | {"rope_scaling": {"factor": float("inf")}},
        "rope_scaling.factor is Infinity; write a finite number or null",
    ),
    (LLAMA | {"hidden_size": True}, "hidden_size must be a whole number, got true"),
    (LLAMA | {"hidden_size": None}, "hidden_size must be a whole number, got null"),
    (LLAMA | {"hidden_size": [8]}, "hidden_size must be a whole number, got a list of 1"),
    (LLAMA | {"hidden_size": {"a": 1}}, "hidden_size must be a whole number, got an object"),
    (LLAMA | {"hidden_size": 0}, "hidden_size is 0; it must be from 1 to 1000000000"),
    (LLAMA | {"hidden_size": -8}, "hidden_size is -8; it must be from 1 to 1000000000"),
    (LLAMA | {"hidden_size": 10**10}, "hidden_size is 10000000000; it must be from 1 to 1000000000"),
    (
        LLAMA | {"hidden_size": 10**5000},
        "hidden_size is a number of 16610 bits; it must be from 1 to 1000000000",
    ),
    (LLAMA | {"num_hidden_layers": 100_001}, "num_hidden_layers is 100001; it must be from 1 to 100000"),
    (
        LLAMA | {"hidden_size": 10**9, "intermediate_size": 10**9},
        "the sizes make 1.200e+19 parameters and the cost model is exact below 9.0e+15; check the sizes",
    ),
    (LLAMA | {"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, got 1"),
    (LLAMA | {"tie_word_embeddings": None}, "tie_word_embeddings must be true or false, got null"),
    # numbers that must agree
    (
        LLAMA | {"hidden_size": 9},
        (
            "hidden_size 9 is not a multiple of num_attention_heads 4, so the width of a head is not known; correct one "
            "of them, or give head_dim where the family has it"
        ),
    ),
    (
        LLAMA | {"num_key_value_heads": 3},
        (
            "num_attention_heads 4 is not a multiple of num_key_value_heads 3: every kv head serves the same number of "
            "heads; make it a divisor of 4"
        ),
    ),
    (
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 3},
        (
            "num_attention_heads 4 is not a multiple of num_kv_heads 3: every kv head serves the same number of heads; "
            "make it a divisor of 4"
        ),
    ),
    (
        MIXTRAL | {"num_experts_per_tok": 5},
        "num_experts_per_tok 5 is more than the 4 experts; use at most 4",
    ),
    (
        FALCON | {"n_layer": 3},
        "num_hidden_layers 2 and n_layer 3 mean the same and disagree; keep one",
    ),
    (
        FALCON | {"num_ln_in_parallel_attn": 2},
        "num_ln_in_parallel_attn is 2; it may be 1 or null, or 2 with new_decoder_architecture true",
    ),
    # families whose class has a default that no file should lean on
    (
        without(QWEN, "num_key_value_heads"),
        "the key num_key_value_heads is missing; give it as a whole number",
    ),
    (
        DEEPSEEK,
        "the key q_lora_rank is missing; give the rank, or null where queries are projected directly",
    ),
    (
        without(DEEPSEEK, "n_shared_experts") | {"q_lora_rank": None},
        "the key n_shared_experts is missing; give the number of shared experts, 0 or null for none",
    ),
    (
        DEEPSEEK | {"q_lora_rank": None, "qk_head_dim": 6},
        "qk_head_dim 6 is not read for this model type; it may be 5, or absent",
    ),
    # layers
    (
        DEEPSEEK | {"q_lora_rank": None, "moe_layer_freq": [1]},
        "moe_layer_freq lists 1 layers and the model has 2; make the two agree",
    ),
    (
        DEEPSEEK | {"q_lora_rank": None, "moe_layer_freq": [1, True]},
        "moe_layer_freq[1] must be 0 or 1, got true",
    ),
    (
        QWEN | {"layer_types": ["full_attention"]},
        "layer_types lists 1 layers and the model has 2; make the two agree",
    ),
    (
        QWEN | {"layer_types": ["full_attention", "linear_attention"]},
        "layer_types[1] must be sliding_attention or full_attention, got 'linear_attention'",
    ),
    (
        QWEN | {"layer_types": "full_attention"},
        "layer_types must be a list of sliding_attention or full_attention, got 'full_attention'",
    ),
    (
        QWEN | {"layer_types": ["full_attention", "sliding_attention"]},
        (
            "layer_types holds sliding_attention although use_sliding_window is not true or sliding_window is not given; "
            "make them agree"
        ),
    ),
    (
        QWEN | {"use_sliding_window": True, "sliding_window": 4},
        "the key max_window_layers is missing and use_sliding_window is true; give it, or set the latter to false",
    ),
    (
        LLAMA
        | {
            "model_type": "gemma3_text",
            "sliding_window_pattern": 2,
            "layer_types": ["full_attention", "full_attention"],
        },
        "layer_types and 2 for sliding_window_pattern disagree; keep one",
    ),
    (
        LLAMA | {"model_type": "qwen3_moe", "mlp_only_layers": [2]},
        "mlp_only_layers[0] is 2; it must be from 0 to 1",
    ),
    # switches that would change the arithmetic
    (
        LLAMA | {"add_cross_attention": True},
        "add_cross_attention true is not read for this model type; it may be false, or absent",
    ),
    (
        QWEN | {"attention_bias": False},
        "attention_bias false is not read for this model type; it may be true, or absent",
    ),
    (
        LLAMA | {"sliding_window": 4},
        "sliding_window 4 is not read for this model type; it may be null, or absent",
    ),
    (
        LLAMA | {"hidden_size_per_layer_input": 256},
        (
            "the key 'hidden_size_per_layer_input' is not known for this model type and may change the arithmetic; "
            "remove it if it does not"
        ),
    ),
    (
        MIXTRAL | {"n_shared_experts": 1},
        (
            "the key 'n_shared_experts' is not known for this model type and may change the arithmetic; remove it if it "
            "does not"
        ),
    ),
    # a tower that would not be counted
    (
        QWEN | {"vision_config": {"depth": 32}},
        (
            "the key 'vision_config' is not known for this model type and may change the arithmetic; remove it if it "
            "does not"
        ),
    ),
    # a nested text part
    (
        {"model_type": "gemma3"},
        "the key text_config is missing; give the object that describes the language model",
    ),
    ({"model_type": "gemma3", "text_config": 3}, "text_config must be an object, got 3"),
    (
        {"model_type": "gemma3", "text_config": {"model_type": "gemma2"}},
        "text_config has model_type 'gemma2' and gemma3 needs gemma3_text",
    ),
]


@pytest.mark.parametrize(("config", "message"), VALUES, ids=[m[:50] for _, m in VALUES])
def test_a_bad_value_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(config)
    assert str(caught.value) == f"model config: {message}"


def test_nested_messages_say_where() -> None:
    with pytest.raises(ModelError) as caught:
        load_model({"model_type": "gemma3", "text_config": {"hidden_size": 8, "num_hidden_layers": -1}})
    assert (
        str(caught.value) == "model config, text_config: num_hidden_layers is -1; it must be from 1 to 100000"
    )


FILES: list[tuple[bytes, str]] = [
    (b"", "is empty; give a config.json"),
    (b" \n", "is empty; give a config.json"),
    (b"{", "is not JSON: Expecting property name enclosed in double quotes at line 1, column 2;"),
    (b'{"a": 1,}', "is not JSON: Expecting property name enclosed in double quotes at line 1, column 9;"),
    (b"[1]", "holds a list of 1 where a model configuration is an object {...}"),
    (b"3", "holds 3 where a model configuration is an object {...}"),
    (b'{"model_type": "llama", "a": NaN}', ": a is NaN; write a finite number or null"),
    (
        b'{"model_type": "opt", "a": {"b c": [1, -Infinity]}}',
        ": a.'b c'[1] is -Infinity; write a finite number",
    ),
    (
        b'{"model_type": "llama", "hidden_size": 1e400}',
        ": hidden_size is Infinity; write a finite number or null",
    ),
    (b'{"model_type": "mamba2", "time_step_limit": [0.0, Infinity]}', ": model_type 'mamba2' is not read; "),
    (b'{"a": 1, "b": 2, "b": 2}', "gives the key 'b' twice; keep one"),
    (b'{"a": "\xff"}', "is not UTF-8 text (byte 7); save it as UTF-8"),
    ("{}".encode("utf-16"), "is not UTF-8 text (byte 0); save it as UTF-8"),
    (b"[" * 100_000, "is nested too deeply to be a model configuration"),
    (b'{"a": ' * 100_000, "is nested too deeply to be a model configuration"),
    (b'{"a": 1' + b"0" * 5000 + b"}", "holds a number of thousands of digits; correct it"),
    (b"\0" * 10_000_000, "is larger than 4,194,304 bytes; a config.json is a few thousand"),
    (b"{}", ": the key model_type is missing; give one of llama"),
]


@pytest.mark.parametrize(("data", "message"), FILES, ids=[m[:40] for _, m in FILES])
def test_a_bad_file_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    for source in (path, str(path), tmp_path):
        with pytest.raises(ModelError) as caught:
            load_model(source)
        text = str(caught.value)
        assert message in text.replace("config.json' ", "config.json'", 1).replace("config.json'", " ")
        assert "config.json'" in text and "\n" not in text


def test_paths_that_hold_no_model(tmp_path: Path) -> None:
    def refused(source: Any) -> str:
        with pytest.raises(InputError) as caught:
            load_model(source)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    missing, folder = refused(tmp_path / "none.json"), refused(tmp_path)
    assert missing.startswith("no file or folder ") and missing.endswith("; give the path of a config.json")
    assert folder.endswith("holds no config.json; give the folder that does")
    assert refused("meta-llama/Llama-3.1-405B") == (
        "no file or folder 'meta-llama/Llama-3.1-405B'; give the path of a config.json; "
        "of the built-in models llama-3.1-405b or llama-3.1-70b is near"
    )
    assert refused("a/" + "b" * 5000).endswith("cannot be read: File name too long")
    refused("a/\0b.json")
    taken = "give a built-in name, the path of a config.json or its folder, or its content as a dict"
    assert refused("") == f"model is ''; {taken}"
    assert refused("a/\nb.json") == "no file or folder 'a/\\nb.json'; give the path of a config.json"
    assert refused(3) == f"model is 3; {taken}"
    assert refused(None) == f"model is None; {taken}"
    assert refused({1: 2} | LLAMA) == "model config: every key must be a string, got 1"
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    assert refused(pipe).endswith("is not a regular file; give a config.json")


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_model("llama-3-71b")
    assert str(caught.value).startswith("unknown model 'llama-3-71b'; did you mean llama-3-7")
    assert str(caught.value).endswith("(or give the path of a config.json)")


def test_a_file_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_bytes(
        b"\xef\xbb\xbf" + json.dumps(LLAMA).encode()
    )  # a byte-order mark is fine
    (folder / "other.json").write_text(json.dumps(LLAMA))
    by_folder, by_file = load_model(folder), load_model(str(folder / "config.json"))
    assert by_folder == by_file
    assert (by_folder.name, load_model(folder / "other.json").name) == ("my-model", "other")
