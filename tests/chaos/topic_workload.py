"""A topic that is made, written, grown, changed, read, deleted and made again all the time, while the cluster is being broken.

    create ─▶ write ─▶ add partitions ─▶ write ─▶ alter ─▶ read all that was acknowledged ─▶ delete ─┐
       ▲                                                                                              │
       └──────────────────────────── the same name, another life ─────────────────────────────────────┘

Every call is tried again as an administrator would. What was acknowledged in one life is read in that life, and nothing of another.

Requests with an Idempotency-Key go over HTTP to any broker, and are repeated through any other once partitions were added: each is
answered as the first time, and its records are in the topic once.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TypeVar

from metadata.errors import (
    AlreadyExists,
    NotFound,
    OutcomeUnknown,
    TidelogError,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from tests.chaos.history import History, Unexpected
from tests.chaos.http_workload import PAUSE_S, HttpEndpoints
from tests.chaos.workload import connected, stored_value, value_of
from tidelog.client import Client

PASSING = "passing"
PARTITIONS_FIRST, PARTITIONS_THEN = 2, 4
# Written in each half of a life.
RECORDS = 20
RETRY_S = 0.5
# The longest that one step may take, faults and all.
STEP_S = 180.0
DELIVERY_TIMEOUT_S = 60.0
NAME = "topic-changer"
# Under an Idempotency-Key, in each half of a life.
KEYED_REQUESTS = 10
RECORDS_PER_KEY = 3
# Their records begin with it. A request names no topic id: what a frozen broker still holds may be written in the next life.
KEYED = "once"

# What a broker answers that is cut off from etcd and has not heard of the topic, or of its partitions.
NOT_THERE = (UnknownTopic.code, UnknownPartition.code)

T = TypeVar("T")
# (partition, offset) of each record of a request.
Positions = tuple[tuple[int, int], ...]


class TopicChanger:
    """`run` until `enough`."""

    def __init__(self, addresses: Sequence[str], history: History, endpoints: HttpEndpoints) -> None:
        """`endpoints`: of the topic PASSING."""
        self.lives = 0
        self._endpoints = endpoints
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
        before = await self._send_keyed(0)
        await self._step("add partitions", lambda: log.topics.add_partitions(PASSING, PARTITIONS_THEN))
        again = await self._send_keyed(0)  # while some brokers have not heard of the new partitions
        self._check_repeats(before, again)
        acknowledged |= await self._write(log, RECORDS)
        before |= await self._send_keyed(KEYED_REQUESTS)
        self._check_repeats(before, await self._send_keyed(0) | await self._send_keyed(KEYED_REQUESTS))
        acknowledged |= {value for values in map(self._values_of, before) for value in values}
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
        """All records at once, so that a life takes some commits, not one for each record. Returns what was acknowledged of them.
        Where the outcome is not known, a record may be there or not."""
        acknowledged = set()

        async def write(number: int) -> None:
            value = f"{PASSING}{self.lives}#{number}"

            async def once() -> None:
                try:
                    await log.produce(PASSING, stored_value(value), key=f"k{number}")
                except (Unavailable, OutcomeUnknown):
                    return
                acknowledged.add(value)

            await self._step("write", once)

        async with asyncio.TaskGroup() as tasks:
            for number in range(first, first + RECORDS):
                tasks.create_task(write(number))
        return frozenset(acknowledged)

    def _values_of(self, number: int) -> list[str]:
        return [f"{KEYED}{self.lives}-{number}#{record}" for record in range(RECORDS_PER_KEY)]

    async def _send_keyed(self, first: int) -> dict[int, Positions]:
        """All requests at once. Returns where the records of each lie, as a broker answered; without those that no broker answered
        in time."""
        answers: dict[int, Positions] = {}

        async def send(number: int) -> None:
            rows = [{"key": f"k{value}", "value": stored_value(value).decode()} for value in self._values_of(number)]
            body = json.dumps({"records": rows}).encode()
            headers = {"content-type": "application/json", "idempotency-key": f"{KEYED}{self.lives}-{number}"}
            try:
                async with asyncio.timeout(STEP_S):
                    while (positions := await self._sent(body, headers)) is None:  # noqa: ASYNC110  # it asks a broker each time
                        await asyncio.sleep(PAUSE_S)
                    answers[number] = positions
            except TimeoutError:
                self._unexpected(f"keyed request {number}: not answered in {STEP_S:g} s")

        async with asyncio.TaskGroup() as tasks:
            for number in range(first, first + KEYED_REQUESTS):
                tasks.create_task(send(number))
        return answers

    async def _sent(self, body: bytes, headers: Mapping[str, str]) -> Positions | None:
        answer = await self._endpoints.ask("POST", f"{self._endpoints.topic}/records", None, body=body, headers=headers)
        if answer.outcome == "done":
            return tuple((result["partition"], result["offset"]) for result in answer.content["results"])
        if answer.outcome == "refused for good" and not answer.why.startswith(NOT_THERE):
            self._unexpected(f"a keyed request was refused: {answer.why}")
        return None

    def _check_repeats(self, before: Mapping[int, Positions], again: Mapping[int, Positions]) -> None:
        for number in sorted(before.keys() & again.keys()):
            if before[number] != again[number]:
                positions = f"{before[number]}, and its repeat at {again[number]}"
                self._unexpected(f"once: the request {KEYED}{self.lives}-{number} was acknowledged at {positions}")

    async def _read(self, log: Client, acknowledged: frozenset[str]) -> None:
        async with aclosing(log.consume(PASSING, from_="earliest", until="end")) as consumer:
            read = Counter([value_of(record.value or b"") async for record in consumer])
        if missing := acknowledged - read.keys():
            self._unexpected(f"lost-write: {len(missing)} acknowledged records are not in the topic, {min(missing)} for one")
        if doubled := [value for value, count in read.items() if count > 1]:
            broken = "once" if doubled[0].startswith(KEYED) else "duplicate"
            self._unexpected(f"{broken}: {doubled[0]} was read {read[doubled[0]]} times")
        if strange := [value for value in read if not value.startswith((f"{PASSING}{self.lives}#", KEYED))]:
            self._unexpected(f"{strange[0]} is of another life of the topic")

    def _unexpected(self, why: str) -> None:
        self._history.add(Unexpected(self._history.now_s, NAME, f"life {self.lives}: {why}"))
