"""ListOffsets: which leader epoch a client receives beside an offset, also where another broker leads the partition."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.api import BrokerApi
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.grpc.produce.open_streams import ProducerStreams
from gateway.grpc.services.log import GrpcLogService
from gateway.kafka.call import KafkaCall
from gateway.kafka.leaders import KafkaLeaders
from gateway.kafka.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP, KafkaOffsets
from gateway.kafka.listener_config import Route
from gateway.kafka.protocol.client_messages import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from gateway.proto import log_pb2
from gateway.routing.peer_channels import PeerChannels
from gateway.routing.peer_reader import PeerReader
from gateway.settings import GatewaySettings
from gateway.telemetry.registry import MetricsRegistry
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import TidelogError
from metadata.model import LeaderEpoch, Offset, SessionId, TopicPartition
from segments.partition.partition_log import NO_EPOCH, Bounds
from segments.read.record_lookup import FoundRecord
from tests.kit.gateway.reported_log import P0, ReportedLog, Topics, topic

LEADER = BrokerRegistration(broker_id="b1", session=SessionId(1))
NOW, FIRST, SECOND = LeaderEpoch(9), LeaderEpoch(3), LeaderEpoch(7)
TIMES = {EARLIEST: (2, FIRST), LATEST: (30, NOW), MAX_TIMESTAMP: (25, SECOND), 1_000: (12, FIRST), 2**50: (-1, NO_EPOCH)}


class LedHere(ReportedLog):
    """Offsets 2 to 19 were written in the first epoch, up to 29 in the second one. The present leader has written nothing."""

    def __init__(self) -> None:
        super().__init__({P0: Bounds(Offset(2), Offset(30), Offset(30), NOW, FIRST)})

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> FoundRecord | None:
        return FoundRecord(Offset(12), timestamp_ms, FIRST) if timestamp_ms == 1_000 else None

    async def offset_of_max_timestamp(self, partition: TopicPartition) -> FoundRecord | None:
        return FoundRecord(Offset(25), 5_000, SECOND)


class LedElsewhere(ReportedLog):
    """Asks another broker over gRPC, as ClusterLog does."""

    def __init__(self, *, is_earlier_version: bool = False) -> None:
        super().__init__()
        self._service = GrpcLogService(cast(BrokerApi, broker_with(LedHere())), InterruptibleWaits(), ProducerStreams())
        self._is_earlier_version = is_earlier_version
        self._peers = PeerReader(cast(PeerChannels, SimpleNamespace(call=self._call)))

    async def _call(self, _: BrokerRegistration, __: str, request: log_pb2.ListOffsetsRequest, ___: Any, **____: Any) -> Any:
        answer = await self._service.list_offsets(request, forwarded=True)
        if self._is_earlier_version:
            for result in answer.results:
                result.ClearField("record_epoch")
        return answer

    async def bounds_of(self, partitions: Sequence[TopicPartition], *, wait_s: float = math.inf) -> list[Bounds | TidelogError]:
        return await self._peers.bounds(LEADER, [("orders", partition) for partition in partitions])

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> FoundRecord | None:
        return await self._peers.offset_for_timestamp(LEADER, "orders", partition, timestamp_ms)

    async def offset_of_max_timestamp(self, partition: TopicPartition) -> FoundRecord | None:
        return await self._peers.offset_of_max_timestamp(LEADER, "orders", partition)


def broker_with(log: ReportedLog) -> Any:
    return SimpleNamespace(
        topic_cache=Topics(topic()), cluster_log=log, local_log=log, settings=GatewaySettings(), metrics=MetricsRegistry()
    )


def listed(log: ReportedLog) -> dict[int, tuple[int, int]]:
    """The offset and the leader epoch that a client receives, by the timestamp that it asks for."""
    broker = broker_with(log)
    connection: Any = SimpleNamespace(listener=SimpleNamespace(route=Route.FORWARD))
    asked = [ListOffsetsPartition(partition_index=0, timestamp=each) for each in TIMES]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="orders", partitions=asked)])
    offsets = KafkaOffsets(broker, KafkaLeaders(broker))
    answer = asyncio.run(offsets.list_offsets(KafkaCall(connection, 11, "tests", None), request))
    [found] = answer.topics
    assert [each.error_code for each in found.partitions] == [0] * len(TIMES)
    return {at: (each.offset, each.leader_epoch) for at, each in zip(TIMES, found.partitions, strict=True)}


@pytest.mark.parametrize("log", [LedHere, LedElsewhere])
def test_the_epoch_beside_an_offset_is_that_of_the_record_there(log: type[ReportedLog]) -> None:
    assert listed(log()) == TIMES


def test_a_leader_of_an_earlier_version_does_not_say_the_epoch_of_a_record() -> None:
    found = listed(LedElsewhere(is_earlier_version=True))
    assert found == {at: (offset, NOW if at == LATEST else NO_EPOCH) for at, (offset, _) in TIMES.items()}
