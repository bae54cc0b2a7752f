"""All launchers by name, and how a launcher and a framework go together."""

from meshwright.costmodel.framework import load_framework
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.trainable import ALL
from meshwright.costmodel.workload import Training
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.errors import InputError, UnknownNameError
from meshwright.optimizer.launchers.calculon import CALCULON
from meshwright.optimizer.launchers.deepspeed import DEEPSPEED
from meshwright.optimizer.launchers.launcher import Launcher
from meshwright.optimizer.launchers.maxtext import MAXTEXT
from meshwright.optimizer.launchers.megatron import MEGATRON
from meshwright.optimizer.launchers.torchtitan import TORCHTITAN

# `jax` is a program of our own making, which runs all that the space holds; `any` stands for no launcher.
JAX, ANY = (
    Launcher(name, "jax", mixes=True, mtp=True, images=True, trainable=True) for name in ("jax", "any")
)
LAUNCHERS = {x.name: x for x in (MEGATRON, MAXTEXT, TORCHTITAN, DEEPSPEED, CALCULON, JAX, ANY)}


def load_launcher(name: str) -> Launcher:
    """The named launcher. Errors: UnknownNameError."""
    if name not in LAUNCHERS:
        raise UnknownNameError("launcher", name, LAUNCHERS)
    return LAUNCHERS[name]


def launcher_of(setting: Setting) -> Launcher:
    """The launcher that bounds the answer to a question."""
    return load_launcher(setting.launcher)


def agreed(launcher: str | None, framework: str | None) -> tuple[str, str]:
    """(launcher, framework) where either may be left open: a launcher brings its memory habits along, and habits named
    alone bound nothing.

    Errors: UnknownNameError; InputError where the two do not go together.
    """
    if framework is not None:
        load_framework(framework)
    if launcher is None:
        return ("jax", "jax") if framework in (None, "jax") else ("any", framework)
    known = load_launcher(launcher)
    if framework not in (None, known.framework) and known.name != "any":
        raise InputError(
            f"launcher {launcher} holds memory as {known.framework} does, framework={framework} does not; leave "
            f"--framework out, or use --launcher any"
        )
    return launcher, framework or known.framework


def check_machine(launcher: str, cluster: Cluster) -> None:
    """Raises InputError where the launcher does not run on such chips."""
    known = load_launcher(launcher)
    if known.chips and cluster.chip.vendor not in known.chips:
        raise InputError(
            f"launcher {launcher} runs on GPUs of {' and '.join(known.chips)}, {cluster.name} is of "
            f"{cluster.chip.vendor}; use --launcher maxtext or jax"
        )


# What some launchers are not known to train, by field of Training and of Launcher, and the value of who does not ask for it.
_TRAINED = {
    "mtp": ("multi-token prediction", 0),
    "images": ("a vision tower", 0),
    "trainable": ("frozen weights", ALL),
}


def check_trained(launcher: str, training: Training) -> None:
    """Raises InputError where multi-token-prediction modules or a vision tower are trained, or not all weights, and the
    launcher is not known to do that."""
    for name, (what, plain) in _TRAINED.items():
        asked = getattr(training, name)
        if asked != plain and not getattr(load_launcher(launcher), name):
            able = [n for n, known in LAUNCHERS.items() if getattr(known, name)]
            raise InputError(
                f"the limits of launcher {launcher} are those without {what}, {name} is {asked}; use {name} {plain}, or "
                f"--launcher {', '.join(able[:-1])} or {able[-1]}"
            )
