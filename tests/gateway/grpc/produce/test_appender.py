"""What becomes of the appends of one message: their order, and structured records that take long."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from gateway.concurrency.offload import THREADS_MAX
from gateway.grpc.produce import appender
from gateway.grpc.produce import service as produce_service
from gateway.grpc.produce.appender import MessageAppender, alone_in_memory
from gateway.grpc.produce.record_decoder import THREAD_BYTES
from gateway.proto import log_pb2
from gateway.records.partitioning import RECORDS_MAX, CheckedBatch, Plan
from gateway.routing.peer_channels import FORWARDED_BY
from gateway.topics.names import partition_of
from metadata.errors import DuplicateSequence
from segments.log.append_result import UnverifiedRejection
from segments.records.batch import parse_header
from tests.gateway.grpc.produce.test_service import ready, reasons, request, serve, structured, values
from tests.kit.gateway.reported_log import P0
from tests.kit.gateway.small_broker import SmallBroker, until
from tests.kit.segments.batches import batch_of, sequenced_batch

pytestmark = pytest.mark.slow


def hint(error: Status) -> str:
    info = ErrorInfo()
    assert any(detail.Unpack(info) for detail in error.details)
    return str(info.metadata["hint"])


def torn(*values: bytes) -> bytes:
    batch = bytearray(batch_of(*values))
    batch[-1] ^= 1
    return bytes(batch)


def misdated(producer_id: int, base_sequence: int) -> bytes:
    return batch_of(b"misdated", producer_id=producer_id, producer_epoch=0, base_sequence=base_sequence, timestamps_ms=[2**50])


def to(partition: int, value: bytes) -> log_pb2.Record:
    return log_pb2.Record(value=value, partition=partition)


# ── order ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("refused", "reported"),
    [
        (ready(torn(b"refused")), "INVALID_RECORD"),
        (ready(batch_of(b"refused"), expected_offset=5), "CONDITION_FAILED"),
        (ready(sequenced_batch(0, 7, b"refused")), "UNKNOWN_PRODUCER"),
        (ready(misdated(0, 0)), "INVALID_TIMESTAMP"),
        (structured(to(1, b"refused"), partition=0), "INVALID_ARGUMENT"),
    ],
    ids=["what was found before it was appended", "its condition", "its sequence", "its date", "structured"],
)
def test_behind_a_refused_append_nothing_of_the_message_goes_to_its_partition(
    tmp_path: Path, refused: log_pb2.Append, reported: str
) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        response = await stub.Produce(
            request(
                ready(batch_of(b"before")),
                refused,
                ready(batch_of(b"behind")),
                ready(batch_of(b"another partition"), partition=1),
                structured(log_pb2.Record(value=b"behind as well"), partition=0),
                ready(batch_of(b"another topic"), topic="single"),
            )
        )
        assert reasons(response) == ["", reported, "UNAVAILABLE", "", "UNAVAILABLE", ""]
        behind = response.results[2].error
        assert behind.message.startswith("append 2 was not checked, since append 1, which comes before it in the same partition")
        assert hint(behind) == "Send it again after append 1 is resolved."
        assert await values(stub, 0) == [b"before"]
        assert reasons(await stub.Produce(request(ready(batch_of(b"the next message"))))) == [""]
        assert await values(stub, 0) == [b"before", b"the next message"]
        assert await values(stub, 1) == [b"another partition"]

    serve(tmp_path, scenario)


def test_a_producer_with_a_wrong_clock_or_a_gap_holds_up_no_other_whose_batches_are_forwarded_with_its_own(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        batches = [misdated(1, 0), sequenced_batch(2, 0, b"a"), sequenced_batch(1, 1), misdated(3, 0), batch_of(b"b")]
        response = await stub.Produce(request(*map(ready, batches)), metadata=((FORWARDED_BY, "another"),))
        assert reasons(response) == ["INVALID_TIMESTAMP", "", "UNKNOWN_PRODUCER", "INVALID_TIMESTAMP", ""]
        assert await values(stub, 0) == [b"a", b"b"]

    serve(tmp_path, scenario)


def test_a_retriable_refusal_applies_to_later_appends_of_the_same_partition(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        topic = broker.topic_cache.get("orders")
        broker.log.stop_leading(partition_of(topic, 0))
        response = await stub.Produce(request(ready(batch_of(b"a")), ready(batch_of(b"b")), ready(batch_of(b"c"), partition=1)))
        assert reasons(response) == ["NO_LEADER", "NO_LEADER", ""]

    serve(tmp_path, scenario)


def test_an_append_behind_a_repeat_that_is_in_the_log_already_is_appended() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    repeat = UnverifiedRejection(DuplicateSequence("written long ago"), never)
    outcomes: list[Any] = [repeat, "appended"]
    message = MessageAppender.__new__(MessageAppender)
    message._refused, message._is_forwarded, message._admission = {}, False, cast(Any, None)
    message._produce = cast(Any, SimpleNamespace(append=lambda target, batches, *_, **__: [outcomes.pop(0) for _ in batches]))
    batches = [CheckedBatch(P0, batch, parse_header(batch)) for batch in (sequenced_batch(1, 0), sequenced_batch(1, 1))]
    request = SimpleNamespace(expected_offset=None, continues=False)
    found = [message._append(at, cast(Any, request), cast(Any, None), [batch]) for at, batch in enumerate(batches)]
    assert found == [[repeat], ["appended"]]


def test_of_structured_records_only_those_behind_a_refused_append_are_refused(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        records = [to(1, b"a"), to(0, b"b"), to(2, b"c"), to(1, b"d")]
        response = await stub.Produce(request(ready(torn(b"refused")), structured(*records), ready(batch_of(b"e"), partition=1)))
        assert reasons(response) == ["INVALID_RECORD", "", ""]
        runs = [(run.partition, run.base_offset, run.count, run.HasField("error")) for run in response.results[1].placements]
        assert runs == [(1, 0, 1, False), (0, -1, 1, True), (2, 0, 1, False), (1, 1, 1, False)]
        assert [await values(stub, partition) for partition in range(3)] == [[], [b"a", b"d", b"e"], [b"c"]]

    serve(tmp_path, scenario)


def test_behind_records_that_were_refused_before_they_were_routed_nothing_goes_to_their_topic(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        response = await stub.Produce(
            request(
                structured(log_pb2.Record(key=b"k"), log_pb2.Record(timestamp_ms=-5)),
                ready(batch_of(b"b"), partition=2),
                structured(to(1, b"c")),
                ready(batch_of(b"d"), topic="single"),
            )
        )
        assert reasons(response) == ["INVALID_ARGUMENT", "UNAVAILABLE", "UNAVAILABLE", ""]
        assert [await values(stub, partition) for partition in range(3)] == [[], [], []]

    serve(tmp_path, scenario)


def test_many_appends_of_one_request_are_all_written_and_answered_in_order(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        appends = [
            ready(batch_of(b"%d" % number), partition=number % 2, topic="nothing" if number % 5 == 4 else "orders")
            for number in range(450)
        ]
        response = await stub.Produce(request(*appends))
        assert reasons(response) == ["UNKNOWN_TOPIC" if number % 5 == 4 else "" for number in range(450)]
        assert await values(stub, 1) == [b"%d" % number for number in range(1, 450, 2) if number % 5 != 4]

    serve(tmp_path, scenario)


# ── structured records that take long ───────────────────────────────────────────────────────────────────────────────────


def test_long_appends_are_planned_and_encoded_in_threads_and_answered_in_stream_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads: list[tuple[str, int]] = []
    plan, encode = appender._plan, produce_service._encode_result

    def noted_plan(*arguments: Any) -> Plan:
        if threading.current_thread() is not threading.main_thread():
            in_threads.append(("plan", arguments[1].partition))
        return plan(*arguments)

    def noted_encode(result: Any, taken: Any, *arguments: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            in_threads.append(("encode", taken.partition))
        encode(result, taken, *arguments)

    monkeypatch.setattr(appender, "_plan", noted_plan)
    monkeypatch.setattr(produce_service, "_encode_result", noted_encode)

    async def scenario(broker: SmallBroker, stub: Any) -> None:
        many = structured(*[log_pb2.Record()] * THREAD_BYTES, partition=0)
        call = stub.ProduceStream()
        await call.write(request(structured(log_pb2.Record(value=b"first"), partition=0), correlation_id=1))
        await call.write(request(many, correlation_id=2))
        await call.write(request(ready(batch_of(b"last")), correlation_id=3))
        await call.done_writing()
        answers = [answer async for answer in call]
        found = [(answer.correlation_id, run.base_offset, run.count) for answer in answers for run in answer.results[0].placements]
        assert found == [(1, 0, 1), (2, 1, THREAD_BYTES), (3, 1 + THREAD_BYTES, 1)]
        assert in_threads == [("plan", 0), ("encode", 0)]

    serve(tmp_path, scenario)


def test_while_records_are_taken_apart_others_are_served_and_only_so_many_threads_are_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = 0
    may_go_on = threading.Event()
    plan = appender._plan

    def slow(*arguments: Any) -> Plan:
        nonlocal busy
        if threading.current_thread() is not threading.main_thread():
            busy += 1
            may_go_on.wait(60)
        return plan(*arguments)

    monkeypatch.setattr(appender, "_plan", slow)

    async def scenario(broker: SmallBroker, stub: Any) -> None:
        many = request(structured(*[log_pb2.Record()] * THREAD_BYTES, partition=0))
        taking_long = [asyncio.ensure_future(stub.Produce(many)) for _ in range(5)]
        await until(lambda: busy == THREADS_MAX)
        assert reasons(await stub.Produce(request(structured(to(1, b"a")), ready(batch_of(b"b"), partition=2)))) == ["", ""]
        assert busy == THREADS_MAX
        may_go_on.set()
        assert [reasons(await call) for call in taking_long] == [[""]] * 5

    serve(tmp_path, scenario)


def test_a_million_empty_records_are_refused(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        records = log_pb2.RecordList(records=[log_pb2.Record()] * 1_000_000)
        response = await stub.Produce(request(log_pb2.Append(topic="orders", partition=0, records=records)))
        assert reasons(response) == ["TOO_LARGE"]
        assert response.results[0].error.message.startswith(f"appends[0].records[{RECORDS_MAX}]: it is one too many")

    serve(tmp_path, scenario)


def test_the_records_of_all_appends_of_a_message_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "RECORDS_MAX", 5)

    async def scenario(broker: SmallBroker, stub: Any) -> None:
        response = await stub.Produce(request(*[structured(to(partition, b"a"), to(partition, b"b")) for partition in range(3)]))
        assert reasons(response) == ["", "", "TOO_LARGE"]
        assert response.results[2].error.message.startswith("appends[2].records[1]: it is one too many")

    serve(tmp_path, scenario)


def test_a_batch_that_is_the_lesser_part_of_its_message_does_not_keep_the_message_in_memory() -> None:
    message = memoryview(bytes(1000))
    kept, copied = alone_in_memory(message[:600]), alone_in_memory(message[:400])
    assert isinstance(kept, memoryview)
    assert copied == message[:400]
    assert isinstance(copied, bytes)
