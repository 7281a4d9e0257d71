"""Three `tidelog serve` processes on a real etcd and a real S3 server, one cluster for all tests of this folder.

Each test has a topic of its own, and clients on it that notice everything (`loaded`): producers and readers through the SDK and
over plain HTTP, whose history is judged by the rules of the chaos run. A test leaves the cluster as it found it: three brokers
that serve, and none that drains.
"""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from metadata.errors import Unavailable
from tests.chaos.cluster import BROKERS, PREFIX, TIDELOG, Broker
from tests.chaos.history import Acknowledged, Healed, History, Refused, Unknown
from tests.chaos.history_checker import check
from tests.chaos.http_workload import (
    EventReader,
    HttpEndpoints,
    HttpProducer,
    HttpReader,
    KeyedProducer,
    LineReader,
    SequencedProducer,
    http_session,
)
from tests.chaos.report import pauses
from tests.chaos.run import Reader, caught_up, serve_all
from tests.chaos.workload import PARTITIONS, SdkProducer, SdkReader
from tests.kit.etcd_server import EtcdMember, running_etcd
from tests.kit.forked_tidelog import TidelogProcess
from tests.kit.servers import S3Server, chosen_s3_server, free_port
from tests.kit.tcp_proxy import TcpProxy
from tidelog.client import Client, connect

Found = TypeVar("Found")
# How long a test waits for what must happen before it fails.
PATIENCE_S = 120.0
POLL_S = 0.05


@dataclass
class ThreeBrokers:
    brokers: dict[str, Broker]
    etcd: EtcdMember
    s3: S3Server
    bucket_url: str
    _directory: Path

    @property
    def urls(self) -> dict[str, str]:
        return {broker_id: broker.http_url for broker_id, broker in self.brokers.items()}

    def new_broker(self, broker_id: str) -> Broker:
        """Another one, which is not started. The caller kills it."""
        etcd, s3 = TcpProxy(0), TcpProxy(0)  # with nothing between
        etcd.port = self.etcd.client_port
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("TIDELOG_", "AWS_"))
        } | self.s3.environment
        ports = free_port(), free_port()
        return Broker(broker_id, *ports, etcd, s3, self.bucket_url, self._directory, environment, TIDELOG, TidelogProcess)


@contextmanager
def three_brokers(directory: Path) -> Iterator[ThreeBrokers]:
    with ExitStack() as parts:
        s3 = parts.enter_context(chosen_s3_server(directory, build=False))
        etcd = parts.enter_context(running_etcd(directory))
        url = f"s3://{s3.make_bucket()}/{PREFIX}?endpoint={s3.endpoint_url}&region=us-east-1"
        cluster = ThreeBrokers({}, etcd, s3, url, directory)
        for broker_id in BROKERS:
            broker = cluster.brokers[broker_id] = cluster.new_broker(broker_id)
            parts.callback(broker.kill)
            broker.start()
        yield cluster


class Asking:
    """What the cluster says of itself, through whichever broker answers."""

    def __init__(self, cluster: ThreeBrokers, endpoints: HttpEndpoints) -> None:
        self._cluster = cluster
        self._endpoints = endpoints

    async def brokers(self) -> dict[str, Any]:
        """By id; empty where no broker answers."""
        answer = await self._endpoints.ask("GET", "/v1/brokers", None)
        return {broker["broker_id"]: broker for broker in answer.content["brokers"]} if answer.outcome == "done" else {}

    async def controller(self) -> str:
        async def found() -> str | None:
            brokers = await self.brokers()
            return next((broker_id for broker_id, broker in brokers.items() if broker["controller"]), None)

        return await until(found)

    async def leaders(self) -> list[str | None]:
        """By partition; empty where no broker answers."""
        answer = await self._endpoints.ask("GET", self._endpoints.topic, None)
        if answer.outcome != "done":
            return []
        return [partition["leader"] or None for partition in answer.content["partitions"]]

    async def all_led(self, *, by: set[str]) -> list[str]:
        """The leaders, once each partition has one of these, and each of these has a partition."""

        async def found() -> list[str] | None:
            leaders = [leader for leader in await self.leaders() if leader is not None]
            return leaders if len(leaders) == PARTITIONS and set(leaders) == by else None

        return await until(found)


async def until(found: Callable[[], Awaitable[Found | None]], *, patience_s: float = PATIENCE_S) -> Found:
    """What `found` answers, once that is something."""
    async with asyncio.timeout(patience_s):
        while not (answer := await found()):  # noqa: ASYNC110  # processes set no events
            await asyncio.sleep(POLL_S)
        return answer


@asynccontextmanager
async def connected(*addresses: str) -> AsyncIterator[Client]:
    """A client of the cluster, once it has a broker: on a busy machine all may have lost their leases."""

    async def found() -> Client | None:
        try:
            return await connect(*addresses).__aenter__()
        except Unavailable:
            return None

    log = await until(found)
    async with AsyncExitStack() as leaving:
        leaving.push_async_exit(log)
        yield log


async def ready(*brokers: Broker) -> None:
    async def all_ready() -> bool:
        assert all(broker.process is not None and broker.process.poll() is None for broker in brokers), "a broker has ended"
        return all(broker.ready for broker in brokers)

    await until(all_ready)


@dataclass
class Loaded:
    cluster: ThreeBrokers
    asking: Asking
    history: History
    topic: str

    async def acknowledged_more(self) -> None:
        """Returns when every partition has acknowledged something that was sent after now."""
        start = len(self.history.events)

        async def all_went_on() -> bool:
            new = self.history.events[start:]
            positions = [position for event in new if isinstance(event, Acknowledged) for position in event.positions]
            return {partition for partition, _ in positions} == set(range(PARTITIONS))

        await until(all_went_on)


@asynccontextmanager
async def loaded(cluster: ThreeBrokers, directory: Path) -> AsyncIterator[Loaded]:
    """Clients on a new topic while the block runs; then everything that they saw is judged."""
    topic = f"topic-{uuid.uuid4().hex[:8]}"
    urls, addresses = cluster.urls, tuple(cluster.urls.values())
    await ready(*cluster.brokers.values())
    async with http_session() as session, connected(*addresses) as log:
        with History(directory / "history.ndjson") as history:
            await log.topics.create(topic, partitions=PARTITIONS)
            endpoints = HttpEndpoints(urls, session, random.Random(1), topic=topic)
            readers: list[Reader] = [
                SdkReader("sdk-reader", addresses, history, topic=topic),
                HttpReader("http-reader", endpoints, history),
                EventReader("http-events", urls, session, history, seed=2, topic=topic),
                LineReader("http-lines", urls, session, history, seed=3, topic=topic),
            ]
            producers: list[SdkProducer | HttpProducer] = [
                SdkProducer("sdk-keyed", addresses, history, keyed=True, per_second=10, topic=topic, delivery_timeout_s=PATIENCE_S),
                SdkProducer("sdk", addresses, history, keyed=False, per_second=10, topic=topic, delivery_timeout_s=PATIENCE_S),
                KeyedProducer("http-key", endpoints, history, seed=4, per_second=5, settle_s=PATIENCE_S),
                SequencedProducer("http-sequence", endpoints, history, seed=5, per_second=5, settle_s=PATIENCE_S),
            ]
            asking = Asking(cluster, endpoints)
            await asking.all_led(by=set(cluster.brokers))
            enough = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                reading = [tasks.create_task(reader.run(), name=reader.name) for reader in readers]
                producing = [tasks.create_task(one.run(enough), name=one.name) for one in producers]
                load = Loaded(cluster, asking, history, topic)
                await load.acknowledged_more()
                yield load
                await load.acknowledged_more()
                history.add(Healed(history.now_s))
                enough.set()
                async with asyncio.timeout(PATIENCE_S):
                    await asyncio.gather(*producing)
                    await serve_all(endpoints, history)
                    await caught_up(readers, history)
                for task in reading:
                    task.cancel()
            await log.topics.delete(topic)
            _judge(history)


def _judge(history: History) -> None:
    """Besides the rules: clients of the SDK see no failure at all before their deadline has passed."""
    assert check(history.events) == []
    failed = [event for event in history.events if isinstance(event, Refused | Unknown)]
    assert failed == []
    print(pauses(history.events))
