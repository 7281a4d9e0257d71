"""A simulated connection of a Kafka client does what a socket does: in order, late, and broken where its broker is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.kafka.call import KafkaCall
from gateway.kafka.protocol.client_messages import HeartbeatRequest, HeartbeatResponse
from metadata.errors import OutcomeUnknown, Unavailable
from tests.kit.gateway.kafka_connection import LISTENER
from tests.kit.gateway.kafka_listener_alone import OneTopicLog, requests_alone
from tests.simulation.kafka_line import API_KEYS, KafkaLine
from tests.simulation.simulated_process import SimulatedProcess
from tests.simulation.virtual_loop import run, virtual_loop

HEARTBEAT = 4


class Host(SimulatedProcess):
    """A process that answers each heartbeat with its generation, as an error code, after as many seconds."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        super().__init__("b1", self.failures.append)
        self.kafka_lines: dict[KafkaLine, None] = {}
        self.kafka_requests = requests_alone(OneTopicLog(), {API_KEYS["Heartbeat"]: self._beat})
        self.takes_connections = True

    def failed_to_answer(self, error: BaseException) -> None:
        self.failures.append(repr(error))

    async def _beat(self, call: KafkaCall, request: HeartbeatRequest) -> HeartbeatResponse:
        if request.generation_id < 0:
            raise ValueError("a bug")
        await asyncio.sleep(request.generation_id)
        return HeartbeatResponse(error_code=request.generation_id)


async def beat(line: KafkaLine, generation: int, *, timeout_s: float = 60.0) -> Any:
    request = HeartbeatRequest(group_id="g", generation_id=generation, member_id="m")
    return (await line.ask("Heartbeat", HEARTBEAT, request, timeout_s=timeout_s)).error_code


def with_line(scenario: Callable[[Host, KafkaLine], Awaitable[None]]) -> None:
    async def whole() -> None:
        host = Host()
        await scenario(host, KafkaLine(host, LISTENER, client_id="c", latency_s=0.01))

    run(whole())


def test_answers_come_in_the_order_of_the_requests() -> None:
    async def scenario(host: Host, line: KafkaLine) -> None:
        assert await asyncio.gather(*(beat(line, seconds) for seconds in (3, 1, 2))) == [3, 1, 2]
        assert 6.0 < virtual_loop().time() < 6.1

    with_line(scenario)


def test_a_frozen_broker_answers_when_it_wakes() -> None:
    async def scenario(host: Host, line: KafkaLine) -> None:
        host.freeze()
        asking = asyncio.ensure_future(beat(line, 1))
        await asyncio.sleep(10.0)
        assert not asking.done()
        host.thaw()
        assert await asking == 1

    with_line(scenario)


def test_a_client_that_waits_in_vain_closes_the_connection_and_its_broker_learns_of_it() -> None:
    async def scenario(host: Host, line: KafkaLine) -> None:
        with pytest.raises(OutcomeUnknown, match="no answer to Heartbeat"):
            await beat(line, 30, timeout_s=1.0)
        await asyncio.sleep(0.1)
        assert not host.kafka_requests.open
        assert not host.kafka_lines
        with pytest.raises(Unavailable):
            await beat(line, 1)
        assert host.failures == []

    with_line(scenario)


def test_all_requests_of_a_broken_connection_have_an_unknown_outcome() -> None:
    async def scenario(host: Host, line: KafkaLine) -> None:
        asking = [asyncio.ensure_future(beat(line, seconds)) for seconds in (1, 5)]
        await asyncio.sleep(3.0)
        host.kill()
        line.break_later("the broker was killed")
        answered, lost = await asyncio.gather(*asking, return_exceptions=True)
        assert answered == 1
        assert isinstance(lost, OutcomeUnknown)

    with_line(scenario)


def test_a_handler_that_fails_by_a_bug_fails_the_world_and_closes_the_connection() -> None:
    async def scenario(host: Host, line: KafkaLine) -> None:
        with pytest.raises(OutcomeUnknown):
            await beat(line, -2)
        assert host.failures == ["ValueError('a bug')"]

    with_line(scenario)
