"""A process of a simulated world: tasks that stop where they stand when it is frozen or killed.

    SimulatedProcess    lives, freezes, thaws and dies
    ├─ BucketProcess    has a wire of its own to the bucket, which may freeze with it
    └─ CalledProcess    is called over a wire of the caller's:

caller ── request ──▶ [process: a task per call] ── answer ──▶ caller
             └ may be late, or lost; so may the answer; who hangs up ends its call here
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from metadata.errors import OutcomeUnknown, TidelogError, Unavailable
from tests.kit.faulty_store import FaultyStore
from tests.simulation.virtual_loop import virtual_loop

T = TypeVar("T")


class Wire:
    """Between one client and all whom it calls."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.latency_s = self.lost = 0.0
        self.cut = False
        self.calm_down()

    def calm_down(self) -> None:
        """Each may be raised at any time."""
        self.latency_s = 0.002
        self.lost = 0.0
        """How often a request does not arrive, and how often an answer does not."""
        self.cut = False
        """Nothing arrives, and connections can't be made."""

    def travel_s(self) -> float:
        return self._chance.uniform(0.2, 1.0) * self.latency_s

    def loses_it(self) -> bool:
        return self.cut or (self.lost > 0 and self._chance.random() < self.lost)

    def breaks_after_s(self) -> float:
        """Seconds until a caller whose request was lost gets a broken connection."""
        return self._chance.choice((0.01, 0.5, 3.0))


class SimulatedProcess:
    def __init__(self, name: str, failed: Callable[[str], None]) -> None:
        """`failed` is called with tasks that ended with an error which no caller was meant to get."""
        self.name = name
        self.alive = True
        self.frozen = False
        self._failed = failed
        self._context = virtual_loop().context_of(name)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task of this process."""
        task = virtual_loop().create_task(work, name=f"a task of {self.name}", context=self._context)

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.ended_by(error)

        task.add_done_callback(ended, context=Context())
        return task

    def later(self, delay_s: float, work: Callable[[], None]) -> None:
        """Carries `work` out here, unless the process has died."""
        virtual_loop().call_later(delay_s, work, context=self._context)

    def ended_by(self, error: BaseException) -> None:
        """A task ended by it, or would have."""
        self._failed(f"{self.name} failed: {innermost(error)!r}")

    def kill(self) -> None:
        """SIGKILL: not one more step."""
        virtual_loop().freeze(self.name)
        self.alive = False

    def freeze(self) -> None:
        """SIGSTOP."""
        virtual_loop().freeze(self.name)
        self.frozen = True

    def thaw(self) -> None:
        if self.frozen and self.alive:
            self.frozen = False
            virtual_loop().thaw(self.name)


class BucketProcess(SimulatedProcess):
    def __init__(self, name: str, failed: Callable[[str], None], store: FaultyStore) -> None:
        super().__init__(name, failed)
        self.store = store
        """Its wire to the bucket. What is on it when the process is killed still lands."""

    def freeze(self, *, wire_too: bool = False) -> None:
        """SIGSTOP. `wire_too`: what it sent stays on the wire as well, and lands when it wakes."""
        super().freeze()
        if wire_too:
            self.store.freeze()

    def thaw(self) -> None:
        if self.frozen and self.alive:
            self.store.thaw()
        super().thaw()


class CalledProcess(SimulatedProcess):
    def __init__(self, name: str, failed: Callable[[str], None]) -> None:
        super().__init__(name, failed)
        self._calls: dict[asyncio.Future[Any], tuple[str, asyncio.Task[None]]] = {}

    def kill(self) -> None:
        """Its callers' connections break."""
        super().kill()
        for reply in self._calls:
            _later(0.001, reply, OutcomeUnknown(f"{self.name} closed the connection"))

    @property
    def open_calls(self) -> int:
        return len(self._calls)

    def drop_calls_of(self, caller: str) -> None:
        """It died: its connections break."""
        for reply in [reply for reply, (whose, _) in self._calls.items() if whose == caller]:
            self._calls.pop(reply)[1].cancel()

    async def call(self, caller: str, wire: Wire, serve: Callable[[], Awaitable[T]], *, timeout_s: float) -> T:
        """Runs `serve` in this process and brings back what it answers or raises.

        Raises Unavailable where no connection is made, and OutcomeUnknown where the answer does not come.
        """
        await asyncio.sleep(wire.travel_s())
        if not self.alive or wire.cut:
            raise Unavailable(f"{self.name} takes no connection")
        if wire.loses_it():
            await asyncio.sleep(min(timeout_s, wire.breaks_after_s()))
            raise OutcomeUnknown(f"the connection to {self.name} broke")
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        serving = self.start(self._serve(serve, reply, wire))
        self._calls[reply] = caller, serving
        try:
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError:
            raise OutcomeUnknown(f"{self.name} did not answer within {timeout_s:.1f} s") from None
        finally:
            serving.cancel()
            self._calls.pop(reply, None)  # where it never began

    async def _serve(self, serve: Callable[[], Awaitable[T]], reply: asyncio.Future[T], wire: Wire) -> None:
        answer: T | TidelogError
        try:
            answer = await serve()
        except TidelogError as error:
            answer = error
        except Exception as error:  # noqa: BLE001  # a bug: the world fails by it, and the caller gets an answer all the same
            self.ended_by(error)
            answer = OutcomeUnknown(f"{self.name} met a bug: {innermost(error)!r}")
        finally:
            self._calls.pop(reply, None)
        if wire.loses_it():
            _later(wire.breaks_after_s(), reply, OutcomeUnknown(f"the connection to {self.name} broke"))
        else:
            _later(wire.travel_s(), reply, answer)


def innermost(error: BaseException) -> BaseException:
    return innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _later(delay_s: float, reply: asyncio.Future[T], answer: T | TidelogError) -> None:
    """The way back belongs to no process: an answer that was sent comes, whether or not its sender lives on."""

    def arrive() -> None:
        if reply.done():
            return
        if isinstance(answer, TidelogError):
            reply.set_exception(answer)
            reply.exception()  # where no caller waits any more
        else:
            reply.set_result(answer)

    virtual_loop().call_later(delay_s, arrive, context=Context())
