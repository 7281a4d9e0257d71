"""Measures what waiting fetch sessions (KIP-227) cost a broker: those that a commit wakes, and those that nothing wakes.

    woken   each session waits; a producer commits a batch; every session is answered with it, and waits again
    idle    each session waits 500 ms, is answered without records, and waits again

A session that names a rack is looked up whole each time, since another broker may serve some of it. So the same sessions with a
rack show what the others save. CPU is user and system time of the broker's process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

from bench.batches import record_batch
from bench.broker import Served, broker
from bench.figures import Figure, Target, median, spread
from bench.kafka_client import (
    FETCH_VERSION,
    KEYS,
    PRODUCE_VERSION,
    KafkaConnection,
    connection,
    message,
    produce_all,
)
from bench.run import Run
from tests.kit.gateway.kafka_codec import INSTALLED

SESSIONS: Final = 40
MANY, FEW = 500, 1
COMMITS, COMMITS_WITH_RACK = 60, 10
ROUNDS: Final = 3
LONG_WAIT_MS = 60_000
IDLE_CONSUMERS, IDLE_PARTITIONS, IDLE_WAIT_MS = 1_000, 6, 500
IDLE_SECONDS_PER_SECOND = 6.0
# After the sessions are sent they wait within this time.
SETTLE_S = 0.02
PARTITION_BYTES_MAX = 1 << 20


class Session:
    """A client's side of one fetch session over all partitions of a topic."""

    def __init__(self, topic: str, partitions: int, *, rack: str = "") -> None:
        self._topic = topic
        self._rack = rack
        self._session_id, self._epoch = 0, 0
        self._offsets = dict.fromkeys(range(partitions), 0)
        self._moved = self._offsets

    def frame(self, *, wait_ms: int) -> bytes:
        asked = [
            message("FetchPartition", partition=number, fetch_offset=offset, partition_max_bytes=PARTITION_BYTES_MAX)
            for number, offset in self._moved.items()
        ]
        request = message(
            "FetchRequest",
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=50 << 20,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=[message("FetchTopic", topic=self._topic, partitions=asked)] if asked else [],
            rack_id=self._rack,
        )
        return INSTALLED.encode_request_frame(KEYS["Fetch"], request, FETCH_VERSION, 1, "bench")

    def closing(self) -> bytes:
        request = message("FetchRequest", max_wait_ms=0, session_id=self._session_id, session_epoch=-1, topics=[])
        return INSTALLED.encode_request_frame(KEYS["Fetch"], request, FETCH_VERSION, 1, "bench")

    def take(self, data: Any) -> None:
        """Takes an answer; the next request asks for what follows."""
        answer = INSTALLED.decode_response(KEYS["Fetch"], data, FETCH_VERSION)[1]
        if answer.error_code or not answer.session_id:
            raise RuntimeError(f"the broker answered a fetch with error {answer.error_code}, session {answer.session_id}")
        self._session_id, self._epoch, self._moved = answer.session_id, self._epoch + 1, {}
        for each in answer.responses[0].partitions if answer.responses else ():
            if each.error_code:
                raise RuntimeError(f"the broker answered partition {each.partition_index} with error {each.error_code}")
            if any(each.records or ()):
                self._offsets[each.partition_index] = each.high_watermark
                self._moved[each.partition_index] = each.high_watermark


def wake_sessions(address: str, topic: str, partitions: int, batch: bytes, commits: int, *, sessions: int, rack: str = "") -> None:
    """Lets each commit wake all sessions; the batches go to the partitions in turn. Returns once all are answered."""
    with ExitStack() as opened:
        producer = opened.enter_context(connection(address))
        readers = [(opened.enter_context(connection(address)), Session(topic, partitions, rack=rack)) for _ in range(sessions)]
        for _ in range(2):  # the session is opened, then its partitions come to rest
            _poll(readers, wait_ms=0)
            _take(readers)
        for commit in range(commits):
            _poll(readers, wait_ms=LONG_WAIT_MS)
            time.sleep(SETTLE_S)
            data = [message("PartitionProduceData", index=commit % partitions, records=batch)]
            named = [message("TopicProduceData", name=topic, partition_data=data)]
            producer.ask("Produce", PRODUCE_VERSION, message("ProduceRequest", acks=-1, timeout_ms=30_000, topic_data=named))
            _take(readers)
        for reader, session in readers:  # else the broker keeps its partitions, and at some number opens no further session
            reader.send_frame(session.closing())
            reader.receive_frame()


def _poll(readers: list[tuple[KafkaConnection, Session]], *, wait_ms: int) -> None:
    for reader, session in readers:
        reader.send_frame(session.frame(wait_ms=wait_ms))


def _take(readers: list[tuple[KafkaConnection, Session]]) -> None:
    for reader, session in readers:
        session.take(reader.receive_frame())


def idle_sessions(address: str, topic: str, partitions: int, sessions: int, seconds: float) -> int:
    """Polls with all sessions for this time. Returns the number of answers."""
    return asyncio.run(_idle(address, topic, partitions, sessions, seconds))


async def _idle(address: str, topic: str, partitions: int, sessions: int, seconds: float) -> int:
    ends_s = time.monotonic() + seconds
    host, _, port = address.rpartition(":")

    async def poll() -> int:
        reader, writer = await asyncio.open_connection(host, int(port))
        session, answers = Session(topic, partitions), 0
        try:
            while time.monotonic() < ends_s:
                writer.write(session.frame(wait_ms=IDLE_WAIT_MS))
                size = int.from_bytes(await reader.readexactly(4))
                session.take(memoryview(await reader.readexactly(size)))
                answers += 1
            writer.write(session.closing())
            await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        finally:
            writer.close()
        return answers

    async with asyncio.TaskGroup() as polls:
        polling = [polls.create_task(poll()) for _ in range(sessions)]
    return sum(each.result() for each in polling)


def measure(run: Run) -> list[Figure]:
    """A bucket in a local directory, three times each."""
    return list(_measured(run))


def _measured(run: Run) -> Iterator[Figure]:
    batch = record_batch(10)
    with broker(run, "long-polls", flags=("--compact", "false")) as served:
        few = [_wake_us(run, served, batch, FEW, COMMITS) for _ in range(ROUNDS)]
        many = [_wake_us(run, served, batch, MANY, COMMITS) for _ in range(ROUNDS)]
        whole = [_wake_us(run, served, batch, MANY, COMMITS_WITH_RACK, rack="another") for _ in range(ROUNDS)]
        yield Figure(
            f"what {MANY - FEW} partitions at rest add to a session that a commit wakes",
            median(many) - median(few),
            "µs",
            Target(most=30),
            f"{MANY} partitions: {spread(many)} µs of CPU, {FEW} partition: {spread(few)}, each with its request and its answer",
        )
        yield Figure(
            f"the same where all {MANY} are looked up each time",
            median(whole) - median(few),
            "µs",
            note=f"sessions with a rack: {spread(whole)} µs",
        )
        served.create_topic("idle", IDLE_PARTITIONS)
        run.client.run(produce_all, served.kafka_address, "idle", batch, IDLE_PARTITIONS, 1)
        run.client.run(idle_sessions, served.kafka_address, "idle", IDLE_PARTITIONS, IDLE_CONSUMERS, 2 * IDLE_WAIT_MS / 1000)
        seconds = run.seconds * IDLE_SECONDS_PER_SECOND
        began_s, cpu_s = time.perf_counter(), served.cpu_seconds()
        answers = run.client.run(idle_sessions, served.kafka_address, "idle", IDLE_PARTITIONS, IDLE_CONSUMERS, seconds)
        cpu_s, took_s = served.cpu_seconds() - cpu_s, time.perf_counter() - began_s
        yield Figure(
            f"{IDLE_CONSUMERS:,} idle consumers of {IDLE_PARTITIONS} partitions, polls of {IDLE_WAIT_MS} ms",
            cpu_s / took_s * 100,
            "% of a core",
            Target(most=15),
            f"{cpu_s / answers * 1e6:.0f} µs for each of {answers / took_s:,.0f} polls a second, with {IDLE_CONSUMERS:,} connects",
        )


def _wake_us(run: Run, served: Served, batch: bytes, partitions: int, commits: int, *, rack: str = "") -> float:
    """Microseconds of the broker's CPU for each session that a commit wakes, without the commit."""
    topic = f"woken-{partitions}-{time.monotonic_ns()}"
    served.create_topic(topic, partitions)
    spent = []
    for sessions, counted in ((0, commits), (SESSIONS, 0), (SESSIONS, commits)):
        begun_s = served.cpu_seconds()
        run.client.run(wake_sessions, served.kafka_address, topic, partitions, batch, counted, sessions=sessions, rack=rack)
        spent.append(served.cpu_seconds() - begun_s)
    alone_s, opening_s, woken_s = spent
    return (woken_s - opening_s - alone_s) / (SESSIONS * commits) * 1e6
