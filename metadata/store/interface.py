"""What the cluster needs of a metadata store: etcd's ideas, and no more. Implemented on SQLite (embedded) and on etcd.

One revision numbers the whole store; every transaction that writes raises it by one. Reads see one revision.
Invariant: a transaction's compares and operations happen at one instant, or not at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NewType, Protocol

from metadata.model import Revision

LeaseId = NewType("LeaseId", int)
NO_LEASE = LeaseId(0)
# In a range: the revision at the time of the call.
NOW = Revision(0)
# Operations in one transaction, as etcd's default allows. A longer one is refused as InvalidArgument.
OPERATIONS_MAX = 128
VALUE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: str
    value: bytes
    create_revision: Revision
    mod_revision: Revision
    # 1 when created, raised by each put; begins again after a delete.
    version: int
    lease: LeaseId = NO_LEASE


@dataclass(frozen=True, slots=True)
class RangeResult:
    items: tuple[KeyValue, ...]
    # The revision that was read: pass it on to read further pages of the same instant, or to watch from the next one.
    revision: Revision
    more: bool


@dataclass(frozen=True, slots=True)
class Compare:
    """Holds when `key`'s mod_revision stands in relation `is_` to `mod_revision`. A key that is absent has mod_revision 0."""

    key: str
    mod_revision: int
    is_: Literal["=", "<", ">", "!="] = "="


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: LeaseId = NO_LEASE


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


@dataclass(frozen=True, slots=True)
class DeletePrefix:
    prefix: str


Operation = Put | Delete | DeletePrefix


@dataclass(frozen=True, slots=True)
class TransactionResult:
    # Whether all compares held. Where they did not, nothing was written.
    succeeded: bool
    # The store's revision after the transaction.
    revision: Revision


@dataclass(frozen=True, slots=True)
class Event:
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
    """A watch or a range asked for a revision that history no longer holds: read the whole range again."""

    def __init__(self, oldest: Revision) -> None:
        super().__init__(f"history begins at revision {oldest}")
        self.oldest = oldest


class LeaseLost(Exception):
    """The lease has expired or was revoked; its keys are gone."""


class MetadataStore(Protocol):
    """Errors: Unavailable (nothing was written), OutcomeUnknown (a transaction whose answer was lost), Rejected."""

    async def get(self, key: str) -> KeyValue | None: ...

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0, revision: Revision = NOW) -> RangeResult:
        """The keys under `prefix` in byte order, after `start_after`; `limit` 0 is no limit, `revision` 0 is now."""
        ...

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        """All operations if all compares hold, else none; raises LeaseLost for a put under a lease that has ended."""
        ...

    async def grant_lease(self, ttl_s: float) -> LeaseId: ...

    async def keep_alive(self, lease: LeaseId) -> float:
        """Renews the lease and answers its time to live in seconds; raises LeaseLost."""
        ...

    async def revoke_lease(self, lease: LeaseId) -> None:
        """Ends the lease and deletes its keys in one transaction. No error when it is gone already."""
        ...

    def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        """Every transaction that touches `prefix`, from `from_revision` (1 or above) on, each once, in order.

        Raises RevisionCompacted.
        """
        ...

    async def compact(self, to_revision: Revision) -> None:
        """Drops history before `to_revision`, of the whole store and so for all who share it: ranges of earlier revisions, and
        watches from it or earlier, raise RevisionCompacted then. No error where that much or more was dropped before."""
        ...

    async def close(self) -> None: ...
