"""Defines a batch: the records that share an answer, and the handles that wait for it. Pure: waiters are plain callables.

Invariant: a batch is settled once, with offsets or with an error, and then lets go of its records.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Protocol

from metadata.errors import TidelogError
from segments.records.batch import BATCH_OVERHEAD_BYTES
from tidelog.records import Ack, Headers
from tidelog.transport.wire_sizes import append_bytes

# key, value, headers, timestamp in ms: as the codec takes it.
RecordTuple = tuple[bytes | None, bytes | None, Headers, int]


class BatchQueue(Protocol):
    """The queue of a batch, as far as the batch and its sender ask for it."""

    topic: str
    topic_id: str
    partition: int
    leader_epoch: int
    producer: tuple[int, int] | None
    last_trouble: TidelogError | None


class ProducerBatch:
    """A batch of one partition, from its first record to its outcome."""

    __slots__ = (
        "_settled_count",
        "_timestamps_ms",
        "base_offset",
        "base_sequence",
        "bytes",
        "deadline_s",
        "error",
        "error_was_seen",
        "index",
        "maybe_written",
        "on_wire",
        "opened_s",
        "queue",
        "records",
        "refusal",
        "refusals",
        "settled",
        "waiters",
    )

    def __init__(self, queue: BatchQueue, *, opened_s: float, deadline_s: float) -> None:
        self.queue = queue
        self.records: list[RecordTuple] = []
        # Of its records, at most (transport/wire_sizes.py).
        self.bytes = 0
        self.opened_s = opened_s
        self.deadline_s = deadline_s
        # On its way:
        # Its number in its queue, once it was taken to be sent.
        self.index = -1
        self.base_sequence = -1
        self.on_wire = False
        # Whether an attempt ended without a clear answer, so that the records may be in the log.
        self.maybe_written = False
        # What the last attempt met, until a conclusion is drawn from it.
        self.refusal: TidelogError | None = None
        self.refusals = 0
        # Settled:
        self.settled = False
        self.base_offset = -1
        self.error: TidelogError | None = None
        self.error_was_seen = False
        # Called once, when it is settled; each under a key of its own, by which it can be taken back.
        self.waiters: dict[object, Callable[[], object]] = {}
        self._timestamps_ms: list[int] = []
        self._settled_count = 0

    @property
    def record_count(self) -> int:
        return self._settled_count if self.settled else len(self.records)

    @property
    def request_bytes(self) -> int:
        """Returns the most bytes that the batch takes of a request."""
        return append_bytes(self.queue.topic, BATCH_OVERHEAD_BYTES + self.bytes)

    def succeed(self, base_offset: int) -> None:
        if not self.settled:
            self.base_offset = base_offset
            self._timestamps_ms = [record[3] for record in self.records]
            self._settle()

    def fail(self, error: TidelogError) -> None:
        if not self.settled:
            self.error = error
            self._settle()

    def _settle(self) -> None:
        self._settled_count = len(self.records)
        self.settled, self.records = True, []
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters.values():
            waiter()

    def ack(self, index: int) -> Ack:
        """Returns where record `index` lies, or raises a copy of the batch's error. The batch must be settled."""
        assert self.settled
        if self.error is not None:
            self.error_was_seen = True
            raise copy(self.error)
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        return Ack(self.queue.topic, self.queue.partition, offset, self._timestamps_ms[index])
