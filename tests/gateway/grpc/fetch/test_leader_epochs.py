"""Leader epochs that readers name, through every listener and at every broker; where the records of earlier leaders end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from gateway.broker.broker import Broker
from gateway.cluster import handover
from gateway.cluster.broker_lease import BrokerLease
from gateway.cluster.view import ClusterView
from gateway.grpc.fetch.leader_epochs import checked_epoch, current_epoch_of
from gateway.grpc.services.log import QUERIES_MAX
from gateway.proto import log_pb2
from gateway.proto.status import from_status
from gateway.routing.leader_lookup import LeaderLookup
from gateway.routing.peer_channels import FORWARDED_BY
from metadata.cluster import leadership
from metadata.errors import FencedLeaderEpoch, InvalidArgument, NoLeader, NotLeader, SessionFenced
from metadata.model import LeaderEpoch, Offset, Partition, TopicId, TopicPartition
from metadata.topics.topic import Topic
from segments.bucket.layout import segment_key
from segments.log.session_log import FetchTarget, SessionLog
from segments.object_store.memory import MemoryObjectStore
from segments.partition.partition_log import Bounds
from tests.gateway.cluster.test_session_manager import one_broker, partition_of
from tests.gateway.grpc.produce.test_service import reason, request, serve
from tests.gateway.routing.test_cluster_log import channel_to, client_of, made, ready
from tests.kit.gateway import http_client
from tests.kit.gateway.broker_cluster import Cluster, with_cluster
from tests.kit.gateway.small_broker import SmallBroker, until
from tests.kit.gateway.stubs import log_stub
from tests.kit.segments.batches import batch_of, seal_of

pytestmark = pytest.mark.slow
# Of every partition of a small broker.
EPOCH = 7


def reported(error: Any) -> str:
    return reason(error) if error.code else ""


async def ends(stub: Any, *queries: log_pb2.LeaderEpochQuery, **call: Any) -> list[tuple[int, int] | str]:
    asked = log_pb2.OffsetForLeaderEpochRequest(queries=queries)
    answer = await stub.OffsetForLeaderEpoch(asked, **call)
    return [reason(end.error) if end.HasField("error") else (end.leader_epoch, end.end_offset) for end in answer.ends]


def epoch_query(leader_epoch: int, partition: int = 0, **more: Any) -> log_pb2.LeaderEpochQuery:
    return log_pb2.LeaderEpochQuery(**{"topic": "orders", "partition": partition, "leader_epoch": leader_epoch, **more})


# ── what comes in ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_naming_no_epoch_is_not_naming_epoch_0() -> None:
    assert current_epoch_of(log_pb2.FetchPartition()) is None
    assert current_epoch_of(log_pb2.OffsetQuery(current_leader_epoch=0)) == 0
    with pytest.raises(InvalidArgument, match="current_leader_epoch is -1"):
        current_epoch_of(log_pb2.LeaderEpochQuery(current_leader_epoch=-1))
    with pytest.raises(InvalidArgument, match="leader_epoch is -2"):
        checked_epoch(-2, field="leader_epoch")


# ── one broker, each listener ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", [log_pb2.FETCH_FORMAT_BATCHES, log_pb2.FETCH_FORMAT_RECORDS])
def test_a_fetch_that_names_another_epoch_is_refused_per_partition_and_without_waiting(
    tmp_path: Path, form: log_pb2.FetchFormat
) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await stub.Produce(request(ready(batch_of(b"a"), 0)))
        named = [EPOCH - 1, EPOCH + 1, -1, EPOCH, None]
        partitions = [log_pb2.FetchPartition(topic="orders", current_leader_epoch=epoch) for epoch in named]
        asked = log_pb2.FetchRequest(partitions=partitions, min_bytes=10_000, max_wait_ms=15_000, format=form)
        answers = (await stub.Fetch(asked)).partitions
        assert [reported(answer.error) for answer in answers] == [
            "FENCED_LEADER_EPOCH",
            "UNKNOWN_LEADER_EPOCH",
            "INVALID_ARGUMENT",
            "",
            "",
        ]
        assert [(answer.leader_epoch, answer.high_watermark) for answer in answers[3:]] == [(EPOCH, 1)] * 2
        assert [answer.high_watermark for answer in answers[:3]] == [0, 0, 0], "a refusal has none"
        assert answers[0].error.message.startswith("orders/0 is led in epoch 7; the reader names epoch 6")

    serve(tmp_path, scenario)


def test_offsets_are_listed_only_in_the_epoch_that_the_reader_names(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await stub.Produce(request(ready(batch_of(b"a"), 0)))
        queries = [
            log_pb2.OffsetQuery(topic="orders", current_leader_epoch=epoch, **at)
            for at in ({"latest": True}, {"timestamp_ms": 0})
            for epoch in (EPOCH - 1, EPOCH + 1, -1, EPOCH, None)
        ]
        results = (await stub.ListOffsets(log_pb2.ListOffsetsRequest(queries=queries))).results
        refused = ["FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "INVALID_ARGUMENT", "", ""]
        assert [reported(result.error) for result in results] == refused * 2
        assert [result.offset for result in results] == [-1, -1, -1, 1, 1, -1, -1, -1, 0, 0]
        assert {result.leader_epoch for result in results if not result.HasField("error")} == {EPOCH}

    serve(tmp_path, scenario)


def test_the_end_of_an_epoch_is_answered_for_each_query_in_order(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await stub.Produce(request(ready(batch_of(b"a", b"b"), 1)))
        assert await ends(
            stub,
            epoch_query(EPOCH, 1),
            epoch_query(EPOCH, 0),
            epoch_query(EPOCH - 1, 1),
            epoch_query(EPOCH + 1, 1),
            epoch_query(-1, 1),
            epoch_query(EPOCH, 1, current_leader_epoch=EPOCH),
            epoch_query(EPOCH, 1, current_leader_epoch=EPOCH - 1),
            epoch_query(EPOCH, 1, current_leader_epoch=EPOCH + 1),
            epoch_query(EPOCH, 1, current_leader_epoch=-1),
            epoch_query(EPOCH, 9),
            epoch_query(EPOCH, -1),
            epoch_query(EPOCH, topic="nothing"),
            epoch_query(EPOCH, topic_id="0" * 32),
            epoch_query(EPOCH, topic_id=broker.topic_cache.get("orders").id),
        ) == [
            (EPOCH, 2),
            (EPOCH, 0),
            (EPOCH - 1, 0),
            "UNKNOWN_LEADER_EPOCH",
            "INVALID_ARGUMENT",
            (EPOCH, 2),
            "FENCED_LEADER_EPOCH",
            "UNKNOWN_LEADER_EPOCH",
            "INVALID_ARGUMENT",
            "UNKNOWN_PARTITION",
            "UNKNOWN_PARTITION",
            "UNKNOWN_TOPIC",
            "UNKNOWN_TOPIC",
            (EPOCH, 0),
        ]

    serve(tmp_path, scenario)


@pytest.mark.parametrize("count", [0, QUERIES_MAX + 1])
def test_no_queries_and_too_many_are_refused(tmp_path: Path, count: int) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ends(stub, *[epoch_query(EPOCH)] * count)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert f"the request has {count} queries; 1 to 10000 are taken" in (refused.value.details() or "")

    serve(tmp_path, scenario)


def test_http_returns_the_end_offset_of_a_leader_epoch(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: http_client.Client) -> None:
        await client.produce("/v1/topics/orders/records", [{"value": 1, "partition": 2}])
        path = "/v1/topics/orders/partitions/2/leader-epochs"
        assert (await client.get(f"{path}/7")).json == {"leader_epoch": 7, "end_offset": 1}
        assert (await client.get(f"{path}/7?current_leader_epoch=7")).json == {"leader_epoch": 7, "end_offset": 1}
        assert (await client.get(f"{path}/6")).json == {"leader_epoch": 6, "end_offset": 0}
        for asked, refusal in (
            (f"{path}/8", (503, "UNKNOWN_LEADER_EPOCH")),
            (f"{path}/7?current_leader_epoch=8", (503, "UNKNOWN_LEADER_EPOCH")),
            (f"{path}/7?current_leader_epoch=6", (503, "FENCED_LEADER_EPOCH")),
            (f"{path}/-1", (400, "INVALID_ARGUMENT")),
            (f"{path}/{2**31}", (400, "INVALID_ARGUMENT")),
            (f"{path}/seven", (400, "INVALID_ARGUMENT")),
            (f"{path}/7?current_leader_epoch=-1", (400, "INVALID_ARGUMENT")),
            (f"{path}/7?epoch=7", (400, "INVALID_ARGUMENT")),
            ("/v1/topics/orders/partitions/9/leader-epochs/7", (404, "UNKNOWN_PARTITION")),
            ("/v1/topics/nothing/partitions/0/leader-epochs/7", (404, "UNKNOWN_TOPIC")),
        ):
            assert await client.refused(client.get(asked)) == refusal, asked
        paths = (await client.get("/openapi.json")).json["paths"]
        assert "get" in paths["/v1/topics/{topic}/partitions/{partition}/leader-epochs/{leader_epoch}"]

    http_client.serve(tmp_path, scenario)


def test_a_read_over_http_is_answered_only_in_the_epoch_that_it_names(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: http_client.Client) -> None:
        await client.produce("/v1/topics/single/records", [{"value": 1}])
        path = "/v1/topics/single/partitions/0/records"
        for query in ("", "?current_leader_epoch=7", "?current_leader_epoch=7&offset=1&wait_ms=1"):
            reported_in = await client.get(path + query)
            assert (reported_in.status, reported_in.headers["tidelog-leader-epoch"]) == (200, "7")
        for query, refusal in (
            ("?current_leader_epoch=6&wait_ms=15000", (503, "FENCED_LEADER_EPOCH")),
            ("?current_leader_epoch=8&wait_ms=15000", (503, "UNKNOWN_LEADER_EPOCH")),
            ("?current_leader_epoch=8&offset=99", (503, "UNKNOWN_LEADER_EPOCH")),
            ("?current_leader_epoch=-1", (400, "INVALID_ARGUMENT")),
            ("?current_leader_epoch=", (400, "INVALID_ARGUMENT")),
        ):
            assert await client.refused(client.get(path + query)) == refusal, query
        events = client.get(f"{path}?current_leader_epoch=7", accept="text/event-stream")
        assert await client.refused(events) == (400, "INVALID_ARGUMENT")
        over_all = client.get("/v1/topics/single/records?current_leader_epoch=7", accept="application/x-ndjson")
        assert await client.refused(over_all) == (400, "INVALID_ARGUMENT")

    http_client.serve(tmp_path, scenario)


# ── several brokers ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def led_elsewhere(cluster: Cluster, topic: Topic, number: int, leaving: Broker) -> Broker:
    """The leader of the partition once `leaving` has handed it over, as every broker knows it."""
    partition = partition_of(topic, number)
    leaving.stop()

    def is_handed_over() -> bool:
        leaders = [broker.leader(partition) for broker in cluster.brokers]
        return all(led is not None and led.broker_id != leaving.broker_id for led in leaders)

    await until(is_handed_over)
    leader = cluster.leader(partition)
    await until(lambda: partition in leader.log.partitions)
    return leader


def test_every_broker_answers_for_the_leader_of_each_partition(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic, number, broker = await made(cluster)
        leader = cluster.leader(partition_of(topic, number))
        numbers = range(topic.partition_count)
        async with channel_to(broker) as channel:
            await log_stub(channel).Produce(log_pb2.ProduceRequest(appends=[ready(batch_of(b"a"), at) for at in numbers]))
        for asked in cluster.brokers:
            async with channel_to(asked) as channel, client_of(asked) as client:
                stub = log_stub(channel)
                assert await ends(stub, *(epoch_query(0, at) for at in numbers)) == [(0, 1)] * len(numbers)
                partitions = [log_pb2.FetchPartition(topic="orders", partition=at, current_leader_epoch=0) for at in numbers]
                answers = (await stub.Fetch(log_pb2.FetchRequest(partitions=partitions))).partitions
                assert not any(answer.HasField("error") for answer in answers)
                for partition in partitions:
                    partition.current_leader_epoch = 1
                answers = (await stub.Fetch(log_pb2.FetchRequest(partitions=partitions))).partitions
                assert {reported(answer.error) for answer in answers} == {"UNKNOWN_LEADER_EPOCH"}
                path = f"/v1/topics/orders/partitions/{number}/leader-epochs/0"
                assert (await client.get(path)).json == {"leader_epoch": 0, "end_offset": 1}
        async with channel_to(broker) as channel:
            forwarded = {"metadata": ((FORWARDED_BY, "broker-9"),)}
            assert await ends(log_stub(channel), epoch_query(0, number), **forwarded) == ["NOT_LEADER"]
        assert leader is not broker

    with_cluster(tmp_path, scenario)


def test_after_a_leader_change_the_old_epoch_keeps_its_end_and_requests_with_it_are_fenced(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic, number, staying = await made(cluster)
        partition = partition_of(topic, number)
        leaving = cluster.leader(partition)
        async with channel_to(staying) as channel:
            stub = log_stub(channel)
            await stub.Produce(log_pb2.ProduceRequest(appends=[ready(batch_of(b"a", b"b"), number)]))
            waiting = log_pb2.FetchPartition(topic="orders", partition=number, offset=2, current_leader_epoch=0)
            poll = stub.Fetch(log_pb2.FetchRequest(partitions=[waiting], min_bytes=1, max_wait_ms=30_000))
            assert not (await asyncio.wait((asyncio.ensure_future(poll),), timeout=0.1))[0]
            leader = await led_elsewhere(cluster, topic, number, leaving)
            assert leader is staying
            fenced = from_status((await poll).partitions[0].error)
            assert isinstance(fenced, FencedLeaderEpoch), "the long poll went over to the new leader, which it does not know"
            assert fenced.details == {
                "broker_id": leader.broker_id,
                "grpc_address": leader.grpc_address,
                "http_address": leader.http_address,
                "leader_epoch": 1,
            }
            query = log_pb2.OffsetQuery(topic="orders", partition=number, latest=True, current_leader_epoch=0)
            [listed] = (await stub.ListOffsets(log_pb2.ListOffsetsRequest(queries=[query]))).results
            assert from_status(listed.error).details == fenced.details
            await stub.Produce(log_pb2.ProduceRequest(appends=[ready(batch_of(b"c"), number)]))
            assert await ends(stub, epoch_query(0, number), epoch_query(1, number)) == [(0, 2), (1, 3)]
            [answer] = (await stub.Fetch(log_pb2.FetchRequest(partitions=[_in_epoch(waiting, 1)]))).partitions
            assert (answer.high_watermark, answer.leader_epoch) == (3, 1)

    with_cluster(tmp_path, scenario)


def test_a_question_for_an_epoch_waits_while_its_partition_is_between_two_leaders(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic, number, broker = await made(cluster)
        partition = partition_of(topic, number)
        leader = cluster.leader(partition)
        await until(lambda: partition in leader.log.partitions)
        leader.log.partitions.pause(partition)
        leader.log.partitions.stop_reads([partition])
        async with channel_to(broker) as channel:
            others = [at for at in range(topic.partition_count) if at != number]
            assert await ends(log_stub(channel), *(epoch_query(0, at) for at in others)) == [(0, 0)] * len(others)
            asked = asyncio.create_task(ends(log_stub(channel), epoch_query(0, number), epoch_query(0, others[0])))
            assert not (await asyncio.wait((asked,), timeout=0.2))[0]
            leader.log.partitions.resume(partition)
            assert await asked == [(0, 0), (0, 0)]

    with_cluster(tmp_path, scenario)


@pytest.mark.parametrize(("answered", "known", "is_reported"), [(3, 3, True), (4, 3, True), (2, 3, False), (0, None, True)])
def test_bounds_from_a_previous_leader_are_refused_once_the_next_leader_is_known(
    answered: int, known: int | None, is_reported: bool
) -> None:
    partition = TopicPartition(TopicId("0" * 32), Partition(0))
    state = None if known is None else SimpleNamespace(leader_epoch=known)
    view = SimpleNamespace(partitions=SimpleNamespace(get=lambda _: state, subscribe=lambda _: None))
    leaders = LeaderLookup(cast(Callable[[], SessionLog], None), cast(ClusterView, view), broker_id="broker-1")
    bounds = Bounds(Offset(0), Offset(9), Offset(9), LeaderEpoch(answered))
    reported_on = leaders.reject_stale_epoch(partition, bounds)
    assert reported_on is bounds if is_reported else isinstance(reported_on, NotLeader)
    refused = NoLeader("none")
    assert leaders.reject_stale_epoch(partition, refused) is refused


def _in_epoch(partition: log_pb2.FetchPartition, epoch: int) -> log_pb2.FetchPartition:
    partition.current_leader_epoch = epoch
    return partition


@pytest.mark.parametrize("killed", [False, True])
def test_epochs_end_where_they_ended_after_a_restart(tmp_path: Path, killed: bool) -> None:
    async def main() -> None:
        bucket = MemoryObjectStore()
        async with one_broker(bucket, tmp_path / "m", killed=killed) as broker:
            topic = await broker.create("orders")
            await broker.produce(partition_of(topic), b"a", b"b")
        for _ in range(2):  # the second leader writes nothing
            async with one_broker(bucket, tmp_path / "m", killed=killed) as broker:
                last = broker.leadership.log.partitions.bounds(partition_of(topic)).leader_epoch
                log = broker.leadership.log
                assert log.reads.end_of_epoch(partition_of(topic), last) == (last, 2)
                assert (
                    log.reads.end_of_epoch(partition_of(topic), 0)
                    == log.reads.end_of_epoch(partition_of(topic), last - 1)
                    == (0, 2)
                )
        async with one_broker(bucket, tmp_path / "m") as broker:
            await broker.produce(partition_of(topic), b"c")
            log = broker.leadership.log
            assert [log.reads.end_of_epoch(partition_of(topic), epoch) for epoch in (0, 2, 3)] == [(0, 2), (0, 2), (3, 3)]

    asyncio.run(main())


# ── a leader that may be none any more ──────────────────────────────────────────────────────────────────────────────────


def test_a_broker_whose_lease_may_have_ended_answers_readers_only_where_its_session_has_no_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        bucket = MemoryObjectStore()
        async with one_broker(bucket, tmp_path / "m", killed=True) as broker:
            topic = await broker.create("orders")
            await broker.produce(partition_of(topic), b"a")
            session_log = broker.leadership.log
            assert session_log.leadership.lease_is_valid()
            monkeypatch.setattr(BrokerLease, "is_valid", property(lambda _: False))
            assert not session_log.leadership.lease_is_valid()
            assert await broker.read(partition_of(topic)) == [b"a"]
            session = session_log.session.id
            await bucket.create(
                segment_key(session, session_log.writer.committed_to), [seal_of(session, session_log.writer.committed_to)]
            )
            with pytest.raises(SessionFenced):
                await broker.read(partition_of(topic))

    asyncio.run(main())


def test_a_replaced_leader_serves_no_reads_after_it_named_the_new_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic, number, _ = await made(cluster)
        partition = partition_of(topic, number)
        leaving = cluster.leader(partition)
        await until(lambda: partition in leaving.log.partitions)
        sent, go = asyncio.Event(), asyncio.Event()
        as_it_is = leadership.write

        async def held_back(*arguments: Any, **more: Any) -> Any:
            sent.set()
            await go.wait()
            return await as_it_is(*arguments, **more)

        with monkeypatch.context() as held:
            held.setattr(handover, "leadership", SimpleNamespace(write=held_back))
            log = leaving.log
            leaving.stop()
            await sent.wait()
            assert partition in log.partitions
            [answer] = await log.reads.fetch([FetchTarget(partition, 0, 1)], bytes_max=1, bytes_min=0)
            assert isinstance(answer, NoLeader)
            go.set()
        await until(lambda: partition not in log.partitions)

    with_cluster(tmp_path, scenario)
