"""Refuses characters that no name in logs, on terminals or in URLs may have. Pure.

Refused are Unicode's control (Cc), format (Cf) and surrogate (Cs) characters and its line and paragraph separators (Zl, Zp). Format
characters include those that turn the direction of text, so that a terminal shows another name than the real one
(https://trojansource.codes), and invisible ones.
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
    """Returns which character spoils the name, and where, counted from 1; None for a plain name.

    For example: "character 4 is U+202E, a format character (RIGHT-TO-LEFT OVERRIDE)".
    """
    if name.isprintable():
        return None
    for at, character in enumerate(name, start=1):
        kind = _REFUSED.get(unicodedata.category(character))
        if kind is not None:
            called = unicodedata.name(character, "")
            return f"character {at} is U+{ord(character):04X}, {kind}" + (f" ({called})" if called else "")
    return None
