"""Command lines that are wrong, and the one line that each must get; the files that they name are in
`bad_input_files`, layouts and plan files in `bad_input_layouts`.
"""

MODEL = "recommend {} --cluster h100:8x1 --batch 64Ki --seq 4096"
CLUSTER = "recommend tiny.json --cluster {} --batch 64Ki --seq 4096"
BATCH = "recommend tiny.json --cluster h100:8x1 --batch {} --seq 4096"
MORE = "recommend tiny.json --cluster h100:8x1 --batch 64Ki --seq 4096 {}"

# template, what goes in, text; a text that ends in ... is a beginning.
CASES = [
    # the model
    (MODEL, "gone.json", "no file or folder 'gone.json'; give the path of a config.json"),
    (MODEL, "lama-3-8b", "unknown model 'lama-3-8b'; did you mean llama-3-8b or ..."),
    (
        MODEL,
        "",
        "model is ''; give a built-in name, the path of a config.json or its folder, or its content as a dict",
    ),
    (MODEL, ".", "the folder '.' holds no config.json; give the folder that does"),
    (
        MODEL,
        "broken.json",
        "'broken.json' is not JSON: Expecting value at line 1, column 16; correct it there",
    ),
    (MODEL, "empty.json", "'empty.json' is empty; give a config.json"),
    (MODEL, "junk.json", "'junk.json' is larger than 4,194,304 bytes; a config.json is a few thousand"),
    (MODEL, "deep.json", "'deep.json' is nested too deeply to be a model configuration"),
    (MODEL, "latin.json", "'latin.json' is not UTF-8 text (byte 20); save it as UTF-8"),
    (MODEL, "list.json", "'list.json' holds a list of 2 where a model configuration is an object {...}"),
    (MODEL, "nan.json", "'nan.json': hidden_size is NaN; write a finite number or null"),
    (MODEL, "infinite.json", "'infinite.json': model_type 'mamba2' is not read; supported: llama..."),
    (MODEL, "twice.json", "'twice.json' gives the key 'vocab_size' twice; keep one"),
    (
        MODEL,
        "architecture.json",
        "'architecture.json': model_type 'transmogrifier' is not read; supported: llama...",
    ),
    (MODEL, "negative.json", "'negative.json': hidden_size is -256; it must be from 1 to 1000000000"),
    (MODEL, "zero.json", "'zero.json': num_hidden_layers is 0; it must be from 1 to 100000"),
    (
        MODEL,
        "absurd.json",
        "'absurd.json': vocab_size is a number of 100 bits; it must be from 1 to 1000000000",
    ),
    (MODEL, "fraction.json", "'fraction.json': hidden_size must be a whole number, got 256.5"),
    (MODEL, "word.json", "'word.json': hidden_size must be a whole number, got 'wide'"),
    (MODEL, "missing.json", "'missing.json': the key vocab_size is missing; give it as a whole number"),
    (
        MODEL,
        "heads.json",
        (
            "'heads.json': num_attention_heads 8 is not a multiple of num_key_value_heads 3: every kv head serves the "
            "same number of heads; make it a divisor of 8"
        ),
    ),
    # the cluster
    (CLUSTER, "", "cannot read cluster ''; write chip:shape[*slices][@fabric], like ..."),
    (CLUSTER, "h10:8x1", "unknown chip 'h10'; did you mean h100 or h800 or h200?"),
    (CLUSTER, "h100", "cluster 'h100' has no shape; write it like h100:8x4"),
    (
        CLUSTER,
        "h100:16x4",
        (
            "h100:16x4 does not exist: NVLink 4 joins at most 8 h100 chips; write chips per domain x domains, like "
            "h100:8x8"
        ),
    ),
    (CLUSTER, "h100:0x4", "cluster 'h100:0x4' has a zero in it; every size is at least 1"),
    (CLUSTER, "h100:8x-4", "cannot read cluster 'h100:8x-4'; write chip:shape[*slices][@fabric], like ..."),
    (
        CLUSTER,
        "h100:8x99999999999999",
        "cluster 'h100:8x99999999999999' has more than 4,194,304 devices; check the shape",
    ),
    (
        CLUSTER,
        "v5p-7",
        (
            "no slice is called v5p-7 (the number counts TensorCores); the nearest is v5p-8 (2x2x1); or write the shape "
            "in chips, like v5p:16x20x28"
        ),
    ),
    (CLUSTER, "h100:8x9999999", "cluster 'h100:8x9999999' has more than 4,194,304 devices; check the shape"),
    (CLUSTER, "v5p:5x5x5", "v5p:5x5x5 does not exist: v5p slices are ..."),
    (CLUSTER, "h100:8*4", "'*slices' is for TPU slices; h100 takes domains: h100:8x4"),
    (CLUSTER, "h100:8x8@ib40", "unknown fabric 'ib40'; did you mean ib400 or ..."),
    (
        CLUSTER,
        "h100:8x8@gone.yaml",
        (
            "cannot read gone.yaml: No such file or directory; give the path of a YAML file with name, title, summary, "
            "families, tiers"
        ),
    ),
    (
        CLUSTER,
        "h100:8x8@folder.yaml",
        "cannot read folder.yaml: it is a folder; give the path of a YAML file ...",
    ),
    (
        CLUSTER,
        "h100:8x8 --fabric empty.json.yaml",
        "empty.json.yaml is empty; give the path of a YAML file ...",
    ),
    (CLUSTER, "h100:8x8 --fabric=", "unknown fabric ''; known: ..."),
    (
        CLUSTER,
        "h100:8x8@/dev/zero",
        "/dev/zero is larger than 4,194,304 bytes; give the path of a YAML file ...",
    ),
    # the batch
    (
        BATCH,
        "10000",
        "a batch of 10000 tokens is not a whole number of sequences of 4096; the nearest are 8192 and 12288 tokens",
    ),
    (
        BATCH,
        "100",
        "a batch of 100 tokens is not a whole number of sequences of 4096; the nearest is 4096 tokens",
    ),
    (BATCH, "0", "global batch in tokens is 0; give a number from 1 to 1099511627776"),
    (
        BATCH,
        "9999999Gi",
        "global batch in tokens is 10737417166258176; give a number from 1 to 1099511627776",
    ),
    (
        BATCH,
        "4MiB",
        (
            "cannot read batch '4MiB'; write tokens like 4Mi or 4194304, sequences like 1024seq, and a tolerance like "
            "4Mi~5%"
        ),
    ),
    (
        BATCH,
        f"{10**30}",
        f"global batch in tokens is {10**30}; give a number from 1 to 1099511627776",
    ),
    (
        BATCH,
        "-1Mi",
        (
            "cannot read batch '-1Mi'; write tokens like 4Mi or 4194304, sequences like 1024seq, and a tolerance like "
            "4Mi~5%"
        ),
    ),
    (BATCH, "1e400", "cannot read batch '1e400'; write tokens like 4Mi or 4194304, sequences like ..."),
    (BATCH, "4Mi~90%", "batch '4Mi~90%': a tolerance of 90% is outside 0% to 50%; write one like 4Mi~5%"),
    (BATCH, "1Mi~100%", "batch '1Mi~100%': a tolerance of 100% is outside 0% to 50%; write one like 4Mi~5%"),
    # options
    (MORE, "--seq 0", "--seq: '0' is not above zero; write a count like '4Mi', '15T' or a whole number"),
    (MORE, "--seq=-5", "--seq: '-5' is not above zero; write a count like '4Mi', '15T' or a whole number"),
    (MORE, "--seq 99Mi --batch 1seq", "seq_len is 103809024; give a number from 1 to 16777216"),
    (MORE, "--seq -5", "--seq: '-5' is not above zero; write a count like '4Mi', '15T' or a whole number"),
    (
        MORE,
        "--tokens 1e400",
        (
            "--tokens: '1e400' is beyond any machine: a count is at most 1e+18; write it like '4Mi', '15T' or a whole "
            "number"
        ),
    ),
    (
        MORE,
        "--tokens 15Q",
        "--tokens: unknown unit 'Q' in '15Q'; write a count like '4Mi', '15T' or a whole number",
    ),
    (MORE, "--host-memory 2", "--host-memory: '2' has no unit; write a size like '80 GiB' or '141 GB'"),
    (
        MORE,
        "--host-memory 2Tb",
        "--host-memory: unknown unit 'Tb' in '2Tb' (is it TB?); write a size like '80 GiB' or '141 GB'",
    ),
    (
        MORE,
        "--cpu-update 1G/s",
        "--cpu-update: unknown unit 'G/s' in '1G/s'; write an update rate like '3 Gparam/s'",
    ),
    (
        MORE,
        "--efficiency defualt",
        "unknown efficiency 'defualt'; did you mean default or ...",
    ),
    (
        MORE,
        "--efficiency mfu=40",
        "'mfu=40' is not a share of peak; write a number above 0 and at most 1, like 'mfu=0.4'",
    ),
    (
        MORE,
        "--efficiency gone.yaml",
        "cannot read gone.yaml: No such file or directory; give the path of a YAML file with name, provenance",
    ),
    (
        MORE,
        "--efficiency /dev/null",
        "/dev/null is empty; give the path of a YAML file with name, provenance",
    ),
    (
        MORE,
        "--efficiency list.yaml",
        "list.yaml holds a list where a mapping with name, provenance is needed",
    ),
    (
        MORE,
        "--efficiency latin.yaml",
        "latin.yaml is not UTF-8 text (byte 6); save it as UTF-8",
    ),
    (
        MORE,
        "--efficiency typed.yaml",
        (
            "typed.yaml: the key provenance is missing; the keys 'names' and 'provenanc' are not known; allowed: common, "
            "families, architectures, chips, name, provenance, extends, bands, software"
        ),
    ),
    (
        MORE,
        "--efficiency secrets.yaml",
        "secrets.yaml holds plain text where a mapping with name, provenance is needed",
    ),
    (
        MORE,
        "--efficiency bad-keys.yaml",
        (
            "bad-keys.yaml: common is 3; expected a mapping; families has the key 'gpu'; expected 'tpu', 'nvidia', "
            "'amd' or 'apple'"
        ),
    ),
    (
        MORE,
        "--efficiency tabs.yaml",
        (
            r"tabs.yaml is not valid YAML, line 2, column 1: found character '\t' that cannot start any token; correct "
            "it there"
        ),
    ),
    (
        CLUSTER,
        "h100:8x8 --fabric fabric.yaml",
        "fabric.yaml: the keys title, summary and families are missing",
    ),
    (MODEL, "no-type.json", "'no-type.json': the key model_type is missing; give one of llama, ..."),
    (MODEL, "null-type.json", "'null-type.json': the key model_type is null; give one of llama, ..."),
    (
        MODEL,
        "implied.json",
        (
            "'implied.json': the key model_type is missing; architectures says 'LlamaForCausalLM', so add "
            '"model_type": "llama" if that is right'
        ),
    ),
    (
        MORE,
        "--efficiency bad-rates.yaml",
        "bad-rates.yaml: common.matmul is 1.5; expected less than or equal to 1",
    ),
    (MORE, "--overlap partial", "unknown overlap 'partial'; known: calibrated, full, none"),
    (MORE, "--comm-streams two", "unknown comm_streams 'two'; known: independent, shared"),
    (MORE, "--framework torch", "unknown framework 'torch'; known: jax, megatron"),
    (MORE, "--optimizer lion", "unknown optimizer 'lion'; known: adamw, adamw8bit, sgd"),
    (MORE, "--dtype int3", "unknown compute dtype 'int3'; known: bf16, fp16, fp8, fp4"),
    (
        MORE,
        "--dtype fp8 --cluster a100:8x1",
        "no source lists a peak in fp8 for a100; of what training takes it has bf16, fp16: use --dtype bf16",
    ),
    (
        MORE,
        "--dtype fp8 --cluster v5e:2x4",
        "no source lists a peak in fp8 for v5e; of what training takes it has bf16: use --dtype bf16",
    ),
    (MORE, "--moe-imbalance 0.5", "moe_imbalance 0.5 is outside 1 to 100 (fullest over mean)"),
    (MORE, "--mtp -1", "--mtp: '-1' is not a whole number from 0 to 1000"),
    (
        MORE,
        "--mtp 1",
        "mtp 1 is more than the 0 multi-token-prediction modules tiny carries; use mtp <= 0",
    ),
    (MORE, "--images 1.5", "--images: '1.5' is not a whole number from 0 to 100000"),
    (
        MORE,
        "--images 2",
        (
            "images is 2 and no vision tower of tiny was read, which takes a gemma3 configuration with all sizes of its "
            "vision_config; use images=0"
        ),
    ),
    (
        MORE,
        "--trainable lora",
        (
            "cannot read trainable 'lora'; write all, all-embedding (parts: embedding, layers, head, tower), lora:16 or "
            "lora:16:qkv+out"
        ),
    ),
    (
        MORE,
        "--trainable lora:8 --launcher megatron",
        (
            "the limits of launcher megatron are those without frozen weights, trainable is lora:8; use trainable all, or "
            "--launcher jax or any"
        ),
    ),
    (MORE, "--expert-capacity nan", "--expert-capacity: 'nan' is not a finite number"),
    (
        MORE,
        "--expert-capacity 0",
        "expert_capacity 0.0 is outside 0.1 to 100 (rows of every expert over the mean)",
    ),
    (
        MORE,
        "--expert-capacity 1.25",
        "expert_capacity 1.25 changes nothing: tiny has no experts; leave it out",
    ),
    (
        MORE,
        "--constraint tp==1,,",
        "the constraint string 'tp==1,,' has nothing between two commas or beside one; write 'tp<=8, pp==1'",
    ),
    (
        MORE,
        "--why-not recompute=full*3|none*29",
        (
            "recompute='full*3|none*29' says it layer by layer or tensor by tensor, and why-not pins one policy for all "
            "layers: none, elementwise, attention, mlp, full, tensors (any without a name); price that layout with estimate "
            "--layout"
        ),
    ),
    (MORE, "--moe-imbalance nan", "--moe-imbalance: 'nan' is not a finite number"),
    (MORE, "--moe-imbalance 1e400", "--moe-imbalance: '1e400' is not a finite number"),
    (MORE, "--runner-ups=-1", "--runner-ups: '-1' is not a whole number from 0 to 100"),
    (MORE, "--work-limit 0", "--work-limit: '0' is not above zero"),
    (MORE, "--seed x", "--seed: 'x' is not a whole number from 0 to 2147483647"),
    (MORE, "--frobnicate", "unrecognized arguments: --frobnicate; see meshwright recommend --help"),
    (MORE, "-o gone/plan.yaml", "cannot write gone/plan.yaml: no folder ..."),
    (MORE, "-o .", "cannot write .: it is a folder; name a file in it, like plan.yaml"),
    (
        MORE,
        "-o folder.yaml/",
        "cannot write folder.yaml/: it is a folder; name a file in it, like folder.yaml/plan.yaml",
    ),
    (MORE, "-o /dev/null", "cannot write /dev/null: it is not a regular file; give the name of one"),
    (MORE, "-o=", "the name of a file is empty; give one like plan.yaml"),
    # constraints
    (
        MORE,
        "--constraint tp<=",
        "cannot read constraint 'tp<='; write name <= value, name == word or name in {1,2,4}",
    ),
    (MORE, "--constraint tp<=x", "constraint 'tp<=x': tp is a whole number of at most 9 digits, 'x' is not"),
    (MORE, "--constraint TP<=4", "cannot read constraint 'TP<=4'; write tp<=4"),
    (MORE, "--constraint tp=8", "cannot read constraint 'tp=8'; write tp==8"),
    (
        MORE,
        "--constraint tp=<8,recompute==some",
        "cannot read constraint 'tp=<8'; write tp<=8",
    ),
    (
        MORE,
        "--constraint recompute==some",
        "unknown value of recompute 'some'; did you mean none? Known: attention, elementwise, full, mlp, none, tensors",
    ),
    (MORE, "--constraint tpp<=8", "unknown constraint name 'tpp'; did you mean tp or ..."),
    (MORE, "--constraint offload==disk", "unknown value of offload 'disk'; known: activations, none, ..."),
    (
        MORE,
        "--constraint offload<none",
        "constraint 'offload<none': offload is a word; compare it with ==, != or in {..}",
    ),
    # commands
    ("{}", "recomend", "unknown command 'recomend'; did you mean recommend or decode or compare?"),
    ("clusters {}", "foo", "unrecognized arguments: foo; see meshwright clusters --help"),
    ("chips {}", "h1000", "unknown chip 'h1000'; did you mean h100 or ..."),
    ("models {}", "qwen2.5-77b", "unknown model 'qwen2.5-77b'; did you mean qwen2.5-7b or ..."),
    ("models {}", "gone.json", "no file or folder 'gone.json'; give the path of a config.json"),
    ("models {}", "negative.json", "'negative.json': hidden_size is -256; it must be from 1 to 1000000000"),
    ("models llama {}", "lama-9", "unknown model 'lama-9'; ..."),
    (
        "recommend tiny.json --cluster {}",
        "h100:8x1",
        "the following arguments are required: --batch, --seq; see meshwright recommend --help",
    ),
]
