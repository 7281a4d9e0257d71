"""Which characters no name may have that reaches logs, terminals or URLs. Pure.

Refused are Unicode's control (Cc), format (Cf) and surrogate (Cs) characters and its line and paragraph separators (Zl, Zp). Format
characters include those that turn the direction of text, so that a terminal shows another name than the one that is there
(https://trojansource.codes), and those that nothing shows at all.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_REFUSED: Final = {
    "Cc": "a control character",
    "Cf": "a format character",
    "Cs": "a surrogate",
    "Zl": "a line separator",
    "Zp": "a paragraph separator",
}


def why_not_plain(name: str) -> str | None:
    """Says which character spoils the name, and where: "character 4 is U+202E, a format character (RIGHT-TO-LEFT OVERRIDE)". None
    where none does. Characters count from 1."""
    if name.isprintable():
        return None
    for at, character in enumerate(name, start=1):
        kind = _REFUSED.get(unicodedata.category(character))
        if kind is not None:
            called = unicodedata.name(character, "")
            return f"character {at} is U+{ord(character):04X}, {kind}" + (f" ({called})" if called else "")
    return None
