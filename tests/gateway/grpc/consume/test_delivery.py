"""What a Consume stream delivers: records of partitions that are its client's at the moment of writing, and of no others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

from gateway.api import BrokerApi
from gateway.grpc.calls import Context
from gateway.grpc.consume.delivery import DeliveryLoop
from gateway.grpc.consume.messages import ConsumeOptions
from gateway.grpc.consume.partitions import ConsumedPartition, ConsumedPartitions, Start, StartKind
from gateway.grpc.fetch.response_encoder import PartitionResponse
from gateway.grpc.fetch.service import GrpcFetch
from gateway.proto import log_pb2
from metadata.errors import TidelogError
from metadata.group_member.settings import MemberSettings
from metadata.group_member.start_offsets import StartPolicy
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.offsets import StoredOffsets
from metadata.model import LeaderEpoch, Offset
from segments.log.session_log import FetchTarget
from segments.read.log_reader import FetchResult
from tests.kit.gateway.reported_log import TOPIC_ID
from tests.simulation.virtual_loop import run

BATCH = b"batch"
TERMS = ConsumeOptions(("orders",), "billing", MemberSettings(), (), StartPolicy.EARLIEST, 1_000, structured=False, heartbeat_s=5.0)


class Member:
    """Whose the partitions are, by the clock."""

    def __init__(self) -> None:
        self.owned: set[TopicPartitionName] = set()

    def owns(self, name: TopicPartitionName) -> bool:
        return name in self.owned

    async def committed(self) -> StoredOffsets:
        return StoredOffsets({}, {})

    async def keep(self, ends: Mapping[ConsumedPartition, int]) -> Collection[ConsumedPartition]:
        return ends

    def waits(self) -> None:
        pass

    def took(self) -> None:
        pass

    def failed(self, error: TidelogError) -> None:
        raise AssertionError(error)


class World:
    """A stream over two partitions with one record each, and a log that lies still otherwise."""

    def __init__(self) -> None:
        self.member = Member()
        self.partitions = ConsumedPartitions()
        self.held = [ConsumedPartition("orders", TOPIC_ID, number, Start(StartKind.EARLIEST), offset=0) for number in range(2)]
        self.partitions.take(self.held)
        self.written: list[log_pb2.ConsumeResponse] = []
        self.quota_s = 0.0
        """When the client may receive records."""
        self.read: Callable[[], None] = lambda: None
        """Called when the records were read and are laid out: just before they are written."""
        log = SimpleNamespace(locations_bytes_min=lambda _: None, fetch=self._fetch)
        fetch = SimpleNamespace(
            room=SimpleNamespace(reserve=self._reserve),
            admitted=self._admitted,
            laid_out=self._laid_out,
            under_way=lambda *_: lambda: None,
        )
        self.pusher = DeliveryLoop(
            cast(BrokerApi, SimpleNamespace(cluster_log=log)),
            cast(GrpcFetch, fetch),
            cast(Context, SimpleNamespace(write=self._write, own_pace=lambda: self._wait_for_quota)),
            TERMS,
            self.partitions,
            used_up=lambda: None,
        )
        self.pusher.ownership = self.member
        self.pusher.credit_bytes = 1_000_000

    @property
    def delivered(self) -> list[int]:
        """Partitions of which records went out, in order."""
        return [each.partition for message in self.written if message.HasField("data") for each in message.data.partitions]

    @property
    def positions(self) -> list[int]:
        return [each.offset for each in self.held]

    def _answers(self, targets: Sequence[FetchTarget]) -> list[FetchResult]:
        full = FetchResult([BATCH], len(BATCH), Offset(1), Offset(1), Offset(0), LeaderEpoch(1))
        empty = FetchResult([], 0, Offset(1), Offset(1), Offset(0), LeaderEpoch(1))
        return [full if target.offset == 0 else empty for target in targets]

    async def _fetch(self, targets: Sequence[FetchTarget], *, wait_ms_max: float = 0, **_: object) -> list[FetchResult]:
        answers = self._answers(targets)
        if not any(answer.size_bytes for answer in answers):
            await asyncio.sleep(wait_ms_max / 1000)
        return answers

    def _reserve(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def _admitted(self, targets: Sequence[FetchTarget], *_: object, **__: object) -> list[FetchResult]:
        return self._answers(targets)

    async def _laid_out(
        self,
        asked: Sequence[Any],
        answers: Sequence[FetchResult],
        terms: object,
        reservation: object,
        log: object,
        encode: Callable[[Sequence[PartitionResponse]], bytes],
    ) -> bytes:
        await asyncio.sleep(0.001)
        self.read()
        heads = [
            log_pb2.FetchedPartition(topic="orders", partition=each.request.partition, next_offset=1, high_watermark=1)
            for each in asked
        ]
        return encode([PartitionResponse(head, [BATCH], len(BATCH), leader_epoch=1) for head in heads])

    async def _wait_for_quota(self) -> None:
        if (left_s := self.quota_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(left_s)

    async def _write(self, message: bytes) -> None:
        self.written.append(log_pb2.ConsumeResponse.FromString(message))


def pushing(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        running = asyncio.ensure_future(world.pusher.run())
        await scenario(world)
        running.cancel()
        await asyncio.wait((running,))

    run(main(), seed=1)


def test_a_record_of_an_owned_partition_is_delivered_once() -> None:
    async def scenario(world: World) -> None:
        world.member.owned = {("orders", 0), ("orders", 1)}
        await asyncio.sleep(30)
        assert sorted(world.delivered) == [0, 1]
        assert world.positions == [1, 1]

    pushing(scenario)


def test_records_of_a_partition_that_is_not_owned_by_the_clock_are_not_delivered_and_not_skipped() -> None:
    async def scenario(world: World) -> None:
        world.member.owned = {("orders", 0)}
        await asyncio.sleep(30)
        assert 1 not in world.delivered
        assert world.positions[1] == 0, "its records are still to come"
        world.member.owned = {("orders", 0), ("orders", 1)}
        await asyncio.sleep(1)
        assert sorted(world.delivered) == [0, 1]

    pushing(scenario)


def test_ownership_that_ends_while_the_records_are_read_counts_before_they_are_written() -> None:
    async def scenario(world: World) -> None:
        world.member.owned = {("orders", 0), ("orders", 1)}
        world.read = world.member.owned.clear
        await asyncio.sleep(30)
        assert world.delivered == []
        assert world.positions == [0, 0]
        assert world.pusher.credit_bytes == 1_000_000

    pushing(scenario)


def test_a_partition_that_is_given_up_while_its_records_are_read_is_not_delivered() -> None:
    async def scenario(world: World) -> None:
        world.member.owned = {("orders", 0), ("orders", 1)}
        world.read = lambda: world.partitions.drop([("orders", 1)])
        await asyncio.sleep(30)
        assert world.delivered == [0]

    pushing(scenario)


def test_group_events_and_progress_do_not_wait_for_the_quota_of_records() -> None:
    async def scenario(world: World) -> None:
        world.quota_s = 100.0
        world.member.owned = {each.name for each in world.held}
        await asyncio.sleep(2 * TERMS.heartbeat_s + 1)
        assert [message.WhichOneof("answer") for message in world.written] == ["progress"] * 2
        world.pusher.send(log_pb2.ConsumeResponse(revoked=log_pb2.PartitionsRevoked(revocation_id=1)))
        await asyncio.sleep(0.01)
        assert world.written[-1].HasField("revoked")
        await asyncio.sleep(100)
        assert world.delivered == [0, 1]

    pushing(scenario)
