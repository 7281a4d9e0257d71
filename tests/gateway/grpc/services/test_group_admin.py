"""What operators ask of consumer groups, over gRPC at one broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from gateway.proto import groups_pb2
from gateway.proto.status import from_status
from metadata.errors import (
    GroupNotEmpty,
    InvalidArgument,
    InvalidGroupName,
    Unavailable,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from metadata.groups.consumer_protocol import encode_assignment
from metadata.model import Partition, TopicPartition
from metadata.store.interface import Put
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from tests.kit.gateway.group_calls import SESSION_MS, GroupCalls, answered, offset, refused
from tests.kit.gateway.small_broker import NOW_MS, SmallBroker, with_broker
from tests.kit.segments.batches import batch_of, header_of

pytestmark = pytest.mark.slow
ORDERS = groups_pb2.TopicPartitions(topic="orders")


class Admin:
    def __init__(self, broker: SmallBroker, members: GroupCalls) -> None:
        self.broker = broker
        self.members = members
        self._stub = members.stub

    async def produce(self, *timestamps_ms: int, topic: str = "orders", partition: int = 0) -> None:
        at = TopicPartition(self.broker.topic_cache.get(topic).id, Partition(partition))
        batch = batch_of(*(b"v" for _ in timestamps_ms), timestamps_ms=timestamps_ms)
        await self.broker.log.produce(at, batch, header_of(batch))

    async def list_groups(self, **asked: Any) -> Any:
        return await answered(self._stub.ListGroups(groups_pb2.ListGroupsRequest(**asked)))

    async def describe(self, group: str = "billing") -> Any:
        return await answered(self._stub.DescribeGroup(groups_pb2.DescribeGroupRequest(group=group)))

    async def delete(self, group: str = "billing", **asked: Any) -> Any:
        return await answered(self._stub.DeleteGroup(groups_pb2.DeleteGroupRequest(group=group, **asked)))

    async def delete_offsets(self, *topics: groups_pb2.TopicPartitions, **asked: Any) -> Any:
        request = groups_pb2.DeleteOffsetsRequest(group="billing", topics=topics, **asked)
        return await answered(self._stub.DeleteOffsets(request))

    async def seek(self, *topics: groups_pb2.TopicPartitions, **asked: Any) -> list[tuple[str, int, int | None, int]]:
        reported = await answered(self._stub.SeekGroup(groups_pb2.SeekGroupRequest(group="billing", topics=topics, **asked)))
        assert not any(row.HasField("error") for row in reported.moved)
        return [(row.topic, row.partition, row.before if row.HasField("before") else None, row.after) for row in reported.moved]

    async def committed(self) -> dict[tuple[str, int], int]:
        found = await answered(self.members.offsets())
        return {(each.topic, each.partition): each.offset for each in found.offsets}

    async def keys(self) -> Sequence[str]:
        store = self.broker.topics._store
        layout = KeyLayout()
        return [each.key for prefix in (layout.groups, layout.committed_offsets) for each in (await store.range(prefix)).items]


def serve(tmp_path: Path, scenario: Callable[[Admin], Awaitable[None]]) -> None:
    async def with_channel(broker: SmallBroker) -> None:
        async with grpc.aio.insecure_channel(broker.grpc_address) as channel:
            await scenario(Admin(broker, GroupCalls(channel)))

    with_broker(tmp_path, with_channel)


# ── describe ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_group_is_described_with_its_members_and_how_far_each_partition_is_behind(tmp_path: Path) -> None:
    async def scenario(admin: Admin) -> None:
        await admin.produce(NOW_MS - 9_000, NOW_MS - 8_000, NOW_MS - 7_000)
        await admin.produce(NOW_MS - 3_000, partition=1)
        joined = await answered(admin.members.join(instance_id="i1"))
        mine = encode_assignment({"orders": [0, 1], "gone": [0]})
        await answered(admin.members.sync(joined.member_id, 1, {joined.member_id: mine}, instance_id="i1"))
        await answered(admin.members.commit(offset(1, metadata="note"), member_id=joined.member_id, generation=1))
        reported = await admin.describe()
        assert (reported.group, reported.state, reported.generation) == ("billing", "Stable", 1)
        assert (reported.protocol_type, reported.protocol, reported.leader) == ("consumer", "range", joined.member_id)
        assert reported.coordinator == admin.broker.broker_id
        (member,) = reported.members
        assert (member.member_id, member.instance_id, member.client_id) == (joined.member_id, "i1", "test")
        assert (member.assignment, member.session_timeout_ms) == (mine, SESSION_MS)
        assert member.client_host
        behind, never_committed = reported.lags
        assert (behind.topic, behind.partition, behind.committed_offset) == ("orders", 0, 1)
        assert (behind.high_watermark, behind.log_start_offset, behind.lag_records, behind.lag_seconds) == (3, 0, 2, 8.0)
        assert (behind.metadata, behind.committed_at_ms, behind.member_id) == ("note", NOW_MS, joined.member_id)
        assert not never_committed.HasField("committed_offset")
        assert (never_committed.lag_records, never_committed.lag_seconds) == (1, 3.0)
        assert (reported.lag_records, reported.lag_seconds) == (3, 8.0)

    serve(tmp_path, scenario)


def test_a_group_without_members_is_described_by_what_it_has_committed(tmp_path: Path) -> None:
    async def scenario(admin: Admin) -> None:
        await answered(admin.members.commit(offset(0), offset(0, topic="single")))
        await admin.broker.delete_topic("single")
        reported = await admin.describe()
        assert (reported.state, list(reported.members)) == ("Empty", [])
        assert [(row.topic, row.lag_records) for row in reported.lags] == [("orders", 0)], "deleted topics are omitted"

    serve(tmp_path, scenario)


def test_a_call_about_a_group_that_is_not_there_is_refused_and_makes_none(tmp_path: Path) -> None:
    async def scenario(admin: Admin) -> None:
        for call in (
            admin.describe(),
            admin.delete(),
            admin.delete(validate_only=True),
            admin.delete_offsets(ORDERS),
            admin.seek(latest=True),
        ):
            assert isinstance(await refused(call), UnknownGroup)
        assert isinstance(await refused(admin.describe("")), InvalidGroupName)
        assert await admin.keys() == []

    serve(tmp_path, scenario)


# ── list ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_groups_are_listed_in_pages_whatever_their_names(tmp_path: Path) -> None:
    async def scenario(admin: Admin) -> None:
        names = ["a", "b/c", "ü", "z z", "billing"]
        for name in names:
            admin.members.group = name
            await answered(admin.members.commit(offset(0)))
        found: list[str] = []
        token = ""
        for _ in range(10):
            page = await admin.list_groups(page_size=2, page_token=token)
            assert len(page.groups) <= 2
            found += [each.group for each in page.groups]
            token = page.next_page_token
            if not token:
                break
        assert sorted(found) == sorted(names)
        assert {(each.state, each.members, each.coordinator) for each in (await admin.list_groups()).groups} == {
            ("Empty", 0, admin.broker.broker_id)
        }

    serve(tmp_path, scenario)


def test_groups_are_listed_by_their_states(tmp_path: Path) -> None:
    async def scenario(admin: Admin) -> None:
        await admin.members.alone()
        admin.members.group = "by-hand"
        await answered(admin.members.commit(offset(0)))
        assert [each.group for each in (await admin.list_groups(states=["stable"])).groups] == ["billing"]
        assert [each.group for each in (await admin.list_groups(states=["Empty"])).groups] == ["by-hand"]
        assert len((await admin.list_groups(states=["Empty", "Stable"])).groups) == 2
        assert isinstance(await refused(admin.list_groups(states=["happy"])), InvalidArgument)

    serve(tmp_path, scenario)


@pytest.mark.parametrize("asked", [{"page_size": -1}, {"page_size": 1001}, {"page_token": "x"}, {"page_token": "A" * 9_999}])
def test_invalid_page_sizes_and_page_tokens_are_refused(tmp_path: Path, asked: dict[str, Any]) -> None:
    async def scenario(admin: Admin) -> None:
        assert isinstance(await refused(admin.list_groups(**asked)), InvalidArgument)

    serve(tmp_path, scenario)


def test_a_damaged_record_is_listed_as_such_and_hides_no_other(tmp_path: Path) -> None:
    async def scenario(admin: Admin) -> None:
        await answered(admin.members.commit(offset(0)))
        store = admin.broker.topics._store
        assert isinstance(store, SqliteStore)
        await store.transact([], [Put(KeyLayout().group("a"), b"{")])
        assert [(each.group, each.state) for each in (await admin.list_groups()).groups] == [("a", "Damaged"), ("billing", "Empty")]

    serve(tmp_path, scenario)


# ── delete ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_group_is_deleted_with_its_offsets_and_only_without_members(tmp_path: Path) -> None:
    async def scenario(admin: Admin) -> None:
        member, generation = await admin.members.alone()
        await answered(admin.members.commit(offset(3), member_id=member, generation=generation))
        for validate_only in (True, False):
            assert isinstance(await refused(admin.delete(validate_only=validate_only)), GroupNotEmpty)
        await answered(admin.members.leave(member))
        before = await admin.keys()
        await admin.delete(validate_only=True)
        assert await admin.keys() == before
        await admin.delete()
        assert await admin.keys() == []
        assert isinstance(await refused(admin.delete()), UnknownGroup)

    serve(tmp_path, scenario)


def test_offsets_are_deleted_by_topic_or_partition_and_returned(tmp_path: Path) -> None:
    async def scenario(admin: Admin) -> None:
        await answered(admin.members.commit(offset(3, metadata="m"), offset(4, partition=1), offset(5, topic="single")))
        one = groups_pb2.TopicPartitions(topic="orders", partitions=[1, 2])
        reported = await admin.delete_offsets(one, validate_only=True)
        assert [(row.topic, row.partition, row.offset) for row in reported.deleted] == [("orders", 1, 4)]
        assert len(await admin.committed()) == 3
        assert (await admin.delete_offsets(one)).deleted == reported.deleted
        assert await admin.committed() == {("orders", 0): 3, ("single", 0): 5}
        (row,) = (await admin.delete_offsets(ORDERS)).deleted
        assert (row.offset, row.metadata, row.committed_at_ms) == (3, "m", NOW_MS)
        assert await admin.committed() == {("single", 0): 5}
        assert not (await admin.delete_offsets(ORDERS)).deleted

    serve(tmp_path, scenario)


def test_offsets_are_not_deleted_under_members_nor_without_a_name(tmp_path: Path) -> None:
    async def scenario(admin: Admin) -> None:
        member, generation = await admin.members.alone()
        await answered(admin.members.commit(offset(3), member_id=member, generation=generation))
        assert isinstance(await refused(admin.delete_offsets(ORDERS)), GroupNotEmpty)
        await answered(admin.members.leave(member))
        for topics, error in (
            ([], InvalidArgument),
            ([groups_pb2.TopicPartitions(topic="nope")], UnknownTopic),
            ([groups_pb2.TopicPartitions(topic="orders", topic_id="b" * 32)], UnknownTopic),
            ([groups_pb2.TopicPartitions(topic="orders", partitions=[3])], UnknownPartition),
        ):
            assert isinstance(await refused(admin.delete_offsets(*topics)), error)
        assert await admin.committed() == {("orders", 0): 3}

    serve(tmp_path, scenario)


# ── seek ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_dry_run_of_a_seek_returns_the_moves_and_writes_nothing(tmp_path: Path) -> None:
    async def scenario(admin: Admin) -> None:
        await admin.produce(1_000, 2_000, 3_000, 4_000)
        await answered(admin.members.commit(offset(1), offset(0, topic="single")))
        before = await admin.keys(), await admin.committed()
        for to, after in (
            ({"earliest": True}, 0),
            ({"latest": True}, 4),
            ({"timestamp_ms": 2_500}, 2),
            ({"timestamp_ms": 9_000}, 4),
            ({"offset": 3}, 3),
            ({"offset": 99}, 4),
            ({"shift": 1}, 2),
            ({"shift": -5}, 0),
        ):
            assert await admin.seek(validate_only=True, **to) == [("orders", 0, 1, after), ("single", 0, 0, 0)], to
        assert (await admin.keys(), await admin.committed()) == before

    serve(tmp_path, scenario)


def test_a_seek_moves_what_it_names_and_the_rest_stays(tmp_path: Path) -> None:
    async def scenario(admin: Admin) -> None:
        await admin.produce(1_000, 2_000, 3_000)
        await admin.produce(1_000, partition=1)
        await answered(admin.members.commit(offset(1), offset(1, partition=1)))
        one = groups_pb2.TopicPartitions(topic="orders", partitions=[0])
        assert await admin.seek(one, latest=True) == [("orders", 0, 1, 3)]
        assert await admin.committed() == {("orders", 0): 3, ("orders", 1): 1}
        assert await admin.seek(earliest=True) == [("orders", 0, 3, 0), ("orders", 1, 1, 0)]
        assert await admin.committed() == {("orders", 0): 0, ("orders", 1): 0}

    serve(tmp_path, scenario)


def test_a_seek_that_names_topics_makes_a_group_that_never_was(tmp_path: Path) -> None:
    async def scenario(admin: Admin) -> None:
        await admin.produce(1_000, 2_000, partition=2)
        reported = [("orders", 0, None, 0), ("orders", 1, None, 0), ("orders", 2, None, 2)]
        assert await admin.seek(ORDERS, latest=True, validate_only=True) == reported
        assert await admin.keys() == []
        assert await admin.seek(ORDERS, latest=True) == reported
        assert [each.group for each in (await admin.list_groups()).groups] == ["billing"]

    serve(tmp_path, scenario)


def test_a_group_with_members_is_not_moved_under_them(tmp_path: Path) -> None:
    async def scenario(admin: Admin) -> None:
        member, generation = await admin.members.alone()
        await answered(admin.members.commit(offset(3), member_id=member, generation=generation))
        for validate_only in (True, False):
            assert isinstance(await refused(admin.seek(latest=True, validate_only=validate_only)), GroupNotEmpty)
        assert await admin.committed() == {("orders", 0): 3}

    serve(tmp_path, scenario)


def test_a_seek_with_an_unavailable_partition_moves_nothing_and_its_dry_run_names_it(tmp_path: Path) -> None:
    async def scenario(admin: Admin) -> None:
        await admin.produce(1_000, 2_000)
        await answered(admin.members.commit(offset(1), offset(0, partition=1)))
        orders = admin.broker.topic_cache.get("orders")
        admin.broker.log.stop_leading(TopicPartition(orders.id, Partition(1)))
        request = groups_pb2.SeekGroupRequest(group="billing", latest=True, validate_only=True)
        reported = await answered(admin.members.stub.SeekGroup(request))
        assert [(row.partition, row.HasField("error")) for row in reported.moved] == [(0, False), (1, True)]
        assert isinstance(from_status(reported.moved[1].error), Unavailable)
        error = await refused(admin.seek(latest=True))
        assert isinstance(error, Unavailable)
        assert "nothing was moved" in error.message
        assert "orders/1" in error.message
        assert await admin.committed() == {("orders", 0): 1, ("orders", 1): 0}

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("topics", "to", "error"),
    [
        ([ORDERS], {}, InvalidArgument),
        ([ORDERS], {"earliest": False}, InvalidArgument),
        ([ORDERS], {"offset": -1}, InvalidArgument),
        ([ORDERS], {"timestamp_ms": -1}, InvalidArgument),
        ([ORDERS], {"shift": -1}, InvalidArgument),
        ([groups_pb2.TopicPartitions(topic="nope")], {"latest": True}, UnknownTopic),
        ([groups_pb2.TopicPartitions(topic="orders", partitions=[3])], {"latest": True}, UnknownPartition),
        ([groups_pb2.TopicPartitions(topic="orders", topic_id="b" * 32)], {"latest": True}, UnknownTopic),
    ],
)
def test_seeks_that_mean_nothing_are_refused(
    tmp_path: Path, topics: list[groups_pb2.TopicPartitions], to: dict[str, Any], error: type[Exception]
) -> None:
    async def scenario(admin: Admin) -> None:
        assert isinstance(await refused(admin.seek(*topics, **to)), error)
        assert await admin.keys() == []

    serve(tmp_path, scenario)


def test_a_long_seek_is_written_in_parts_and_whole(tmp_path: Path) -> None:
    async def scenario(admin: Admin) -> None:
        await admin.broker.create_topic("wide", 300)
        reported = await admin.seek(groups_pb2.TopicPartitions(topic="wide"), earliest=True)
        assert len(reported) == len(await admin.committed()) == 300
        await asyncio.wait_for(admin.delete(), 60)
        assert await admin.keys() == []

    serve(tmp_path, scenario)
