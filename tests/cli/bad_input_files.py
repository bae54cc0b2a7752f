"""Files that the cases of bad input name."""

import json

from small_configs import TINY


def config(**changes: object) -> bytes:
    """The tiny model with some keys changed; None drops one."""
    return json.dumps({k: v for k, v in {**TINY, **changes}.items() if v is not None}).encode()


# Files a case may name; only those are written.
FILES = {
    "tiny.json": config(),
    "broken.json": b'{"model_type": ',
    "empty.json": b"",
    "junk.json": b"\xff\xfe\x00junk" * 1_500_000,
    "deep.json": b"[" * 100_000,
    "latin.json": '{"model_type": "llam\xe4"}'.encode("latin-1"),
    "list.json": b"[1, 2]",
    "nan.json": config(hidden_size=float("nan")),
    "infinite.json": config(model_type="mamba2", time_step_limit=[0, float("inf")]),
    "twice.json": b'{"vocab_size": 1, "vocab_size": 2}',
    "architecture.json": config(model_type="transmogrifier"),
    "negative.json": config(hidden_size=-256),
    "zero.json": config(num_hidden_layers=0),
    "absurd.json": config(vocab_size=10**30),
    "fraction.json": config(hidden_size=256.5),
    "word.json": config(hidden_size="wide"),
    "missing.json": config(vocab_size=None),
    "heads.json": config(num_attention_heads=8, num_key_value_heads=3),
    "plan.json": b'{"schema_version": 99}',
    "half.yaml": b"schema_version: 1\ninputs: {}\n",
    "latin.yaml": "name: \xe4\n".encode("latin-1"),
    "empty.json.yaml": b"\n",
    "list.yaml": b"[1, 2]\n",
    "no.yaml": (
        b"schema_version: 1\nstatus: INFEASIBLE\nreason: the device memory is too small for every layout.\n"
    ),
    "tabs.yaml": b"a:\n\t- b: [",
    "deep.yaml": b"[" * 1_500,
    "typed.yaml": b"name: mine\nnames: 1\nprovenanc: me\n",
    "secrets.yaml": b"root:x:0:0:root:/root:/bin/bash\nmore text\n",
    "bad-keys.yaml": b"name: mine\nprovenance: me\ncommon: 3\nfamilies: {gpu: {matmul: 0.3}}\n",
    "fabric.yaml": b"name: mine\ntiers: []\n",
    "no-type.json": config(model_type=None),
    "null-type.json": json.dumps({**TINY, "model_type": None}).encode(),
    "implied.json": config(model_type=None, architectures=["LlamaForCausalLM"]),
    "bad-rates.yaml": b"name: mine\nprovenance: me\ncommon: {matmul: 1.5}\n",
}
