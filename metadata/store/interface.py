"""Defines what the cluster needs of a metadata store: a subset of etcd's model. SQLite (embedded) and etcd implement it.

One revision numbers the whole store; every transaction that writes raises it by one. Reads see one revision.
Invariant: a transaction's compares and operations happen at one instant, or not at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NewType, Protocol

import msgspec

from metadata.model import Revision

LeaseId = NewType("LeaseId", int)
NO_LEASE = LeaseId(0)
# Reads a range at the revision of the call.
NOW = Revision(0)
# Bound on the operations of one transaction, as etcd's default. A longer one is refused as InvalidArgument.
OPERATIONS_MAX = 128
VALUE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class KeyValue:
    """Holds one key with its value, its revisions and its lease."""

    key: str
    value: bytes
    create_revision: Revision
    mod_revision: Revision
    # 1 when created, raised by each put; restarts after a delete.
    version: int
    lease: LeaseId = NO_LEASE


@dataclass(frozen=True, slots=True)
class RangeResult:
    """Holds the keys that a range read."""

    items: tuple[KeyValue, ...]
    # The revision that was read: pass it on for further pages of the same instant, or watch from the next one.
    revision: Revision
    more: bool


class Compare(msgspec.Struct, frozen=True):
    """Holds when `key`'s mod_revision stands in relation `is_` to `mod_revision`. An absent key has mod_revision 0."""

    key: str
    mod_revision: int
    is_: Literal["=", "<", ">", "!="] = "="


class Put(msgspec.Struct, frozen=True):
    """Writes a key."""

    key: str
    value: bytes
    lease: LeaseId = NO_LEASE


class Delete(msgspec.Struct, frozen=True):
    """Deletes a key."""

    key: str


@dataclass(frozen=True, slots=True)
class DeletePrefix:
    """Deletes all keys under a prefix."""

    prefix: str


Operation = Put | Delete | DeletePrefix


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Tells whether a transaction wrote, and the store's revision after it."""

    # Whether all compares held; if not, nothing was written.
    succeeded: bool
    revision: Revision


@dataclass(frozen=True, slots=True)
class Event:
    """Describes one change of a key."""

    kind: Literal["put", "delete"]
    key: str
    # Empty for a delete.
    value: bytes
    mod_revision: Revision


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """All events of one transaction under the watched prefix, in the order of its operations."""

    revision: Revision
    events: tuple[Event, ...] = field(default=())


class RevisionCompacted(Exception):
    """Reports that history before `oldest` is gone: read the whole range again."""

    def __init__(self, oldest: Revision) -> None:
        super().__init__(f"history begins at revision {oldest}")
        self.oldest = oldest


class LeaseLost(Exception):
    """Reports that the lease has expired or was revoked; its keys are gone."""


class MetadataStore(Protocol):
    """Reads, writes and watches keys. Raises Unavailable (nothing was written), OutcomeUnknown (lost answer), Rejected."""

    async def get(self, key: str) -> KeyValue | None: ...

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0, revision: Revision = NOW) -> RangeResult:
        """Returns the keys under `prefix` in byte order, after `start_after`; `limit` 0 is no limit, `revision` 0 is now."""
        ...

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        """Runs all operations if all compares hold, else none. Raises LeaseLost for a put under a lease that has ended."""
        ...

    async def grant_lease(self, ttl_s: float) -> LeaseId: ...

    async def keep_alive(self, lease: LeaseId) -> float:
        """Renews the lease and returns its time to live in seconds. Raises LeaseLost."""
        ...

    async def revoke_lease(self, lease: LeaseId) -> None:
        """Ends the lease and deletes its keys in one transaction. A lease that is gone is no error."""
        ...

    def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        """Yields every transaction that touches `prefix`, from `from_revision` (1 or above) on, each once, in order.

        Raises RevisionCompacted.
        """
        ...

    async def compact(self, to_revision: Revision) -> None:
        """Drops history before `to_revision` for all users of the store; history that is gone is no error.

        Later ranges of earlier revisions, and watches from it or earlier, raise RevisionCompacted.
        """
        ...

    async def close(self) -> None: ...
