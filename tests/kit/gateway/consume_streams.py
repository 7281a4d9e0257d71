"""Clients of Consume as tests play them: one that is asked step by step, and one that does what a good client does."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import grpc.aio
from google.rpc.status_pb2 import Status

from gateway.proto import groups_pb2, log_pb2
from gateway.proto.status import DETAILS_TRAILER, from_status
from metadata.errors import TidelogError
from tests.kit.gateway.stubs import log_stub
from tests.kit.segments.batches import batch_of

PLENTY = 64 << 20


def start(*topics: str, **more: Any) -> log_pb2.ConsumeStart:
    asked: dict[str, Any] = {"topics": topics or ["orders"], "format": log_pb2.FETCH_FORMAT_RECORDS, "heartbeat_interval_ms": 200}
    return log_pb2.ConsumeStart(**(asked | more))


def topic_partitions(reported: Iterable[groups_pb2.TopicPartitions]) -> list[tuple[str, int]]:
    return [(each.topic, partition) for each in reported for partition in each.partitions]


async def append(channel: grpc.aio.Channel, *values: bytes, partition: int = 0, topic: str = "orders") -> None:
    batch = log_pb2.Append(topic=topic, partition=partition, record_batch=batch_of(*values))
    reported = await log_stub(channel).Produce(log_pb2.ProduceRequest(appends=[batch]))
    assert not reported.results[0].HasField("error"), reported


class ConsumeStream:
    """Remembers what it was delivered, by partition, as (offset, value)."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = log_stub(channel).Consume()
        self.read: dict[tuple[str, int], list[tuple[int, bytes]]] = defaultdict(list)
        self.owned: set[tuple[str, int]] = set()
        self.delivery_id = 0
        self.data_bytes = 0
        self.met_the_end = False
        """A message was on its way when the stream ended: then gRPC does not tell its client why that was."""
        self.processes = True
        """What it is delivered. Who has said that he leaves does not any more: it was on its way then, and others read it."""

    async def send(self, **fields: Any) -> None:
        try:
            await self.call.write(log_pb2.ConsumeRequest(**fields))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self.met_the_end = True

    async def next(self) -> log_pb2.ConsumeResponse | None:
        """None at the end; raises the error that ended it."""
        try:
            reported: Any = await self.call.read()
            if reported is grpc.aio.EOF:
                if await self.call.code() is not grpc.StatusCode.OK and not self.met_the_end:
                    raise from_status(await status_of_call(self.call))
                return None
        except grpc.aio.AioRpcError as error:
            if self.met_the_end and DETAILS_TRAILER not in dict(error.trailing_metadata() or ()):
                return None
            raise from_status(_status(error.trailing_metadata())) from None
        self._remember(reported)
        return reported  # type: ignore[no-any-return]  # of the generated messages

    def _remember(self, reported: log_pb2.ConsumeResponse) -> None:
        match reported.WhichOneof("answer"):
            case "data":
                assert reported.data.delivery_id == self.delivery_id + 1
                self.delivery_id = reported.data.delivery_id
                self.data_bytes += 0 if reported.data.partitions[0].HasField("error") else reported.ByteSize()
                for each in reported.data.partitions if self.processes else ():
                    self.read[each.topic, each.partition] += [(record.offset, record.value) for record in each.records]
            case "assigned":
                assert not self.owned & {*topic_partitions(reported.assigned.partitions)}
                self.owned |= {*topic_partitions(reported.assigned.partitions)}
            case "revoked":
                self.owned -= {*topic_partitions(reported.revoked.partitions)}
            case "lost":
                self.owned -= {*topic_partitions(reported.lost.partitions)}

    async def until(self, kind: str) -> Any:
        """The next answer of this kind; what comes before is only remembered."""
        while (reported := await self.next()) is not None:
            if reported.WhichOneof("answer") == kind:
                return getattr(reported, kind)
        raise AssertionError(f"the stream ended before {kind} came")

    async def until_read(self, count: int) -> list[bytes]:
        while len(self.values) < count:
            await self.until("data")
        return self.values

    async def error(self) -> TidelogError:
        """That ends the stream."""
        try:
            while await self.next() is not None:
                pass
        except TidelogError as error:
            return error
        raise AssertionError("the stream ended well")

    async def end(self) -> None:
        """Reads on to a good end."""
        while await self.next() is not None:
            pass

    async def settled(self) -> None:
        """Returns when the client receives nothing new."""
        while (await self.until("progress")).partitions:
            pass

    async def commit(self, commit_id: int = 1, **fields: Any) -> list[type[TidelogError] | None]:
        """What became of each offset."""
        await self.send(commit=log_pb2.ConsumeCommit(commit_id=commit_id, **fields))
        outcome = await self.until("committed")
        assert outcome.commit_id == commit_id
        return [type(from_status(each.error)) if each.HasField("error") else None for each in outcome.results]

    @property
    def values(self) -> list[bytes]:
        return [value for records in self.read.values() for _, value in records]


class GoodClient:
    """Commits what it has processed, lets go of what is revoked, and grants again what it took."""

    def __init__(self, channel: grpc.aio.Channel, *, credit_bytes: int = 4_000, pause_s: float = 0.0, **more: Any) -> None:
        self.stream = ConsumeStream(channel)
        self._first = {"start": start(group="billing", **more), "credit_bytes": credit_bytes}
        self._pause_s = pause_s
        """How long it takes to process a delivery."""
        self.revoked: list[tuple[str, int]] = []
        self.lost: list[tuple[str, int]] = []
        self.refused: list[log_pb2.CommitResult] = []
        self.leaving = False

    async def run(self) -> None:
        stream = self.stream
        await stream.send(**self._first)
        while (reported := await stream.next()) is not None:
            match reported.WhichOneof("answer"):
                case "data" if stream.processes:
                    await asyncio.sleep(self._pause_s)
                    commit = log_pb2.ConsumeCommit(up_to_delivery_id=reported.data.delivery_id)
                    await stream.send(commit=commit, credit_bytes=reported.ByteSize())
                case "revoked":
                    self.revoked += topic_partitions(reported.revoked.partitions)
                    await stream.send(released=reported.revoked.revocation_id)
                case "lost":
                    self.lost += topic_partitions(reported.lost.partitions)
                case "committed":
                    self.refused += [each for each in reported.committed.results if each.HasField("error")]
            if self.leaving:
                await stream.send(leave=True)
                stream.processes, self.leaving = False, False


async def status_of_call(call: Any) -> Status:
    return _status(await call.trailing_metadata())


def _status(metadata: Any) -> Status:
    details = dict(metadata or ()).get(DETAILS_TRAILER)
    assert isinstance(details, bytes), "it ended without details"
    return Status.FromString(details)
