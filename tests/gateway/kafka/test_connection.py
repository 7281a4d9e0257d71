"""What one connection of a Kafka client keeps to, whatever its requests are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gateway.access.quotas import Meter
from gateway.kafka.connection import RECEIVE_BYTES_PER_SECOND_MIN, UNSENT_BYTES_MAX, Answer, Hold, KafkaConnection
from gateway.kafka.frame_reader import SHARED_BYTES
from metadata.access.quota import Quota
from metadata.errors import InvalidRecord
from tests.kit.gateway.kafka_connection import ScriptedRequests, connected, deliver, framed, send
from tests.simulation.virtual_loop import run as run_virtually

# Bodies of requests: a poll waits for records, and a produce is answered without a place in the order of work.
POLL, PRODUCE = b"poll----", b"produce-"
METER, NEXT_METER = (Meter("a", Quota(principal="a", bytes_in_per_second=rate), lambda: 0.0) for rate in (1, 2))


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtually(scenario())


class Polls:
    """Requests that wait for records, as a Fetch does; a produce is decided by the test."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.slow_end = 0
        self.requests = ScriptedRequests(self._begin)

    def _begin(self, connection: KafkaConnection, body: bytes) -> None:
        answer = connection.answer()
        if body != PRODUCE:
            connection.enqueue(answer, lambda: self._poll(connection, answer))

    async def _poll(self, connection: KafkaConnection, answer: Answer) -> None:
        how = "in time"
        try:
            async with asyncio.timeout(None) as poll:
                with connection.polling(poll):
                    await self._records()
        except TimeoutError:
            how = "gave way"
        self.ended.append(how)
        connection.decide(answer, [b"records"])

    async def _records(self) -> None:
        try:
            await asyncio.sleep(60)
        finally:  # a read of another broker takes a while to be cancelled
            for _ in range(self.slow_end):
                await asyncio.sleep(0)


def test_requests_that_arrive_while_a_long_poll_ends_do_not_end_the_connection() -> None:
    async def scenario() -> None:
        polls = Polls()
        polls.slow_end = 5
        connection, transport = connected(polls.requests)
        send(connection, framed(POLL))
        await asyncio.sleep(0.01)
        for _ in range(4):
            send(connection, framed(PRODUCE))
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert polls.ended == ["gave way"]
        assert not transport.is_ending

    run(scenario)


def test_a_long_poll_gives_way_to_a_produce() -> None:
    async def scenario() -> None:
        polls = Polls()
        connection, _ = connected(polls.requests)
        send(connection, framed(POLL))
        await asyncio.sleep(0.01)
        assert polls.ended == []
        send(connection, framed(PRODUCE))
        await asyncio.sleep(0.01)
        assert polls.ended == ["gave way"]

    run(scenario)


def test_a_poll_that_begins_when_others_wait_gives_way_at_once() -> None:
    async def scenario() -> None:
        polls = Polls()
        connection, _ = connected(polls.requests)
        send(connection, framed(POLL) + framed(POLL) + framed(PRODUCE))
        await asyncio.sleep(0.01)
        assert polls.ended == ["gave way", "gave way"]

    run(scenario)


class LargeAnswers:
    """Requests whose answers are long, but for a produce, which the test decides."""

    def __init__(self, size_bytes: int) -> None:
        self.made = 0
        self.produces: list[Answer] = []
        self._size_bytes = size_bytes
        self.requests = ScriptedRequests(self._begin)

    def _begin(self, connection: KafkaConnection, body: bytes) -> None:
        answer = connection.answer()
        if body == PRODUCE:
            self.produces.append(answer)
        else:
            connection.enqueue(answer, lambda: self._answer(connection, answer))

    async def _answer(self, connection: KafkaConnection, answer: Answer) -> None:
        self.made += 1
        connection.decide(answer, [bytes(self._size_bytes)])
        await asyncio.sleep(0)


def test_no_answer_is_made_for_a_client_that_does_not_receive_those_before() -> None:
    async def scenario() -> None:
        answers = LargeAnswers(UNSENT_BYTES_MAX + 1)
        connection, transport = connected(answers.requests)
        transport.is_stalled = True
        send(connection, framed(POLL) * 20)
        await asyncio.sleep(0.01)
        assert answers.made <= 2
        while transport.unsent:
            transport.receive()
            await asyncio.sleep(0.001)
        assert answers.made == 20
        assert len(transport.written) == 20 * (UNSENT_BYTES_MAX + 1)

    run(scenario)


def test_answers_that_wait_for_a_produce_before_them_are_bounded() -> None:
    async def scenario() -> None:
        answers = LargeAnswers(UNSENT_BYTES_MAX // 2)
        connection, transport = connected(answers.requests)
        send(connection, framed(PRODUCE) + framed(POLL) * 20)
        await asyncio.sleep(0.01)
        assert answers.made == 3
        connection.decide(answers.produces[0], [b"committed"])
        await asyncio.sleep(0.05)
        assert answers.made == 20
        assert len(transport.written) == len(b"committed") + 10 * UNSENT_BYTES_MAX

    run(scenario)


def test_a_shorter_wait_for_a_quota_does_not_end_a_longer_one() -> None:
    async def scenario() -> None:
        connection, transport = connected(ScriptedRequests(lambda *_: None))
        connection.throttle(0.01, METER)
        connection.throttle(60, METER)
        connection.throttle(0.02, METER)
        await asyncio.sleep(0.05)
        assert not transport.is_reading()

    run(scenario)


def test_a_connection_is_read_again_after_its_wait_for_a_quota() -> None:
    async def scenario() -> None:
        connection, transport = connected(ScriptedRequests(lambda *_: None))
        connection.throttle(0.01, METER)
        connection.throttle(0.02, METER)
        await asyncio.sleep(0.05)
        assert transport.is_reading()

    run(scenario)


@pytest.mark.parametrize(("meter", "goes_on"), [(METER, False), (NEXT_METER, True), (None, True)])
def test_the_wait_for_a_quota_ends_once_the_quota_is_another(meter: Meter | None, goes_on: bool) -> None:
    async def scenario() -> None:
        connection, transport = connected(ScriptedRequests(lambda *_: None))
        connection.throttle(60, METER)
        connection.end_throttle(unless=meter)
        await asyncio.sleep(0.001)
        assert transport.is_reading() is goes_on
        connection.throttle(0.001, NEXT_METER)
        await asyncio.sleep(0.02)
        assert transport.is_reading()

    run(scenario)


@pytest.mark.parametrize("is_held", [False, True])
def test_nothing_is_begun_behind_a_request_that_was_refused(is_held: bool) -> None:
    async def scenario() -> None:
        begun: list[bytes] = []

        def begin(connection: KafkaConnection, body: bytes) -> None:
            begun.append(body)
            connection.refuse(InvalidRecord("an unanswered Produce was refused"))

        connection, _ = connected(ScriptedRequests(begin))
        if is_held:
            connection.hold(Hold.ADMISSION)
        deliver(connection, framed(PRODUCE) * 3)
        connection.go_on(Hold.ADMISSION)
        await asyncio.sleep(0)
        assert begun == [PRODUCE]

    run(scenario)


def test_an_error_of_the_broker_in_a_held_request_ends_the_connection() -> None:
    async def scenario() -> None:
        def begin(connection: KafkaConnection, body: bytes) -> None:
            raise LookupError("a fault")

        connection, transport = connected(ScriptedRequests(begin))
        connection.hold(Hold.ADMISSION)
        deliver(connection, framed(PRODUCE))
        connection.go_on(Hold.ADMISSION)
        assert transport.is_ending

    run(scenario)


def test_an_answer_of_a_lost_connection_counts_as_decided() -> None:
    async def scenario() -> None:
        connection, transport = connected(ScriptedRequests(lambda *_: None))
        answer = connection.answer()
        transport.abort()
        await asyncio.sleep(0)
        connection.decide(answer, [b"late"])
        assert answer.is_decided

    run(scenario)


def test_a_closed_connection_whose_client_receives_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.kafka.connection.WRITE_STALL_S", 0.01)

    async def scenario() -> None:
        connection, transport = connected(ScriptedRequests(lambda *_: None))
        transport.is_stalled = True
        connection.decide(connection.answer(), [b"a short answer"])
        await asyncio.sleep(0)
        connection.close()
        assert not transport.is_lost
        await asyncio.sleep(0.05)
        assert transport.is_lost

    run(scenario)


LONG = framed(bytes(SHARED_BYTES))


def test_a_request_that_trickles_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.kafka.connection.RECEIVE_STALL_S", 0.0)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        connection, _ = connected(ScriptedRequests(lambda *_: None))
        began_s = loop.time()
        for at in range(100):
            send(connection, LONG[at : at + 1])  # each byte is news of the client
        assert connection.awaits_bytes
        assert not connection.is_too_slow(began_s + 0.9 * SHARED_BYTES / RECEIVE_BYTES_PER_SECOND_MIN)
        assert connection.is_too_slow(loop.time() + SHARED_BYTES / RECEIVE_BYTES_PER_SECOND_MIN)
        connection.hold(Hold.THROTTLED)
        assert not connection.is_too_slow(loop.time() + 1000), "the client can't send while it is not read"
        connection.go_on(Hold.THROTTLED)
        send(connection, LONG[100:] + LONG[:6])
        assert connection.awaits_bytes
        assert not connection.is_too_slow(loop.time() + 1000), "the head of the next request is no part of this one"

    run(scenario)


def test_a_connection_that_drains_answers_what_it_has_begun_and_nothing_else() -> None:
    async def scenario() -> None:
        answers = LargeAnswers(1)
        connection, transport = connected(answers.requests)
        send(connection, framed(PRODUCE) * 2)
        connection.drain()
        deliver(connection, framed(PRODUCE))
        connection.decide(answers.produces[1], [b"2"])
        connection.decide(answers.produces[0], [b"1"])
        await asyncio.sleep(0.01)
        assert bytes(transport.written) == b"12"
        assert len(answers.produces) == 2
        assert transport.is_ending

    run(scenario)


def test_a_connection_without_requests_drains_at_once() -> None:
    async def scenario() -> None:
        connection, transport = connected(ScriptedRequests(lambda *_: None))
        connection.drain()
        assert transport.is_ending

    run(scenario)
