"""Sidecars on the loopback: each listens without TLS and passes every connection on to a broker's listener with TLS.

    client ──plain text──▶ sidecar ──TLS, with or without a client certificate──▶ broker

With a client certificate, programs that know neither TLS nor SASL are served as the principal that the certificate names.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

CHUNK_BYTES = 64 << 10
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Route:
    """From a port to the port of a listener with TLS, both of 127.0.0.1."""

    port: int
    to_port: int
    context: ssl.SSLContext


@contextmanager
def sidecars(routes: Sequence[Route]) -> Iterator[None]:
    """Serves all routes in a thread of its own. Connections that are open in the end are closed."""
    listening, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(_serve(routes, listening, stop)), name="sidecars")
    thread.start()
    try:
        if not listening.wait(STOP_TIMEOUT_S):
            raise OSError("the sidecars do not listen")
        yield
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(stop.set)
        thread.join(STOP_TIMEOUT_S)
        loop.close()


async def _serve(routes: Sequence[Route], listening: threading.Event, stop: asyncio.Event) -> None:
    connections: set[asyncio.Task[None]] = set()

    def accept(route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(_relay(route, reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    servers: list[asyncio.Server] = []
    try:
        for route in routes:
            servers += [await asyncio.start_server(partial(accept, route), "127.0.0.1", route.port)]
        listening.set()
        await stop.wait()
    finally:
        for server in servers:
            server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _relay(route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Passes bytes in both directions until one end closes; then it closes the other one."""
    try:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", route.to_port, ssl=route.context)
    except OSError:
        writer.transport.abort()
        return
    try:
        pumps = [asyncio.ensure_future(_pump(reader, to_writer)), asyncio.ensure_future(_pump(to_reader, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
    finally:
        to_writer.transport.abort()
        # What was passed on before the end is sent, so that the client reads the last answer.
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
