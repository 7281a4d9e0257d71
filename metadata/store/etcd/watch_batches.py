"""Assembles whole transactions from etcd's answers to a watch. Pure.

    etcd sends      answer: events of revisions 7 7 8 | fragment: 9 9 9 | last fragment: 9 10 | nothing, at 25 (progress)
    the reader gets        [7 7] [8]                    -                 [9 9 9 9] [10]         -

One answer holds up to 1,000 revisions, each of them whole; one that is larger than a request may be comes in fragments, which may
cut a revision. So a revision is whole when a later one begins, or its answer ends. Held in memory: one answer, and the one
transaction that is not whole yet.

Invariant: over any number of streams, every transaction is given once, whole and in order.
"""

from __future__ import annotations

from collections.abc import Iterator

from metadata.model import Revision
from metadata.store.etcd.messages import event
from metadata.store.etcd.proto import etcd_pb2
from metadata.store.interface import Event, WatchBatch


class WatchBatches:
    """Assembles the transactions of one watch, over all its streams."""

    def __init__(self, from_revision: Revision) -> None:
        self._next = from_revision
        self._held: list[Event] = []

    def begin(self) -> int:
        """Returns where a new stream begins: one revision before the next wanted one.

        A watch that begins at the compacted revision itself is served by etcd without the deletes of that revision (3.5); one that
        begins before it is refused. Begun one earlier, what is wanted is either whole or refused.
        """
        self._held = []  # the new stream sends an incomplete transaction again
        return max(self._next - 1, 1)

    def take(self, answer: etcd_pb2.WatchResponse) -> Iterator[WatchBatch]:
        """Yields the transactions that the answer completes."""
        for seen in answer.events:
            revision = seen.kv.mod_revision
            if revision < self._next:
                continue
            if self._held and self._held[0].mod_revision != revision:
                yield self._whole()
            self._held.append(event(seen))
        if self._held and not answer.fragment:
            yield self._whole()
        if not answer.events and not answer.created and not answer.fragment:
            # Nothing under the prefix happened up to this revision. The header of an answer with events promises no such thing.
            self._next = max(self._next, Revision(answer.header.revision + 1))

    def _whole(self) -> WatchBatch:
        batch = WatchBatch(self._held[0].mod_revision, tuple(self._held))
        self._held = []
        self._next = Revision(batch.revision + 1)
        return batch
