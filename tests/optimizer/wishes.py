"""Constraints that random instances draw from, each as text for the planner and as Python for the oracle."""

from collections.abc import Callable
from dataclasses import dataclass

from independent_rules import Candidate


@dataclass(frozen=True)
class Wish:
    """One constraint, as text for the planner and as Python for the oracle."""

    text: str
    candidate: Callable[[Candidate], bool] = lambda x: True
    policy: Callable[[str], bool] = lambda p: True
    offload: Callable[[str], bool] = lambda o: True


ANY_WISHES = (
    Wish("tp<=2", lambda x: x.tp <= 2),
    Wish("tp == 1", lambda x: x.tp == 1),
    Wish("cp == 1", lambda x: x.cp == 1),
    Wish("cp>1", lambda x: x.cp > 1),
    Wish("dp<3", lambda x: x.dp < 3),
    Wish("dp_replicate == 1", lambda x: x.dp_replicate == 1),
    Wish("dp_shard != 2", lambda x: x.dp_shard != 2),
    Wish("zero in {0,1}", lambda x: x.zero in (0, 1)),
    Wish("zero >= 2", lambda x: x.zero >= 2),
    Wish("reshard == true", lambda x: x.reshard),
    Wish("zero == 3, reshard == false", lambda x: not x.reshard),
    Wish("ep != 2", lambda x: x.ep != 2),
    Wish("etp == 1", lambda x: x.etp == 1),
    Wish("micro_batch == 1", lambda x: x.micro_batch == 1),
    Wish("micro_batches >= 3", lambda x: x.micro_batches >= 3),
    Wish("devices in {2,4,6,8,16}", lambda x: x.devices in (2, 4, 6, 8, 16)),
    Wish("cp_kind != all_gather", lambda x: x.cp_kind != "all_gather"),
    Wish("recompute == full", policy=lambda p: p == "full"),
    Wish("recompute in { none , mlp}", policy=lambda p: p in ("none", "mlp")),
    Wish("recompute != none", policy=lambda p: p != "none"),
    Wish("offload == none", offload=lambda o: o == "none"),
    Wish("offload in {none,activations}", offload=lambda o: o in ("none", "activations")),
)
NAME_WISHES = (
    Wish("recompute != tensors", policy=lambda p: p != "tensors"),
    Wish("recompute in {none,tensors}", policy=lambda p: p in ("none", "tensors")),
    Wish("recompute == tensors", policy=lambda p: p == "tensors"),
)
PIPELINE_WISHES = (
    Wish("pp>=2", lambda x: x.pp >= 2),
    Wish("pp == 2", lambda x: x.pp == 2),
    Wish("pp in {2,3,4}", lambda x: x.pp in (2, 3, 4)),
    Wish("pp>1, vpp == 1", lambda x: x.pp > 1 and x.vpp == 1),
    Wish("pp>1, schedule in {gpipe,1f1b}", lambda x: x.pp > 1 and x.schedule in ("gpipe", "1f1b")),
    Wish("pp>=2, tp == 1, cp == 1", lambda x: x.pp >= 2 and x.tp == x.cp == 1),
    Wish("pp>1, sp in {true,false}, tp<=2", lambda x: x.pp > 1 and x.tp <= 2),
)
CHUNK_WISHES = (
    Wish("schedule == interleaved", lambda x: x.schedule == "interleaved"),
    Wish("vpp >= 2, tp<=2", lambda x: x.vpp > 1 and x.tp <= 2),
)
# Little to choose but policies.
MEMORY_WISHES = (
    Wish("pp == 1, tp == 1, cp == 1, zero == 0", lambda x: x.pp == x.tp == x.cp == 1 and x.zero == 0),
    Wish("pp == 1, tp == 2, zero == 0, dp == 1", lambda x: x.pp == x.dp == 1 and x.tp == 2 and x.zero == 0),
    Wish("pp == 1, cp == 1, tp == 1, zero == 3", lambda x: x.pp == x.tp == x.cp == 1 and x.zero == 3),
    Wish("pp == 2, vpp == 1, tp == 1, cp == 1", lambda x: x.pp == 2 and x.vpp == x.tp == x.cp == 1),
    Wish("pp == 2, vpp == 1, dp == 1", lambda x: x.pp == 2 and x.vpp == x.dp == 1),
    Wish("pp == 2, vpp == 2, tp == 1, cp == 1", lambda x: x.pp == x.vpp == 2 and x.tp == x.cp == 1),
    Wish("pp == 3, vpp == 1, tp == 1", lambda x: x.pp == 3 and x.vpp == x.tp == 1),
)
ONE_BY_ONE = Wish("micro_batch == 1", lambda x: x.micro_batch == 1)
SCHEDULE_WISHES = (
    Wish("schedule in {1f1b,zb_h1}, pp>1", lambda x: x.schedule in ("1f1b", "zb_h1") and x.pp > 1),
    Wish("schedule == zb_h1", lambda x: x.schedule == "zb_h1"),
    Wish("schedule in {zb_h1,zb_h2}", lambda x: x.schedule in ("zb_h1", "zb_h2")),
    Wish("schedule == dualpipev", lambda x: x.schedule == "dualpipev"),
    Wish("schedule != gpipe, pp>1", lambda x: x.schedule != "gpipe" and x.pp > 1),
    Wish(
        "schedule in {zb_h1,dualpipev}, offload != none, zero != 1",
        lambda x: x.schedule in ("zb_h1", "dualpipev") and x.zero != 1,
        offload=lambda o: o != "none",
    ),
)
HOST_WISHES = (
    Wish("offload != none", offload=lambda o: o != "none"),
    Wish("offload == activations", offload=lambda o: o == "activations"),
    Wish("offload != none, pp>1", lambda x: x.pp > 1, offload=lambda o: o != "none"),
)
STATE_WISHES = (
    Wish("zero == 3, offload == none", lambda x: x.zero == 3, offload=lambda o: o == "none"),
    Wish(
        "offload in {optimizer,optimizer+gradients,optimizer+gradients+parameters}, zero in {0,2,3}",
        lambda x: x.zero in (0, 2, 3),
        offload=lambda o: o in ("optimizer", "optimizer+gradients", "optimizer+gradients+parameters"),
    ),
    Wish(
        "zero == 3, offload in {none,activations,parameters,parameters+activations}",
        lambda x: x.zero == 3,
        offload=lambda o: "optimizer" not in o,
    ),
    Wish("offload != none, zero >= 2", lambda x: x.zero >= 2, offload=lambda o: o != "none"),
)
