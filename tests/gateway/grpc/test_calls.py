"""How calls end whose handlers fail in gRPC itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.grpc.calls import Context, stream, write_wholly

pytestmark = pytest.mark.slow


async def serve(handler: Callable[[Context], Awaitable[None]]) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Stream": stream(handler)}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


def test_an_internal_error_of_grpc_reaches_the_client_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(context: Context) -> None:
        await context.write(b"first")
        raise grpc.aio.InternalError("no such batch")

    async def scenario() -> None:
        server, address = await serve(handler)
        async with grpc.aio.insecure_channel(address) as channel:
            call: Any = channel.stream_stream("/test/Stream")()
            async with asyncio.timeout(60):
                assert await call.read() == b"first"
                assert await call.code() is grpc.StatusCode.INTERNAL
        await server.stop(0)

    asyncio.run(scenario())
    assert "a call failed" in caplog.text
    assert "no such batch" in caplog.text


@pytest.mark.parametrize("leave", ["cancel", "close"])
def test_a_client_that_disconnects_causes_no_warning_in_the_log(leave: str, caplog: pytest.LogCaptureFixture) -> None:
    """It leaves between two writes, and under one that it does not take."""
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        ended = asyncio.Semaphore(0)

        async def handler(context: Context) -> None:
            context.add_done_callback(lambda _: ended.release())  # type: ignore[arg-type]  # as in gateway/grpc/limits.py
            await context.write(b"first")
            writing = asyncio.ensure_future(write_wholly(context, bytes(3 << 20)))
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await writing  # fails: as a handler that is just about to write when its client leaves

        server, address = await serve(handler)
        for _ in range(10):
            channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            call: Any = channel.stream_stream("/test/Stream")()
            assert await call.read() == b"first"
            if leave == "cancel":
                call.cancel()
            await channel.close()
        async with asyncio.timeout(60):
            for _ in range(10):
                await ended.acquire()
        await server.stop(0)

    asyncio.run(scenario())
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
