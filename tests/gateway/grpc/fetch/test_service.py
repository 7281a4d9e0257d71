from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.concurrency.offload import OnePerLoopTurn
from gateway.grpc.fetch import response_encoder
from gateway.grpc.fetch import service as fetch_service
from gateway.grpc.fetch.service import GrpcFetch
from gateway.proto import log_pb2
from gateway.records import response_budget
from gateway.records.response_budget import ResponseBudget
from gateway.settings import GatewaySettings
from metadata.errors import Corrupt, TidelogError
from segments.log.session_log import FetchTarget
from segments.read.log_reader import FetchResult
from segments.read.read_path import ReadPath
from segments.records.batch import parse_header, split_batches
from segments.records.batch_kernel import RecordTuple
from segments.records.columns import encode_records
from segments.records.compression import Codec
from segments.settings import KIB, MIB
from tests.gateway.grpc.produce.test_service import reason, request, serve
from tests.kit.gateway.small_broker import SmallBroker, until
from tests.kit.gateway.stalled_readers import closing, stalled_grpc
from tests.kit.segments.batches import TIMESTAMP_MS, batch_of, records_in

pytestmark = pytest.mark.slow

RECORDS = log_pb2.FETCH_FORMAT_RECORDS


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> list[ResponseBudget]:
    """Budgets of the listeners that a test opens, in the order of their creation."""
    made: list[ResponseBudget] = []

    class Seen(GrpcFetch):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self.room)

    monkeypatch.setattr("gateway.grpc.services.log.GrpcFetch", Seen)
    return made


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


def test_a_large_answer_takes_a_turn_of_the_loop_of_its_own_and_a_small_one_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []

    class Seen(OnePerLoopTurn):
        async def take(self) -> None:
            await super().take()
            turns.append("taken")

    monkeypatch.setattr(fetch_service, "OnePerLoopTurn", Seen)

    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await produce(stub, batch_of(b"a"))
        await produce(stub, batch_of(b"a" * fetch_service.LARGE_ANSWER_BYTES), partition=1)
        assert (await stub.Fetch(fetch_of(0))).partitions[0].record_batches
        assert turns == []
        large = fetch_of(1, 0)
        assert len((await stub.Fetch(large)).partitions[1].record_batches) > fetch_service.LARGE_ANSWER_BYTES
        assert turns == ["taken"]

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
        assert answers[0].error.message == "orders/0 holds no record, and goes on at offset 0; 9 was asked for"

    serve(tmp_path, scenario)


def test_a_topic_that_was_made_again_is_not_read_in_place_of_the_one_that_was_asked_for(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        old_id = broker.topic_cache.get("orders").id
        await broker.delete_topic("orders")
        await broker.create_topic("orders", 3)
        new_id = broker.topic_cache.get("orders").id
        await produce(stub, batch_of(b"new"))
        asked = fetch_of(0, 0, 0, min_bytes=1000, max_wait_ms=10_000)
        for partition, topic_id in zip(asked.partitions, (old_id, new_id, "x" * 100_000), strict=True):
            partition.topic_id = topic_id
        asked.partitions.add(topic="orders")  # who names no id takes what there is
        old, new, nonsense, unnamed = (await stub.Fetch(asked)).partitions
        assert reason(old.error) == "UNKNOWN_TOPIC"
        assert f"topic orders was deleted and recreated: its id is {new_id}, and the request names {old_id}" in old.error.message
        assert not old.record_batches
        assert (new.HasField("error"), new.next_offset) == (False, 0)
        assert (reason(nonsense.error), len(nonsense.error.message) < 200) == ("UNKNOWN_TOPIC", True)
        assert records_in([unnamed.record_batches]) == [(0, b"new")]

    serve(tmp_path, scenario)


def test_a_long_poll_does_not_go_over_into_the_topic_that_was_made_again(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        polling = asyncio.ensure_future(stub.Fetch(fetch_of(0, min_bytes=1, max_wait_ms=15_000)))
        await until(lambda: len(broker.grpc._waits._waits) == 1)
        assert not polling.done()
        await broker.delete_topic("orders")
        await broker.create_topic("orders", 3)
        await produce(stub, batch_of(b"new"))
        answer = (await polling).partitions[0]
        assert answer.HasField("error")
        assert not answer.record_batches

    serve(tmp_path, scenario)


def test_a_long_poll_is_answered_by_the_record_that_it_waits_for(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        polling = asyncio.ensure_future(stub.Fetch(fetch_of(0, 0, min_bytes=1, max_wait_ms=15_000)))
        await until(lambda: len(broker.grpc._waits._waits) == 1)
        assert not polling.done()
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
        await until(lambda: len(broker.grpc._waits._waits) == 1)
        assert not polling.done()
        await broker.grpc.stop(60)
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


# ── structured records ──────────────────────────────────────────────────────────────────────────────────────────────────


async def read_all(stub: Any, end: int, *, max_bytes: int = 0) -> tuple[list[int], int]:
    """(the offsets of all structured records, answers that it took)"""
    found: list[int] = []
    offset = answers = 0
    while offset < end:
        answer = (await stub.Fetch(fetch_of(offset, form=RECORDS, max_bytes=max_bytes))).partitions[0]
        found += [record.offset for record in answer.records]
        assert answer.next_offset > offset
        offset, answers = answer.next_offset, answers + 1
    return found, answers


def test_structured_records_carry_everything_that_was_produced(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await produce(stub, encode_records([(b"k", None, [("a", b"1"), ("a", None)], TIMESTAMP_MS), (None, b"", (), 7)]))
        first, second = (await stub.Fetch(fetch_of(0, form=RECORDS))).partitions[0].records
        headers = [log_pb2.Header(key="a", value=b"1"), log_pb2.Header(key="a")]
        assert first == log_pb2.Record(key=b"k", headers=headers, timestamp_ms=TIMESTAMP_MS, partition=0, offset=0)
        assert second == log_pb2.Record(value=b"", timestamp_ms=7, partition=0, offset=1)

    serve(tmp_path, scenario)


def test_many_structured_records_are_put_together_in_a_thread_and_few_in_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_is = response_encoder.encode_records
    threads: set[int] = set()

    def seen(records: list[RecordTuple], partition: int) -> bytes:
        threads.add(threading.get_ident())
        return as_it_is(records, partition)

    monkeypatch.setattr(fetch_service, "encode_records", seen)

    async def scenario(broker: SmallBroker, stub: Any) -> None:
        here = threading.get_ident()
        await produce(stub, batch_of(b"a", b"b"))
        await stub.Fetch(fetch_of(0, form=RECORDS))
        assert threads == {here}
        for batch in (encode_records([(None, None, (), 0)] * 20_000), encode_records([(None, b"x", (), 0)] * 9, codec=Codec.GZIP)):
            threads.clear()
            end = (await stub.Fetch(fetch_of(0))).partitions[0].high_watermark
            await produce(stub, batch)
            answer = (await stub.Fetch(fetch_of(end, form=RECORDS))).partitions[0]
            assert len(answer.records) in {20_000, 9}
            assert here not in threads

    serve(tmp_path, scenario)


def test_structured_answers_are_bounded_however_far_batches_were_compressed_and_read_everything_once(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await produce(stub, encode_records([(None, b"x" * 1000, (), 0)] * 2000, codec=Codec.ZSTD), batch_of(b"last"))
        offsets, answers = await read_all(stub, 2001, max_bytes=32 * KIB)
        assert offsets == list(range(2001))
        assert answers >= 10
        answer = await stub.Fetch(fetch_of(0, form=RECORDS, max_bytes=32 * KIB))
        assert 64 * KIB <= answer.ByteSize() <= 200 * KIB

    serve(tmp_path, scenario, settings=GatewaySettings(message_bytes_max=64 * KIB))


def test_a_structured_answer_has_only_so_many_records_over_all_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_service, "RECORDS_MAX", 5)

    async def scenario(broker: SmallBroker, stub: Any) -> None:
        for partition in range(3):
            await produce(stub, batch_of(b"a", b"b", b"c"), partition=partition)
        answers = (await stub.Fetch(fetch_of(0, 0, 0, form=RECORDS))).partitions
        assert [(len(answer.records), answer.next_offset) for answer in answers] == [(3, 3), (2, 2), (0, 0)]

    serve(tmp_path, scenario)


# ── room for answers ────────────────────────────────────────────────────────────────────────────────────────────────────


SMALL_ROOM = GatewaySettings(message_bytes_max=64 * KIB, answer_bytes_max=128 * KIB)


async def fill_up(room: ResponseBudget, stack: ExitStack) -> None:
    while room.bytes_used < 128 * KIB:
        await stack.enter_context(room.reserve()).ask(128 * KIB, timeout_s=0)


def test_a_call_waits_for_room_and_is_then_throttled(
    tmp_path: Path, rooms: list[ResponseBudget], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_budget, "ROOM_WAIT_S", 0.02)

    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await produce(stub, batch_of(b"a"))
        with ExitStack() as others:
            await fill_up(rooms[0], others)
            for form in (log_pb2.FETCH_FORMAT_BATCHES, RECORDS):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.Fetch(fetch_of(0, form=form))
                assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert "answers that readers have not taken" in (refused.value.details() or "")
            assert (await stub.Fetch(fetch_of(1))).partitions[0].high_watermark == 1, "nothing to read takes no room"
            patient = asyncio.ensure_future(stub.Fetch(fetch_of(0, min_bytes=1, max_wait_ms=15_000)))
            leaving = asyncio.ensure_future(stub.Fetch(fetch_of(0, min_bytes=1, max_wait_ms=15_000)))
            assert not (await asyncio.wait((patient, leaving), timeout=0.1))[0]
            leaving.cancel()
        assert records_in([(await patient).partitions[0].record_batches]) == [(0, b"a")]
        await until(lambda: rooms[0].bytes_used == 0)

    serve(tmp_path, scenario, settings=SMALL_ROOM)


def test_a_long_poll_that_waits_for_records_holds_no_room(tmp_path: Path, rooms: list[ResponseBudget]) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        polls = [asyncio.ensure_future(stub.Fetch(fetch_of(0, min_bytes=1, max_wait_ms=15_000))) for _ in range(20)]
        await until(lambda: len(broker.grpc._waits._waits) == 20)
        assert rooms[0].bytes_used_peak == 0
        await produce(stub, batch_of(b"a"))
        for answer in await asyncio.gather(*polls):
            assert records_in([answer.partitions[0].record_batches]) == [(0, b"a")]
        assert 0 < rooms[0].bytes_used_peak <= 128 * KIB
        await until(lambda: rooms[0].bytes_used == 0)

    serve(tmp_path, scenario, settings=SMALL_ROOM)


@pytest.mark.parametrize("form", [log_pb2.FETCH_FORMAT_BATCHES, RECORDS])
def test_calls_that_take_nothing_leave_room_for_others_and_give_theirs_back_when_they_vanish(
    tmp_path: Path, rooms: list[ResponseBudget], form: log_pb2.FetchFormat
) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await produce(stub, *[encode_records([(None, b"x" * 1000, (), 0)] * 100)] * 20)
        (room,) = rooms
        with closing([stalled_grpc(broker.grpc_address, fetch_of(0, form=form)) for _ in range(4)]):
            await until(lambda: room.bytes_used_peak > 2 * MIB)
            assert (
                len((await stub.Fetch(fetch_of(0, form=form, max_bytes=500 * KIB))).partitions[0].SerializeToString()) > 200 * KIB
            )
            assert room.bytes_used > 2 * MIB
        async with asyncio.timeout(60):
            await until(lambda: room.bytes_used == 0)
        assert room.bytes_used_peak <= 8 * MIB

    serve(tmp_path, scenario, settings=GatewaySettings(answer_bytes_max=8 * MIB))


def test_an_error_that_occurs_once_is_not_lost_between_the_probe_and_the_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_is = ReadPath.fetch
    reported: list[int] = []

    async def failing_once(self: ReadPath, targets: list[FetchTarget], **options: Any) -> list[FetchResult | TidelogError]:
        answers = await as_it_is(self, targets, **options)
        if not reported:
            reported.append(len(targets))
            answers[0] = Corrupt("wal/1/2: damaged", key="wal/1/2")
        return answers

    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await produce(stub, batch_of(b"a"), partition=1)
        monkeypatch.setattr(ReadPath, "fetch", failing_once)
        damaged, sound = (await stub.Fetch(fetch_of(0, 0))).partitions
        assert reason(damaged.error) == "CORRUPT"
        assert records_in([sound.record_batches]) == [(0, b"a")]

    serve(tmp_path, scenario)
