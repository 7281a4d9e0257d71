"""Readers that name their rack, through every listener: who answers, with what, and that it is what the leader would answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.rpc.status_pb2 import Status

from compaction.compactor import Compactor
from compaction.context import CompactionContext
from compaction.manifest_cache import ManifestCache
from compaction.notifier import ManifestNotifier
from compaction.settings import CompactionSettings
from gateway.broker.broker import Broker, wall_clock_ms
from gateway.proto import log_pb2
from gateway.proto.status import DETAILS_TRAILER, from_status
from gateway.routing.cluster_log import ClusterLog
from gateway.routing.follower_fetch import RackReadCounters
from metadata.errors import FencedLeaderEpoch, InvalidArgument, OutOfRange, TidelogError, UnknownLeaderEpoch, UnknownTopic
from metadata.store.keys import KeyLayout
from metadata.topics.topic import Topic
from tests.gateway.cluster.test_session_manager import partition_of
from tests.gateway.routing.test_cluster_log import channel_to, client_of
from tests.kit.gateway.broker_cluster import Cluster, with_cluster
from tests.kit.gateway.consume_streams import PLENTY, ConsumeStream, start
from tests.kit.gateway.http_client import Client
from tests.kit.gateway.small_broker import until
from tests.kit.gateway.stubs import log_stub
from tests.kit.segments.batches import batch_of, records_in

pytestmark = pytest.mark.slow
# Of three brokers.
RACKS = "abb"


class Racks:
    """A topic of one partition, which broker-0 leads, in rack a; the others are in rack b."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.topic: Topic
        self.ahead_ms = 0

    @property
    def leader(self) -> Broker:
        return self.cluster.leader(partition_of(self.topic, 0))

    @property
    def near(self) -> Broker:
        """The one of rack b that readers of this rack are sent to."""
        partition = partition_of(self.topic, 0)
        sent_to = self.leader.cluster_log.preferred_broker(partition, "b")
        assert sent_to is not None
        return next(broker for broker in self.cluster.brokers if broker.broker_id == sent_to.broker_id)

    async def make(self, name: str = "orders") -> None:
        """Led by the broker of rack a: topics are made until chance has it so."""
        for number in range(100):
            self.topic = await self.cluster.brokers[0].create_topic(f"{name}-{number}", 1, {"retention.ms": "-1"})
            for broker in self.cluster.brokers:
                assert await broker.topic_cache.wait_for(self.topic.revision, timeout_s=60)
            await self.cluster.led(partition_of(self.topic, 0))
            if self.leader is self.cluster.brokers[0]:
                return
        raise AssertionError("no topic is led in rack a")

    async def write(self, *values: bytes) -> None:
        async with channel_to(self.leader) as channel:
            for value in values:
                append = log_pb2.Append(topic=self.topic.name, partition=0, record_batch=batch_of(value, value + b"'"))
                reported = await log_stub(channel).Produce(log_pb2.ProduceRequest(appends=[append]))
                assert not reported.results[0].HasField("error"), reported

    async def fetch(
        self, broker: Broker, offset: int = 0, *, rack: str = "b", wait_ms: int = 0, **partition: Any
    ) -> log_pb2.FetchedPartition:
        named: dict[str, Any] = {"topic": self.topic.name, "offset": offset, "topic_id": self.topic.id} | partition
        asked = log_pb2.FetchPartition(**named)
        request = log_pb2.FetchRequest(partitions=[asked], client_rack=rack, min_bytes=1 if wait_ms else 0, max_wait_ms=wait_ms)
        async with channel_to(broker) as channel:
            answer: log_pb2.FetchResponse = await log_stub(channel).Fetch(request)
        return answer.partitions[0]

    async def read(self, broker: Broker, offset: int = 0, *, rack: str = "b") -> list[tuple[int, bytes | None]]:
        """All from `offset` to the high watermark."""
        records: list[tuple[int, bytes | None]] = []
        while True:
            found = await self.fetch(broker, offset, rack=rack)
            assert not found.HasField("error"), found.error
            assert not found.HasField("preferred_broker")
            records += records_in([found.record_batches], from_offset=offset)
            offset = found.next_offset
            if offset >= found.high_watermark:
                return records

    async def compact(self) -> None:
        """All that waits; the leader has adopted it then. Half a day passes before each look."""
        self.ahead_ms += 12 * 3_600_000
        broker = self.cluster.brokers[0]
        compactor = Compactor(
            CompactionContext(
                self.cluster.bucket,
                broker.topic_cache,
                ManifestCache(self.cluster.bucket, bytes_max=1 << 20, timeout_s=5),
                CompactionSettings(compaction_due_age_ms=1, delete_grace_ms=1, compaction_threads=1),
                lambda: wall_clock_ms() + self.ahead_ms,
                secrets.token_hex,
                lambda name: True,
            ),
            ManifestNotifier(broker._metadata, KeyLayout()),
            report=lambda text: None,
        )
        assert not (await compactor.tick(everything=True)).failed
        await self.leader.log.manifests.adopt_newest(partition_of(self.topic, 0))


def counters(broker: Broker) -> RackReadCounters:
    assert isinstance(broker.cluster_log, ClusterLog)
    return broker.cluster_log.follower_fetch.counters


def with_racks(tmp_path: Path, scenario: Callable[[Racks], Awaitable[None]], *, racks: str = RACKS) -> None:
    async def with_topic(cluster: Cluster) -> None:
        found = Racks(cluster)
        await found.make()
        await scenario(found)

    with_cluster(tmp_path, with_topic, count=len(racks), racks=racks)


@asynccontextmanager
async def http_at(broker: Broker) -> AsyncIterator[Client]:
    async with client_of(broker) as client:
        yield client


# ── over gRPC ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reader_of_another_rack_is_sent_to_a_broker_of_its_own_which_reads_all_from_the_bucket(tmp_path: Path) -> None:
    async def scenario(racks: Racks) -> None:
        await racks.write(b"a", b"b", b"c")
        sent_on = await racks.fetch(racks.leader, wait_ms=30_000)
        assert (sent_on.preferred_broker.broker_id, sent_on.preferred_broker.grpc_address) == (
            racks.near.broker_id,
            racks.near.grpc_address,
        )
        assert (sent_on.record_batches, sent_on.next_offset) == (b"", 0), "at once, and without records"
        at_leader = await racks.fetch(racks.leader, rack="")
        there = await racks.fetch(racks.near)
        assert there == at_leader, "to the byte"
        assert (there.high_watermark, there.leader_epoch) == (6, sent_on.leader_epoch)
        assert (sent_on.high_watermark, sent_on.log_start_offset) == (6, 0)
        reported = counters(racks.near)
        assert (reported.bucket_reads, reported.bucket_bytes) == (1, len(there.record_batches))
        assert (reported.leader_reads, reported.failures) == (0, 0)

    with_racks(tmp_path, scenario)


def test_any_broker_of_the_rack_serves_who_comes_and_who_is_in_the_leader_s_rack_or_in_none_is_served_by_the_leader(
    tmp_path: Path,
) -> None:
    async def scenario(racks: Racks) -> None:
        await racks.write(b"a", b"b")
        expected = await racks.read(racks.leader, rack="")
        for broker in racks.cluster.brokers[1:]:
            assert await racks.read(broker) == expected
            assert counters(broker).bucket_reads
        for broker in racks.cluster.brokers:
            for rack in ("a", "nowhere", ""):
                before = counters(broker).bucket_reads
                assert await racks.read(broker, rack=rack) == expected
                assert counters(broker).bucket_reads == before

    with_racks(tmp_path, scenario)


def test_a_long_poll_in_the_rack_ends_with_the_commit_and_returns_the_new_high_watermark(tmp_path: Path) -> None:
    async def scenario(racks: Racks) -> None:
        async with asyncio.TaskGroup() as tasks:
            poll = tasks.create_task(racks.fetch(racks.near, wait_ms=30_000))
            await until(lambda: bool(racks.leader.log.reads.readers_waiting))
            await racks.write(b"a")
        assert records_in([poll.result().record_batches]) == [(0, b"a"), (1, b"a'")]
        assert poll.result().high_watermark == 2
        assert counters(racks.near).bucket_reads

    with_racks(tmp_path, scenario)


def test_history_and_tail_are_read_there_as_at_the_leader_over_compactions_and_deletions(tmp_path: Path) -> None:
    async def scenario(racks: Racks) -> None:
        await racks.write(*(b"v%d" % number for number in range(6)))
        for turn in range(3):
            await racks.compact()
            await racks.write(b"w%d" % turn)
            expected = await racks.read(racks.leader, rack="")
            assert len(expected) == 12 + 2 * (turn + 1)
            for broker in racks.cluster.brokers[1:]:
                assert await racks.read(broker) == expected
                assert await racks.read(broker, 5) == expected[5:]
        assert await racks.leader.log.manifests.delete_records(partition_of(racks.topic, 0), 7) == 7
        for broker in (racks.near, racks.leader):
            refused = from_status((await racks.fetch(broker, 3, rack="" if broker is racks.leader else "b")).error)
            assert isinstance(refused, OutOfRange)
            assert (refused.details["log_start_offset"], refused.details["high_watermark"]) == (7, 18)
        await racks.compact()
        assert await racks.read(racks.near, 7) == expected[7:]
        assert (await racks.fetch(racks.near, 7)).log_start_offset == 7
        assert counters(racks.near).failures == 0

    with_racks(tmp_path, scenario)


def test_records_that_a_compaction_has_moved_are_found_though_the_leader_did_not_hear_of_it(tmp_path: Path) -> None:
    async def scenario(racks: Racks) -> None:
        await racks.write(b"a", b"b", b"c")
        expected = await racks.read(racks.leader, rack="")
        racks.leader.log.manifests._adopt = lambda led, manifest: False  # type: ignore[method-assign]
        await racks.compact()
        await racks.compact()
        assert [key for key in racks.cluster.bucket._objects if key.endswith(f"{0:016x}") and "wal" in key] == []
        assert await racks.read(racks.near) == expected
        assert counters(racks.near).failures == 0

    with_racks(tmp_path, scenario)


def test_records_that_are_lost_on_the_bucket_and_in_the_leader_s_memory_come_from_there(tmp_path: Path) -> None:
    async def scenario(racks: Racks) -> None:
        await racks.write(b"a", b"b")
        await racks.cluster.bucket.delete(f"wal/{racks.leader.log.session.id:016x}/{0:016x}")
        assert await racks.read(racks.near) == await racks.read(racks.leader, rack="")
        assert counters(racks.near).failures > 0

    with_racks(tmp_path, scenario)


def test_epochs_are_checked_by_the_leader_wherever_a_reader_asks(tmp_path: Path) -> None:
    async def scenario(racks: Racks) -> None:
        await racks.write(b"a")
        epoch = (await racks.fetch(racks.near)).leader_epoch
        for broker in (racks.leader, racks.near):
            assert not (await racks.fetch(broker, current_leader_epoch=epoch)).HasField("error")
            unknown = from_status((await racks.fetch(broker, current_leader_epoch=epoch + 1)).error)
            assert isinstance(unknown, UnknownLeaderEpoch)
        await racks.cluster.brokers[1].drain(racks.leader.broker_id, draining=True)
        await until(lambda: racks.leader is not racks.cluster.brokers[0])
        await racks.cluster.led(partition_of(racks.topic, 0))
        for broker in racks.cluster.brokers:
            fenced = from_status((await racks.fetch(broker, rack="a", current_leader_epoch=epoch)).error)
            assert isinstance(fenced, FencedLeaderEpoch)
            assert fenced.details["leader_epoch"] == epoch + 1
        sent_on = await racks.fetch(racks.leader, rack="a")
        assert not sent_on.HasField("preferred_broker"), "the one of rack a drains"

    with_racks(tmp_path, scenario)


def test_a_partition_that_moves_is_read_on_there_from_its_next_leader(tmp_path: Path) -> None:
    async def scenario(racks: Racks) -> None:
        await racks.write(b"a", b"b")
        near, old = racks.near, racks.leader
        async with asyncio.TaskGroup() as tasks:
            poll = tasks.create_task(racks.fetch(near, 4, wait_ms=30_000))
            await until(lambda: bool(old.log.reads.readers_waiting))
            await near.drain(old.broker_id, draining=True)
            await until(lambda: racks.leader is not old)
            await racks.cluster.led(partition_of(racks.topic, 0))
            await racks.write(b"c")
        assert records_in([poll.result().record_batches]) == [(4, b"c"), (5, b"c'")]
        assert poll.result().leader_epoch > 0
        assert [value for _, value in await racks.read(near)] == [b"a", b"a'", b"b", b"b'", b"c", b"c'"]

    with_racks(tmp_path, scenario)


def test_a_broker_that_dies_is_named_no_more_and_the_other_one_of_its_rack_is(tmp_path: Path) -> None:
    async def scenario(racks: Racks) -> None:
        await racks.write(b"a")
        first = racks.near
        first.stop()
        await until(lambda: racks.near is not first)
        assert (await racks.fetch(racks.leader)).preferred_broker.broker_id == racks.near.broker_id
        assert len(await racks.read(racks.near)) == 2
        racks.near.stop()
        await until(lambda: len(racks.leader.view.brokers.brokers) == 1)
        found = await racks.fetch(racks.leader)
        assert not found.HasField("preferred_broker"), "no broker is left in the rack: the leader serves"
        assert records_in([found.record_batches]) == [(0, b"a"), (1, b"a'")]

    with_racks(tmp_path, scenario)


def test_a_topic_that_was_made_again_is_not_read_for_the_old_one(tmp_path: Path) -> None:
    async def scenario(racks: Racks) -> None:
        await racks.write(b"old")
        await racks.compact()
        old, near = racks.topic, racks.near
        assert len(await racks.read(near)) == 2
        await racks.leader.delete_topic(old.name)
        racks.topic = await racks.cluster.brokers[0].create_topic(old.name, 1)
        for broker in racks.cluster.brokers:
            assert await broker.topic_cache.wait_for(racks.topic.revision, timeout_s=60)
        await racks.cluster.led(partition_of(racks.topic, 0))
        for broker in racks.cluster.brokers:
            refused = from_status((await racks.fetch(broker, topic_id=old.id)).error)
            assert isinstance(refused, UnknownTopic)
        await racks.write(b"new")
        for broker in racks.cluster.brokers:
            found = await racks.fetch(broker)
            if not found.HasField("preferred_broker"):
                assert records_in([found.record_batches]) == [(0, b"new"), (1, b"new'")]

    with_racks(tmp_path, scenario)


def test_of_several_partitions_those_are_answered_that_are_led_in_the_reader_s_rack(tmp_path: Path) -> None:
    async def scenario(racks: Racks) -> None:
        topic = await racks.cluster.brokers[0].create_topic("payments", 6)
        for broker in racks.cluster.brokers:
            assert await broker.topic_cache.wait_for(topic.revision, timeout_s=60)
        for number in range(6):
            await racks.cluster.led(partition_of(topic, number))
        asked = [log_pb2.FetchPartition(topic="payments", partition=number) for number in range(6)]
        asked.append(log_pb2.FetchPartition(topic="no such topic"))
        request = log_pb2.FetchRequest(partitions=asked, client_rack="b", min_bytes=1, max_wait_ms=30_000)
        async with channel_to(racks.cluster.brokers[0]) as channel:
            answers = (await log_stub(channel).Fetch(request)).partitions
        led_in_a = [racks.cluster.leader(partition_of(topic, number)) is racks.cluster.brokers[0] for number in range(6)]
        assert [answer.HasField("preferred_broker") for answer in answers] == [*led_in_a, False]
        assert [answer.HasField("error") for answer in answers] == [False] * 6 + [True]
        assert set(led_in_a) == {True, False}

    with_racks(tmp_path, scenario)


def test_a_small_run_comes_from_the_leader_since_a_request_to_the_bucket_costs_more(tmp_path: Path) -> None:
    async def scenario(racks: Racks) -> None:
        near = racks.near
        assert isinstance(near.cluster_log, ClusterLog)
        near.cluster_log.follower_fetch._part_bytes_min = 10_000
        await racks.write(b"a", b"b")
        assert len(await racks.read(near)) == 4
        assert counters(near).bucket_reads == 0
        assert counters(near).leader_bytes > 0
        await racks.write(b"x" * 20_000)
        assert len(await racks.read(near, 4)) == 2
        assert counters(near).bucket_bytes > 40_000

    with_racks(tmp_path, scenario)


# ── the other listeners ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_over_http_the_broker_that_is_asked_reads_from_the_bucket_where_it_is_in_the_rack(tmp_path: Path) -> None:
    async def scenario(racks: Racks) -> None:
        await racks.write(b"a", b"b")
        path = f"/v1/topics/{racks.topic.name}"
        for broker in racks.cluster.brokers:
            async with http_at(broker) as client:
                found = (await client.get(f"{path}/partitions/0/records?client_rack=b")).json
                assert [record["value"] for record in found["records"]] == ["a", "a'", "b", "b'"]
                assert (found["high_watermark"], found["next_offset"]) == (4, 4)
                lines = await client.get(f"{path}/records?wait_ms=0&client_rack=b", accept="application/x-ndjson")
                assert len(lines.lines) == 4
                assert bool(counters(broker).bucket_reads) == (broker is not racks.leader)

    with_racks(tmp_path, scenario)


def test_a_consume_stream_in_the_rack_is_fed_from_the_bucket(tmp_path: Path) -> None:
    async def scenario(racks: Racks) -> None:
        await racks.write(b"a", b"b")
        async with channel_to(racks.near) as channel:
            stream = ConsumeStream(channel)
            await stream.send(start=start(racks.topic.name, client_rack="b"), credit_bytes=PLENTY)
            assert await stream.until_read(4) == [b"a", b"a'", b"b", b"b'"]
            await stream.send(leave=True)
            await stream.end()
        assert counters(racks.near).bucket_reads

    with_racks(tmp_path, scenario)


def test_a_member_of_a_group_over_http_names_its_rack_too(tmp_path: Path) -> None:
    async def scenario(racks: Racks) -> None:
        await racks.write(b"a", b"b")
        async with http_at(racks.near) as client:
            body = b'{"topics": ["%s"]}' % racks.topic.name.encode()
            member = (await client.post("/v1/groups/billing/members", body)).json
            path = f"/v1/groups/billing/members/{member['member_id']}/records?generation={member['generation']}&wait_ms=5000"
            found = (await client.get(f"{path}&client_rack=b")).json
            assert [record["value"] for record in found["records"]] == ["a", "a'", "b", "b'"]
        assert counters(racks.near).bucket_reads

    with_racks(tmp_path, scenario)


def test_a_rack_that_is_too_long_is_refused_at_each_listener(tmp_path: Path) -> None:
    async def scenario(racks: Racks) -> None:
        async with channel_to(racks.near) as channel:
            for rack in ("r" * 256, "r" * (1 << 20)):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await racks.fetch(racks.near, rack=rack)
                trailers: Any = dict(refused.value.trailing_metadata())
                error: TidelogError = from_status(Status.FromString(trailers[DETAILS_TRAILER]))
                assert isinstance(error, InvalidArgument)
                assert error.details["field"] == "client_rack"
                stream = ConsumeStream(channel)
                await stream.send(start=start(racks.topic.name, client_rack=rack))
                error = await stream.error()
                assert isinstance(error, InvalidArgument)
                assert error.details["field"] == "start.client_rack"
        async with http_at(racks.near) as client:
            path = f"/v1/topics/{racks.topic.name}/partitions/0/records?client_rack="
            assert await client.refused(client.get(path + "r" * 256)) == (400, "INVALID_ARGUMENT")
            assert (await client.get(path + "r" * 255)).status == 200

    with_racks(tmp_path, scenario)


def test_reads_for_racks_are_exported_by_their_source(tmp_path: Path) -> None:
    async def scenario(racks: Racks) -> None:
        await racks.write(b"a")
        await racks.fetch(racks.leader)
        await racks.read(racks.near)
        async with http_at(racks.near) as client:
            reported = (await client.get("/metrics")).body.decode()
        assert 'tidelog_rack_reads_total{source="bucket"} 1.0' in reported
        assert 'tidelog_rack_read_bytes_total{source="leader"} 0.0' in reported
        assert "tidelog_rack_read_failures_total 0.0" in reported
        async with http_at(racks.leader) as client:
            reported = (await client.get("/metrics")).body.decode()
        assert isinstance(racks.leader.cluster_log, ClusterLog)
        assert f"tidelog_preferred_broker_answers_total {racks.leader.cluster_log.preferred.counters.answers:.1f}" in reported
        assert racks.leader.cluster_log.preferred.counters.answers

    with_racks(tmp_path, scenario)
