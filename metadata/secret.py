"""Wraps passwords and keys on their way from the settings to where they are used. Pure.

Invariant: showing, logging, comparing or formatting a Secret does not reveal its text. Only `reveal` does, so that a search for
that
word finds every place where a secret leaves.
"""

from __future__ import annotations

import hmac
from typing import Any


class Secret:
    """Holds a text that logs and messages must not show."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        """Compares in constant time, so that the duration does not show how much of a guess was right."""
        return isinstance(other, Secret) and hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> Any:
        raise TypeError("a Secret can't be serialized")
