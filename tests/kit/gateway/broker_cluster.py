"""Brokers of one cluster in one process: each with its listeners on free ports of the loopback, all on one bucket and one store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import uvloop

from gateway.access.bootstrap import open_access, prepare_access
from gateway.access.settings import AccessSettings
from gateway.broker.broker import Broker, wall_clock_ms
from gateway.cluster.settings import ClusterSettings
from gateway.kafka.listener_config import parse_listeners
from gateway.net.ports import reserve_ports
from gateway.net.tls.settings import TlsSettings
from gateway.process.broker_process import tls_files
from gateway.settings import BrokerSettings, GatewaySettings
from metadata.groups.settings import GroupSettings
from metadata.model import TopicPartition
from metadata.store.interface import Put
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from segments.bucket.object_kinds import kind_of
from segments.log.session_log import SessionLog
from segments.object_store.instrumented import InstrumentedObjectStore
from segments.settings import SegmentSettings
from tests.kit.gateway.small_broker import PATIENCE_S, HeldStore, patient, until

CLUSTER_ID = "cluster-of-a-test"
# Longer than one process of them all ever stands still: no test waits for its end here.
SESSION_MS = 20_000
SEGMENTS = SegmentSettings(linger_ms=0, puts_per_second_max=10_000)


@dataclass(frozen=True)
class Cluster:
    brokers: list[Broker]
    bucket: HeldStore

    def leader(self, partition: TopicPartition) -> Broker:
        found = self.brokers[0].view.leader(partition)
        assert found is not None, f"{partition} has no leader"
        return next(broker for broker in self.brokers if broker.broker_id == found.broker_id)

    async def led(self, partition: TopicPartition) -> SessionLog:
        """Of its leader, once that has taken it over: until then it is appointed, and refuses."""
        leader = self.leader(partition)
        await until(lambda: partition in leader.log.partitions)
        return leader.log

    def other(self, partition: TopicPartition) -> Broker:
        """One that does not lead the partition."""
        leader = self.leader(partition)
        return next(broker for broker in self.brokers if broker is not leader)


@asynccontextmanager
async def broker_cluster(
    tmp_path: Path,
    count: int,
    *,
    racks: Sequence[str] = (),
    segments: SegmentSettings = SEGMENTS,
    gateway: GatewaySettings | None = None,
    tls: TlsSettings | None = None,
    access: AccessSettings | Sequence[AccessSettings] | None = None,
    kafka: str = "",
    groups: GroupSettings | None = None,
) -> AsyncIterator[Cluster]:
    """`racks`: of the brokers, one after the other; none: they are in no rack. `access`: of all, or of one after the other.
    `kafka`: the setting of that name, for each broker."""
    listeners = parse_listeners(kafka, "")
    metadata, bucket, layout = SqliteStore(Path(":memory:")), HeldStore(), KeyLayout()
    cluster = Cluster([], bucket)
    await metadata.transact([], [Put(layout.cluster_id, CLUSTER_ID.encode())])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "gateway.groups.coordinator_lease.ANSWER_S", PATIENCE_S
        )  # or where all stand still, no broker confirms anything
        patched.setattr("gateway.concurrency.coordinator_retry.COORDINATOR_WAIT_S", PATIENCE_S)
        async with asyncio.TaskGroup() as tasks:
            housekeeping = tasks.create_task(metadata.run())
            running = []
            for number in range(count):
                settings = BrokerSettings(
                    data_dir=tmp_path,
                    http="127.0.0.1:0",
                    grpc="127.0.0.1:0",
                    broker_id=f"broker-{number}",
                    segments=segments,
                    groups=groups or GroupSettings(),
                    gateway=replace(patient(gateway), topic_ready_timeout_ms=round(PATIENCE_S * 1000)),
                    tls=tls or TlsSettings(),
                    access=access[number] if isinstance(access, Sequence) else access or AccessSettings(),
                    registration=ClusterSettings(
                        session_timeout_ms=SESSION_MS, rack=racks[number] if racks else "", rack_read_bytes_min=1
                    ),
                )
                opened = await open_access(
                    settings.access,
                    await prepare_access(settings.access, broker_id=settings.broker_id, now_ms=wall_clock_ms),
                    metadata,
                    layout,
                    cluster_id=CLUSTER_ID,
                    broker_id=settings.broker_id,
                    now_ms=wall_clock_ms,
                    has_peers=True,
                    peers_speak_tls=settings.tls.is_on,
                )
                broker = Broker(
                    settings,
                    InstrumentedObjectStore(bucket, kind_of),
                    metadata,
                    layout,
                    cluster_id=CLUSTER_ID,
                    has_peers=True,
                    access=opened,
                    tls=tls_files(settings),
                    kafka=listeners,
                )
                ready = asyncio.Event()
                ports = await reserve_ports(http=settings.http, grpc=settings.grpc, kafka=[each.address for each in listeners])
                running.append(tasks.create_task(broker.run(ports, ready)))
                await ready.wait()
                cluster.brokers.append(broker)
            await until(lambda: all(len(broker.view.brokers.brokers) == count for broker in cluster.brokers))
            try:
                yield cluster
            finally:
                bucket.let_go()
                for broker in cluster.brokers:
                    broker.stop()
                await asyncio.wait(running)
                housekeeping.cancel()
    await metadata.close()


def with_cluster(
    tmp_path: Path, scenario: Callable[[Cluster], Awaitable[None]], *, count: int = 2, racks: Sequence[str] = ()
) -> None:
    """Runs the scenario against so many brokers."""

    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S), broker_cluster(tmp_path, count, racks=racks) as cluster:
            await scenario(cluster)

    uvloop.run(run())
