"""The real broker in a process that kills itself at a fault point: at an await, round the PUT of an object, round link(2).

Production code knows nothing of it. Every coroutine that becomes a task is wrapped, so that each of its steps passes here first;
the store is wrapped where the broker opens it; the system calls of the directory store are replaced in this process.

    fault point                            passed
    begin RequestResponseCycle.run_asgi    when a task is about to take its first step: here, a request was received
    await segments/log/session_log.py:190              when a task is about to go on from this await, the innermost in our code
    before create · after create           where an object of a session is about to exist, and where it does, with no answer yet
    before link · after link               the same at the system call, while the temporary file is still there; fsync, unlink too
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import uvloop

from gateway.broker.broker import Broker
from gateway.process.broker_process import run_broker
from gateway.settings import BrokerSettings
from segments.bucket.layout import WAL
from segments.object_store.interface import ObjectStore
from segments.object_store.open import open_store
from segments.settings import SegmentSettings
from tests.kit.faulty_store import Faults, FaultyStore
from tests.simulation.broken_rules import BrokenRule, in_force

ROOT = str(Path(__file__).parents[2]) + os.sep
OURS = tuple(ROOT + folder + os.sep for folder in ("gateway", "segments"))
AT_ONCE = Faults(request_s=lambda chance: 0.0, answer_s=lambda chance: 0.0)
TOPIC, PARTITIONS = "orders", 2
# Segments so small that several PUTs are in flight.
SETTINGS = SegmentSettings(linger_ms=2, puts_per_second_max=500, puts_in_flight_max=2, segment_bytes_max=2000)


class Fault(NamedTuple):
    point: str
    # The process dies when it passes `point` for this many-th time, from 1 on.
    passage: int


class Ready(NamedTuple):
    """What the broker sends its parent once it serves."""

    topic_id: str
    http_address: str
    grpc_address: str


class FaultPoints:
    def __init__(self, fault: Fault | None) -> None:
        self.armed = False
        self.passed = Counter[str]()
        self._fault = fault

    def pass_by(self, point: str) -> None:
        """From any thread. Dies here, if this is the place and the time."""
        if self.armed:
            self.passed[point] += 1
            if self._fault == (point, self.passed[point]):
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()  # another thread may have to take the signal; this one goes no step further


def serve_and_crash(data_dir: Path, fault: Fault | None, armed_from_the_start: bool, broken: BrokenRule, pipe: Connection) -> None:
    """The process: sends Ready when it serves; then, whenever it is sent something, the fault points that it has passed."""
    logging.disable(logging.CRITICAL)
    points = FaultPoints(fault)
    points.armed = armed_from_the_start
    with (
        in_force(broken),
        patch("gateway.process.broker_process.open_store", _opening_a_store_with(points)),
        patch("os.link", _around(points, "link", os.link)),
        patch("os.fsync", _around(points, "fsync", os.fsync)),
        patch("os.unlink", _around(points, "unlink", os.unlink)),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.get_loop().set_task_factory(_counting(points))
        runner.run(_serve(data_dir, points, pipe))


async def _serve(data_dir: Path, points: FaultPoints, pipe: Connection) -> None:
    settings = BrokerSettings(data_dir=data_dir, http="127.0.0.1:0", grpc="127.0.0.1:0", segments=SETTINGS)
    async with run_broker(settings) as broker:
        topic_id = await _topic(broker)
        points.armed = True
        pipe.send(Ready(topic_id, broker.http_address, broker.grpc_address))
        asked = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), asked.set)
        while True:
            await asked.wait()
            asked.clear()
            pipe.recv()
            pipe.send(dict(points.passed))


async def _topic(broker: Broker) -> str:
    known = [topic for topic in broker.topic_cache.topics() if topic.name == TOPIC]
    return (known[0] if known else await broker.create_topic(TOPIC, PARTITIONS)).id


def _opening_a_store_with(points: FaultPoints) -> Callable[..., Awaitable[ObjectStore]]:
    def passing(what: str) -> Callable[[str], None]:
        return lambda key: points.pass_by(what) if key.startswith(WAL) else None

    async def opened(*args: Any, **how: Any) -> ObjectStore:
        store = await open_store(*args, **how)
        return FaultyStore(
            store,
            random.Random(0),
            AT_ONCE,
            before_create=passing("before create"),
            after_create=passing("after create"),
        )

    return opened


def _around(points: FaultPoints, what: str, call: Callable[..., None]) -> Callable[..., None]:
    def wrapped(*args: Any, **how: Any) -> None:
        points.pass_by(f"before {what}")
        call(*args, **how)
        points.pass_by(f"after {what}")

    return wrapped


def _counting(points: FaultPoints) -> Callable[..., asyncio.Task[Any]]:
    def new_task(
        loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], *, context: Context | None = None
    ) -> asyncio.Task[Any]:
        return asyncio.Task(_Counted(coroutine, points), loop=loop, context=context)

    return new_task


class _Counted(Coroutine[Any, Any, Any]):
    """A coroutine each step of which passes a fault point."""

    def __init__(self, inner: Coroutine[Any, Any, Any], points: FaultPoints) -> None:
        self._inner = inner
        self._points = points
        self._begun = False
        self.__qualname__ = getattr(inner, "__qualname__", type(inner).__name__)

    def send(self, value: Any) -> Any:
        self._pass_by()
        return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        self._pass_by()
        return self._inner.throw(*error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise AssertionError("it is only made for a task, which sends and throws")

    def _pass_by(self) -> None:
        if not self._points.armed:
            return
        if not self._begun:
            self._begun = True
            self._points.pass_by(f"begin {self.__qualname__}")
        elif (position := _suspended_at(self._inner)) is not None:
            self._points.pass_by(f"await {position}")


def _suspended_at(coroutine: Any) -> str | None:
    """The innermost await in code of gateway or segments at which a coroutine is suspended."""
    position = None
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None and frame.f_code.co_filename.startswith(OURS):
            position = f"{frame.f_code.co_filename.removeprefix(ROOT)}:{frame.f_lineno} {frame.f_code.co_qualname}"
        coroutine = getattr(coroutine, "cr_await", None)
    return position
