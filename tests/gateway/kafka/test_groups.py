"""Members of consumer groups through Kafka's protocol, at real brokers, through real sockets, in all versions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from gateway.broker.broker import Broker
from metadata.errors import Unavailable
from metadata.model import Partition, TopicPartition
from metadata.topics.topic import Topic
from tests.gateway.kafka.test_group_admin import (
    ORDERS,
    committed,
    coordinator_and_other,
    joined,
    offsets_of,
    with_brokers,
)
from tests.kit.gateway.broker_cluster import Cluster
from tests.kit.gateway.kafka_caller import KafkaCaller, kafka_caller
from tests.kit.metadata.stores import until

pytestmark = pytest.mark.slow


def join_terms(group: str, **more: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": ORDERS}],
        **more,
    }


def committing(topic: str, *offsets: tuple[int, int, str], topic_id: bytes = bytes(16)) -> dict[str, Any]:
    return {
        "name": topic,
        "topic_id": topic_id,
        "partitions": [
            {"partition_index": number, "committed_offset": offset, "committed_metadata": metadata}
            for number, offset, metadata in offsets
        ],
    }


def commit_codes(answer: Any) -> list[int]:
    return [each.error_code for topic in answer.topics for each in topic.partitions]


# ── coordinators ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_version_finds_the_coordinator_and_version_4_several_at_once(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        there, other = coordinator_and_other(cluster, "billing")
        async with kafka_caller(other) as client, kafka_caller(other, listener=1) as forward:
            for version in range(4):
                found = await client.ask("FindCoordinator", version, key="billing")
                assert (found.error_code, found.port) == (0, there.kafka_listeners[0].port)
            for version in range(4, 7):
                answer = await client.ask("FindCoordinator", version, coordinator_keys=["billing", ""])
                assert [(each.key, each.error_code) for each in answer.coordinators] == [("billing", 0), ("", 24)]
                assert answer.coordinators[0].port == there.kafka_listeners[0].port
            # Behind a forward listener the client keeps its connection.
            found = await forward.ask("FindCoordinator", 3, key="billing")
            assert (found.error_code, found.port) == (0, other.kafka_listeners[1].port)
            assert (await client.ask("FindCoordinator", 3, key="t", key_type=1)).error_code == 53
            assert (await client.ask("FindCoordinator", 3, key="s", key_type=2)).error_code == 42

    with_brokers(tmp_path, scenario, count=2)


def test_a_direct_listener_says_not_coordinator_and_a_forward_listener_forwards_each_call(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.brokers[0].create_topic("orders", 1)
        _, other = coordinator_and_other(cluster, "billing")
        async with kafka_caller(other) as direct, kafka_caller(other, listener=1) as forward:
            member = {"group_id": "billing", "member_id": "m", "generation_id": 1}
            assert (await direct.ask("JoinGroup", 5, **join_terms("billing"))).error_code == 16
            assert (await direct.ask("SyncGroup", 3, **member)).error_code == 16
            assert (await direct.ask("Heartbeat", 3, **member)).error_code == 16
            assert (await direct.ask("LeaveGroup", 2, group_id="billing", member_id="m")).error_code == 16
            answer = await direct.ask("OffsetCommit", 7, group_id="billing", topics=[committing("orders", (0, 1, ""))])
            assert commit_codes(answer) == [16]
            assert (await direct.ask("OffsetFetch", 7, group_id="billing", topics=None)).error_code == 16
            me = await joined(forward, "billing")
            member = {"group_id": "billing", "member_id": me.member_id, "generation_id": me.generation_id}
            assert (await forward.ask("Heartbeat", 4, **member)).error_code == 0
            answer = await forward.ask(
                "OffsetCommit",
                9,
                group_id="billing",
                member_id=me.member_id,
                generation_id_or_member_epoch=me.generation_id,
                topics=[committing("orders", (0, 5, "mine"))],
            )
            assert commit_codes(answer) == [0]
            assert await offsets_of(forward, "billing") == {("orders", 0): 5}
            left = await forward.ask("LeaveGroup", 5, group_id="billing", members=[{"member_id": me.member_id}])
            assert (left.error_code, left.members[0].error_code) == (0, 0)

    with_brokers(tmp_path, scenario, count=2)


# ── membership ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_member_without_an_id_joins_at_once_before_version_4(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with kafka_caller(cluster.brokers[0]) as client:
            for version in range(10):
                group = f"g{version}"
                reported = await client.ask("JoinGroup", version, **join_terms(group))
                assert reported.error_code == (79 if version >= 4 else 0)
                if version >= 4:
                    assert reported.protocol_name == (None if version >= 7 else "")
                    reported = await client.ask("JoinGroup", version, **join_terms(group, member_id=reported.member_id))
                assert (reported.error_code, reported.protocol_name, reported.leader) == (0, "range", reported.member_id)
                assert [(each.member_id, each.metadata) for each in reported.members] == [(reported.member_id, ORDERS)]

    with_brokers(tmp_path, scenario)


def test_a_static_member_that_comes_back_keeps_its_assignment_and_fences_its_former_self(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with kafka_caller(cluster.brokers[0]) as client:
            terms = join_terms("billing", group_instance_id="till-1")
            first = await client.ask("JoinGroup", 9, **terms)
            assert (first.error_code, first.leader) == (0, first.member_id)
            sync = {
                "group_id": "billing",
                "generation_id": first.generation_id,
                "group_instance_id": "till-1",
                "protocol_type": "consumer",
                "protocol_name": "range",
            }
            mine = [{"member_id": first.member_id, "assignment": b"mine"}]
            await client.ask("SyncGroup", 5, member_id=first.member_id, assignments=mine, **sync)
            again = await client.ask("JoinGroup", 9, **terms)
            assert (again.error_code, again.generation_id, again.skip_assignment) == (0, first.generation_id, True)
            assert (await client.ask("SyncGroup", 5, member_id=again.member_id, **sync)).assignment == b"mine"
            former = {
                "group_id": "billing",
                "generation_id": first.generation_id,
                "member_id": first.member_id,
                "group_instance_id": "till-1",
            }
            assert (await client.ask("Heartbeat", 4, **former)).error_code == 82
            assert (await client.ask("SyncGroup", 5, member_id=first.member_id, **sync)).error_code == 82
            # A static member may be removed by its instance id alone.
            left = await client.ask(
                "LeaveGroup",
                5,
                group_id="billing",
                members=[{"member_id": "", "group_instance_id": "till-1"}, {"member_id": "who"}],
            )
            assert [(each.group_instance_id, each.error_code) for each in left.members] == [("till-1", 0), (None, 25)]

    with_brokers(tmp_path, scenario)


def test_a_wrong_member_is_refused_with_kafkas_code(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with kafka_caller(cluster.brokers[0]) as client, kafka_caller(cluster.brokers[0]) as second:
            me = await joined(client, "billing")
            known = {"group_id": "billing", "member_id": me.member_id}
            for fields, code in (
                ({**known, "generation_id": me.generation_id}, 0),
                ({**known, "generation_id": me.generation_id + 1}, 22),
                ({**known, "member_id": "who", "generation_id": me.generation_id}, 25),
                ({**known, "group_id": "", "generation_id": 1}, 24),
            ):
                assert (await client.ask("Heartbeat", 4, **fields)).error_code == code
            sync = {**known, "generation_id": me.generation_id, "protocol_type": "connect", "protocol_name": "range"}
            assert (await client.ask("SyncGroup", 5, **sync)).error_code == 23
            for terms, code in (
                (join_terms("billing", protocol_type="connect"), 23),
                (join_terms("billing", protocols=[{"name": "sticky", "metadata": b""}]), 23),
                (join_terms("billing", session_timeout_ms=1), 26),
                (join_terms("billing", member_id="who"), 25),
                (join_terms(""), 24),
            ):
                assert (await second.ask("JoinGroup", 9, **terms)).error_code == code
            assert (await second.ask("LeaveGroup", 0, group_id="billing", member_id="who")).error_code == 25

    with_brokers(tmp_path, scenario)


def test_a_member_whose_connection_closes_while_it_joins_has_hung_up(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        async with kafka_caller(broker) as member:
            me = await joined(member, "billing")
            async with kafka_caller(broker) as leaving:
                leaving.send("JoinGroup", 3, **join_terms("billing"))
                await until(lambda: broker.coordinated_groups.waiting == 1)
            await until(lambda: broker.coordinated_groups.waiting == 0)
            # It never received its id, so the next rebalance does not wait for it.
            again = await member.ask("JoinGroup", 9, **join_terms("billing", member_id=me.member_id))
            assert (again.error_code, len(again.members)) == (0, 1)

    with_brokers(tmp_path, scenario)


# ── offsets ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def fetched(client: KafkaCaller, version: int, topics: Any) -> list[tuple[int, int, int, str, int]]:
    if version >= 8:
        [found] = (await client.ask("OffsetFetch", version, groups=[{"group_id": "billing", "topics": topics}])).groups
    else:
        found = await client.ask("OffsetFetch", version, group_id="billing", topics=topics)
    assert found.error_code == 0
    return [
        (each.partition_index, each.committed_offset, each.committed_leader_epoch, each.metadata, each.error_code)
        for topic in found.topics
        for each in topic.partitions
    ]


def test_an_offset_committed_in_one_version_is_fetched_in_all_with_its_metadata(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        topic_id = bytes.fromhex((await broker.create_topic("orders", 3)).id)
        async with kafka_caller(broker) as client:
            for version in range(2, 11):
                name, by_id = ("", topic_id) if version >= 10 else ("orders", bytes(16))
                asked = committing(name, (0, version, f"v{version} ä\n"), (1, 100 + version, ""), topic_id=by_id)
                answer = await client.ask("OffsetCommit", version, group_id="billing", topics=[asked])
                assert commit_codes(answer) == [0, 0]
                rows = [(0, version, -1, f"v{version} ä\n", 0), (1, 100 + version, -1, "", 0), (2, -1, -1, "", 0)]
                for reading in range(1, 11):
                    named = {"topic_id": topic_id} if reading >= 10 else {"name": "orders"}
                    topics = [{**named, "partition_indexes": [0, 1, 2]}]
                    assert await fetched(client, reading, topics) == rows, reading
                    if reading >= 2:
                        assert await fetched(client, reading, None) == rows[:2]

    with_brokers(tmp_path, scenario)


def test_several_groups_are_fetched_at_once_and_an_unknown_group_has_no_offsets(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        await broker.create_topic("orders", 1)
        async with kafka_caller(broker) as client:
            await committed(client, "a", "orders", 1)
            await committed(client, "b", "orders", 2)
            asked = [{"group_id": name, "topics": None} for name in ("a", "nothing", "b", "")]
            groups = (await client.ask("OffsetFetch", 8, groups=asked)).groups
            found = [
                (each.group_id, each.error_code, [row.committed_offset for t in each.topics for row in t.partitions])
                for each in groups
            ]
            assert found == [("a", 0, [1]), ("nothing", 0, []), ("b", 0, [2]), ("", 24, [])]
            topics = [{"name": "orders", "partition_indexes": [0]}, {"name": "gone", "partition_indexes": [0]}]
            answer = await client.ask("OffsetFetch", 5, group_id="nothing", topics=topics)
            assert [(row.committed_offset, row.error_code) for t in answer.topics for row in t.partitions] == [(-1, 0), (-1, 0)]
            by_id = [{"topic_id": b"\x07" * 16, "partition_indexes": [0]}]
            [group] = (await client.ask("OffsetFetch", 10, groups=[{"group_id": "a", "topics": by_id}])).groups
            assert (group.error_code, group.topics[0].partitions[0].error_code) == (0, 100)

    with_brokers(tmp_path, scenario)


def test_a_partition_that_cannot_be_committed_refuses_no_other(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        await broker.create_topic("orders", 2)
        async with kafka_caller(broker) as client:
            topics = [committing("orders", (0, 1, ""), (9, 1, ""), (1, 1, "x" * 5000)), committing("gone", (0, 1, ""))]
            answer = await client.ask("OffsetCommit", 8, group_id="billing", topics=topics)
            assert commit_codes(answer) == [0, 3, 12, 3]
            answer = await client.ask(
                "OffsetCommit", 10, group_id="billing", topics=[committing("", (0, 1, ""), topic_id=b"\x07" * 16)]
            )
            assert commit_codes(answer) == [100]
            # Of a partition that is named twice, the last offset counts.
            answer = await client.ask("OffsetCommit", 8, group_id="billing", topics=[committing("orders", (0, 7, ""), (0, 8, ""))])
            assert commit_codes(answer) == [0, 0]
            assert await offsets_of(client, "billing") == {("orders", 0): 8}

    with_brokers(tmp_path, scenario)


def test_only_members_of_the_present_generation_commit(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        await broker.create_topic("orders", 1)
        async with kafka_caller(broker) as client:
            me = await joined(client, "billing")
            for member_id, generation, code in (
                ("", -1, 25),
                ("who", me.generation_id, 25),
                (me.member_id, me.generation_id + 1, 22),
                (me.member_id, me.generation_id, 0),
            ):
                answer = await client.ask(
                    "OffsetCommit",
                    8,
                    group_id="billing",
                    member_id=member_id,
                    generation_id_or_member_epoch=generation,
                    topics=[committing("orders", (0, 3, ""))],
                )
                assert commit_codes(answer) == [code]

    with_brokers(tmp_path, scenario)


def test_a_commit_of_many_partitions_is_written_as_a_whole_where_its_connection_is_lost(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        topic = await broker.create_topic("orders", 300)
        async with kafka_caller(broker) as client:
            await committed(client, "billing", "orders", 0)
            async with kafka_caller(broker) as leaving:
                leaving.send(
                    "OffsetCommit",
                    8,
                    group_id="billing",
                    topics=[committing("orders", *((number, 9, "") for number in range(300)))],
                )
                known = broker.coordinated_groups.known_offsets
                first = TopicPartition(topic.id, Partition(0))
                # Until a part is written, and the rest is not.
                while "billing" not in known or known["billing"][first].offset != 9:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            await until(lambda: len(known["billing"]) == 300)
            assert set((await offsets_of(client, "billing")).values()) == {9}

    with_brokers(tmp_path, scenario)


# ── topics that a broker has not heard of yet ───────────────────────────────────────────────────────────────────────────


def fall_behind(broker: Broker, topics: Sequence[Topic], patched: pytest.MonkeyPatch) -> None:
    """Takes topics out of the broker's view. It has them again once it catches up with the store."""
    cache = broker.topic_cache
    for topic in topics:
        del cache._by_name[topic.name], cache._by_id[topic.id]

    async def catch_up(*, timeout_s: float) -> None:
        for topic in topics:
            cache._by_name[topic.name] = cache._by_id[topic.id] = topic

    patched.setattr(cache, "catch_up_with_all", catch_up)


def test_offsets_of_topics_that_the_coordinator_has_not_heard_of_are_not_taken_for_missing(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        topics = [await broker.create_topic(f"t{number}", 1) for number in range(18)]  # more than are looked up one by one
        async with kafka_caller(broker) as client:
            for topic in topics:
                await committed(client, "billing", topic.name, 5)
            asked = {"group_id": "billing", "topics": [{"name": topic.name, "partition_indexes": [0]} for topic in topics]}
            for groups in (asked, {"group_id": "billing", "topics": None}):
                with pytest.MonkeyPatch.context() as patched:
                    fall_behind(broker, topics, patched)
                    [found] = (await client.ask("OffsetFetch", 8, groups=[groups])).groups
                offsets = {topic.name: each.committed_offset for topic in found.topics for each in topic.partitions}
                assert offsets == {topic.name: 5 for topic in topics}
            with pytest.MonkeyPatch.context() as patched:
                fall_behind(broker, topics, patched)
                await committed(client, "billing", topics[0].name, 6)

    with_brokers(tmp_path, scenario)


def test_a_coordinator_that_cannot_catch_up_refuses_the_group_and_names_no_offset(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        topic = await broker.create_topic("orders", 1)
        async with kafka_caller(broker) as client:
            await committed(client, "billing", "orders", 5)
            for groups in ({"name": "orders", "partition_indexes": [0]},), None:
                with pytest.MonkeyPatch.context() as patched:
                    fall_behind(broker, [topic], patched)
                    patched.setattr(broker.topic_cache, "catch_up_with_all", AsyncMock(side_effect=Unavailable("behind")))
                    [found] = (await client.ask("OffsetFetch", 8, groups=[{"group_id": "billing", "topics": groups}])).groups
                    broker.topic_cache._by_name["orders"] = broker.topic_cache._by_id[topic.id] = topic
                assert (found.error_code, list(found.topics)) == (15, [])

    with_brokers(tmp_path, scenario)
