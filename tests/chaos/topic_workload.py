"""A topic that is made, written, grown, changed, read, deleted and made again all the time, while the cluster is being broken.

    create ─▶ write ─▶ add partitions ─▶ write ─▶ alter ─▶ read all that was acknowledged ─▶ delete ─┐
       ▲                                                                                              │
       └──────────────────────────── the same name, another life ─────────────────────────────────────┘

Every call is tried again as an administrator would. What was acknowledged in one life is read in that life, and nothing of another.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

from metadata.errors import AlreadyExists, NotFound, OutcomeUnknown, TidelogError, Unavailable, UnknownTopic
from tests.chaos.history import History, Unexpected
from tests.chaos.workload import connected, stored_value, value_of
from tidelog.client import Client

PASSING = "passing"
PARTITIONS_FIRST, PARTITIONS_THEN = 2, 4
RECORDS = 20
"""Written in each half of a life."""
RETRY_S = 0.5
STEP_S = 180.0
"""The longest that one step may take, faults and all."""
DELIVERY_TIMEOUT_S = 60.0
NAME = "topic-changer"

T = TypeVar("T")


class TopicChanger:
    """`run` until `enough`."""

    def __init__(self, addresses: Sequence[str], history: History) -> None:
        self.lives = 0
        self._addresses = addresses
        self._history = history

    async def run(self, enough: asyncio.Event) -> None:
        async with connected(self._addresses, delivery_timeout_s=DELIVERY_TIMEOUT_S) as log:
            while not enough.is_set():
                await self._live(log)
                self.lives += 1

    async def _live(self, log: Client) -> None:
        await self._step("create", lambda: log.topics.create(PASSING, partitions=PARTITIONS_FIRST), but=AlreadyExists)
        acknowledged = await self._write(log, 0)
        await self._step("add partitions", lambda: log.topics.add_partitions(PASSING, PARTITIONS_THEN))
        acknowledged |= await self._write(log, RECORDS)
        await self._step("alter", lambda: log.topics.alter(PASSING, settings={"retention.ms": str(86_400_000 + self.lives)}))
        await self._step("read", lambda: self._read(log, acknowledged))
        await self._step("delete", lambda: log.topics.delete(PASSING), but=UnknownTopic)

    async def _step(self, what: str, work: Callable[[], Awaitable[T]], *, but: type[TidelogError] | None = None) -> None:
        """`but`: after a try whose answer was lost, this says that it was done. A broker that is cut off from etcd has not heard of
        what was made a moment ago, and says that it is not there."""
        tries, may_be_done = 0, False
        try:
            async with asyncio.timeout(STEP_S):
                while True:
                    tries += 1
                    try:
                        await work()
                        return
                    except TidelogError as error:
                        if but is not None and isinstance(error, but) and may_be_done:
                            return
                        may_be_done = may_be_done or isinstance(error, OutcomeUnknown)
                        if not error.retryable and not isinstance(error, NotFound | AlreadyExists):
                            self._unexpected(f"{what}: {error.code}: {error.message}")
                            return
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            self._unexpected(f"{what}: not done in {STEP_S:g} s, {tries} tries")

    async def _write(self, log: Client, first: int) -> frozenset[str]:
        """What was acknowledged of it. Where the outcome is not known, it may be there or not."""
        acknowledged = set()
        for number in range(first, first + RECORDS):
            value = f"{PASSING}{self.lives}#{number}"

            async def write(value: str = value, key: str = f"k{number}") -> None:
                try:
                    await log.produce(PASSING, stored_value(value), key=key)
                except (Unavailable, OutcomeUnknown):
                    return
                acknowledged.add(value)

            await self._step("write", write)
        return frozenset(acknowledged)

    async def _read(self, log: Client, acknowledged: frozenset[str]) -> None:
        async with aclosing(log.consume(PASSING, from_="earliest", until="end")) as consumer:
            read = Counter([value_of(record.value or b"") async for record in consumer])
        if missing := acknowledged - read.keys():
            self._unexpected(f"lost-write: {len(missing)} acknowledged records are not in the topic, {min(missing)} for one")
        if doubled := [value for value, count in read.items() if count > 1]:
            self._unexpected(f"duplicate: {doubled[0]} was read {read[doubled[0]]} times")
        if strange := [value for value in read if not value.startswith(f"{PASSING}{self.lives}#")]:
            self._unexpected(f"{strange[0]} is of another life of the topic")

    def _unexpected(self, why: str) -> None:
        self._history.add(Unexpected(self._history.now_s, NAME, f"life {self.lives}: {why}"))
