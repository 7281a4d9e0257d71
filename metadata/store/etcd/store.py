"""The metadata store of a cluster: MetadataStore on etcd. What each call asks of etcd; how it gets there is in client.py.

Reads are linearizable. A range is read in pages of about PAGE_BYTES at one revision, however many keys it has. A transaction is
sent once: where its answer is lost, the caller gets OutcomeUnknown and looks it up.

Invariants: those of MetadataStore, over failovers and restarts of etcd as well.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import grpc.aio

from metadata.errors import InvalidArgument, TooLarge, Unavailable
from metadata.model import Revision
from metadata.store.etcd.client import EtcdClient, StreamRefused, Try
from metadata.store.etcd.errors import AnswerTooLarge, HistoryGone
from metadata.store.etcd.member import ANSWER_BYTES_MAX
from metadata.store.etcd.messages import encode_transaction, key_range, key_value, transaction_result
from metadata.store.etcd.proto import etcd_pb2
from metadata.store.etcd.settings import EtcdSettings, EtcdStatus
from metadata.store.etcd.watch import EtcdWatches
from metadata.store.interface import (
    NO_LEASE,
    Compare,
    DeletePrefix,
    KeyValue,
    LeaseId,
    LeaseLost,
    Operation,
    RangeResult,
    RevisionCompacted,
    TransactionResult,
    WatchBatch,
)
from metadata.store.transaction_limits import check_key, encode_key

NOW = Revision(0)
PAGE_BYTES = 2 << 20
# Before it is known how large the values are.
PAGE_KEYS_FIRST = 100
# More would hold up the event loop for longer than some ten milliseconds.
PAGE_KEYS_MAX = 2000
# For one try of a renewal, which writes nothing to disk: a slow answer is none, and a lease does not wait.
RENEWAL_TIMEOUT_S = 1.0
# A silent member is noticed by its watches within this and etcd_request_timeout_ms.
PROBE_INTERVAL_S = 2.0
READS_OVERTAKEN_MAX = 3
TTL_S_MAX = 10**9


class EtcdStore:
    """MetadataStore on an etcd cluster. Made inside the event loop that will use it; its owner runs `run()` as a task, and calls
    `close()` at the end.

    Calls raise as MetadataStore says, Denied where etcd does not let us, Throttled when too many calls wait or etcd is flooded,
    Stopping after close(), Corrupt for a key that is not text. A cancelled transact may still be committed.
    """

    def __init__(self, settings: EtcdSettings, *, first_member: int = 0) -> None:
        """Raises InvalidArgument where a certificate can't be read. Asks etcd nothing: see `check`."""
        self._client = EtcdClient(settings, first_member=first_member)
        self._watches = EtcdWatches(self._client)

    @property
    def status(self) -> EtcdStatus | None:
        """Returns the last status of etcd; None before a watch has opened."""
        return self._client.status

    async def check(self, prefix: str) -> None:
        """Returns when a member answers, has a leader, and lets us read `prefix`; else raises Unavailable, Denied or Rejected."""
        await self.range(prefix, limit=1)

    async def run(self) -> None:
        """Sees to it that a watch leaves a member which has fallen silent, until cancelled or closed."""
        while not self._client.closing:
            await self._client.probe()
            await asyncio.sleep(PROBE_INTERVAL_S)

    async def get(self, key: str) -> KeyValue | None:
        try:
            answer = await self._range(etcd_pb2.RangeRequest(key=check_key(key)), f"read {key}")
        except AnswerTooLarge as error:
            raise _value_too_large(key) from error
        return key_value(answer.kvs[0]) if answer.kvs else None

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0, revision: Revision = NOW) -> RangeResult:
        """Reads as MetadataStore.range. Raises TooLarge where a single key has over 16 MiB, which Tidelog never writes."""
        if limit < 0 or revision < 0:
            raise InvalidArgument(f"no range at revision {revision} with limit {limit}")
        for _ in range(READS_OVERTAKEN_MAX):
            try:
                return await self._pages(prefix, start_after, limit, revision)
            except HistoryGone:
                if revision != NOW:
                    raise RevisionCompacted(await self._watches.compacted_revision(prefix)) from None
        raise Unavailable(f"etcd was compacted {READS_OVERTAKEN_MAX} times while {prefix!r} was being read")

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        request = encode_transaction(compares, operations)

        async def once(at: Try) -> etcd_pb2.TxnResponse:
            answer: etcd_pb2.TxnResponse = await at.member.transact(request, **at.options)
            return answer

        return transaction_result(await self._client.call(once, doing=_doing(operations), writes=bool(operations)))

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        """Takes a lease of whole seconds, and of at least one election: it may live longer than asked.

        Where an answer is lost, another lease is taken, and the first ends by itself.
        """
        if not 0 < ttl_s <= TTL_S_MAX:  # also refuses NaN
            raise InvalidArgument(f"a lease of {ttl_s} s is not between 0 and 10^9 s")
        request = etcd_pb2.LeaseGrantRequest(TTL=math.ceil(ttl_s))

        async def once(at: Try) -> LeaseId:
            return LeaseId((await at.member.lease.LeaseGrant(request, **at.options)).ID)

        return await self._client.call(once, doing="take a lease")

    async def keep_alive(self, lease: LeaseId) -> float:
        request = etcd_pb2.LeaseKeepAliveRequest(ID=lease)

        async def once(at: Try) -> float:
            stream = at.member.lease.LeaseKeepAlive(**at.options)
            try:
                await stream.write(request)
                with suppress(grpc.aio.InternalError):  # the stream has ended under it; reading says how
                    await stream.done_writing()
                answer = await stream.read()
            finally:
                stream.cancel()
            if answer is grpc.aio.EOF:
                raise StreamRefused("UNAVAILABLE", "the member ended the renewal")
            if answer.TTL <= 0:
                raise LeaseLost(f"lease {lease} has ended")
            return float(answer.TTL)

        return await self._client.call(once, doing=f"renew lease {lease}", timeout_s=RENEWAL_TIMEOUT_S)

    async def revoke_lease(self, lease: LeaseId) -> None:
        if lease == NO_LEASE:
            return
        request = etcd_pb2.LeaseRevokeRequest(ID=lease)

        async def once(at: Try) -> None:
            await at.member.lease.LeaseRevoke(request, **at.options)

        with suppress(LeaseLost):  # it has ended before, perhaps by a try whose answer was lost
            await self._client.call(once, doing=f"end lease {lease}")

    def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        """Watches as MetadataStore.watch. Raises Unavailable where no member has served for etcd_deadline_ms: begin a new watch."""
        if from_revision < 1:
            raise InvalidArgument(f"a watch begins at a revision of 1 or more, not at {from_revision}")
        encode_key(prefix)
        return self._watches.watch(prefix, from_revision)

    async def compact(self, to_revision: Revision) -> None:
        request = etcd_pb2.CompactionRequest(revision=to_revision)

        async def once(at: Try) -> None:
            await at.member.kv.Compact(request, **at.options)

        with suppress(HistoryGone):  # by etcd itself, by another client, or by a try whose answer was lost
            await self._client.call(once, doing=f"compact history to revision {to_revision}")

    async def close(self) -> None:
        """Waits for the calls under way (no longer than one try takes), and ends every watch with Stopping. Twice is no error."""
        if not self._client.closing:
            await self._client.close()

    async def _pages(self, prefix: str, start_after: str, limit: int, revision: Revision) -> RangeResult:
        start, end = key_range(prefix)
        start = max(start, encode_key(start_after) + b"\0" if start_after else b"")
        items: list[KeyValue] = []
        page_keys = PAGE_KEYS_FIRST
        while True:
            asked = min(page_keys, limit - len(items)) if limit else page_keys
            request = etcd_pb2.RangeRequest(key=start, range_end=end, limit=asked, revision=revision)
            try:
                answer = await self._range(request, f"read {prefix!r}")
            except AnswerTooLarge as error:
                if asked == 1:
                    raise _value_too_large(f"the first key from {start!r} on") from error
                page_keys = asked // 8 or 1
                continue
            revision = revision or Revision(answer.header.revision)
            items += map(key_value, answer.kvs)
            if not answer.more or len(items) == limit:
                return RangeResult(tuple(items), revision, answer.more)
            start = answer.kvs[-1].key + b"\0"
            page_keys = max(1, min(PAGE_KEYS_MAX, asked * PAGE_BYTES // answer.ByteSize()))

    async def _range(self, request: etcd_pb2.RangeRequest, doing: str) -> etcd_pb2.RangeResponse:
        async def once(at: Try) -> etcd_pb2.RangeResponse:
            answer: etcd_pb2.RangeResponse = await at.member.kv.Range(request, **at.options)
            return answer

        return await self._client.call(once, doing=doing)


def _doing(operations: Sequence[Operation]) -> str:
    """Returns what a transaction does, for people."""
    if not operations:
        return "compare"
    first = operations[0]
    more = f" and {len(operations) - 1} more" if len(operations) > 1 else ""
    return f"write {first.prefix if isinstance(first, DeletePrefix) else first.key}{more}"


def _value_too_large(key: str) -> TooLarge:
    return TooLarge(f"{key} in etcd has over {ANSWER_BYTES_MAX} bytes", hint="Delete it: Tidelog did not write it.", key=key)
