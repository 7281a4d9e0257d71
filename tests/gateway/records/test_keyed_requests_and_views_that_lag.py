"""A request with an Idempotency-Key is written at most once, whichever broker takes its repeat, and however old its view is."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from gateway.proto import log_pb2
from gateway.records.idempotency_key import producer_of
from metadata.errors import InvalidArgument, InvalidRecord, NoLeader, SessionFenced, StaleRouting, Unavailable
from metadata.model import LeaderEpoch, Partition, ProducerId, TopicPartition
from metadata.topics.topic import Topic
from segments.partition.producer_state import ONE_SHOT
from tests.kit.gateway.routed_cluster import Broker, Cluster, until, with_routed_cluster
from tests.kit.segments.batches import sequenced_batch
from tests.kit.segments.serving import lose_lease

KEY = ProducerId(ONE_SHOT | 77)
KEYED = [{"key": f"k{number}", "value": str(number)} for number in range(12)]


def one_shot_batch(producer_id: ProducerId, routed_over: int) -> bytes:
    return sequenced_batch(producer_id, 0x55, producer_epoch=routed_over)


def producer_id_of(topic: Topic, key: str) -> ProducerId:
    return producer_of(key.encode(), topic_id=topic.id, media_type="application/json", body=b"").producer_id


def positions(results: list[dict[str, int]]) -> list[tuple[int, int]]:
    return [(result["partition"], result["offset"]) for result in results]


async def once_heard(cluster: Cluster, broker: Broker, request: asyncio.Future[list[dict[str, int]]]) -> list[dict[str, int]]:
    """The answer to a request that waits until this broker hears of topics."""
    done, _ = await asyncio.wait((request,), timeout=1.0)
    assert not done, "it waits for the broker that has not heard of the growth"
    broker.hear_topics()
    return await request


# ── a repeat through a broker with an old view ──────────────────────────────────────────────────────────────────────────


def test_a_repeat_through_a_broker_with_a_stale_partition_count_returns_the_first_offsets() -> None:
    async def scenario(cluster: Cluster) -> None:
        topic = await cluster.create(partition_count=1)
        [fresh] = [broker for broker in cluster.brokers if cluster.led_by(broker, topic)]
        others = [broker for broker in cluster.brokers if broker is not fresh]
        for broker in others:
            broker.hear_no_topics()
        grown = await cluster.served(await cluster.topics.alter("orders", partition_count=2))
        [stale] = [broker for broker in others if not cluster.led_by(broker, grown)][-1:]
        for broker in others:
            if broker is not stale:
                broker.hear_topics()
        await cluster.served(grown)
        firsts = [await fresh.http([{"value": "v"}], key=f"k{number}") for number in range(6)]
        assert {result["partition"] for [result] in firsts} == {0, 1}, "some keys choose the new partition"
        repeats = [asyncio.ensure_future(stale.http([{"value": "v"}], key=f"k{number}")) for number in range(6)]
        await once_heard(cluster, stale, repeats[0])
        for first, repeat in zip(firsts, repeats, strict=True):
            [found] = await repeat
            assert (found["partition"], found["offset"], found["duplicate"]) == (first[0]["partition"], first[0]["offset"], True)
        assert len(await cluster.values(grown)) == 6

    with_routed_cluster(scenario, brokers=3)


def test_nothing_is_written_over_new_partitions_before_every_leader_has_heard_of_them() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(partition_count=4)
        fresh, stale = cluster.brokers
        stale.hear_no_topics()
        grown = await cluster.served(await cluster.topics.alter("orders", partition_count=8))
        first = asyncio.ensure_future(fresh.http(KEYED, key="k"))
        repeat = asyncio.ensure_future(stale.http(KEYED, key="k"))
        written = await once_heard(cluster, stale, first)
        assert positions(written) == positions(await repeat)
        assert len(await cluster.values(grown)) == len(KEYED)

    with_routed_cluster(scenario)


def test_a_repeat_finds_a_record_that_another_leader_holds_after_the_topic_has_grown() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(partition_count=4)
        firsts = [await cluster.brokers[0].http([{"value": "v"}], key=f"k{number}") for number in range(8)]
        grown = await cluster.grow("orders", 9)
        for at, broker in enumerate(cluster.brokers):
            for number, [first] in enumerate(firsts):
                [found] = await broker.http([{"value": "v"}], key=f"k{number}")
                assert (found["partition"], found["offset"]) == (first["partition"], first["offset"]), (at, number)
                assert found["duplicate"]
        assert len(await cluster.values(grown)) == 8

    with_routed_cluster(scenario)


# ── what a leader refuses ───────────────────────────────────────────────────────────────────────────────────────────────


def keyed_append(topic: Topic, partition: int, *, routed_over: int, continues: bool = False) -> log_pb2.Append:
    batch = one_shot_batch(KEY, routed_over)
    return log_pb2.Append(
        topic=topic.name,
        topic_id=topic.id,
        partition=partition,
        record_batch=batch,
        topic_revision=topic.revision,
        continues=continues,
    )


def test_a_leader_refuses_a_new_batch_that_was_routed_over_fewer_partitions_than_it_knows() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(partition_count=4)
        grown = await cluster.grow("orders", 8)
        leader = cluster.leader(TopicPartition(grown.id, Partition(1)))
        [refused] = await leader.produce(keyed_append(grown, 1, routed_over=4), forwarded_by="broker-9")
        assert isinstance(refused, StaleRouting)
        assert refused.retryable
        assert refused.nothing_was_written
        assert (refused.details["partition_count"], refused.details["topic_revision"]) == (8, grown.revision)
        assert await cluster.values(grown) == []
        assert await leader.produce(keyed_append(grown, 1, routed_over=8), forwarded_by="broker-9") == [0]
        assert await leader.produce(keyed_append(grown, 1, routed_over=8), forwarded_by="broker-9") == [0], "a repeat"
        [other_routing] = await leader.produce(keyed_append(grown, 1, routed_over=4), forwarded_by="broker-9")
        assert isinstance(other_routing, StaleRouting), "over another count the batch may hold other records: it is no repeat"
        assert other_routing.retryable
        other = cluster.leader(TopicPartition(grown.id, Partition(2)))
        named = keyed_append(grown, 2, routed_over=0)
        assert await other.produce(named, forwarded_by="broker-9") == [0], "its sender names the partition"

    with_routed_cluster(scenario)


def test_a_leader_takes_what_is_missing_of_a_request_that_is_partly_committed() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(partition_count=4)
        grown = await cluster.grow("orders", 8)
        leader = cluster.leader(TopicPartition(grown.id, Partition(1)))
        taken = keyed_append(grown, 1, routed_over=4, continues=True)
        assert await leader.produce(taken, forwarded_by="broker-9") == [0]

    with_routed_cluster(scenario)


def test_a_client_can_t_say_that_its_batch_continues_a_keyed_request() -> None:
    async def scenario(cluster: Cluster) -> None:
        topic = await cluster.create(partition_count=4)
        leader = cluster.leader(TopicPartition(topic.id, Partition(1)))
        [refused] = await leader.produce(keyed_append(topic, 1, routed_over=4, continues=True))
        assert isinstance(refused, InvalidRecord)

    with_routed_cluster(scenario)


def test_a_leader_that_has_not_heard_of_the_growth_keeps_a_batch_waiting_that_was_routed_over_more() -> None:
    async def scenario(cluster: Cluster) -> None:
        topic = await cluster.create(partition_count=4)
        _, stale = cluster.brokers
        stale.hear_no_topics()
        grown = await cluster.served(await cluster.topics.alter("orders", partition_count=8))
        number = cluster.led_by(stale, topic)[0]
        append = keyed_append(grown, number, routed_over=8)
        append.topic_revision = topic.revision
        [refused] = await stale.produce(append, forwarded_by="broker-9")
        assert isinstance(refused, NoLeader)
        stale.hear_topics()
        assert await stale.topic_cache.wait_for(grown.revision, timeout_s=60)
        assert await stale.produce(append, forwarded_by="broker-9") == [0]

    with_routed_cluster(scenario)


def test_a_request_whose_topic_grows_between_question_and_append_is_refused_and_its_repeat_written_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        topic = await cluster.create(partition_count=4)
        slow, fast = cluster.brokers
        slow.hear_no_topics()
        [number] = cluster.led_by(fast, topic)[:1]
        records = [{"value": "v", "partition": number}]
        grown: list[Topic] = []

        async def grow(method: str) -> None:
            if method.endswith("/FindWrittenOnce") and not grown:
                grown.append(await cluster.topics.alter("orders", partition_count=8))
                assert await fast.topic_cache.wait_for(grown[0].revision, timeout_s=60)

        slow.peers.answered = grow
        request = asyncio.ensure_future(slow.http(records, key="k"))
        await once_refused(request, slow)
        assert slow.topic_cache.revision >= grown[0].revision, "a retry finds a broker that knows the topic"
        await cluster.served(grown[0])
        [written] = await slow.http(records, key="k")
        assert written == {"partition": number, "offset": 0}
        assert len(await cluster.values(grown[0])) == 1

    async def once_refused(request: asyncio.Future[object], slow: Broker) -> None:
        await asyncio.sleep(0.5)
        slow.hear_topics()
        with pytest.raises(StaleRouting):
            await request

    with_routed_cluster(scenario)


def test_a_request_is_planned_again_where_its_own_broker_hears_of_the_growth_before_anything_was_taken() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(partition_count=4)
        [broker] = cluster.brokers
        log = broker.leadership.log
        grown: list[int] = []
        as_it_is = log.routing.check

        def check(partition: TopicPartition, leader_epoch: LeaderEpoch, partition_count: int) -> None:
            if not grown:
                grown.append(partition_count)
                raise StaleRouting("the topic has grown this moment", partition_count=8, topic_revision=1)
            as_it_is(partition, leader_epoch, partition_count)

        with patch.object(log.routing, "check", check):
            [written] = await broker.http([{"value": "v"}], key="k")
        assert written["offset"] == 0

    with_routed_cluster(scenario, brokers=1)


# ── a part was written before ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_repeat_completes_what_was_written_in_part_before_the_topic_has_grown() -> None:
    async def scenario(cluster: Cluster) -> None:
        topic = await cluster.create(partition_count=4)
        lost = TopicPartition(topic.id, Partition(1))
        log = cluster.leader(lost).leadership.log
        log.partitions.pause(lost)
        first = await cluster.brokers[0].http(KEYED, key="k", query="timeout_ms=500")
        assert {result["partition"] for result in first if "error" in result} == {1}
        log.partitions.resume(lost)
        grown = await cluster.grow("orders", 9)
        for broker in cluster.brokers:
            second = await broker.http(KEYED, key="k")
            assert [result["partition"] for result in second] == [result["partition"] for result in first]
        assert len(await cluster.values(grown)) == len(KEYED)

    with_routed_cluster(scenario)


def test_a_part_that_is_not_committed_yet_fixes_no_routing() -> None:
    async def scenario(cluster: Cluster) -> None:
        topic = await cluster.create(partition_count=1)
        leader = cluster.leader(TopicPartition(topic.id, Partition(0)))
        committing, may_commit = asyncio.Event(), asyncio.Event()
        as_it_is = cluster.bucket.create

        async def create(*of: Any, **named: Any) -> None:
            committing.set()
            await may_commit.wait()
            await as_it_is(*of, **named)

        with patch.object(cluster.bucket, "create", create):
            first = asyncio.ensure_future(leader.http([{"value": "v"}], key="k"))
            await committing.wait()
            grown = await cluster.topics.alter("orders", partition_count=2)
            assert await leader.topic_cache.wait_for(grown.revision, timeout_s=60)
            asked = asyncio.ensure_future(
                leader.local_log.written_once(
                    [TopicPartition(topic.id, Partition(0))], producer_id_of(topic, "k"), topic_revision=grown.revision
                )
            )
            done, _ = await asyncio.wait((asked,), timeout=1.0)
            assert not done, "it may be lost still"
            may_commit.set()
            assert list((await asked).batches) == [TopicPartition(topic.id, Partition(0))]
            await first

    with_routed_cluster(scenario)


# ── a new leader ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_leader_takes_no_keyed_request_before_it_knows_what_the_one_before_it_knew() -> None:
    async def scenario(cluster: Cluster) -> None:
        topic = await cluster.create(partition_count=2)
        leaving, staying = cluster.brokers
        moved = cluster.led_by(leaving, topic)[0]
        staying.hear_no_topics()
        grown = await cluster.topics.alter("orders", partition_count=4)
        assert await leaving.topic_cache.wait_for(grown.revision, timeout_s=60)
        partition = TopicPartition(topic.id, Partition(moved))
        await cluster.stop(leaving)
        await until(lambda: partition in staying.leadership.log.partitions)
        stale = keyed_append(topic, moved, routed_over=2)
        [refused] = await staying.produce(stale, forwarded_by="broker-9")
        assert isinstance(refused, NoLeader), (
            "the leader before it may have answered that nothing is written, and taken nothing since"
        )
        staying.hear_topics()
        await until(lambda: staying.is_proven(partition))
        [refused] = await staying.produce(stale, forwarded_by="broker-9")
        assert isinstance(refused, StaleRouting)

    with_routed_cluster(scenario)


def test_a_leader_that_can_t_read_the_topic_refuses_keyed_requests_alone() -> None:
    async def scenario(cluster: Cluster) -> None:
        topic = await cluster.create(partition_count=2)
        leaving, staying = cluster.brokers
        moved = cluster.led_by(leaving, topic)[0]
        partition = TopicPartition(topic.id, Partition(moved))
        staying.metadata.why_silent = Unavailable("etcd is away")
        await cluster.stop(leaving)
        await until(lambda: partition in staying.leadership.log.partitions)
        with pytest.raises(Unavailable, match="nothing was written"):
            await staying.http([{"value": "v"}], key="k", query="timeout_ms=2000")
        [written] = await staying.http([{"value": "v", "partition": moved}])
        assert written["offset"] == 0
        staying.metadata.why_silent = None
        [written] = await staying.http([{"value": "v", "partition": moved}], key="k")
        assert written["offset"] == 1

    with_routed_cluster(scenario)


def test_a_leader_that_was_replaced_during_a_lookup_does_not_answer_that_nothing_is_written() -> None:
    async def scenario(cluster: Cluster) -> None:
        topic = await cluster.create(partition_count=1)
        partition = TopicPartition(topic.id, Partition(0))
        leader = cluster.leader(partition)
        log = leader.leadership.log
        as_it_is = log.written_once

        def replaced_meanwhile(*asked: Any) -> Any:
            found = as_it_is(*asked)
            lose_lease(log)
            return found

        async def sealed() -> None:
            raise SessionFenced("another has sealed the session")

        replaced = patch.object(log, "written_once", replaced_meanwhile), patch.object(log.leadership, "check_not_sealed", sealed)
        with replaced[0], replaced[1], pytest.raises(SessionFenced):
            await leader.local_log.written_once([partition], producer_id_of(topic, "k"), topic_revision=topic.revision)

    with_routed_cluster(scenario)


# ── the header ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_with_two_idempotency_keys_is_refused() -> None:
    async def scenario(cluster: Cluster) -> None:
        topic = await cluster.create(partition_count=1)
        [broker] = cluster.brokers
        for second in (b"a", b"b"):
            with pytest.raises(InvalidArgument, match="2 headers idempotency-key"):
                await broker.http_with_headers([{"value": "v"}], [(b"idempotency-key", b"a"), (b"idempotency-key", second)])
        assert await cluster.values(topic) == []

    with_routed_cluster(scenario, brokers=1)
