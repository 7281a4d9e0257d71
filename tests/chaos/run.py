"""One chaos run: a cluster, producers and readers on it, a nemesis, and everything that they saw, as a history.

start ─▶ topic ─▶ workload + nemesis, for its time ─▶ all healed ─▶ producers settle ─▶ readers and groups reach the end
      ─▶ whole partitions through the brokers ─▶ drain all ─▶ the same from the bucket alone ─▶ `bucket verify --deep`
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp

from segments.object_store.s3.store import S3ObjectStore
from tests.chaos import group_http_members, group_kafka_members, group_members
from tests.chaos.cluster import PREFIX, TIDELOG, Cluster, running_cluster
from tests.chaos.group_http_members import GroupWatcher, HttpMember
from tests.chaos.group_kafka_members import KafkaMember
from tests.chaos.group_members import SdkMember
from tests.chaos.history import Healed, History, Leaders, OffsetValues, OnBucket, Polled, Served, Topics, Unexpected
from tests.chaos.http_workload import (
    EventReader,
    HttpEndpoints,
    HttpProducer,
    HttpReader,
    KeyedProducer,
    KeylessProducer,
    LineReader,
    PlainProducer,
    SequencedProducer,
    SpreadProducer,
    StreamReader,
    http_session,
)
from tests.chaos.kafka_workload import KafkaProducer, KafkaReader
from tests.chaos.nemesis import torment
from tests.chaos.topic_workload import NAME as TOPIC_CHANGER
from tests.chaos.topic_workload import PASSING, TopicChanger
from tests.chaos.workload import PARTITIONS, TOPIC, SdkProducer, SdkReader, reported_value
from tests.kit.servers import ROOT, S3Server
from tests.simulation.bucket_reader import read_bucket
from tidelog.client import connect

# After the last fault, the longest for each step to the end.
QUIET_S = 90.0
# Of each producer.
SDK_RECORDS_PER_SECOND, HTTP_REQUESTS_PER_SECOND = 40.0, 15.0
KAFKA_RECORDS_PER_SECOND = 40.0
# How the consumers of Kafka divide the partitions of their group: eagerly, or in steps. Drawn from the seed.
KAFKA_ASSIGNORS = ("range", "cooperative-sticky")
# The second SDK reader makes a new connection after so many.
RECONNECT_AFTER_CHUNKS = 100
# Beyond that, for each second of the run: whatever was written is read again, in segments as small as they were written.
READS_AGAIN_S = 0.5
VERIFY_TIMEOUT_S = 300.0
POLL_S = 0.05

Reader = SdkReader | HttpReader | StreamReader | KafkaReader


async def run_chaos(
    directory: Path,
    s3: S3Server,
    history: History,
    *,
    seed: int,
    for_s: float,
    say: Callable[[str], None],
    program: Sequence[str] = TIDELOG,
) -> None:
    """Writes the history. The logs of all processes lie in `directory`, and nothing runs any more when it returns.

    `program`: what runs `tidelog` in the brokers, as arguments of `python -m`.
    """
    async with running_cluster(directory, s3, history, program=program) as cluster:
        say(f"three brokers, etcd and {s3.name} serve; their logs lie in {directory}")
        async with asyncio.TaskGroup() as life:
            supervision = life.create_task(cluster.supervise(), name="supervise")
            async with connect(*cluster.urls.values()) as log:
                topic_id = (await log.topics.create(TOPIC, partitions=PARTITIONS)).id
            await _load(cluster, life, seed=seed, for_s=for_s, say=say)
            await cluster.stop()
            supervision.cancel()
        await _read_bucket_alone(cluster, topic_id)
        await _verify_bucket(cluster)


async def _load(cluster: Cluster, life: asyncio.TaskGroup, *, seed: int, for_s: float, say: Callable[[str], None]) -> None:
    history = cluster.history
    async with http_session() as session:
        endpoints = HttpEndpoints(cluster.urls, session, random.Random(seed))
        await _in_time(record_leaders(endpoints, history), history, "not every partition has a leader")
        readers = _readers(cluster, endpoints, session, seed)
        reading = [life.create_task(reader.run(), name=reader.name) for reader in readers]
        enough = asyncio.Event()
        groups = group_members.GROUP, group_http_members.GROUP, group_kafka_members.GROUP
        watcher = GroupWatcher(groups, cluster.urls, session, history, seed=seed)
        in_groups = [*_members(cluster, session, seed, enough), watcher]
        reading += [life.create_task(one.run(), name=one.name) for one in in_groups]
        producing = [life.create_task(one.run(enough), name=one.name) for one in _producers(cluster, endpoints, seed)]
        changing = HttpEndpoints(cluster.urls, session, random.Random(seed + 5), topic=PASSING)
        changer = TopicChanger(tuple(cluster.urls.values()), history, changing)
        producing.append(life.create_task(changer.run(enough), name=TOPIC_CHANGER))
        await torment(cluster, seed, for_s=for_s, say=say)
        history.add(Healed(history.now_s))
        say(f"{history.now_s:7.1f} s  all healed")
        enough.set()
        await _in_time(cluster.await_ready(), history, "not every broker serves")
        _, unsettled = await asyncio.wait(producing, timeout=QUIET_S)
        for task in unsettled:
            history.add(Unexpected(history.now_s, task.get_name(), f"it waits for answers, {QUIET_S} s after the last fault"))
            task.cancel()
        history.add(Topics(history.now_s, changer.lives))
        await _in_time(record_leaders(endpoints, history), history, "not every partition has a leader")
        patience_s = QUIET_S + READS_AGAIN_S * for_s
        await _in_time(serve_all(endpoints, history), history, "not every partition can be read to its end", patience_s)
        await _in_time(caught_up(readers, history), history, "not every reader reaches the end", patience_s)
        await _in_time(watcher.at_rest(ends_of(history)), history, "not every group has committed all", patience_s)
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)


def _readers(cluster: Cluster, endpoints: HttpEndpoints, session: aiohttp.ClientSession, seed: int) -> list[Reader]:
    addresses, history = tuple(cluster.urls.values()), cluster.history
    return [
        SdkReader("sdk-reader", addresses, history),
        SdkReader("sdk-reader-again", addresses, history, chunks_max=RECONNECT_AFTER_CHUNKS),
        HttpReader("http-reader", endpoints, history),
        EventReader("http-events", cluster.urls, session, history, seed=seed),
        LineReader("http-lines", cluster.urls, session, history, seed=seed + 1),
        KafkaReader("kafka-reader", cluster.kafka_bootstrap, history),
    ]


def _members(
    cluster: Cluster, session: aiohttp.ClientSession, seed: int, enough: asyncio.Event
) -> list[SdkMember | HttpMember | KafkaMember]:
    """Of three groups."""
    addresses, history = tuple(cluster.urls.values()), cluster.history
    bootstrap, assignor = cluster.kafka_bootstrap, KAFKA_ASSIGNORS[seed % len(KAFKA_ASSIGNORS)]
    return [
        *(SdkMember(f"sdk-member-{n}", addresses, history, seed=seed + n, enough=enough) for n in range(group_members.MEMBERS)),
        *(
            HttpMember(f"http-member-{n}", cluster.urls, session, history, seed=seed + n, enough=enough)
            for n in range(group_http_members.MEMBERS)
        ),
        *(
            KafkaMember(f"kafka-member-{n}", bootstrap, history, seed=seed + n, enough=enough, assignor=assignor)
            for n in range(group_kafka_members.MEMBERS)
        ),
    ]


def _producers(cluster: Cluster, endpoints: HttpEndpoints, seed: int) -> list[SdkProducer | HttpProducer | KafkaProducer]:
    addresses, history, often = tuple(cluster.urls.values()), cluster.history, HTTP_REQUESTS_PER_SECOND
    bootstrap, steadily = cluster.kafka_bootstrap, KAFKA_RECORDS_PER_SECOND
    return [
        SdkProducer("sdk-keyed", addresses, history, keyed=True, per_second=SDK_RECORDS_PER_SECOND),
        SdkProducer("sdk", addresses, history, keyed=False, per_second=SDK_RECORDS_PER_SECOND),
        PlainProducer("http-plain", endpoints, history, seed=seed, per_second=often),
        KeyedProducer("http-key", endpoints, history, seed=seed + 1, per_second=often),
        SequencedProducer("http-sequence", endpoints, history, seed=seed + 2, per_second=often),
        SpreadProducer("http-spread", endpoints, history, seed=seed + 3, per_second=often),
        KeylessProducer("http-keyless", endpoints, history, seed=seed + 4, per_second=often),
        KafkaProducer("kafka-keyed", bootstrap, history, keyed=True, per_second=steadily),
        KafkaProducer("kafka", bootstrap, history, keyed=False, per_second=steadily, compression="lz4"),
    ]


async def _in_time(waiting: Awaitable[None], history: History, else_: str, patience_s: float = QUIET_S) -> None:
    try:
        async with asyncio.timeout(patience_s):
            await waiting
    except TimeoutError:
        history.add(Unexpected(history.now_s, "the cluster", f"{else_}, for {patience_s:g} s while nothing is broken"))


async def record_leaders(endpoints: HttpEndpoints, history: History) -> None:
    epochs = await endpoints.leader_epochs()
    history.add(Leaders(history.now_s, epochs))


async def serve_all(endpoints: HttpEndpoints, history: History) -> None:
    """Reads every partition whole, as a new reader."""
    reader = HttpReader("last-reader", endpoints, history)
    for partition in range(PARTITIONS):
        start = len(history.events)
        while (high_watermark := await reader.poll(partition)) is None or reader.positions[partition] < high_watermark:
            pass
        polls = [event for event in history.events[start:] if isinstance(event, Polled) and event.reader == reader.name]
        history.add(Served(history.now_s, partition, tuple(record for poll in polls for record in poll.records)))


async def caught_up(readers: Sequence[Reader], history: History) -> None:
    ends = ends_of(history)
    while any(reader.positions[partition] < end for reader in readers for partition, end in ends.items()):  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)


def ends_of(history: History) -> dict[int, int]:
    """By partition that has records: where it ends, as it was served."""
    return {event.partition: event.records[-1][0] + 1 for event in history.events if isinstance(event, Served) and event.records}


async def _read_bucket_alone(cluster: Cluster, topic_id: str) -> None:
    os.environ.update(cluster.s3.environment)
    store = await S3ObjectStore.open(cluster.bucket, PREFIX, cluster.s3.settings)
    history = cluster.history
    try:
        contents = await read_bucket(store)
    except AssertionError as error:  # of the reader: what lies there contradicts itself
        history.add(Unexpected(history.now_s, "the bucket", str(error)))
        return
    finally:
        await store.close()
    logs: dict[int, OffsetValues] = {
        int(partition.rpartition("/")[2]): tuple((offset, reported_value(record)) for offset, record in records)
        for partition, records in contents.log.items()
        if partition.startswith(f"{topic_id}/")
    }
    for partition in range(PARTITIONS):
        history.add(OnBucket(history.now_s, partition, logs.get(partition, ())))
    for missing in contents.missing:
        history.add(Unexpected(history.now_s, "the bucket", f"{missing} is called committed, and is not there"))


async def _verify_bucket(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "tidelog.cli.main", "bucket", "verify", "--deep", "--bucket", cluster.bucket_url]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=cluster.environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(VERIFY_TIMEOUT_S):
            reported, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        what = f"exit code {process.returncode}: {reported.decode(errors='replace')}"
        cluster.history.add(Unexpected(cluster.history.now_s, "tidelog bucket verify --deep", what))
