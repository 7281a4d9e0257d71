"""Room for messages over gRPC: when they are read, where they wait, and that a waiting message does not stop the others."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.grpc.produce import service as produce_service
from gateway.grpc.produce.receive_budget import FIRST_TURN_S, TURN_S, ReceiveBudget
from gateway.grpc.produce.request_decoder import ProduceRequestView, parse_produce
from gateway.proto import log_pb2
from gateway.settings import GatewaySettings
from segments.settings import KIB, MIB, SegmentSettings
from tests.gateway.grpc.produce.test_service import (
    end_offset,
    many_turns,
    ready,
    reasons,
    request,
    serve,
    structured,
    stub_of,
    values,
)
from tests.kit.gateway.small_broker import SmallBroker, until
from tests.kit.segments.batches import batch_of

pytestmark = pytest.mark.slow

SMALL_BUFFER = SegmentSettings(linger_ms=0, puts_per_second_max=1000, buffer_bytes_max=1 * MIB, segment_bytes_max=512 * KIB)
LITTLE_WAITING = GatewaySettings(request_bytes_max=256 * KIB, message_bytes_max=128 * KIB, grpc_waiting_bytes_max=512 * KIB)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The messages that the broker has read."""
    read: list[bytes] = []

    def noted(message: bytes) -> ProduceRequestView:
        read.append(message)
        return parse_produce(message)

    monkeypatch.setattr(produce_service, "parse_produce", noted)
    return read


def test_memory_stays_within_the_buffer_while_many_produce_against_a_bucket_that_hangs(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        broker.store.hold()
        batch = batch_of(b"x" * 100 * KIB)

        async def produce(partition: int) -> int:
            call = stub.ProduceStream()
            for _ in range(4):
                await call.write(request(ready(batch, partition=partition)))
            await call.done_writing()
            return len([answer async for answer in call if reasons(answer) == [""]])

        producing = [asyncio.ensure_future(produce(number % 3)) for number in range(30)]
        await until(lambda: broker.budget.bytes_used > 900 * KIB)
        await many_turns(stub)
        assert broker.budget.bytes_used_peak <= 1 * MIB
        broker.store.let_go()
        assert sum(await asyncio.gather(*producing)) == 120
        assert broker.budget.bytes_used_peak <= 1 * MIB
        await until(lambda: broker.budget.bytes_used == 0)

    serve(tmp_path, scenario, segments=SMALL_BUFFER)


def test_a_full_buffer_leaves_messages_with_their_clients(tmp_path: Path, read: list[bytes]) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        message = request(ready(batch_of(b"x" * 100 * KIB)))
        calls = [stub.ProduceStream() for _ in range(30)]
        broker.store.hold()

        async def write_four(call: Any) -> None:
            for _ in range(4):
                await call.write(message)  # waits, when the broker reads no more

        writing = [asyncio.ensure_future(write_four(call)) for call in calls]
        await until(lambda: broker.budget.bytes_used > 900 * KIB)
        answers = [asyncio.ensure_future(call.read()) for call in calls]
        await many_turns(stub)
        assert not any(answer.done() for answer in answers)
        in_the_buffer = broker.budget.bytes_max // (100 * KIB)
        assert len(read) <= in_the_buffer + len(calls), "a stream has read more than one message that found no room"
        broker.store.let_go()
        await until(lambda: len(read) == 120)
        await asyncio.gather(*writing)

    serve(tmp_path, scenario, segments=SMALL_BUFFER)


def test_messages_that_were_read_and_found_no_room_in_the_buffer_are_bounded_as_well(tmp_path: Path, read: list[bytes]) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        calls = [stub.ProduceStream() for _ in range(60)]
        for call in calls:
            await call.write(request(ready(batch_of(b"a"), partition=1)))
            await call.read()
        broker.store.hold()
        read.clear()
        for call in calls:
            await call.write(request(ready(batch_of(b"x" * 100 * KIB))))
        answers = [asyncio.ensure_future(call.read()) for call in calls]
        await until(lambda: len(read) == 60)
        room_bytes = broker.budget.bytes_max + LITTLE_WAITING.grpc_waiting_bytes_max
        await until(lambda: sum(not answer.done() for answer in answers) * len(read[0]) <= room_bytes)
        assert {reasons(answer.result())[0] for answer in answers if answer.done()} == {"THROTTLED"}
        broker.store.let_go()
        reported = [reasons(await answer)[0] for answer in answers]
        assert set(reported) == {"", "THROTTLED"}
        assert end_offset(broker) == reported.count("") > 10

    serve(tmp_path, scenario, settings=LITTLE_WAITING, segments=SMALL_BUFFER)


def test_a_stream_that_ends_while_its_message_waits_for_room_gives_up_its_slot(tmp_path: Path, read: list[bytes]) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        async with broker.log.admit(1 * MIB, timeout_s=1), stub_of(broker) as other:
            vanishing = [other.ProduceStream() for _ in range(2)]
            for call in vanishing:
                await call.write(request(ready(batch_of(b"x" * 120 * KIB))))
            await until(lambda: len(read) == 2)
            waiting = asyncio.ensure_future(stub.Produce(request(ready(batch_of(b"a")))))
            await many_turns(stub)
            assert not waiting.done()
            assert len(read) == 2, "there is no room to read a third"
            for call in vanishing:
                call.cancel()
            await until(lambda: len(read) == 3)
        assert reasons(await waiting) == [""]
        assert await values(stub, 0) == [b"a"]

    serve(tmp_path, scenario, settings=LITTLE_WAITING, segments=SMALL_BUFFER)


def test_a_call_that_gets_no_turn_in_time_is_throttled_before_it_is_read(
    tmp_path: Path, read: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms: list[ReceiveBudget] = []

    def noted_room(bytes_max: int, *, bytes_usual: int) -> ReceiveBudget:
        rooms.append(ReceiveBudget(bytes_max, bytes_usual=bytes_usual))
        return rooms[-1]

    monkeypatch.setattr(produce_service, "ReceiveBudget", noted_room)

    async def half_a_room() -> object:
        return bytes(256 * KIB)

    async def scenario(broker: SmallBroker, stub: Any) -> None:
        waiting = await rooms[0].next(half_a_room)
        assert waiting is not None
        with waiting:
            waiting.hold(len(waiting.body))
            with pytest.raises(grpc.aio.AioRpcError, match="gRPC messages that wait for room in the buffer") as refused:
                await stub.Produce(request(ready(batch_of(b"a"))))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert read == []
        while reasons(await stub.Produce(request(ready(batch_of(b"b"))))) != [""]:
            pass  # on a busy machine a second may be too short for this one as well
        assert {*await values(stub, 0)} == {b"b"}

    settings = dataclasses.replace(LITTLE_WAITING, produce_timeout_ms=1_000)
    serve(tmp_path, scenario, settings=settings, segments=SMALL_BUFFER)


def test_streams_that_send_nothing_stop_no_one(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        async with stub_of(broker) as other:
            idle = [other.ProduceStream() for _ in range(10)]  # each expected to send 128 KiB, and turns are for 256 KiB
            for call in idle:
                await call.wait_for_connection()
            assert reasons(await stub.Produce(request(ready(batch_of(b"x" * 100 * KIB))))) == [""]
            for call in idle:
                await call.write(request(ready(batch_of(b"y" * 10 * KIB), partition=1)))
                assert reasons(await call.read()) == [""]

    serve(tmp_path, scenario, settings=LITTLE_WAITING, segments=SMALL_BUFFER)


def test_a_refused_message_is_not_kept_until_it_can_be_answered(tmp_path: Path, read: list[bytes]) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        broker.store.hold()
        call = stub.ProduceStream()
        torn = bytearray(batch_of(b"x" * 100 * KIB))
        torn[-1] ^= 1
        refused = [ready(bytes(torn)), ready(batch_of(b"a"), expected_offset=7), log_pb2.Append(topic="nothing"), structured()]
        for append in (ready(batch_of(b"answered last")), *refused, structured(log_pb2.Record(value=b"x" * KIB), partition=0)):
            await call.write(request(append))
        await until(lambda: len(read) == 6 and end_offset(broker) == 2)
        await until(lambda: all(sys.getrefcount(read[at]) == 2 for at in range(1, 6)))  # `read`, and the call
        broker.store.let_go()
        await call.done_writing()
        assert len([answer async for answer in call]) == 6

    serve(tmp_path, scenario)


def test_an_idle_stream_holds_no_room_in_the_buffer(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        calls = [stub.ProduceStream() for _ in range(20)]
        for call in calls:
            await call.write(request(ready(batch_of(b"x" * 50 * KIB))))
        for call in calls:
            assert reasons(await call.read()) == [""]
        await until(lambda: broker.budget.bytes_used == 0)
        response = await stub.Produce(request(ready(batch_of(b"x" * 500 * KIB)), timeout_ms=30_000))
        assert reasons(response) == [""]

    segments = SegmentSettings(linger_ms=0, puts_per_second_max=1000, buffer_bytes_max=1 * MIB, segment_bytes_max=1 * MIB)
    serve(tmp_path, scenario, segments=segments)


def test_a_request_that_finds_no_room_in_time_is_throttled_and_nothing_of_it_is_written(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        async with broker.log.admit(950 * KIB, timeout_s=1):
            response = await stub.Produce(request(ready(batch_of(b"x" * 100 * KIB)), timeout_ms=30))
            assert reasons(response) == ["THROTTLED"]
        assert await values(stub, 0) == []

    segments = SegmentSettings(linger_ms=0, puts_per_second_max=1000, buffer_bytes_max=1 * MIB, segment_bytes_max=1 * MIB)
    serve(tmp_path, scenario, segments=segments)


def test_a_stream_that_never_sent_gets_a_short_turn_and_one_that_only_opened_is_not_taken_for_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int | None, float]] = []
    following = ReceiveBudget.next

    def noted(self: ReceiveBudget, receive: Any, *, bytes_expected: int | None, turn_s: float, timeout_s: float) -> Any:
        asked.append((bytes_expected, turn_s))
        return following(self, receive, bytes_expected=bytes_expected, turn_s=turn_s, timeout_s=timeout_s)

    monkeypatch.setattr(ReceiveBudget, "next", noted)

    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await stub.Produce(log_pb2.ProduceRequest())
        call = stub.ProduceStream()
        await call.write(log_pb2.ProduceRequest())
        await call.read()
        await until(lambda: len(asked) == 3)
        assert asked == [(None, TURN_S), (None, FIRST_TURN_S), (0, TURN_S)]

    serve(tmp_path, scenario)
