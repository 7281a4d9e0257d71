"""Metrics of a broker's state, and of the cluster as this broker sees it. Counters are declared in the modules that count.

sample    runs in the event loop before each scrape; reads state that only the loop may read, all of it from memory
measure   runs in a thread; returns what `sample` has read, and plain numbers
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gateway.cluster.view import ClusterView
from gateway.readiness import ProbedBroker, readiness
from gateway.telemetry.log_metrics import LogMetrics, PartitionMetrics
from gateway.telemetry.process_metrics import EventLoopLag, build_info
from metadata.errors import TidelogError
from metadata.measurements import ByLabel, counter, gauge

if TYPE_CHECKING:
    from gateway.cluster.session_manager import SessionManager
    from gateway.net.connection_limiter import ConnectionLimiter
    from gateway.settings import BrokerSettings
    from gateway.telemetry.registry import MetricsRegistry
    from metadata.errors import Corrupt
    from metadata.model import TopicPartition
    from metadata.topics.cache import TopicCache
    from segments.log.session_log import SessionLog
    from segments.read.disk_cache import DiskCache


class ObservedBroker(ProbedBroker, Protocol):
    """The part of a broker that its metrics are read from."""

    @property
    def broker_id(self) -> str: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def view(self) -> ClusterView: ...
    @property
    def topic_cache(self) -> TopicCache: ...
    @property
    def metrics(self) -> MetricsRegistry: ...
    @property
    def log(self) -> SessionLog: ...
    @property
    def serving(self) -> bool: ...
    @property
    def stopping(self) -> asyncio.Event: ...
    @property
    def refused(self) -> Mapping[TopicPartition, Corrupt]: ...
    @property
    def tls_not_after_s(self) -> float | None: ...
    @property
    def tls_refused_count(self) -> int: ...
    @property
    def http_connections(self) -> ConnectionLimiter: ...
    @property
    def kafka_connections(self) -> ConnectionLimiter: ...


def register_broker(
    broker: ObservedBroker, settings: BrokerSettings, leadership: SessionManager, lag: EventLoopLag, disk: DiskCache | None
) -> None:
    """Registers the metrics of a broker, except those of parts that register their own (stores, groups, compaction, racks)."""
    of_broker = BrokerMetrics(broker, broker.view, cluster=settings.cluster, rack=settings.registration.rack)
    prices = settings.observability
    log = LogMetrics(leadership.counters, leadership.budget, disk, gib_month_dollars=prices.price_gib_month)
    partitions = PartitionMetrics(broker.topic_cache)
    metrics, build = broker.metrics, build_info(broker.version)

    def sample() -> None:
        of_broker.sample(lease_is_valid=leadership.lease_is_valid, sessions=leadership.sessions_begun)
        log.sample(leadership.present_log, now_s=asyncio.get_running_loop().time())
        broker_count = len(broker.view.brokers.brokers) if of_broker.is_controller else None
        partitions.sample(leadership.present_log, broker_count=broker_count)

    metrics.add_sampler(sample)
    metrics.register(lambda: (build, *of_broker.measure(), lag))
    metrics.register(lambda: (ByLabel("listener", metrics.traffic.listeners),))
    metrics.register(log.measure)
    metrics.register(partitions.measure, detail=True)
    metrics.register_process()


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """The state of one broker at a scrape, as its event loop saw it."""

    names: Mapping[tuple[str, ...], int] = gauge(
        "tidelog_broker_info",
        "1, with the names of this broker.",
        labels=("broker_id", "cluster_name", "cluster_id", "rack"),
    )
    is_ready: bool = gauge("tidelog_ready", "1 while requests can succeed, as /readyz says.")
    is_draining: bool = gauge("tidelog_draining", "1 while this broker hands over what it leads.")
    lease_is_valid: bool = gauge("tidelog_lease_held", "1 while the lease of this broker is certainly valid.")
    is_controller: bool = gauge("tidelog_controller", "1 at the controller, the broker that appoints leaders.")
    sessions: int = counter("tidelog_sessions", "Sessions that this broker has begun.")
    partitions_led: int = gauge("tidelog_partitions_led", "Partitions that this broker leads.")
    partitions_damaged: int = gauge(
        "tidelog_partitions_damaged", "Partitions that this broker should lead and refuses to, since their stored data is damaged."
    )
    certificate_ends_s: float | None = gauge(
        "tidelog_tls_certificate_not_after_timestamp_seconds", "End of this broker's TLS certificate, in seconds since 1970."
    )
    tls_files_refused: int = counter(
        "tidelog_tls_files_refused",
        "Reads of the TLS files that were rejected; the broker keeps the certificates that it read before.",
    )
    http_connections: int = gauge("tidelog_http_connections", "Connections that are open at the HTTP listener.")
    kafka_connections: int = gauge("tidelog_kafka_connections", "Connections that are open at the Kafka listeners.")
    kafka_connections_refused: int = counter(
        "tidelog_kafka_connections_refused", "Connections beyond kafka_connections_max or kafka_connections_per_address_max."
    )
    http_connections_refused: int = counter(
        "tidelog_http_connections_refused",
        "Connections beyond http_connections_max or http_connections_per_address_max.",
    )


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The cluster at a scrape, as this broker sees it. Queries take the maximum over brokers."""

    brokers: Mapping[str, int] = gauge(
        "tidelog_brokers",
        "Brokers that are registered, as this one sees them: serving, draining, or cut off from the bucket (unwritable).",
        labels=("state",),
    )
    topics: int = gauge("tidelog_topics", "Topics of the cluster, as this broker sees it.")
    partitions: int = gauge("tidelog_partitions", "Partitions of the cluster, as this broker sees it.")
    partitions_without_leader: int = gauge(
        "tidelog_partitions_without_leader", "Partitions that no registered broker leads, as this broker sees it."
    )


class BrokerMetrics:
    """Reads the metrics of a broker. The registry calls `sample` in the loop before each scrape, and `measure` in a thread."""

    def __init__(self, broker: ObservedBroker, view: ClusterView, *, cluster: str, rack: str) -> None:
        self._broker = broker
        self._view = view
        self._cluster = cluster
        self._rack = rack
        self._status: BrokerStatus | None = None

    @property
    def is_controller(self) -> bool:
        return self._status is not None and self._status.is_controller

    def sample(self, *, lease_is_valid: bool, sessions: int) -> None:
        broker = self._broker
        mine = self._view.brokers.brokers.get(broker.broker_id)
        try:
            led = len(broker.log.partitions)
        except TidelogError:
            led = 0
        self._status = BrokerStatus(
            names={(broker.broker_id, self._cluster, broker.cluster_id, self._rack): 1},
            is_ready=readiness(broker).is_well,
            is_draining=mine.draining if mine is not None else broker.stopping.is_set(),
            lease_is_valid=lease_is_valid,
            is_controller=mine is not None and self._view.controller.is_it(mine),
            sessions=sessions,
            partitions_led=led,
            partitions_damaged=len(broker.refused),
            certificate_ends_s=broker.tls_not_after_s,
            tls_files_refused=broker.tls_refused_count,
            http_connections=broker.http_connections.count,
            kafka_connections=broker.kafka_connections.count,
            kafka_connections_refused=broker.kafka_connections.refused_count,
            http_connections_refused=broker.http_connections.refused_count,
        )

    def measure(self) -> tuple[BrokerStatus, ClusterStatus]:
        assert self._status is not None, "sample comes first"
        return self._status, self._cluster_status()

    def _cluster_status(self) -> ClusterStatus:
        registered = list(self._view.brokers.brokers.values())
        states = Counter("unwritable" if b.unwritable_bytes else "draining" if b.draining else "serving" for b in registered)
        try:
            topics = self._view.topics.topics()
        except TidelogError:  # not read yet
            topics = ()
        partitions = sum(topic.partition_count for topic in topics)
        led = sum(len(self._view.partitions.led_by(each.session)) for each in registered)
        return ClusterStatus(
            brokers={state: states[state] for state in ("serving", "draining", "unwritable")},
            topics=len(topics),
            partitions=partitions,
            partitions_without_leader=max(0, partitions - led),
        )
