"""The floor of a unary call: gRPC's own server for Python, under uvloop, which answers nothing and looks at nothing."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import grpc.aio
import psutil
import uvloop

START_TIMEOUT_S = 20.0


class BareServer(NamedTuple):
    address: str
    process: psutil.Process

    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system


@contextmanager
def bare_servers(count: int) -> Iterator[list[BareServer]]:
    """Each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    processes = [context.Process(target=_serve, args=(theirs,), daemon=True) for _ in range(count)]
    try:
        for process in processes:
            process.start()
        servers: list[BareServer] = []
        for _ in processes:
            if not ours.poll(START_TIMEOUT_S):
                raise RuntimeError("the floor's server did not start")
            port, pid = ours.recv()
            servers.append(BareServer(f"127.0.0.1:{port}", psutil.Process(pid)))
        yield servers
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
        ours.close()
        theirs.close()


def _serve(reported: Connection) -> None:
    async def run() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([_Anything()])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        reported.send((port, multiprocessing.current_process().pid))
        await server.wait_for_termination()

    uvloop.run(run())


class _Anything(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return grpc.unary_unary_rpc_method_handler(_nothing)


async def _nothing(_: bytes, __: object) -> bytes:
    return b""
