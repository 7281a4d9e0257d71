"""A broker of the simulation: the real leadership, log, writer and reader as one process that can freeze, thaw and die.

    client ── request ──▶ [process: task per request ─▶ Leadership ─▶ SessionLog ─▶ SegmentWriter ─▶ FaultyStore] ── wire ──▶ bucket
           ◀── answer ───                                                            (the wire belongs to no process)

Only the listeners are left out: a request is a function that runs on the broker's side with its log at hand.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import Any, TypeVar

from gateway.cluster.session_manager import SessionManager
from gateway.cluster.settings import ClusterSettings
from gateway.cluster.view import ClusterView
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import OutcomeUnknown, Rejected, TidelogError, Unavailable
from metadata.model import Revision, SessionId
from metadata.store.keys import KeyLayout
from segments.log.session_log import SessionLog
from segments.object_store.health_tracking import HealthTrackingObjectStore
from segments.object_store.memory import MemoryObjectStore
from segments.object_store.timeout import TimeoutObjectStore
from segments.settings import SegmentSettings
from tests.kit.faulty_store import Faults, FaultyStore
from tests.simulation.appointments import Recorder, Writer
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.metadata_wire import MetadataWire
from tests.simulation.simulated_process import BucketProcess, innermost
from tests.simulation.virtual_loop import virtual_loop

T = TypeVar("T")
# Of the bucket's client: no request to it hangs for longer.
REQUEST_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Site:
    """What all brokers of one run share."""

    seed: int
    bucket: MemoryObjectStore
    metadata: EtcdModel
    settings: SegmentSettings
    cluster: ClusterSettings
    recorder: Recorder
    trace: list[str]
    keep_trace: bool
    # Bugs that came to light: tasks of a broker that ended with an error which no caller was meant to get.
    failures: list[str]


class BrokerProcess(BucketProcess):
    def __init__(self, name: str, site: Site, *, broker_id: str, rack: str, faults: Faults) -> None:
        wired = FaultyStore(
            site.bucket,
            random.Random(f"{site.seed}/{name}/wire"),
            faults,
            name=name,
            log=site.trace,
            reported=site.keep_trace,
            after_create=lambda key: site.recorder.landed(broker_id, key),
        )
        super().__init__(name, site.failures.append, wired)
        self.broker_id = broker_id
        self.unreachable = False
        """For its clients: no connection is taken, and what it answers does not arrive."""
        self._site = site
        self._chance = random.Random(f"{site.seed}/{name}")
        self.metadata = MetadataWire(
            site.metadata,
            random.Random(f"{site.seed}/{name}/metadata"),
            sender=lambda: Writer(broker_id, self.leadership.session),
            wrote=self._wrote,
        )
        self.clock_skew_ms = self._chance.randint(-2000, 2000)
        self.view = ClusterView(self.metadata, KeyLayout())
        self.watched = HealthTrackingObjectStore(TimeoutObjectStore(self.store, timeout_s=REQUEST_TIMEOUT_S))
        self.leadership = SessionManager(
            self.watched,
            self.metadata,
            self.view,
            site.settings,
            site.cluster,
            layout=KeyLayout(),
            registration=BrokerRegistration(broker_id=broker_id, session=SessionId(0), rack=rack),
            new_writer=lambda: self._chance.randbytes(16),
            now_ms=lambda: virtual_loop().now_ms() + self.clock_skew_ms,
        )
        self._calls: dict[asyncio.Future[Any], None] = {}
        self._main = self.start(self._run())

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self.view.run())
            while not await self.view.read(timeout_s=60):
                pass
            await self.leadership.run()
            following.cancel()

    def ended_by(self, error: BaseException) -> None:
        if not isinstance(innermost(error), Rejected):
            super().ended_by(error)

    @property
    def ended(self) -> bool:
        """Killed, or come to its end by itself."""
        return not self.alive or self._main.done()

    # What befalls it

    def kill(self) -> None:
        """Its clients' connections break."""
        super().kill()
        for reply in self._calls:
            _answer_after(0.001, reply, OutcomeUnknown(f"{self.name} closed the connection"))

    def cut_from_clients(self) -> None:
        """In mid-answer: what was asked goes on here, and who asked does not learn what became of it."""
        self.unreachable = True
        for reply in self._calls:
            _answer_after(0.001, reply, OutcomeUnknown(f"the connection to {self.name} broke"))

    def stop(self) -> None:
        """SIGTERM."""
        self.leadership.stop()

    async def stopped(self, *, timeout_s: float) -> bool:
        """Whether it came to its end by itself in time."""
        return bool((await asyncio.wait((self._main,), timeout=timeout_s))[0])

    # What its clients do

    async def call(self, serve: Callable[[SessionLog], Awaitable[T]], *, latency_s: float, timeout_s: float, hang_up: bool) -> T:
        """Runs `serve` on the broker's side, with its log, and brings back what it answers or raises: see `ask`."""
        return await self.ask(lambda: serve(self.leadership.log), latency_s=latency_s, timeout_s=timeout_s, hang_up=hang_up)

    async def ask(self, serve: Callable[[], Awaitable[T]], *, latency_s: float, timeout_s: float, hang_up: bool) -> T:
        """Runs `serve` on the broker's side and brings back what it answers or raises.

        `serve` runs in a context of its own, as the handler of each call does. Raises Unavailable when no broker listens, and
        OutcomeUnknown when the answer does not come in time, the connection breaks, the broker dies, or `serve` fails by a bug,
        which the world then fails by. `hang_up`: then the broker notices that its client is gone.
        """
        await asyncio.sleep(latency_s)
        if not self.alive or self.unreachable:
            raise Unavailable(f"{self.name} takes no connection")
        reply: asyncio.Future[T | TidelogError] = asyncio.get_running_loop().create_future()
        self._calls[reply] = None
        serving = virtual_loop().create_task(self._serve(serve, reply, latency_s), context=self._context.copy())
        late = _answer_after(timeout_s, reply, OutcomeUnknown(f"{self.name} did not answer within {timeout_s:.1f} s"))
        try:
            answer = await reply
        finally:
            late.cancel()
            del self._calls[reply]
            if hang_up and not serving.done():
                serving.cancel()
        if isinstance(answer, TidelogError):
            raise answer
        return answer

    async def _serve(self, serve: Callable[[], Awaitable[T]], reply: asyncio.Future[T | TidelogError], latency_s: float) -> None:
        answer: T | TidelogError
        try:
            answer = await serve()
        except TidelogError as error:
            answer = error.with_traceback(None)
        except asyncio.CancelledError as error:
            if reply not in self._calls:
                raise  # the client hung up
            answer = self._failed_to_answer(error)
        except Exception as error:  # noqa: BLE001  # no client was meant to get it
            answer = self._failed_to_answer(error)
        if not self.unreachable:
            _answer_after(latency_s, reply, answer)

    def _failed_to_answer(self, error: BaseException) -> OutcomeUnknown:
        """Makes the world fail by a bug in a handler. Returns what the client gets."""
        cause = innermost(error)
        frames = extract_tb(cause.__traceback__)
        location = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        self._failed(f"{self.name} failed to answer: {cause!r}{location}")
        return OutcomeUnknown(f"{self.name} met a bug: {cause!r}")

    def _wrote(self, revision: Revision, writer: Writer) -> None:
        if self._site.keep_trace:
            self._site.trace.append(
                f"{virtual_loop().time():12.6f} {self.name} wrote revision {revision} of the metadata as {writer}"
            )
        self._site.recorder.wrote(revision, writer)


def _answer_after(delay_s: float, reply: asyncio.Future[T], answer: T) -> asyncio.TimerHandle:
    """The answer's way back belongs to no process: once it is sent, it comes whether or not its sender lives on."""
    return virtual_loop().call_later(delay_s, _answer, reply, answer, context=Context())


def _answer(reply: asyncio.Future[T], answer: T) -> None:
    if not reply.done():
        reply.set_result(answer)
