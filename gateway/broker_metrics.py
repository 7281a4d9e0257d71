"""What a broker tells Prometheus of itself, its doors and its place in the cluster. Counts are kept where they arise.

look      in the event loop, before each scrape: what must be asked there, all of it from memory
collect   in a thread, from what `look` has noted and from plain numbers
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.cluster.view import ClusterView
from gateway.readiness import ProbedBroker, readiness
from gateway.telemetry.log_metrics import LogCollector, PartitionCollector
from gateway.telemetry.metric_families import counter, gauge, gauges, histogram
from gateway.telemetry.process_metrics import LoopLag, build_info
from gateway.telemetry.traffic import TrafficCollector
from metadata.errors import TidelogError

if TYPE_CHECKING:
    from gateway.cluster.session_manager import Leadership
    from gateway.net.connection_limiter import OpenConnections
    from gateway.settings import BrokerSettings
    from gateway.telemetry.registry import Metrics
    from gateway.telemetry.store_metrics import BucketCollector, MetadataCollector
    from metadata.errors import Corrupt
    from metadata.model import TopicPartition
    from metadata.topics.cache import TopicCache
    from segments.log.session_log import SessionLog
    from segments.read.disk_cache import DiskTier


class ObservedBroker(ProbedBroker, Protocol):
    """The values of a broker that its collectors read."""

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
    def metrics(self) -> Metrics: ...
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
    def http_connections(self) -> OpenConnections: ...


def tell_of_broker(
    broker: ObservedBroker,
    settings: BrokerSettings,
    leadership: Leadership,
    stores: tuple[BucketCollector, MetadataCollector],
    lag: LoopLag,
    disk: DiskTier | None,
) -> None:
    """Adds all collectors of a broker but those of parts that add their own (groups, compaction, reads of other racks)."""
    of_broker = BrokerCollector(broker, broker.view, lag, cluster=settings.cluster, rack=settings.membership.rack)
    prices = settings.observability
    log = LogCollector(leadership.counters, leadership.budget, disk, gib_month_dollars=prices.price_gib_month)
    partitions = PartitionCollector(broker.topic_cache)

    def look() -> None:
        of_broker.look(lease_is_sure=leadership.lease_is_sure, sessions=leadership.sessions_begun)
        log.look(leadership.present_log, now_s=asyncio.get_running_loop().time())
        broker_count = len(broker.view.brokers.brokers) if of_broker.is_controller else None
        partitions.look(leadership.present_log, broker_count=broker_count)
        for store in stores:
            store.look()

    metrics = broker.metrics
    metrics.before(look)
    for collector in (of_broker, TrafficCollector(metrics.traffic), log, *stores):
        metrics.tell(collector)
    metrics.tell(detail=partitions)
    metrics.tell_of_process()


class _Seen(NamedTuple):
    is_ready: bool = False
    is_draining: bool = False
    lease_is_sure: bool = False
    is_controller: bool = False
    partitions_led: int = 0
    partitions_damaged: int = 0
    sessions: int = 0
    certificate_ends_s: float | None = None


class BrokerCollector(Collector):
    def __init__(self, broker: ObservedBroker, view: ClusterView, lag: LoopLag, *, cluster: str, rack: str) -> None:
        self._broker = broker
        self._view = view
        self._lag = lag
        self._cluster = cluster
        self._rack = rack
        self._seen = _Seen()

    def look(self, *, lease_is_sure: bool, sessions: int) -> None:
        broker = self._broker
        mine = self._view.brokers.brokers.get(broker.broker_id)
        try:
            led = len(broker.log.partitions)
        except TidelogError:
            led = 0
        self._seen = _Seen(
            is_ready=readiness(broker).is_well,
            is_draining=mine.draining if mine is not None else broker.stopping.is_set(),
            lease_is_sure=lease_is_sure,
            is_controller=mine is not None and self._view.controller.is_it(mine),
            partitions_led=led,
            partitions_damaged=len(broker.refused),
            sessions=sessions,
            certificate_ends_s=broker.tls_not_after_s,
        )

    @property
    def is_controller(self) -> bool:
        return self._seen.is_controller

    def collect(self) -> Iterable[Metric]:
        seen, broker = self._seen, self._broker
        yield build_info(broker.version)
        names = broker.broker_id, self._cluster, broker.cluster_id, self._rack
        yield gauges("tidelog_broker_info", "1, with the names of this broker.", _NAMES, [(names, 1)])
        yield gauge("tidelog_ready", "1 while requests can succeed, as /readyz says.", int(seen.is_ready))
        yield gauge("tidelog_draining", "1 while this broker hands over what it leads.", int(seen.is_draining))
        yield gauge("tidelog_lease_held", "1 while its lease can't have ended.", int(seen.lease_is_sure))
        yield gauge("tidelog_controller", "1 at the broker that appoints leaders.", int(seen.is_controller))
        yield counter("tidelog_sessions", "Sessions that this broker has begun.", seen.sessions)
        yield gauge("tidelog_partitions_led", "Partitions that this broker leads.", seen.partitions_led)
        yield gauge(
            "tidelog_partitions_damaged",
            "Partitions that it should lead, and refuses: what is stored is damaged.",
            seen.partitions_damaged,
        )
        yield from self._of_the_cluster()
        ends = [((), seen.certificate_ends_s)] if seen.certificate_ends_s is not None else []
        yield gauges(
            "tidelog_tls_certificate_not_after_timestamp_seconds", "When this broker's certificate ends, since 1970.", (), ends
        )
        yield counter(
            "tidelog_tls_files_refused",
            "Looks at the files of TLS that found them broken: what was read before stays in use.",
            broker.tls_refused_count,
        )
        connections = broker.http_connections
        yield gauge("tidelog_http_connections", "Connections that are open at the HTTP door.", connections.count)
        yield counter(
            "tidelog_http_connections_refused",
            "Connections beyond http_connections_max or http_connections_per_address_max.",
            connections.refused_count,
        )
        late = "How late the event loop was, looked at four times a second."
        yield histogram("tidelog_event_loop_lag_seconds", late, self._lag.seconds)

    def _of_the_cluster(self) -> Iterable[Metric]:
        """As this broker sees it: take the maximum over brokers."""
        registered = list(self._view.brokers.brokers.values())
        states = Counter("unwritable" if b.unwritable_bytes else "draining" if b.draining else "serving" for b in registered)
        yield gauges(
            "tidelog_brokers",
            "Brokers that are registered, as this one sees them: serving, draining, or cut off from the bucket (unwritable).",
            ("state",),
            [((state,), states[state]) for state in ("serving", "draining", "unwritable")],
        )
        try:
            topics = self._view.topics.topics()
        except TidelogError:  # not read yet
            topics = ()
        partitions = sum(topic.partition_count for topic in topics)
        led = sum(len(self._view.partitions.led_by(each.session)) for each in registered)
        yield gauge("tidelog_topics", "Topics of the cluster, as this broker sees it.", len(topics))
        yield gauge("tidelog_partitions", "Partitions of the cluster, as this broker sees it.", partitions)
        yield gauge(
            "tidelog_partitions_without_leader",
            "Partitions that no registered broker leads, as this broker sees it.",
            max(0, partitions - led),
        )


_NAMES = ("broker_id", "cluster_name", "cluster_id", "rack")
