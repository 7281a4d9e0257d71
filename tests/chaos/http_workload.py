"""Producers and readers of a chaos run over plain HTTP, as somebody writes them who has no SDK.

    any broker ──▶ answered, where it leads the partition or forwards
        └─ NOT_LEADER, NO_LEADER ──▶ GET /v1/topics/{t} ──▶ the broker that it names, next time

What an answer says decides what comes next: `nothing_was_written` and `retryable` try again; an outcome that is not known is tried
again only by those whose repeats are recognised.
"""

from __future__ import annotations

import asyncio
import json
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from http import HTTPStatus
from typing import Any, Literal, NamedTuple

import aiohttp

from tests.chaos.history import Acknowledged, History, OffsetValues, Polled, Refused, Unexpected, Unknown
from tests.chaos.workload import PARTITIONS, TOPIC, stored_value, value_of

REQUEST_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 2.0
# Before a request is tried again.
PAUSE_S = 0.1
# A batch that has no outcome after this is given up.
SETTLE_S = 60.0
POLL_WAIT_MS = 100
# A stream that brings nothing for this long is opened again, though its pings are further apart: a frozen broker says nothing.
SILENT_S = 5.0
RECORDS_PER_REQUEST_MAX = 3
# After an answer, to ask any broker again instead of the one that is known to lead.
FORGET_CHANCE = 0.1


class Answer(NamedTuple):
    outcome: Literal["done", "nothing written", "not known", "refused for good"]
    content: Any
    why: str = ""


class HttpEndpoints:
    """The brokers' HTTP addresses, and which of them led each partition when last heard of."""

    def __init__(self, urls: Mapping[str, str], session: aiohttp.ClientSession, rng: random.Random, *, topic: str = TOPIC) -> None:
        self.topic = f"/v1/topics/{topic}"
        self._urls = urls
        self._session = session
        self._rng = rng
        self._leader: dict[int, str] = {}

    async def ask(
        self, verb: str, path: str, partition: int | None, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request to the supposed leader of the partition; to any broker where that is not known, or where it is None."""
        if partition is None:
            return await self._ask(verb, self._any() + path, body, headers)
        broker_id = self._leader.get(partition)
        url = self._any() if broker_id is None else self._urls[broker_id]
        answer = await self._ask(verb, url + path, body, headers)
        if answer.outcome != "done":
            self._leader.pop(partition, None)
            await self._learn_leader(partition)
        elif self._rng.random() < FORGET_CHANCE:
            self._leader.pop(partition, None)
        return answer

    def _any(self) -> str:
        return self._urls[self._rng.choice(sorted(self._urls))]

    async def leader_epochs(self) -> tuple[int, ...]:
        """By partition, as soon as a broker knows the leaders of all."""
        while True:
            for url in self._urls.values():
                answer = await self._ask("GET", url + self.topic, None, None)
                if answer.outcome == "done" and all(partition["leader"] for partition in answer.content["partitions"]):
                    return tuple(partition["leader_epoch"] for partition in answer.content["partitions"])
            await asyncio.sleep(PAUSE_S)

    async def _learn_leader(self, partition: int) -> None:
        for broker_id in self._rng.sample(sorted(self._urls), len(self._urls)):
            answer = await self._ask("GET", self._urls[broker_id] + self.topic, None, None)
            if answer.outcome == "done":
                leader = answer.content["partitions"][partition]["leader"]
                if leader in self._urls:
                    self._leader[partition] = leader
                    return

    async def _ask(self, verb: str, url: str, body: bytes | None, headers: Mapping[str, str] | None) -> Answer:
        try:
            async with self._session.request(verb, url, data=body, headers=headers) as response:
                content = await response.read()
        except aiohttp.ClientConnectorError as error:
            return Answer("nothing written", None, type(error).__name__)
        except (aiohttp.ClientError, TimeoutError) as error:
            return Answer("not known", None, f"{type(error).__name__}: {error}")
        try:
            reported = json.loads(content)
        except ValueError:
            return Answer("refused for good", None, f"{response.status} with {content[:200]!r}")
        return judge(response.status, reported)


def judge(status: int, reported: Any) -> Answer:
    """What the client may take an answer for. Where some results are errors, the request counts as the first of them says: those
    who spread a request over partitions repeat it whole."""
    if status in (200, 201):
        errors = [result["error"] for result in reported.get("results", ()) if "error" in result]
        if not errors:
            return Answer("done", reported)
        reported = errors[0]
    why = f"{reported.get('code')}: {reported.get('detail')}"
    if not reported.get("nothing_was_written") and status >= 500:
        return Answer("not known", reported, why)
    if reported.get("nothing_was_written") and reported.get("retryable"):
        return Answer("nothing written", reported, why)
    if not reported.get("nothing_was_written") and reported.get("retryable"):
        return Answer("not known", reported, why)
    return Answer("refused for good", reported, why)


class HttpProducer(ABC):
    """`run` until `enough`: one request at a time, acks=all; each for one partition, unless its kind says else."""

    # Whether the broker recognises a repeat, so that one whose outcome is not known is sent again.
    repeats = True

    def __init__(
        self, name: str, endpoints: HttpEndpoints, history: History, *, seed: int, per_second: float, settle_s: float = SETTLE_S
    ) -> None:
        self.name = name
        self.endpoints = endpoints
        self._history = history
        self._rng = random.Random(seed)
        self._pause_s = 1 / per_second
        self._settle_s = settle_s
        self._number = 0

    async def run(self, enough: asyncio.Event) -> None:
        while not enough.is_set():
            partition = self._rng.randrange(PARTITIONS)
            count = self._rng.randint(1, RECORDS_PER_REQUEST_MAX)
            values = [f"{self.name}#{self._number + n}" for n in range(count)]
            self._number += count
            operation = self._history.sent(*values, ordered=self.repeats)
            try:
                async with asyncio.timeout(self._settle_s):
                    await self._settle(operation, partition, values)
            except TimeoutError:
                self._history.add(Unknown(self._history.now_s, operation, f"no outcome in {self._settle_s} s"))
                self.given_up(partition)
            await asyncio.sleep(self._pause_s)

    async def _settle(self, operation: int, partition: int, values: Sequence[str]) -> None:
        while True:
            answer = await self.send(partition, values)
            now_s = self._history.now_s
            if answer.outcome == "done":
                positions = tuple((result["partition"], result["offset"]) for result in answer.content["results"])
                self.accepted(partition, len(values))
                self._history.add(Acknowledged(now_s, operation, positions))
                return
            if answer.outcome == "refused for good":
                self._history.add(Unexpected(now_s, self.name, answer.why))
                self.given_up(partition)
                return
            if not self.repeats:
                self._history.add(
                    Refused(now_s, operation, answer.why)
                    if answer.outcome == "nothing written"
                    else Unknown(now_s, operation, answer.why)
                )
                return
            await asyncio.sleep(PAUSE_S)

    @abstractmethod
    async def send(self, partition: int, values: Sequence[str]) -> Answer: ...

    def accepted(self, partition: int, count: int) -> None:
        """So many more records lie in the partition."""
        del partition, count

    def given_up(self, partition: int) -> None:
        """It is not known whether the batch lies there."""
        del partition


class PlainProducer(HttpProducer):
    """No idempotence: each batch is sent once."""

    repeats = False

    async def send(self, partition: int, values: Sequence[str]) -> Answer:
        return await self.endpoints.ask(
            "POST", f"{self.endpoints.topic}/records", partition, body=_body(partition, values), headers=_JSON
        )


class KeyedProducer(HttpProducer):
    """Under an Idempotency-Key."""

    async def send(self, partition: int, values: Sequence[str]) -> Answer:
        headers = _JSON | {"idempotency-key": values[0]}
        return await self.endpoints.ask(
            "POST", f"{self.endpoints.topic}/records", partition, body=_body(partition, values), headers=headers
        )


class SpreadProducer(HttpProducer):
    """Under an Idempotency-Key, each record with a key of its own: one request to any broker, for partitions of several leaders."""

    async def send(self, partition: int, values: Sequence[str]) -> Answer:
        rows = [{"key": f"k{value}", "value": stored_value(value).decode()} for value in values]
        headers = _JSON | {"idempotency-key": values[0]}
        return await self.endpoints.ask("POST", f"{self.endpoints.topic}/records", None, body=_records(rows), headers=headers)


class KeylessProducer(HttpProducer):
    """Whatever partition the broker takes for a request: nothing in it says which. Each batch is sent once."""

    repeats = False

    async def send(self, partition: int, values: Sequence[str]) -> Answer:
        rows = [{"value": stored_value(value).decode()} for value in values]
        return await self.endpoints.ask("POST", f"{self.endpoints.topic}/records", None, body=_records(rows), headers=_JSON)


class SequencedProducer(HttpProducer):
    """With a producer id, and a sequence in each partition. After a batch that was given up it takes a new id."""

    def __init__(
        self, name: str, endpoints: HttpEndpoints, history: History, *, seed: int, per_second: float, settle_s: float = SETTLE_S
    ) -> None:
        super().__init__(name, endpoints, history, seed=seed, per_second=per_second, settle_s=settle_s)
        self._producer_id: int | None = None
        self._sequence = [0] * PARTITIONS

    async def send(self, partition: int, values: Sequence[str]) -> Answer:
        if self._producer_id is None:
            answer = await self.endpoints.ask("POST", "/v1/producers", partition)
            if answer.outcome != "done":
                return answer._replace(outcome="nothing written")
            self._producer_id, self._sequence = answer.content["producer_id"], [0] * PARTITIONS
        query = f"?producer_id={self._producer_id}&producer_epoch=0&base_sequence={self._sequence[partition]}&partition={partition}"
        return await self.endpoints.ask(
            "POST", f"{self.endpoints.topic}/records{query}", partition, body=_body(partition, values), headers=_JSON
        )

    def accepted(self, partition: int, count: int) -> None:
        self._sequence[partition] += count

    def given_up(self, partition: int) -> None:
        self._producer_id = None


_JSON = {"content-type": "application/json"}


def _body(partition: int, values: Sequence[str]) -> bytes:
    return _records([{"value": stored_value(value).decode(), "partition": partition} for value in values])


def _records(rows: Sequence[Mapping[str, str | int]]) -> bytes:
    return json.dumps({"records": rows}).encode()


class HttpReader:
    """Reads all partitions in turn, with short long polls. `run` until it is cancelled."""

    def __init__(self, name: str, endpoints: HttpEndpoints, history: History) -> None:
        self.name = name
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self._endpoints = endpoints
        self._history = history

    async def run(self) -> None:
        while True:
            for partition in range(PARTITIONS):
                await self.poll(partition)

    async def poll(self, partition: int) -> int | None:
        """The high watermark of the answer; None without an answer."""
        offset = self.positions[partition]
        path = f"{self._endpoints.topic}/partitions/{partition}/records?offset={offset}&value_format=text&wait_ms={POLL_WAIT_MS}"
        answer = await self._endpoints.ask("GET", path, partition)
        if answer.outcome == "refused for good":
            self._history.add(Unexpected(self._history.now_s, self.name, answer.why))
        if answer.outcome != "done":
            await asyncio.sleep(PAUSE_S)
            return None
        reported = answer.content
        high_watermark: int = reported["high_watermark"]
        records = _offset_values(reported)
        self._history.add(Polled(self._history.now_s, self.name, partition, offset, records, high_watermark))
        self.positions[partition] = reported["next_offset"]
        return high_watermark


class StreamReader(ABC):
    """A stream over HTTP that is taken up again at any broker, however it ended. `run` until it is cancelled."""

    def __init__(
        self,
        name: str,
        urls: Mapping[str, str],
        session: aiohttp.ClientSession,
        history: History,
        *,
        seed: int,
        topic: str = TOPIC,
    ) -> None:
        self.name = name
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.topic = f"/v1/topics/{topic}"
        self._urls = urls
        self._session = session
        self._history = history
        self._rng = random.Random(seed)

    @abstractmethod
    async def run(self) -> None: ...

    async def lines(self, path: str, headers: Mapping[str, str]) -> AsyncGenerator[str]:
        """Of one stream, from some broker, until it ends."""
        url = self._urls[self._rng.choice(sorted(self._urls))]
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S, sock_read=SILENT_S)
        with suppress(aiohttp.ClientError, TimeoutError):  # it ends as streams end, and goes on where it was
            async with self._session.get(url + path, headers=headers, timeout=timeout) as response:
                if response.status != HTTPStatus.OK:
                    self.ended(response.status, await response.json(content_type=None))
                    return
                async for line in response.content:
                    if not line.endswith(b"\n"):
                        return  # cut off
                    yield line.decode().rstrip("\n")

    def took(self, record: Any) -> None:
        partition, offset = record["partition"], record["offset"]
        records: OffsetValues = ((offset, value_of(record["value"].encode())),)
        self._history.add(Polled(self._history.now_s, self.name, partition, self.positions[partition], records))
        self.positions[partition] = offset + 1

    def ended(self, status: int, reported: Any) -> None:
        answer = judge(status, reported)
        if answer.outcome == "refused for good":
            self._history.add(Unexpected(self._history.now_s, self.name, answer.why))


class EventReader(StreamReader):
    """Server-sent events over all partitions, resumed with the id of the last one."""

    async def run(self) -> None:
        last_id = ""
        path = f"{self.topic}/records?offset=earliest&value_format=text"
        while True:
            event: dict[str, str] = {}
            headers = {"accept": "text/event-stream"} | ({"last-event-id": last_id} if last_id else {})
            async with aclosing(self.lines(path, headers)) as lines:
                async for line in lines:
                    name, _, value = line.partition(": ")
                    if name:
                        event[name] = value
                        continue
                    if event.get("event") == "error":
                        self.ended(HTTPStatus.SERVICE_UNAVAILABLE, json.loads(event["data"]))
                    elif "data" in event:
                        self.took(json.loads(event["data"]))
                    last_id = event.get("id", last_id)
                    event = {}
            await asyncio.sleep(PAUSE_S)


class LineReader(StreamReader):
    """NDJSON of each partition, in long polls from the next offset on."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as streams:
            for partition in range(PARTITIONS):
                streams.create_task(self._read(partition))

    async def _read(self, partition: int) -> None:
        while True:
            path = f"{self.topic}/partitions/{partition}/records?offset={self.positions[partition]}&value_format=text&wait_ms=1000"
            async with aclosing(self.lines(path, {"accept": "application/x-ndjson"})) as lines:
                async for line in lines:
                    reported = json.loads(line)
                    if "error" in reported:
                        self.ended(HTTPStatus.SERVICE_UNAVAILABLE, reported["error"])
                    else:
                        self.took(reported)
            await asyncio.sleep(PAUSE_S)


def _offset_values(reported: Any) -> OffsetValues:
    return tuple((record["offset"], value_of(record["value"].encode())) for record in reported["records"])


def http_session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    return aiohttp.ClientSession(timeout=timeout, trust_env=False)
