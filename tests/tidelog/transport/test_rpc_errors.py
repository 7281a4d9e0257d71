"""What brokers answer becomes the error tree again."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.proto.status import DETAILS_TRAILER, to_status
from metadata.errors import (
    Denied,
    InvalidArgument,
    OutcomeUnknown,
    Rejected,
    Throttled,
    TidelogError,
    TooLarge,
    Unavailable,
)
from tidelog.transport.rpc_errors import error_of_rpc


def rpc_error(code: grpc.StatusCode, details: str, *trailers: tuple[str, bytes]) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details)


def test_a_call_that_the_broker_refused_carries_its_error() -> None:
    trailer = (DETAILS_TRAILER, to_status(TooLarge("too large", bytes_max=5)).SerializeToString())
    error = error_of_rpc(rpc_error(grpc.StatusCode.INVALID_ARGUMENT, "too large", trailer), address="b", writes=True)
    assert (type(error), error.details["bytes_max"]) == (TooLarge, 5)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED])
def test_a_lost_answer_is_of_unknown_outcome_for_a_write_and_unavailable_for_a_read(code: grpc.StatusCode) -> None:
    lost = rpc_error(code, "Socket closed")
    assert type(error_of_rpc(lost, address="b", writes=True)) is OutcomeUnknown
    assert type(error_of_rpc(lost, address="b", writes=False)) is Unavailable


def test_a_call_that_the_broker_ended_without_a_word_says_that_it_is_busy_and_not_that_it_is_gone() -> None:
    """As of a call that it did not take up in time. One that stops says so: UNAVAILABLE, "Cancelling all calls"."""
    ended = rpc_error(grpc.StatusCode.CANCELLED, "CANCELLED")
    read, write = (error_of_rpc(ended, address="b", writes=writes) for writes in (False, True))
    assert (type(read), type(write)) == (Throttled, OutcomeUnknown)
    assert read.details["ended_by_broker"]
    assert write.details["ended_by_broker"]
    assert "ended_by_broker" not in error_of_rpc(rpc_error(grpc.StatusCode.UNAVAILABLE, "gone"), address="b", writes=True).details


@pytest.mark.parametrize(
    ("said", "reported"),
    [
        ("failed to connect to all addresses; last error: refused", "refused"),
        (
            "failed to connect to all addresses; last error: NONE: ipv4:h:1: Failed to connect to remote host: Connection refused",
            "Connection refused",
        ),
        ("errors resolving nowhere:9: [Domain name not found]", "errors resolving nowhere:9: [Domain name not found]"),
    ],
)
def test_a_connection_that_was_never_made_wrote_nothing(said: str, reported: str) -> None:
    error = error_of_rpc(rpc_error(grpc.StatusCode.UNAVAILABLE, said), address="b", writes=True)
    assert type(error) is Unavailable
    assert error.message == f"b: can't connect: {reported}"
    assert "tidelog dev" in error.hint


def test_a_deadline_is_reported_as_no_answer_in_time() -> None:
    silence = rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    assert error_of_rpc(silence, address="b", writes=False).message == "b: no answer: the time was over"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, Rejected),
        (grpc.StatusCode.UNAUTHENTICATED, Denied),
        (grpc.StatusCode.PERMISSION_DENIED, Denied),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidArgument),
    ],
)
def test_codes_without_details_have_their_meaning(code: grpc.StatusCode, kind: type[TidelogError]) -> None:
    error = error_of_rpc(rpc_error(code, "so it is"), address="b:1", writes=True)
    assert isinstance(error, kind)
    assert str(error) == "b:1: so it is"


LARGER = "SERVER: Received message larger than max (6000 vs. 1000)"
ANSWER_LARGER = "Stream removed (CLIENT: Received message larger than max (950 vs. 900))"


@pytest.mark.parametrize(
    ("said", "writes", "kind"),
    [
        ("Concurrent RPC limit exceeded!", True, Throttled),
        ("Concurrent RPC limit exceeded!", False, Throttled),
        (LARGER, True, TooLarge),
        (LARGER, False, TooLarge),
        (ANSWER_LARGER, True, OutcomeUnknown),
        (ANSWER_LARGER, False, TooLarge),
        ("the quota of a proxy", True, OutcomeUnknown),
        ("the quota of a proxy", False, Unavailable),
    ],
)
def test_errors_of_exhausted_resources_are_distinguished_by_their_cause(said: str, writes: bool, kind: type[TidelogError]) -> None:
    error = error_of_rpc(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, said), address="b:1", writes=writes)
    assert type(error) is kind
    assert said in str(error)
    assert error.hint


def test_a_message_that_is_too_large_names_the_limit() -> None:
    error = error_of_rpc(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, LARGER), address="b", writes=True)
    assert (error.details["bytes_max"], error.retryable) == (1000, False)


@pytest.mark.slow
def test_these_are_the_words_of_a_real_server() -> None:
    async def run() -> None:
        async def hold(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            await context.write(b"here")
            await context.read()

        server = grpc.aio.server(options=[("grpc.max_receive_message_length", 1000)], maximum_concurrent_rpcs=1)
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"m": grpc.stream_stream_rpc_method_handler(hold)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with asyncio.timeout(60), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            method: Any = channel.stream_stream("/s/m")
            first = method()
            assert await first.read() == b"here"
            with pytest.raises(grpc.aio.AioRpcError) as too_many:
                await method().read()
            await first.write(bytes(6000))
            with pytest.raises(grpc.aio.AioRpcError) as too_large:
                await first.read()
        await server.stop(None)
        met = [error_of_rpc(refused.value, address="b", writes=True) for refused in (too_many, too_large)]
        assert [type(error) for error in met] == [Throttled, TooLarge]

    asyncio.run(run())


def test_details_that_can_not_be_read_leave_what_the_code_says() -> None:
    for trailer in (b"\xff\xff\xff", b""):
        lost = rpc_error(grpc.StatusCode.UNAVAILABLE, "it is so", (DETAILS_TRAILER, trailer))
        assert type(error_of_rpc(lost, address="b", writes=False)) is Unavailable


def test_an_error_of_the_broker_itself_may_have_written() -> None:
    internal = rpc_error(grpc.StatusCode.INTERNAL, "oops")
    assert type(error_of_rpc(internal, address="b", writes=True)) is OutcomeUnknown
    assert type(error_of_rpc(internal, address="b", writes=False)) is TidelogError
