"""Any broker can drain another, which hands over all that it leads and stays drained until the drain is cancelled."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.cluster.drain import set_draining
from gateway.cluster.session_manager import SessionManager
from gateway.cluster.settings import ClusterSettings
from gateway.cluster.view import ClusterView, DrainState
from metadata.cluster.broker_registry import BrokerRegistration, read_brokers
from metadata.errors import InvalidArgument, NotFound, Rejected
from metadata.model import SessionId
from metadata.store.interface import Delete
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from metadata.topics.registry import TopicRegistry
from segments.object_store.health_tracking import HealthTrackingObjectStore
from segments.object_store.memory import MemoryObjectStore
from segments.settings import SegmentSettings
from tests.kit.segments.batches import TIMESTAMP_MS

LAYOUT = KeyLayout()
READY_S = 60.0
PARTITIONS = 6
_writers = itertools.count()


class Cluster:
    """Brokers of one process, which share the metadata, a bucket and a view."""

    def __init__(self, path: Path, broker_ids: tuple[str, ...]) -> None:
        self.metadata = SqliteStore(path)
        self.view = ClusterView(self.metadata, LAYOUT)
        bucket = MemoryObjectStore()
        self.brokers = {
            broker_id: SessionManager(
                HealthTrackingObjectStore(bucket),
                self.metadata,
                self.view,
                SegmentSettings(linger_ms=0),
                ClusterSettings(),
                layout=LAYOUT,
                registration=BrokerRegistration(broker_id=broker_id, session=SessionId(0)),
                new_writer=lambda: next(_writers).to_bytes(16, "big"),
                now_ms=lambda: TIMESTAMP_MS,
            )
            for broker_id in broker_ids
        }

    async def drain(self, broker_id: str, *, draining: bool = True, validate_only: bool = False) -> DrainState:
        return await set_draining(self.metadata, LAYOUT, self.view, broker_id, draining=draining, validate_only=validate_only)

    def led(self, broker_id: str) -> int:
        session = self.brokers[broker_id].session
        return len(self.view.partitions.led_by(session)) if session is not None else 0


@asynccontextmanager
async def running(path: Path, *broker_ids: str) -> AsyncIterator[Cluster]:
    cluster = Cluster(path, broker_ids)
    async with asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(cluster.view.run())]
        background += [tasks.create_task(broker.run()) for broker in cluster.brokers.values()]
        await cluster.view.read(timeout_s=READY_S)
        await until(lambda: all(broker.session is not None for broker in cluster.brokers.values()))
        await until(lambda: len(cluster.view.brokers.brokers) == len(broker_ids))
        await TopicRegistry(cluster.metadata, LAYOUT).create("orders", PARTITIONS)
        await until(lambda: sum(map(cluster.led, broker_ids)) == PARTITIONS)
        yield cluster
        for task in background:
            task.cancel()
    await cluster.metadata.close()


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(READY_S):
        while not happened():  # noqa: ASYNC110  # no event reports what only a test looks at
            await asyncio.sleep(0.001)


def test_a_drained_broker_hands_over_all_partitions_and_leads_again_after_the_drain(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "m", "b1", "b2") as cluster:
            assert cluster.led("b1") == cluster.led("b2") == PARTITIONS // 2
            assert await cluster.drain("b1") == DrainState("b1", draining=True, partitions_led=PARTITIONS // 2)
            await until(lambda: cluster.led("b2") == PARTITIONS)
            assert await cluster.drain("b1") == DrainState("b1", draining=True, partitions_led=0)
            await cluster.drain("b1", draining=False)
            await until(lambda: cluster.led("b1") == PARTITIONS // 2)

    asyncio.run(main())


def test_a_drained_broker_that_begins_a_new_session_is_drained_still(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "m", "b1", "b2") as cluster:
            await cluster.drain("b1")
            before = cluster.brokers["b1"].session
            await cluster.metadata.transact([], [Delete(LAYOUT.broker("b1"))])  # its session is over
            await until(lambda: cluster.brokers["b1"].session not in {None, before})
            await until(lambda: "b1" in cluster.view.brokers.brokers)
            assert (await read_brokers(cluster.metadata, LAYOUT))["b1"].registration.draining

    asyncio.run(main())


def test_a_drain_that_only_asks_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "m", "b1", "b2") as cluster:
            asked = await cluster.drain("b1", validate_only=True)
            assert asked == DrainState("b1", draining=True, partitions_led=PARTITIONS // 2)
            assert not any(held.registration.draining for held in (await read_brokers(cluster.metadata, LAYOUT)).values())

    asyncio.run(main())


def test_the_last_broker_that_takes_partitions_is_not_drained(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "m", "b1", "b2") as cluster:
            await cluster.drain("b1")
            with pytest.raises(Rejected, match="no other broker could take over what b2 leads"):
                await cluster.drain("b2")
            assert (await cluster.drain("b1")).draining  # a repeated request returns the progress

    asyncio.run(main())


def test_a_broker_that_is_not_registered_is_refused_with_those_that_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "m", "broker-1", "broker-2") as cluster:
            with pytest.raises(NotFound, match="no broker broker-9 is registered") as refused:
                await cluster.drain("broker-9")
            assert refused.value.hint == "Did you mean 'broker-2'?"
            with pytest.raises(NotFound) as refused:
                await cluster.drain("x")
            assert refused.value.hint == "Registered are: broker-1, broker-2."
            with pytest.raises(InvalidArgument, match="is not a broker id"):
                await cluster.drain("a/b")

    asyncio.run(main())
