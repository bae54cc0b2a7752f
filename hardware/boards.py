"""Boards in a cluster string: an edge board or consumer device is a cluster of one by its name alone."""

import re

from meshwright.hardware.chip import Chip
from meshwright.hardware.profile import is_profile_chip, profile_chip

_COUNTED = re.compile(r"(?: *x *|-)\d{1,7}$")


def read_board(name: str, profile: str) -> tuple[Chip | None, bool]:
    """The board of that name, and whether the name is all: a count behind it, like x2, is no part of it."""
    for stem in (name, _COUNTED.sub("", name)):
        if is_profile_chip(stem, profile) and (chip := profile_chip(stem, profile)).is_board:
            return chip, stem == name
    return None, True


def boards_are_single(text: str, board: Chip) -> str:
    """Why a cluster string that asks for more than one board, or for a network, is refused."""
    return (
        f"cluster {text.strip()[:80]!r} asks for more than a board: boards are single, one chip without a network, "
        f"and take no shape, no '*slices' and no '@fabric'; write {board.name}"
    )
