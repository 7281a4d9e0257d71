from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.proto import log_pb2
from gateway.settings import GatewaySettings
from segments.record_batch import parse_header, split_batches
from segments.settings import KIB
from tests.gateway.small_broker import SmallBroker
from tests.gateway.test_grpc_produce import reason, request, serve, structured
from tests.segments.batches import TIMESTAMP_MS, batch_of, records_in

pytestmark = pytest.mark.slow


def fetch_of(
    *offsets: int, topic: str = "orders", min_bytes: int = 0, max_wait_ms: int = 0, max_bytes: int = 0, form: int = 0
) -> log_pb2.FetchRequest:
    """One partition for each offset: 0, 1, …"""
    partitions = [
        log_pb2.FetchPartition(topic=topic, partition=partition, offset=offset) for partition, offset in enumerate(offsets)
    ]
    return log_pb2.FetchRequest(
        partitions=partitions,
        min_bytes=min_bytes,
        max_wait_ms=max_wait_ms,
        max_bytes=max_bytes,
        format=form,  # type: ignore[arg-type]  # any number may come over the wire
    )


async def produce(stub: Any, *batches: bytes, partition: int = 0) -> None:
    for batch in batches:
        response = await stub.Produce(request(log_pb2.Append(topic="orders", partition=partition, record_batch=batch)))
        assert not response.results[0].HasField("error")


# ── fetch ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_batches_are_fetched_as_they_were_produced(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        sent = [batch_of(b"a", b"b"), batch_of(b"c")]
        await produce(stub, *sent)
        answer = (await stub.Fetch(fetch_of(0))).partitions[0]
        stored = split_batches(answer.record_batches)
        assert [bytes(batch[16:]) for batch in stored] == [batch[16:] for batch in sent]
        assert [parse_header(batch).base_offset for batch in stored] == [0, 2]
        assert (answer.topic, answer.partition) == ("orders", 0)
        assert (answer.next_offset, answer.high_watermark, answer.log_start_offset) == (3, 3, 0)

    serve(tmp_path, scenario)


def test_structured_records_begin_at_the_asked_offset_and_batches_may_begin_before(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await produce(stub, batch_of(b"a", b"b", b"c"))
        batches = (await stub.Fetch(fetch_of(1))).partitions[0].record_batches
        assert records_in([batches]) == [(0, b"a"), (1, b"b"), (2, b"c")]
        records = (await stub.Fetch(fetch_of(1, form=log_pb2.FETCH_FORMAT_RECORDS))).partitions[0].records
        assert [(record.offset, record.value, record.timestamp_ms) for record in records] == [
            (1, b"b", TIMESTAMP_MS + 1),
            (2, b"c", TIMESTAMP_MS + 2),
        ]

    serve(tmp_path, scenario)


def test_an_error_stands_in_the_place_of_its_partition(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await produce(stub, batch_of(b"a"), partition=1)
        asked = fetch_of(9, 0, -1, 0)
        asked.partitions.add(topic="nothing")
        asked.partitions.add(topic="../etc")
        asked.max_wait_ms, asked.min_bytes = 10_000, 1000
        answers = (await stub.Fetch(asked)).partitions
        assert [reason(answer.error) if answer.HasField("error") else "" for answer in answers] == [
            "OFFSET_OUT_OF_RANGE",
            "",
            "OFFSET_OUT_OF_RANGE",
            "UNKNOWN_PARTITION",
            "UNKNOWN_TOPIC",
            "INVALID_NAME",
        ]
        assert answers[1].next_offset == 1
        assert answers[0].error.message.startswith("orders/0 holds offsets 0 to 0")

    serve(tmp_path, scenario)


def test_a_long_poll_is_answered_by_the_record_that_it_waits_for(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        polling = asyncio.ensure_future(stub.Fetch(fetch_of(0, 0, min_bytes=1, max_wait_ms=15_000)))
        assert not (await asyncio.wait((polling,), timeout=0.05))[0]
        await produce(stub, batch_of(b"a"), partition=1)
        answers = (await polling).partitions
        assert records_in([answers[1].record_batches]) == [(0, b"a")]
        assert not answers[0].record_batches

    serve(tmp_path, scenario)


def test_a_long_poll_ends_with_nothing_after_its_time(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        answer = (await stub.Fetch(fetch_of(0, min_bytes=1, max_wait_ms=20))).partitions[0]
        assert (answer.next_offset, answer.record_batches) == (0, b"")

    serve(tmp_path, scenario)


def test_a_stop_ends_a_long_poll_with_what_there_is(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await produce(stub, batch_of(b"a"))
        polling = asyncio.ensure_future(stub.Fetch(fetch_of(0, min_bytes=5000, max_wait_ms=15_000)))
        assert not (await asyncio.wait((polling,), timeout=0.05))[0]
        await broker.grpc.stop(5)
        assert records_in([(await polling).partitions[0].record_batches]) == [(0, b"a")]

    serve(tmp_path, scenario)


def test_at_least_one_batch_is_answered_and_not_many_more_than_asked(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await produce(stub, *[batch_of(b"x" * 10 * KIB)] * 6)
        assert len(split_batches((await stub.Fetch(fetch_of(0, max_bytes=1))).partitions[0].record_batches)) == 1
        assert len(split_batches((await stub.Fetch(fetch_of(0, max_bytes=25 * KIB))).partitions[0].record_batches)) == 2
        assert len(split_batches((await stub.Fetch(fetch_of(0))).partitions[0].record_batches)) == 4

    serve(tmp_path, scenario, settings=GatewaySettings(fetch_bytes_max=45 * KIB))


@pytest.mark.parametrize(
    "asked",
    [fetch_of(), fetch_of(0, max_wait_ms=60_001), fetch_of(0, form=7)],
    ids=["no partitions", "waits too long", "unknown format"],
)
def test_a_request_that_makes_no_sense_is_refused(tmp_path: Path, asked: log_pb2.FetchRequest) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Fetch(asked)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    serve(tmp_path, scenario)


# ── offsets ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_offsets_are_listed_by_place_and_by_time(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await produce(stub, batch_of(b"a", b"b"), batch_of(b"c", timestamps_ms=[TIMESTAMP_MS + 10]))
        queries = [
            log_pb2.OffsetQuery(topic="orders", earliest=True),
            log_pb2.OffsetQuery(topic="orders", latest=True),
            log_pb2.OffsetQuery(topic="orders", timestamp_ms=TIMESTAMP_MS + 1),
            log_pb2.OffsetQuery(topic="orders", timestamp_ms=TIMESTAMP_MS + 2),
            log_pb2.OffsetQuery(topic="orders", timestamp_ms=TIMESTAMP_MS + 11),
            log_pb2.OffsetQuery(topic="orders"),
            log_pb2.OffsetQuery(topic="orders", partition=3, latest=True),
            log_pb2.OffsetQuery(topic="nothing", latest=True),
        ]
        results = (await stub.ListOffsets(log_pb2.ListOffsetsRequest(queries=queries))).results
        assert [(result.offset, result.timestamp_ms) for result in results] == [
            (0, -1),
            (3, -1),
            (1, TIMESTAMP_MS + 1),
            (2, TIMESTAMP_MS + 10),
            (-1, -1),
            (-1, -1),
            (-1, -1),
            (-1, -1),
        ]
        assert {result.leader_epoch for result in results[:5]} == {7}
        assert [reason(result.error) for result in results if result.HasField("error")] == [
            "INVALID_ARGUMENT",
            "UNKNOWN_PARTITION",
            "UNKNOWN_TOPIC",
        ]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ListOffsets(log_pb2.ListOffsetsRequest())
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    serve(tmp_path, scenario)


def test_an_error_of_our_own_is_told_as_such_and_the_next_call_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(broker.producer_ids, "next", lambda: 1 / 0)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await stub.InitProducer(log_pb2.InitProducerRequest())
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert "ZeroDivisionError" in caplog.text
        assert "division" not in (failed.value.details() or "")
        response = await stub.Produce(request(structured(log_pb2.Record(value=b"a"))))
        assert not response.results[0].HasField("error")

    serve(tmp_path, scenario)
