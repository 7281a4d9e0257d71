"""A bucket in memory whose answers a test scripts, call by call. For tests under virtual time.

store.script("create", key, LOST_ANSWER, slow(2))     the first create of the key, the second; later ones go as they should
store.outage = Unavailable("…")                       every call fails so, until it is None again
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from metadata.errors import AlreadyExists, OutcomeUnknown, TidelogError, Unavailable
from segments.object_store.interface import Buffer, ListPage, Tail
from segments.object_store.memory import MemoryObjectStore

Kind = Literal["create", "get", "tail", "list", "delete"]
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Act:
    """What becomes of one call."""

    # How long it is on its way. A caller that gives up meanwhile stops it.
    after_s: float = 0
    # How long the answer is on its way back: it may be old when it arrives.
    answer_after_s: float = 0
    happens: bool = True
    # It happens this long after the call, whether its caller still waits or not.
    happens_late_s: float | None = None
    # The answer, whatever happened.
    error: TidelogError | None = None
    # No answer at all.
    silent: bool = False


LOST_ANSWER = Act(error=OutcomeUnknown("the connection was reset after the request went out"))
LOST_REQUEST = Act(happens=False, error=OutcomeUnknown("the connection was reset before the request arrived"))
REFUSED = Act(happens=False, error=Unavailable("503 SlowDown"))
SILENCE = Act(happens=False, silent=True)
HAPPENS_UNANSWERED = Act(silent=True)


def slow(after_s: float, answer_after_s: float = 0) -> Act:
    return Act(after_s=after_s, answer_after_s=answer_after_s)


def late(happens_late_s: float) -> Act:
    """Never answered; lands when its caller may long have given up."""
    return Act(happens=False, happens_late_s=happens_late_s, silent=True)


def fails(error: TidelogError, *, after_s: float = 0) -> Act:
    return Act(after_s=after_s, happens=False, error=error)


class Call(NamedTuple):
    kind: Kind
    key: str
    at_s: float


class ScriptedStore(MemoryObjectStore):
    def __init__(self) -> None:
        super().__init__()
        self.outage: TidelogError | None = None
        self.calls: list[Call] = []
        self._scripts: defaultdict[tuple[Kind, str], deque[Act]] = defaultdict(deque)

    def script(self, kind: Kind, key: str, *acts: Act) -> None:
        self._scripts[kind, key].extend(acts)

    def heal(self) -> None:
        """From now on, everything goes as it should."""
        self.outage = None
        self._scripts.clear()

    def another_client(self) -> MemoryObjectStore:
        """The same bucket, as one sees it who has no trouble with the network."""
        client = MemoryObjectStore()
        client._objects, client._keys = self._objects, self._keys
        return client

    def plant(self, key: str, content: bytes) -> None:
        """Makes the object be there, or be another one, whatever the rules of a bucket."""
        _at_once(super().delete(key))
        _at_once(super().create(key, [content]))

    def remove(self, key: str) -> None:
        """Somebody deletes it by hand."""
        _at_once(super().delete(key))

    def content(self, key: str) -> bytes:
        return _at_once(super().get(key))

    def has(self, key: str) -> bool:
        return key in self._objects

    def keys(self, prefix: str = "") -> list[str]:
        return [found.key for found in _at_once(super().list(prefix)).objects]

    def count(self, kind: Kind, key: str = "") -> int:
        """Calls of this kind that were made, for one key or for all."""
        return sum(call.kind == kind and (not key or call.key == key) for call in self.calls)

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        sent = [b"".join(body)]
        await self._play("create", key, super().create(key, sent, crc32c=crc32c), late=super().create(key, sent))

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return await self._play("get", key, super().get(key, start=start, end=end))

    async def tail(self, key: str, bytes_max: int) -> Tail:
        return await self._play("tail", key, super().tail(key, bytes_max))

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        return await self._play("list", prefix, super().list(prefix, start_after=start_after, limit=limit))

    async def delete(self, key: str) -> None:
        await self._play("delete", key, super().delete(key))

    async def _play(
        self, kind: Kind, key: str, request: Coroutine[Any, Any, Answer], *, late: Coroutine[Any, Any, Answer] | None = None
    ) -> Answer:
        loop = asyncio.get_running_loop()
        self.calls.append(Call(kind, key, loop.time()))
        script = self._scripts[kind, key]
        act = Act(happens=False, error=self.outage) if self.outage is not None else script.popleft() if script else Act()
        try:
            if act.happens_late_s is not None and late is not None:
                loop.call_later(act.happens_late_s, _whatever_becomes_of_it, late)
                late = None
            await asyncio.sleep(act.after_s)
            answer = _at_once(request) if act.happens else None
            await asyncio.sleep(act.answer_after_s)
            if act.silent:
                await loop.create_future()
            if act.error is not None:
                raise act.error
            assert answer is not None or kind in {"create", "delete"}, "this act has no answer"
            return answer  # type: ignore[return-value]  # a create and a delete answer None
        finally:
            request.close()
            if late is not None:
                late.close()


def _at_once(request: Coroutine[Any, Any, Answer]) -> Answer:
    try:
        request.send(None)
    except StopIteration as answered:
        answer: Answer = answered.value
        return answer
    raise AssertionError("the memory store never waits")


def _whatever_becomes_of_it(request: Coroutine[Any, Any, object]) -> None:
    with contextlib.suppress(AlreadyExists):
        _at_once(request)
