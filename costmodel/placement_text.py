"""A placement as a word of the layout text: `tp*8;dp_shard*2/pp*4`.

Network levels stand innermost first with `;` between them; on a level its degrees inner to outer with `/`, each with its
factor there; `-` stands for a level that holds none. So it is written out, a placement is never shortened.
"""

import re
from typing import TYPE_CHECKING

from meshwright.hardware.errors import LayoutError, shown

if TYPE_CHECKING:
    from meshwright.costmodel.layout import Placement

_NONE = "-"
_FACTOR = re.compile(r"([a-z_]+)\*([1-9]\d{0,7})", re.ASCII)


def placement_text(placement: "Placement") -> str:
    """The word that `read_placement` reads."""
    return ";".join("/".join(f"{d}*{f}" for d, f in level) or _NONE for level in placement)


def read_placement(word: str) -> "Placement":
    """Per level the degrees on it; whether they are the layout's on this network is for `check_placement` to say.

    Raises:
        LayoutError: a part that does not read.
    """
    return tuple(() if level == _NONE else tuple(map(_factor, level.split("/"))) for level in word.split(";"))


def _factor(part: str) -> tuple[str, int]:
    match = _FACTOR.fullmatch(part)
    if match is None:
        raise LayoutError(
            f"cannot read {shown(part)} in the placement; write each level, innermost first, like tp*8;dp_shard*2/pp*4, "
            "and - for one that holds nothing"
        )
    return match[1], int(match[2])
