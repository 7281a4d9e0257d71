"""HTTP streams over all partitions while leaders change: nothing is lost, nothing comes twice, and no client has to reconnect."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import msgspec
import pytest

from metadata.topics.topic import Topic
from tests.gateway.cluster.test_session_manager import partition_of
from tests.gateway.routing.test_cluster_log import PARTITIONS, client_of, made
from tests.kit.gateway.broker_cluster import Cluster, with_cluster
from tests.kit.gateway.http_client import Client
from tests.kit.gateway.small_broker import until

pytestmark = pytest.mark.slow

RECORDS = "/v1/topics/orders/records"


class Stream:
    """What a reader of all partitions has seen, by partition."""

    def __init__(self) -> None:
        self.seen: dict[int, list[int]] = defaultdict(list)
        self.error: object = None

    async def read(self, session: aiohttp.ClientSession, accept: str) -> None:
        async with session.get(RECORDS, headers={"accept": accept}, timeout=aiohttp.ClientTimeout(total=None)) as answer:
            assert answer.status == 200
            async for record in _records(answer.content):
                if "value" not in record:
                    self.error = record
                    return
                self.seen[record["partition"]].append(record["value"])


async def _records(lines: aiohttp.StreamReader) -> AsyncIterator[dict[str, int]]:
    async for line in lines:
        body = line.removeprefix(b"data: ")
        if body.startswith(b"{"):
            yield msgspec.json.decode(body)


@pytest.fixture(params=["text/event-stream", "application/x-ndjson"])
def accept(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def streamed(
    tmp_path: Path, accept: str, scenario: Callable[[Cluster, Topic, Client, Stream], Awaitable[None]], *, count: int = 2
) -> None:
    """With a stream open at the first broker, which stays."""

    async def served(cluster: Cluster) -> None:
        topic, _, _ = await made(cluster)
        stream = Stream()
        async with client_of(cluster.brokers[0]) as client, asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(stream.read(client.session, accept))
            await scenario(cluster, topic, client, stream)
            reading.cancel()

    with_cluster(tmp_path, served, count=count)


async def write(client: Client, partition: int, value: int) -> None:
    reported = await client.produce(RECORDS, [{"value": value, "partition": partition}])
    assert reported.status == 200, reported


def without_leader(cluster: Cluster, topic: Topic, number: int) -> Callable[[], None]:
    """Takes the partition from its leader, as between two leaders. Returns what gives it back."""
    partition = partition_of(topic, number)
    led = cluster.leader(partition).log.partitions._led
    held = led.pop(partition)
    return lambda: led.update({partition: held})


def without_reads(cluster: Cluster, topic: Topic, number: int) -> Callable[[], None]:
    """As above, but records are still taken: so that they lie there before the first look that finds a leader again."""
    partition = partition_of(topic, number)
    log = cluster.leader(partition).log
    log.partitions.stop_reads([partition])
    return lambda: log.partitions.resume(partition)


def test_a_stream_goes_on_through_a_drain(tmp_path: Path, accept: str) -> None:
    async def scenario(cluster: Cluster, topic: Topic, client: Client, stream: Stream) -> None:
        leaving = cluster.brokers[-1]
        values = itertools.count()
        draining: Awaitable[object] | None = None
        while any(cluster.leader(partition_of(topic, number)) is leaving for number in range(PARTITIONS)):
            value = next(values)
            for number in range(PARTITIONS):
                await write(client, number, value)
            draining = draining or await cluster.brokers[0].drain(leaving.broker_id, draining=True)  # type: ignore[assignment]
        last = next(values)
        for number in range(PARTITIONS):
            await write(client, number, last)
        await until(lambda: stream.error is not None or all(len(stream.seen[number]) > last for number in range(PARTITIONS)))
        assert stream.error is None
        assert all(stream.seen[number] == list(range(last + 1)) for number in range(PARTITIONS))

    streamed(tmp_path, accept, scenario, count=3)


def test_a_partition_without_a_leader_stops_no_other_and_is_read_on_where_it_was_left(tmp_path: Path, accept: str) -> None:
    async def scenario(cluster: Cluster, topic: Topic, client: Client, stream: Stream) -> None:
        number = next(at for at in range(PARTITIONS) if cluster.leader(partition_of(topic, at)) is not cluster.brokers[0])
        other = next(at for at in range(PARTITIONS) if at != number)
        await write(client, number, 0)
        await until(lambda: stream.seen[number] == [0])
        lead_again = without_leader(cluster, topic, number)
        for value in range(3):
            await write(client, other, value)
            await until(lambda sent=value: len(stream.seen[other]) > sent)  # type: ignore[misc]
        lead_again()
        await write(client, number, 1)
        await until(lambda: len(stream.seen[number]) > 1)
        assert (stream.seen[number], stream.seen[other], stream.error) == ([0, 1], [0, 1, 2], None)

    streamed(tmp_path, accept, scenario)


def test_a_stream_that_ends_by_silence_has_seen_what_had_no_leader_before(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, topic: Topic, client: Client, _: Stream) -> None:
        number = next(at for at in range(PARTITIONS) if cluster.leader(partition_of(topic, at)) is not cluster.brokers[0])
        await write(client, number, 7)
        clock, silence_s, values = asyncio.get_running_loop().time, 0.3, list[int]()
        while not values:
            asked_s, wait_ms = clock(), round(1000 * silence_s)
            async with client.session.get(f"{RECORDS}?wait_ms={wait_ms}", headers={"accept": "application/x-ndjson"}) as answer:
                assert msgspec.json.decode(await answer.content.readline())["value"] == 7
                read_again = without_reads(cluster, topic, number)
                if clock() - asked_s >= silence_s:  # on a busy machine it may have ended by now
                    read_again()
                    continue
                await asyncio.sleep(2 * silence_s)
                await write(client, number, 8)
                read_again()
                values += [msgspec.json.decode(line)["value"] for line in (await answer.content.read()).splitlines()]
                assert values == [8]

    streamed(tmp_path, "application/x-ndjson", scenario)
