"""Remembers what one group's coordinator has written as committed offsets, so that some commits only move forward. Pure.

  begin ─▶ read the store, meanwhile note what lands ─▶ read: known ─▶ note each write that lands ─▶ forward
    ▲                                                     │
    └───────────────── forget: it is not known what has landed

A coordinator is the only writer of its groups' offsets, so it need not read them again. The caller prevents two writes of one key
at
the same time if the second of them only moves forward.

Invariant: `forward` leaves out exactly the writes whose offset is below one that was committed in the same generation. An offset of
another generation, or one committed by hand, is no bound: it may lie behind the end of the log, and then the reader has started
again
below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from metadata.groups.model import NO_GENERATION
from metadata.groups.offsets import CommittedOffset
from metadata.store.interface import Delete, Put


class OffsetWrite(msgspec.Struct, frozen=True):
    """A committed offset, and the operation that stores it."""

    put: Put
    committed: CommittedOffset


class LandedOffsets:
    """Knows the offsets that a coordinator has written, by key, with their generations."""

    def __init__(self) -> None:
        self._landed: dict[str, tuple[int, int]] | None = None  # (generation, offset) by key; None while unknown
        self._since: dict[str, tuple[int, int] | None] | None = None  # what landed since a read began; None: deleted

    @property
    def is_known(self) -> bool:
        return self._landed is not None

    def begin(self) -> None:
        """Begins to note what lands. Call it before the store is read."""
        self._since = {}

    def read(self, stored: Mapping[str, CommittedOffset]) -> None:
        """Takes what the store held, unless `forget` was called since the reading began."""
        if self._since is None:
            return
        self._landed = {key: (committed.generation, committed.offset) for key, committed in stored.items()}
        since, self._since = self._since, None
        for key, entry in since.items():
            self._put(key, entry)

    def forget(self) -> None:
        """Forgets what has landed. Call it where the outcome of a write is not known."""
        self._landed = self._since = None

    def note(self, writes: Iterable[OffsetWrite | Delete]) -> None:
        """Notes writes that have landed."""
        if self._landed is None and self._since is None:
            return
        for write in writes:
            if isinstance(write, Delete):
                self._put(write.key, None)
            else:
                self._put(write.put.key, (write.committed.generation, write.committed.offset))

    def forward(self, writes: Sequence[OffsetWrite | Delete]) -> list[OffsetWrite | Delete]:
        """Returns those that do not take back an offset of their own generation."""
        return [write for write in writes if isinstance(write, Delete) or not self._goes_back(write)]

    def _goes_back(self, write: OffsetWrite) -> bool:
        assert self._landed is not None, "they were read"
        generation, offset = self._landed.get(write.put.key, (NO_GENERATION, 0))
        return generation == write.committed.generation != NO_GENERATION and write.committed.offset < offset

    def _put(self, key: str, entry: tuple[int, int] | None) -> None:
        if self._since is not None:
            self._since[key] = entry
        elif self._landed is not None and entry is None:
            self._landed.pop(key, None)
        elif self._landed is not None and entry is not None:
            self._landed[key] = entry


def key_of(write: OffsetWrite | Delete) -> str:
    return write.key if isinstance(write, Delete) else write.put.key


def operation_of(write: OffsetWrite | Delete) -> Put | Delete:
    return write if isinstance(write, Delete) else write.put
