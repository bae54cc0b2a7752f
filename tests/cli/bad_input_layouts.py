"""Layouts that are wrong and files that hold no plan: the one line that each must get."""

LAYOUT = "estimate tiny.json --cluster h100:8x1 --batch 64Ki --seq 4096 --layout {}"

# template, what goes in, text; a text that ends in ... is a beginning.
CASES = [
    # layouts
    (LAYOUT, "tp", "cannot read 'tp' in the layout; write name=value, like tp=8,pp=4"),
    (LAYOUT, "TP=8", "cannot read 'TP=8' in the layout; write tp=8"),
    (LAYOUT, "tp==8", "cannot read 'tp==8' in the layout; write tp=8"),
    (LAYOUT, "tq=2", "unknown layout key 'tq'; did you mean tp?"),
    (LAYOUT, "tp=2,tp=4", "layout gives tp twice; give it once"),
    (LAYOUT, "tp=0", "tp=0 is not a degree; give a whole number of 1 or more"),
    (LAYOUT, "tp=-1", "tp=-1 is not a whole number of 1 or more; write tp=8"),
    (LAYOUT, "tp=8,dp=-8", "dp=-8 is not a whole number of 1 or more; write dp=8"),
    (LAYOUT, "dp=0", "dp=0 is not a degree; give a whole number of 1 or more"),
    (LAYOUT, "dp=8,zero=1.5", "zero=1.5 is not a whole number; write zero=0, 1, 2 or 3"),
    (LAYOUT, "dp=8,zero=-1", "zero=-1 is below zero; write zero=0, 1, 2 or 3"),
    (
        LAYOUT,
        "dp=8,sequences=100",
        "sequences=100 is not the batch asked for, 16 sequences; give that batch, or a tolerance like 4Mi~5%",
    ),
    (LAYOUT, "layers=2/2", "layers=2/2 has 2 entries for pp=1 stages; give one each, or pp=2"),
    (
        LAYOUT,
        "pp=2,layers=0/4",
        "layers=0/4: every stage needs 1 layer or more; move layers, or lower pp=2",
    ),
    (LAYOUT, "ep=8,dp=8", "ep=8, etp=1: tiny has no experts; use ep=1 and etp=1"),
    (LAYOUT, f"tp={10**30}", f"tp={10**30} has more than 9 digits; write tp=8"),
    (LAYOUT, "tp=16", "the layout uses 16 devices, h100:8x1 has 8; lower a degree"),
    (
        LAYOUT,
        "tp=3",
        (
            "tp=3 does not fit the model's heads (8 heads, 4 kv heads): it must divide the heads, and divide the kv "
            "heads or be a multiple of them; use tp=1, 2, 4 or 8"
        ),
    ),
    (LAYOUT, "pp=8", "pp*vpp = 8*1 is more than the model's 4 layers; lower one"),
    (
        LAYOUT,
        "pp=2,layers=1/2",
        (
            "layers=1/2 sums to 3, the model has 4 layers; make them 4, or leave layers out for even stages, 2/2"
        ),
    ),
    (
        LAYOUT,
        "dp=8,zero=1 --batch 4seq",
        "a batch of 4 sequences is not a multiple of dp*micro_batch = 8*1; change one of them",
    ),
    (
        LAYOUT,
        "dp=8,zero=1,offload=activations",
        (
            "offload=activations needs the host's memory and h100:8x1 gives none (field host_memory_bytes); say it with "
            "--host-memory 2TB, or use offload=none"
        ),
    ),
    # files of plans
    (
        "compare {} tiny.json",
        "gone.yaml",
        (
            "cannot read gone.yaml: No such file or directory; give the path of a file that `meshwright recommend -o` "
            "or `estimate -o` wrote"
        ),
    ),
    (
        "compare {} tiny.json",
        "folder.yaml",
        "cannot read folder.yaml: it is a folder; give the path of a file that ...",
    ),
    ("compare {} tiny.json", "empty.json", "empty.json is empty; give the path of a file that ..."),
    ("compare {} tiny.json", "", "the name of a file is empty; give one like plan.yaml"),
    (
        "compare {} tiny.json",
        "no.yaml",
        "no.yaml holds no plan but INFEASIBLE: the device memory is too small for every layout.",
    ),
    (
        "compare {} tiny.json",
        "tiny.json",
        "tiny.json is not a plan file; give a file that `meshwright recommend -o` or `estimate -o` wrote",
    ),
    (
        "compare {} tiny.json",
        "plan.json",
        "plan.json: schema_version is 99, this program reads 1; write it again",
    ),
    ("compare {} tiny.json", "half.yaml", "half.yaml: the key layout is missing; expected a mapping"),
    ("compare {} tiny.json", "latin.yaml", "latin.yaml is not UTF-8 text (byte 6); save it as UTF-8"),
    (
        "compare {} tiny.json",
        "tabs.yaml",
        r"tabs.yaml is not valid YAML, line 2, column 1: found character '\t' that cannot start any token; give a ...",
    ),
    (
        "compare {} tiny.json",
        "broken.json",
        "broken.json is not JSON: Expecting value at line 1, column 16; give a file that ...",
    ),
    (
        "compare {} tiny.json",
        "deep.yaml",
        "cannot read deep.yaml: it is nested too deeply; give a file that ...",
    ),
    (
        "compare {} tiny.json",
        "junk.json",
        "junk.json is larger than 4,194,304 bytes; give the path of a file that ...",
    ),
]
