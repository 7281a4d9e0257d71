"""Calls to other brokers, and the channels that they go over."""

from __future__ import annotations

import asyncio
import time

import grpc
import grpc.aio
import pytest

from gateway.proto import log_pb2
from gateway.routing import peer_channels as peers
from gateway.routing.peer_channels import WRITES_MAX, PeerChannels
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import NoLeader, NotCoordinator, OutcomeUnknown, Throttled, TidelogError, Unavailable
from metadata.model import SessionId
from tests.kit.tidelog.small_broker import SmallBroker, running

pytestmark = pytest.mark.slow

B1 = BrokerRegistration(broker_id="b1", session=SessionId(1), grpc_address="b1:9090")


def ended(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


@pytest.mark.parametrize(
    ("reported", "kind"),
    [
        (Unavailable, Throttled),
        (NotCoordinator, Throttled),
        (OutcomeUnknown, OutcomeUnknown),
    ],
)
def test_a_call_that_was_dropped_unread_is_throttled_but_a_write_stays_outcome_unknown(
    reported: type[TidelogError], kind: type[TidelogError]
) -> None:
    dropped, gone = ended(grpc.StatusCode.CANCELLED, "CANCELLED"), ended(grpc.StatusCode.UNAVAILABLE, "Cancelling all calls")
    assert type(peers._translate(dropped, B1, reported)) is kind
    assert type(peers._translate(gone, B1, reported)) is reported, "it stops"


def test_calls_that_another_broker_takes_up_too_late_are_throttled() -> None:
    async def main() -> None:
        server = grpc.aio.server(options=[("grpc.server_max_unrequested_time_in_server", 0)])

        async def answer(message: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            return b""

        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"Ask": grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        peer = BrokerRegistration(broker_id="b1", session=SessionId(1), grpc_address=f"127.0.0.1:{port}")
        await server.start()
        calls = PeerChannels("b2")

        async def ask() -> TidelogError | None:
            try:
                await calls.call(peer, "/t/Ask", log_pb2.ListOffsetsRequest(), log_pb2.ListOffsetsResponse, timeout_s=60)
            except TidelogError as error:
                return error
            return None

        reported = {type(error) for error in await asyncio.gather(*(ask() for _ in range(500)))}
        await calls.close()
        await server.stop(None)
        assert reported - {type(None)} == {Throttled}

    asyncio.run(main())


def test_a_process_that_stalls_while_it_connects_does_not_take_the_connected_broker_for_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "CONNECT_TIMEOUT_S", 0.2)

    async def main() -> None:
        async with running(SmallBroker("b1")) as broker:
            peer = BrokerRegistration(broker_id="b1", session=SessionId(1), grpc_address=broker.host_port)
            calls = PeerChannels("b2")
            request, answer_type = log_pb2.InitProducerRequest(), log_pb2.InitProducerResponse

            async def call() -> None:
                await calls.call(peer, "/tidelog.v1.Log/InitProducer", request, answer_type, timeout_s=60)

            asked = [asyncio.ensure_future(call()) for _ in range(100)]
            asyncio.get_running_loop().call_soon(time.sleep, 0.5)  # gRPC connects in threads of its own meanwhile
            await asyncio.gather(*asked)
            await calls.close()

    asyncio.run(main())


async def steps() -> None:
    """As many of the loop as it takes until all wait for something else."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_write_whose_channel_is_dropped_while_it_waits_for_its_turn_was_not_sent() -> None:
    async def main() -> None:
        async with running(SmallBroker("b1")) as broker:
            peer = BrokerRegistration(broker_id="b1", session=SessionId(1), grpc_address=broker.host_port)
            peers = PeerChannels("b2")

            async def call() -> log_pb2.InitProducerResponse:
                request = log_pb2.InitProducerRequest()
                answer_type = log_pb2.InitProducerResponse
                return await peers.call(peer, "/tidelog.v1.Log/InitProducer", request, answer_type, timeout_s=60, is_write=True)

            await call()
            broker.running.clear()  # it answers nothing any more
            calls = [asyncio.ensure_future(call()) for _ in range(WRITES_MAX + 1)]
            await steps()
            assert peers._channels[broker.host_port].write_slots.locked()
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
