"""Decides which partitions of a long poll, or of a fetch session, must be looked up again. Pure.

    every partition ─▶ due ─▶ take: look up ─┬▶ records, an error, a gap, left out: `mark` ─▶ due
                        ▲                    └▶ at its end, as the reader knows: at rest
                        └────── `mark`: news of the partition, or the reader asks for something else of it

Invariants: a partition at rest has had no news since it was taken, so another look-up would find the same. Due partitions are
taken in the order of reading, whatever the order of their news.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class DueLookups(Generic[Key]):
    """The partitions of one reader, by a key of its choice, and which of them are due."""

    __slots__ = ("_due", "_next_position", "_positions")

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        """Marks all partitions as due. The order of the keys is the order of reading."""
        self._positions = {key: position for position, key in enumerate(keys)}
        self._next_position = len(self._positions)
        self._due = set(self._positions)

    def __len__(self) -> int:
        """Returns how many are due."""
        return len(self._due)

    def add(self, key: Key) -> None:
        """Makes a partition due. A new one is read after all others."""
        if key not in self._positions:
            self.move_to_end(key)
        self._due.add(key)

    def mark(self, key: Key) -> None:
        """Makes a partition due, unless it was removed."""
        if key in self._positions:
            self._due.add(key)

    def mark_all(self) -> None:
        self._due.update(self._positions)

    def remove(self, key: Key) -> None:
        self._positions.pop(key, None)
        self._due.discard(key)

    def move_to_end(self, key: Key) -> None:
        """Lets the partition be read after all others, because it has just had records."""
        self._positions[key] = self._next_position
        self._next_position += 1

    def take(self) -> list[Key]:
        """Returns the due partitions in the order of reading; each is at rest now, unless the caller marks it again."""
        taken = sorted(self._due, key=self._positions.__getitem__)
        self._due.clear()
        return taken
