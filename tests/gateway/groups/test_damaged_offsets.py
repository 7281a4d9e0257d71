"""One damaged value among a group's committed offsets is reported as the error of its partition, and holds up no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import grpc.aio
import pytest

from gateway.proto import groups_pb2
from gateway.proto.status import from_status
from metadata.errors import Corrupt, TidelogError
from metadata.model import Partition, TopicPartition
from metadata.store.interface import Put
from metadata.store.keys import KeyLayout
from tests.kit.gateway.consume_streams import ConsumeStream, append, start
from tests.kit.gateway.group_calls import GroupCalls, answered, offset
from tests.kit.gateway.http_client import client_of
from tests.kit.gateway.http_members import HttpMember
from tests.kit.gateway.small_broker import SmallBroker, with_broker

pytestmark = pytest.mark.slow
DAMAGED = 1


def serve(tmp_path: Path, scenario: Callable[[SmallBroker, grpc.aio.Channel, GroupCalls], Awaitable[None]]) -> None:
    """A group that has committed of three partitions, one of which is damaged since; each has one record."""

    async def with_channel(broker: SmallBroker) -> None:
        async with grpc.aio.insecure_channel(broker.grpc_address) as channel:
            group = GroupCalls(channel)
            for number in range(3):
                await append(channel, b"%d" % number, partition=number)
            await answered(group.commit(*(offset(0, partition=number) for number in range(3))))
            at = TopicPartition(broker.topic_cache.get("orders").id, Partition(DAMAGED))
            await broker.metadata.transact([], [Put(KeyLayout().offset(group.group, at), b"{")])
            await scenario(broker, channel, group)

    with_broker(tmp_path, with_channel)


@pytest.mark.parametrize("asked", [[], [groups_pb2.TopicPartitions(topic="orders")]], ids=["all", "of the topic"])
def test_a_fetch_of_offsets_answers_the_others(tmp_path: Path, asked: list[groups_pb2.TopicPartitions]) -> None:
    async def scenario(_: SmallBroker, __: grpc.aio.Channel, group: GroupCalls) -> None:
        found = {each.partition: each for each in (await answered(group.offsets(*asked))).offsets}
        assert sorted(found) == [0, 1, 2]
        assert isinstance(from_status(found[DAMAGED].error), Corrupt)
        assert not found[DAMAGED].HasField("offset")
        assert all(found[number].HasField("offset") and not found[number].HasField("error") for number in (0, 2))

    serve(tmp_path, scenario)


def test_over_http_a_damaged_offset_is_an_error_of_its_partition_and_a_member_reads_the_others(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, _: grpc.aio.Channel, group: GroupCalls) -> None:
        async with client_of(broker) as client:
            reported = (await client.get(f"/v1/groups/{group.group}/offsets")).json
            assert [each["partition"] for each in reported["offsets"]] == [0, 2]
            assert [(each["partition"], each["error"]["code"]) for each in reported["errors"]] == [(DAMAGED, "CORRUPT")]
            member = HttpMember(client, group.group)
            await member.join()
            while len(member.records) < 2:
                answer = await member.read(wait_ms=2_000)
                assert [(each["partition"], each["error"]["code"]) for each in answer.json["errors"]] == [(DAMAGED, "CORRUPT")]
            assert sorted(record["partition"] for record in member.records) == [0, 2]

    serve(tmp_path, scenario)


def test_a_consume_stream_reads_the_others(tmp_path: Path) -> None:
    async def scenario(_: SmallBroker, channel: grpc.aio.Channel, group: GroupCalls) -> None:
        stream = ConsumeStream(channel)
        await stream.send(start=start("orders", group=group.group))
        await stream.send(credit_bytes=1 << 20)
        assert sorted(await stream.until_read(2)) == [b"0", b"2"]

    serve(tmp_path, scenario)


def errors(rows: Iterable[groups_pb2.PartitionLag | groups_pb2.MovedOffset]) -> list[type[TidelogError] | None]:
    return [type(from_status(row.error)) if row.HasField("error") else None for row in rows]


def test_a_damaged_offset_is_described_as_corrupt_and_a_seek_repairs_it(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, _: grpc.aio.Channel, group: GroupCalls) -> None:
        operations = broker.group_operations
        describe = groups_pb2.DescribeGroupRequest(group=group.group)
        assert errors((await operations.describe(describe)).lags) == [None, Corrupt, None]
        shift = groups_pb2.SeekGroupRequest(group=group.group, shift=1, validate_only=True)
        assert errors((await operations.seek(shift)).moved) == [None, Corrupt, None], "its start is unknown"
        moved = (await operations.seek(groups_pb2.SeekGroupRequest(group=group.group, earliest=True))).moved
        assert [(row.partition, row.HasField("before"), row.before, row.after) for row in moved] == [
            (0, True, 0, 0),
            (1, False, 0, 0),
            (2, True, 0, 0),
        ]
        assert errors((await operations.describe(describe)).lags) == [None] * 3

    serve(tmp_path, scenario)


def test_a_damaged_offset_can_be_deleted_alone(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, _: grpc.aio.Channel, group: GroupCalls) -> None:
        operations = broker.group_operations
        topics = [groups_pb2.TopicPartitions(topic="orders", partitions=[DAMAGED])]
        request = groups_pb2.DeleteOffsetsRequest(group=group.group, topics=topics)
        (deleted,) = (await operations.delete_offsets(request)).deleted
        assert (deleted.partition, deleted.offset) == (DAMAGED, -1)
        assert [lag.partition for lag in (await operations.describe(groups_pb2.DescribeGroupRequest(group=group.group))).lags] == [
            0,
            2,
        ]

    serve(tmp_path, scenario)
