"""Watches etcd over one stream after the other, each from where the last one ended. watch_batches.py decodes the answers.

Each watch has its own stream, and reads from it only when its reader wants more. So there is no queue here: what a slow
reader leaves lies in the stream's window (member.py), then in etcd, which reads its history again for a watcher that lags; and
no slow reader stops another. A shared stream would need a queue for each watch, and a policy for full ones. A stream costs etcd
two goroutines, and a broker has a handful of watches: it watches prefixes, never single keys.

A stream that ends (a member restarts, loses its leader, or is silent) is opened again at the next member. The reader gets
Unavailable only when no member has served for etcd_deadline_ms; it may go on with a new watch.

Invariant: whatever ends a stream, no transaction is missed or given twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc.aio

from metadata.errors import Corrupt, Rejected, Stopping, Unavailable
from metadata.model import Revision
from metadata.store.etcd.client import RETRY_PAUSE_S, EtcdClient, StreamRefused, Try, cancelled_by_others
from metadata.store.etcd.member import EtcdMember
from metadata.store.etcd.messages import key_range
from metadata.store.etcd.proto import etcd_pb2
from metadata.store.etcd.watch_batches import WatchBatches
from metadata.store.interface import RevisionCompacted, WatchBatch


class EtcdWatches:
    """Opens watches, and resumes them at other members."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client

    async def watch(self, prefix: str, from_revision: Revision) -> AsyncGenerator[WatchBatch, None]:
        """Watches as MetadataStore.watch. Raises RevisionCompacted, Unavailable, Denied, Corrupt, Stopping."""
        batches = WatchBatches(from_revision)
        doing = f"watch {prefix!r}"
        while True:
            stream = await self._client.call(lambda at: _Stream.open(at, prefix, batches.begin()), doing=doing)
            self._client.streams.add(stream)
            try:
                while (answer := await stream.read()) is not None and not answer.canceled:
                    for batch in batches.take(answer):
                        yield batch
                if answer is None:
                    self._client.leave(stream.member, "it has ended a watch")
                elif answer.compact_revision:
                    raise RevisionCompacted(Revision(answer.compact_revision + 1))
            except grpc.aio.AioRpcError as error:
                failed = self._client.broken(stream.member, error, doing)
                if failed.then == "raise" and isinstance(failed.error, Rejected | Corrupt):
                    raise failed.error from error
            except asyncio.CancelledError:
                if cancelled_by_others():
                    raise
                if self._client.closing:
                    raise Stopping("the metadata store is closed") from None
                # Else the client has cancelled the stream, since its member is silent: go to the next.
            finally:
                self._client.streams.discard(stream)
                stream.cancel()
            await asyncio.sleep(RETRY_PAUSE_S)

    async def compacted_revision(self, prefix: str) -> Revision:
        """Returns where history begins, by a watch: etcd's refusal of a compacted range does not name it."""
        doing = f"ask where the history of {prefix!r} begins"

        async def once(at: Try) -> Revision:
            stream = await _Stream.open(at, prefix, 1)
            try:
                async with asyncio.timeout(at.timeout_s):
                    answer = await stream.read()
            finally:
                stream.cancel()
            if answer is None or not answer.compact_revision:
                raise Unavailable(f"can't {doing} at etcd {at.member.url}: it has not compacted it yet")
            return Revision(answer.compact_revision)

        return await self._client.call(once, doing=doing)


class _Stream:
    """Is a watch at one member, from its beginning until the member or we end it."""

    def __init__(self, member: EtcdMember, call: Any) -> None:
        self.member = member
        self._call = call

    @classmethod
    async def open(cls, at: Try, prefix: str, start_revision: int) -> _Stream:
        """Returns when the member has accepted the watch. Raises AioRpcError, StreamRefused, TimeoutError."""
        key, range_end = key_range(prefix)
        create = etcd_pb2.WatchCreateRequest(
            key=key, range_end=range_end, start_revision=start_revision, progress_notify=True, fragment=True
        )
        stream = cls(at.member, at.member.watch.Watch(metadata=at.metadata))
        try:
            async with asyncio.timeout(at.timeout_s):
                await stream._call.write(etcd_pb2.WatchRequest(create_request=create))
                answer = await stream.read()
            if answer is None:
                raise StreamRefused("UNAVAILABLE", "the watch was ended at once")
            if answer.canceled:
                # etcd before 3.5.8 also answers so to an expired token.
                expired = bool(at.token) and "permission denied" in answer.cancel_reason
                raise StreamRefused("UNAUTHENTICATED" if expired else "UNKNOWN", answer.cancel_reason)
        except BaseException:
            stream.cancel()
            raise
        return stream

    async def read(self) -> etcd_pb2.WatchResponse | None:
        """Returns the next answer; None at a clean end."""
        answer = await self._call.read()
        return None if answer is grpc.aio.EOF else answer

    def cancel(self) -> None:
        self._call.cancel()
