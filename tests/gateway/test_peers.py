"""Calls to other brokers, and the channels that they go over."""

from __future__ import annotations

import asyncio

import pytest

from gateway.peers import WRITES_AT_ONCE, Peers
from gateway.proto import log_pb2
from metadata.broker_registry import Registration
from metadata.errors import NoLeader
from metadata.model import SessionId
from tests.tidelog.small_broker import SmallBroker, running

pytestmark = pytest.mark.slow


async def steps() -> None:
    """As many of the loop as it takes until all wait for something else."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_write_whose_channel_is_dropped_while_it_waits_for_its_turn_was_not_sent() -> None:
    async def main() -> None:
        async with running(SmallBroker("b1")) as broker:
            peer = Registration(broker_id="b1", session=SessionId(1), grpc_address=broker.host_port)
            peers = Peers("b2")

            async def call() -> log_pb2.InitProducerResponse:
                request = log_pb2.InitProducerRequest()
                answer_type = log_pb2.InitProducerResponse
                return await peers.call(peer, "/tidelog.v1.Log/InitProducer", request, answer_type, timeout_s=20, is_write=True)

            await call()
            broker.running.clear()  # it answers nothing any more
            calls = [asyncio.ensure_future(call()) for _ in range(WRITES_AT_ONCE + 1)]
            await steps()
            assert peers._channels[broker.host_port].turns.locked()
            dropping = asyncio.ensure_future(peers.drop_others([]))
            await steps()
            assert not dropping.done(), "calls are open on the channel"
            calls[0].cancel()
            with pytest.raises(NoLeader):
                await calls[-1]
            broker.running.set()
            for open_call in calls:
                open_call.cancel()
            await asyncio.gather(*calls, dropping, return_exceptions=True)

    asyncio.run(main())
