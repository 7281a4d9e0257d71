from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from gateway.proto import log_pb2
from gateway.settings import GatewaySettings
from metadata.model import SegmentSeq
from segments.bucket.layout import segment_key
from segments.partition.producer_state import ONE_SHOT
from segments.records.batch import parse_header
from segments.records.columns import encode_records
from segments.settings import KIB, MIB, SegmentSettings
from tests.kit.gateway.small_broker import FAST, NOW_MS, SmallBroker, until, with_broker
from tests.kit.gateway.stubs import log_stub
from tests.kit.segments.batches import batch_of, seal_of, sequenced_batch
from tests.kit.segments.serving import lose_lease

pytestmark = pytest.mark.slow

Scenario = Callable[[SmallBroker, Any], Awaitable[None]]
LARGE = [("grpc.max_send_message_length", 64 * MIB), ("grpc.max_receive_message_length", 64 * MIB)]


@asynccontextmanager
async def stub_of(broker: SmallBroker, *, compression: grpc.Compression | None = None) -> AsyncIterator[Any]:
    options = [*LARGE, ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(broker.grpc_address, options=options, compression=compression) as channel:
        yield log_stub(channel)


def serve(tmp_path: Path, scenario: Scenario, *, settings: GatewaySettings | None = None, segments: SegmentSettings = FAST) -> None:
    async def with_stub(broker: SmallBroker) -> None:
        async with stub_of(broker) as stub:
            await scenario(broker, stub)

    with_broker(tmp_path, with_stub, settings=settings, segments=segments)


def ready(batch: bytes, *, topic: str = "orders", partition: int | None = 0, expected_offset: int | None = None) -> log_pb2.Append:
    return log_pb2.Append(topic=topic, partition=partition, record_batch=batch, expected_offset=expected_offset)


def structured(*records: log_pb2.Record, topic: str = "orders", partition: int | None = None) -> log_pb2.Append:
    return log_pb2.Append(topic=topic, partition=partition, records=log_pb2.RecordList(records=records))


def request(*appends: log_pb2.Append, correlation_id: int = 1, acks: int = 0, timeout_ms: int = 0) -> log_pb2.ProduceRequest:
    return log_pb2.ProduceRequest(
        correlation_id=correlation_id,
        acks=acks,  # type: ignore[arg-type]  # any number may come over the wire
        timeout_ms=timeout_ms,
        appends=appends,
    )


def reason(error: Status) -> str:
    info = ErrorInfo()
    assert any(detail.Unpack(info) for detail in error.details)
    return str(info.reason)


def reasons(response: log_pb2.ProduceResponse) -> list[str]:
    return [reason(result.error) if result.HasField("error") else "" for result in response.results]


async def many_turns(stub: Any) -> None:
    """Calls that need no room come and go: what the broker would do at once, it has done when they have ended."""
    for _ in range(40):
        await stub.InitProducer(log_pb2.InitProducerRequest())


async def values(stub: Any, partition: int, *, topic: str = "orders") -> list[bytes]:
    asked = log_pb2.FetchPartition(topic=topic, partition=partition)
    response = await stub.Fetch(log_pb2.FetchRequest(partitions=[asked], format=log_pb2.FETCH_FORMAT_RECORDS))
    return [record.value for record in response.partitions[0].records]


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_append_of_a_ready_batch_returns_its_partition_and_offsets(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await stub.Produce(request(ready(batch_of(b"a"), partition=2)))
        response = await stub.Produce(request(ready(batch_of(b"b", b"c"), partition=2), correlation_id=77))
        assert response.correlation_id == 77
        assert list(response.results[0].placements) == [log_pb2.Placement(partition=2, base_offset=1, count=2, leader_epoch=7)]
        assert await values(stub, 2) == [b"a", b"b", b"c"]

    serve(tmp_path, scenario)


def test_placements_cover_structured_records_in_their_order(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        records = [log_pb2.Record(value=b"%d" % number, partition=at) for number, at in enumerate([1, 1, 0, 1, 0, 0])]
        response = await stub.Produce(request(structured(*records)))
        runs = [(run.partition, run.base_offset, run.count) for run in response.results[0].placements]
        assert runs == [(1, 0, 2), (0, 0, 1), (1, 2, 1), (0, 1, 2)]
        assert await values(stub, 0) == [b"2", b"4", b"5"]
        assert await values(stub, 1) == [b"0", b"1", b"3"]

    serve(tmp_path, scenario)


def test_structured_records_keep_nulls_headers_and_timestamps(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        sent = [
            log_pb2.Record(
                key=b"", headers=[log_pb2.Header(key="a", value=b""), log_pb2.Header(key="a")], timestamp_ms=5, partition=0
            ),
            log_pb2.Record(value=b"", timestamp_ms=0, partition=0),
        ]
        await stub.Produce(request(structured(*sent)))
        asked = log_pb2.FetchPartition(topic="orders", partition=0)
        response = await stub.Fetch(log_pb2.FetchRequest(partitions=[asked], format=log_pb2.FETCH_FORMAT_RECORDS))
        sent[1].offset = 1
        assert list(response.partitions[0].records) == sent

    serve(tmp_path, scenario)


def test_records_without_a_key_take_turns_over_the_partitions_by_request(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        found = []
        for _ in range(3):
            response = await stub.Produce(request(structured(log_pb2.Record(value=b"a"), log_pb2.Record(value=b"b"))))
            found += [(run.partition, run.count) for run in response.results[0].placements]
        assert sorted(found) == [(0, 2), (1, 2), (2, 2)]

    serve(tmp_path, scenario)


def test_one_failed_append_leaves_those_of_other_partitions_alone(tmp_path: Path) -> None:
    torn = bytearray(batch_of(b"torn"))
    torn[-1] ^= 1
    failing = [
        (ready(batch_of(b"b"), topic="ordres"), "UNKNOWN_TOPIC"),
        (ready(batch_of(b"c"), topic="no/name"), "INVALID_NAME"),
        (ready(batch_of(b"d"), partition=3), "UNKNOWN_PARTITION"),
        (ready(batch_of(b"e"), partition=-1), "UNKNOWN_PARTITION"),
        (ready(batch_of(b"f"), topic="single", partition=None), "INVALID_ARGUMENT"),
        (ready(bytes(torn)), "INVALID_RECORD"),
        (ready(batch_of(b"g") + batch_of(b"h")), "INVALID_RECORD"),
        (ready(b""), "INVALID_RECORD"),
        (log_pb2.Append(topic="orders", partition=0), "INVALID_ARGUMENT"),
        (structured(topic="single"), "INVALID_ARGUMENT"),
        (structured(log_pb2.Record(partition=9), topic="single"), "UNKNOWN_PARTITION"),
        (structured(log_pb2.Record(partition=1), partition=0), "INVALID_ARGUMENT"),
        (structured(log_pb2.Record(timestamp_ms=-5), partition=0), "INVALID_ARGUMENT"),
        (structured(log_pb2.Record(timestamp_ms=2**62), partition=0), "INVALID_TIMESTAMP"),
    ]

    async def scenario(broker: SmallBroker, stub: Any) -> None:
        for failed, reported in failing:
            response = await stub.Produce(request(ready(batch_of(b"a"), partition=1), failed, ready(batch_of(b"i"), partition=2)))
            assert reasons(response) == ["", reported, ""]
        assert await values(stub, 0) == await values(stub, 0, topic="single") == []
        assert await values(stub, 1) == [b"a"] * len(failing)
        assert await values(stub, 2) == [b"i"] * len(failing)

    serve(tmp_path, scenario)


def test_limits_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await broker.create_topic("narrow", 1, {"max.message.bytes": "2000"})
        headers = [log_pb2.Header(key=str(number)) for number in range(5)]
        response = await stub.Produce(
            request(
                ready(batch_of(b"x" * 3 * KIB), topic="narrow"),
                ready(batch_of(b"x" * 9 * KIB)),
            )
        )
        assert reasons(response) == ["TOO_LARGE"] * 2
        for record, topic in ((log_pb2.Record(value=b"x" * 3 * KIB), "narrow"), (log_pb2.Record(headers=headers), "orders")):
            assert reasons(await stub.Produce(request(structured(record, topic=topic)))) == ["TOO_LARGE"]
        response = await stub.Produce(request(structured(*[log_pb2.Record(value=b"x" * 500)] * 20, topic="narrow")))
        assert reasons(response) == [""]
        assert sum(run.count for run in response.results[0].placements) == 20

    serve(tmp_path, scenario, settings=GatewaySettings(message_bytes_max=8 * KIB, record_headers_max=4))


def test_a_message_above_the_limit_is_refused_before_it_is_read_whole(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Produce(request(ready(b"x" * 3 * MIB)))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        call = stub.ProduceStream()
        await call.write(request(ready(b"x" * 3 * MIB)))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert broker.budget.bytes_used_peak < MIB

    serve(tmp_path, scenario, settings=GatewaySettings(request_bytes_max=1 * MIB, message_bytes_max=1 * MIB))


def test_a_compressed_batch_that_becomes_too_long_is_refused(tmp_path: Path) -> None:
    from segments.records.compression import Codec

    async def scenario(broker: SmallBroker, stub: Any) -> None:
        bomb = encode_records([(None, b"\0" * 900 * KIB, (), 1)] * 4, codec=Codec.ZSTD)
        large = encode_records([(None, bytes(range(256)) * 12, (), number) for number in range(600)], codec=Codec.LZ4)
        response = await stub.Produce(request(ready(bomb), ready(large, partition=1)))
        assert reasons(response) == ["TOO_LARGE", ""]

    serve(tmp_path, scenario, segments=SegmentSettings(linger_ms=0, puts_per_second_max=1000, decompressed_bytes_max=2 * MIB))


# ── acknowledgements, idempotence, conditions ───────────────────────────────────────────────────────────────────────────


def test_acks_all_waits_for_the_commit_and_the_others_do_not(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        broker.store.hold()
        none = await stub.Produce(request(ready(batch_of(b"a")), acks=log_pb2.ACKS_NONE))
        leader = await stub.Produce(request(ready(batch_of(b"b")), acks=log_pb2.ACKS_LEADER))
        waiting = asyncio.ensure_future(stub.Produce(request(ready(batch_of(b"c")), acks=log_pb2.ACKS_ALL)))
        assert not none.results[0].placements
        assert leader.results[0].placements[0].base_offset == 1
        await until(lambda: end_offset(broker) == 3)
        await many_turns(stub)
        assert not waiting.done()
        broker.store.let_go()
        assert (await waiting).results[0].placements[0].base_offset == 2

    serve(tmp_path, scenario)


def test_a_commit_that_does_not_come_in_time_is_an_unknown_outcome(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        broker.store.hold()
        response = await stub.Produce(request(ready(batch_of(b"a")), timeout_ms=20))
        assert reasons(response) == ["OUTCOME_UNKNOWN"]
        broker.store.let_go()
        await until(lambda: broker.budget.bytes_used == 0)
        assert await values(stub, 0) == [b"a"]

    serve(tmp_path, scenario)


def test_a_duplicate_append_returns_the_offsets_of_the_first_one(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        producer_id = (await stub.InitProducer(log_pb2.InitProducerRequest())).producer_id
        for duplicate in (False, True):
            response = await stub.Produce(request(ready(sequenced_batch(producer_id, 0, b"a", b"b"))))
            (placement,) = response.results[0].placements
            assert (placement.base_offset, placement.count, placement.duplicate) == (0, 2, duplicate)
        response = await stub.Produce(request(ready(sequenced_batch(producer_id, 5, b"c"))))
        assert reasons(response) == ["OUT_OF_ORDER_SEQUENCE"]
        assert await values(stub, 0) == [b"a", b"b"]

    serve(tmp_path, scenario)


def test_a_broker_that_may_lead_no_more_calls_a_sequence_wrong_only_after_a_look_for_its_seal(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        producer_id = (await stub.InitProducer(log_pb2.InitProducerRequest())).producer_id
        gap = request(ready(sequenced_batch(producer_id, 5, b"c")), ready(batch_of(b"d")))
        lose_lease(broker.log)
        reported = await stub.Produce(gap)
        assert reasons(reported) == ["UNKNOWN_PRODUCER", "UNAVAILABLE"]
        elsewhere = [ready(sequenced_batch(producer_id, 5, b"c"), partition=number) for number in range(3)]
        assert reasons(await stub.Produce(request(*elsewhere))) == ["UNKNOWN_PRODUCER"] * 3
        assert "was not checked" in reported.results[1].error.message
        session = broker.log.session.id
        await broker.store.create(segment_key(session, SegmentSeq(0)), [seal_of(session, 0)])
        assert reasons(await stub.Produce(gap)) == ["SESSION_FENCED", "UNAVAILABLE"]

    serve(tmp_path, scenario)


def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        given = [(await stub.InitProducer(log_pb2.InitProducerRequest())).producer_id for _ in range(5)]
        assert len(set(given)) == 5

    serve(tmp_path, scenario)


def test_ids_that_stand_for_idempotency_keys_can_not_be_claimed(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        response = await stub.Produce(request(ready(sequenced_batch(ONE_SHOT + 5, 0, b"a"))))
        assert reasons(response) == ["INVALID_RECORD"]

    serve(tmp_path, scenario)


def test_an_append_at_another_end_than_expected_is_refused(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        for expected_offset, reported in ((0, ""), (0, "CONDITION_FAILED"), (1, "")):
            response = await stub.Produce(request(ready(batch_of(b"a"), expected_offset=expected_offset)))
            assert reasons(response) == [reported]
        both = log_pb2.Append(
            topic="orders",
            records=log_pb2.RecordList(records=[log_pb2.Record(partition=0), log_pb2.Record(partition=1)]),
            expected_offset=2,
        )
        assert reasons(await stub.Produce(request(both))) == ["INVALID_ARGUMENT"]

    serve(tmp_path, scenario)


def test_the_brokers_clock_stamps_where_the_topic_says_so(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await broker.create_topic("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
        await stub.Produce(request(ready(batch_of(b"a", timestamps_ms=[5]), topic="stamped")))
        response = await stub.Fetch(log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="stamped")]))
        header = parse_header(response.partitions[0].record_batches)
        assert (header.log_append_time, header.max_timestamp) == (True, NOW_MS)

    serve(tmp_path, scenario)


# ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_is_answered_in_order_with_its_correlation_ids(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        call = stub.ProduceStream()
        for number in range(50):
            topic = "orders" if number % 5 else "nothing"
            await call.write(request(ready(batch_of(b"%d" % number), topic=topic), correlation_id=1000 + number))
        await call.done_writing()
        answers = [answer async for answer in call]
        assert [answer.correlation_id for answer in answers] == list(range(1000, 1050))
        assert [reasons(answer) for answer in answers[:6]] == [["UNKNOWN_TOPIC"], [""], [""], [""], [""], ["UNKNOWN_TOPIC"]]
        assert await call.code() is grpc.StatusCode.OK
        assert await values(stub, 0) == [b"%d" % number for number in range(50) if number % 5]

    serve(tmp_path, scenario)


def test_a_malformed_message_ends_the_stream_after_what_was_taken_is_answered(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        async with grpc.aio.insecure_channel(broker.grpc_address) as channel:
            call: Any = channel.stream_stream("/tidelog.v1.Log/ProduceStream")()
            await call.write(request(ready(batch_of(b"a")), correlation_id=5).SerializeToString())
            await call.write(b"\xff\xff\xff")
            answer = log_pb2.ProduceResponse.FromString(await call.read())
            assert (answer.correlation_id, answer.results[0].placements[0].count) == (5, 1)
            with pytest.raises(grpc.aio.AioRpcError, match="not a ProduceRequest") as refused:
                await call.read()
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            unary: Any = channel.unary_unary("/tidelog.v1.Log/Produce")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await unary(b"\xff\xff\xff")
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            empty: Any = channel.stream_unary("/tidelog.v1.Log/Produce")()
            await empty.done_writing()
            assert await empty.code() is grpc.StatusCode.INVALID_ARGUMENT

    serve(tmp_path, scenario)


def test_a_producer_that_hangs_up_does_not_stop_the_others_and_its_batches_remain(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        broker.store.hold()
        async with stub_of(broker) as other:
            leaving = other.ProduceStream()
            await leaving.write(request(ready(batch_of(b"left behind"))))
            await until(lambda: end_offset(broker) == 1)
            leaving.cancel()
        staying = asyncio.ensure_future(stub.Produce(request(ready(batch_of(b"staying")))))
        await until(lambda: end_offset(broker) == 2)
        broker.store.let_go()
        assert (await staying).results[0].placements[0].base_offset == 1
        assert await values(stub, 0) == [b"left behind", b"staying"]
        assert broker.budget.bytes_used == 0

    serve(tmp_path, scenario)


def end_offset(broker: SmallBroker, partition: int = 0) -> int:
    from gateway.topics.names import partition_of

    return broker.log.partitions.bounds(partition_of(broker.topic_cache.get("orders"), partition)).end_offset


def test_a_stream_that_is_not_answered_is_read_up_to_its_window_and_no_further(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        broker.store.hold()
        call = stub.ProduceStream()
        for number in range(40):
            await call.write(request(ready(batch_of(b"%d" % number))))
        await until(lambda: end_offset(broker) >= 4)
        await many_turns(stub)
        assert end_offset(broker) <= 4 + 2  # one with the writer, one with the reader
        broker.store.let_go()
        await call.done_writing()
        assert len([answer async for answer in call]) == 40

    serve(tmp_path, scenario, settings=GatewaySettings(grpc_stream_window=4))


def test_without_a_session_every_append_is_refused_with_stopping(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        log, broker.present_log = broker.present_log, None
        call = stub.ProduceStream()
        await call.write(request(ready(batch_of(b"a")), ready(batch_of(b"b"))))
        assert reasons(await call.read()) == ["STOPPING", "STOPPING"]
        broker.present_log = log
        await call.write(request(ready(batch_of(b"c"))))
        assert reasons(await call.read()) == [""]
        await call.done_writing()

    serve(tmp_path, scenario)


def test_compressed_messages_are_refused(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        async with stub_of(broker, compression=grpc.Compression.Gzip) as compressing:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await compressing.Produce(request(structured(log_pb2.Record(value=b"\0" * MIB))))
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

    serve(tmp_path, scenario)
