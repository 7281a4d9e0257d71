"""One broker: builds its parts, owns their tasks and ends them in order. process/broker_process.py opens what it receives.

    start   cluster view, topics ─▶ listeners open ─▶ session, recovery ─▶ ready
    stop    hand over ─▶ flush everything ─▶ seal own session ─▶ wait until producers have left ─▶ close the listeners

Invariant: acknowledged records (acks=all) are on the bucket whenever and however the process ends.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.access.admin import AccessAdmin
from gateway.access.audit_log import AuditCounts
from gateway.access.authorization import may_suggest_topic, note_resource, note_validate_only
from gateway.access.bootstrap import NO_ACCESS, BrokerAccess
from gateway.broker.metrics import register_broker
from gateway.cluster.broker_descriptions import describe_brokers
from gateway.cluster.drain import set_draining
from gateway.cluster.identity import watch_identity
from gateway.cluster.session_manager import SessionManager
from gateway.cluster.store_checks import StoreChecks
from gateway.cluster.view import BrokerDescription, ClusterView, DrainState
from gateway.groups.member_rights import GuardedRights
from gateway.groups.service import GroupService
from gateway.grpc.server import GrpcServer
from gateway.http.app import HttpApp, Pages
from gateway.http.server import HttpServer
from gateway.kafka.listener_config import ListenerConfig
from gateway.kafka.server import KafkaServer
from gateway.net.connection_limiter import ConnectionLimiter
from gateway.net.ports import Ports
from gateway.routing.cluster_log import ClusterLog
from gateway.routing.forwarder import ProduceForwarder
from gateway.routing.local_log import LocalLog
from gateway.routing.log_service import LogService
from gateway.routing.peer_channels import PeerChannels
from gateway.routing.peer_reader import PeerReader
from gateway.settings import BrokerSettings, GatewaySettings
from gateway.telemetry.process_metrics import EventLoopLag
from gateway.telemetry.registry import MetricsRegistry
from gateway.telemetry.request_context import Tracer
from gateway.telemetry.store_metrics import register_stores
from gateway.topics.admin import TopicAdmin
from gateway.topics.usage.cost_forecast import CostSettings
from gateway.topics.usage.service import UsageService
from metadata.access.registry import AccessRegistry
from metadata.cluster.broker_registry import BrokerRegistration, KafkaListener
from metadata.cluster.id_allocation import ProducerIds
from metadata.errors import Corrupt, OutcomeUnknown, TidelogError
from metadata.groups.model import MemberId
from metadata.model import SessionId, TopicPartition
from metadata.store.instrumented import InstrumentedMetadataStore
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout
from metadata.topics.registry import TopicRegistry
from segments.log.session_log import SessionLog
from segments.object_store.health_tracking import HealthTrackingObjectStore, StoreTrouble
from segments.object_store.instrumented import InstrumentedObjectStore
from segments.object_store.store_clock import StoreClock
from segments.read.disk_cache import DiskCache

if TYPE_CHECKING:
    from compaction.service import CompactionService
    from gateway.net.tls.identity import TlsReloader

# Limits the first read of the cluster's metadata at the start.
TOPICS_TIMEOUT_S = 60.0
# A failover takes this time beyond the old leader's lease: its seal, an appointment, the footers. Reads wait for it.
TAKE_OVER_S = 5.0
# The listeners close once nothing was forwarded for QUIET_S and no produce stream had a message within IN_USE_S: then producers
# have learned the new leaders. Some never do, so this wait takes half of shutdown_grace_ms and leaves the rest to the listeners.
QUIET_S = 0.2
IN_USE_S = 1.0
# Stands in for the connections of a broker without a Kafka listener.
NO_CONNECTIONS = ConnectionLimiter(0, 0)
VERSION = importlib.metadata.version("tidelog")


def wall_clock_ms() -> int:
    """Returns the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def new_member_id(client: str) -> MemberId:
    """Returns a new id for a member of a consumer group; it begins with the client id or instance id."""
    return MemberId(f"{client}-{uuid.uuid4()}")


class Broker:
    """Implements `BrokerApi` for the listeners. `run` serves until `stop`; a broker runs once."""

    def __init__(
        self,
        settings: BrokerSettings,
        metered: InstrumentedObjectStore,
        store: MetadataStore,
        layout: KeyLayout,
        *,
        cluster_id: str,
        has_peers: bool = False,
        access: BrokerAccess = NO_ACCESS,
        tls: TlsReloader | None = None,
        tracing: Tracer | None = None,
        disk: DiskCache | None = None,
        clock: StoreClock | None = None,
        kafka: Sequence[ListenerConfig] = (),
    ) -> None:
        """Builds all parts, and starts none.

        `has_peers`: other brokers may use the same metadata store, as with etcd. `access` holds the guard of the listeners, and the
        credentials by which other brokers recognise this one. `clock` follows the bucket's clock; without one, the broker uses the
        wall clock.
        """
        clock = clock or StoreClock(wall_clock_ms)
        bucket = HealthTrackingObjectStore(metered)
        metadata = InstrumentedMetadataStore(store)
        self.guard = access.guard
        self.access = AccessAdmin(AccessRegistry(metadata, layout), self.guard.cache if self.guard is not None else None)
        self.cluster_id = cluster_id
        self.broker_id = settings.broker_id
        self.version = VERSION
        self.bucket_url = bucket.url
        self.settings: GatewaySettings = settings.gateway
        self.group_settings = settings.groups
        self._metadata_remedy = "Producing and reading go on. " + (
            "Bring back a majority of etcd's members; `tidelog doctor --etcd URL` looks at each."
            if settings.metadata.etcd
            else "The metadata lie in the data directory: the broker's log says what fails there, such as a full disk."
        )
        self.http_address = self.grpc_address = ""
        # The addresses at which Kafka clients reach this broker.
        self.kafka_listeners: tuple[KafkaListener, ...] = ()
        self.started = False
        self.view = ClusterView(metadata, layout, may_suggest=may_suggest_topic)
        self.topic_cache = self.view.topics
        self.topics = TopicRegistry(
            metadata, layout, max_message_bytes=settings.gateway.message_bytes_max, may_suggest=may_suggest_topic
        )
        self.producer_ids = ProducerIds(lambda: self.session, secrets.token_bytes)
        self.stopping = asyncio.Event()
        self._leadership = SessionManager(
            bucket,
            metadata,
            self.view,
            settings.segments,
            settings.registration,
            layout=layout,
            registration=BrokerRegistration(
                broker_id=settings.broker_id, session=SessionId(0), rack=settings.registration.rack, version=VERSION
            ),
            new_writer=lambda: secrets.token_bytes(16),
            now_ms=clock.stamp_ms,
            expires_ms=clock.now_ms,
            disk=disk,
            is_alone=not has_peers,
            leaps=lambda: clock.leaps,
        )
        self._ready_s = settings.gateway.topic_ready_timeout_ms / 1000
        leader_wait_s = settings.registration.session_timeout_ms / 1000 + TAKE_OVER_S
        served = TopicAdmin(self.topics, self.topic_cache, self._leadership, ready_s=self._ready_s, leader_wait_s=leader_wait_s)
        self.create_topic, self.alter_topic, self.delete_topic = served.create, served.alter, served.delete
        self.tls = tls
        peers = PeerChannels(settings.broker_id, self.tls, call_metadata=access.peer_metadata)
        if self.tls is not None:
            self.tls.subscribe(peers.renew)
        self._forwarding = ProduceForwarder(
            lambda: self.log,
            self.view,
            peers,
            broker_id=settings.broker_id,
            budget=self._leadership.budget,
            is_stopping=self.stopping.is_set,
        )
        self._leadership.subscribe(self._forwarding.on_takeover)
        self.local_log = LocalLog(lambda: self.log, self.view, self._leadership.await_takeover)
        cluster_log = ClusterLog(
            self.local_log,
            self.view,
            self._forwarding,
            PeerReader(peers),
            broker_id=settings.broker_id,
            settings=settings.segments,
            budget=self._leadership.budget,
            leader_wait_s=leader_wait_s,
            rack=settings.registration.rack,
            rack_read_bytes_min=settings.registration.rack_read_bytes_min,
        )
        self.cluster_log: LogService = cluster_log
        self.tracing = tracing
        self.metrics = MetricsRegistry()
        self._lag = EventLoopLag()
        register_broker(self, settings, self._leadership, self._lag, disk)
        register_stores(self.metrics, bucket, metered, metadata, settings.observability)
        audited = self.guard.audit.counts if self.guard is not None and self.guard.audit is not None else AuditCounts()
        self.metrics.register(lambda: (audited, cluster_log.follower_fetch.counters, cluster_log.preferred.counters))
        self._groups = GroupService(
            metadata,
            layout,
            settings.groups,
            self.view.brokers,
            self.topic_cache,
            self.cluster_log,
            peers,
            self.metrics,
            broker_id=settings.broker_id,
            session=lambda: self.session,
            is_stopping=self.stopping.is_set,
            now_ms=clock.stamp_ms,
            expires_ms=clock.now_ms,
            new_member_id=new_member_id,
            rights=GuardedRights(self.guard) if self.guard is not None else None,
        )
        self.groups = self._groups.routed
        self.coordinated_groups = self._groups.coordinated
        self.group_operations = self._groups.operations
        self.lag_history = self._groups.lag_history
        self.usage = UsageService(
            bucket,
            metered.meter,
            self._leadership.counters,
            lambda: self._leadership.present_log,
            self.topic_cache,
            peers,
            self.registrations,
            broker_id=settings.broker_id,
            prices=settings.observability,
            settings=CostSettings.of(settings.segments, settings.compaction),
            compacts=settings.compaction.compact,
            now_ms=wall_clock_ms,
        )
        self._compaction: CompactionService | None = None
        if settings.compaction.compact:
            from compaction.service import (
                CompactionService,
            )  # it is a tenth of all code that a broker loads, and few brokers compact

            self._compaction = CompactionService(
                bucket,
                metadata,
                layout,
                self.topic_cache,
                self.view.compactions,
                settings.compaction,
                settings.segments,
                compactor_id=settings.broker_id,
                version=VERSION,
                now_ms=wall_clock_ms,
                clock=clock,
            )
            self.metrics.register(self._compaction.measure)
        self._http = HttpServer(
            self,
            self.tls,
            metrics_open=settings.access.metrics_open,
            allowed_hosts={settings.registration.advertise_http.rpartition(":")[0], *settings.access.hosts},
            load_pages=self._load_pages if settings.gateway.console else None,
        )
        self._grpc = GrpcServer(self, self.tls, allowed_hosts=settings.access.hosts)
        self._kafka = KafkaServer(self, kafka, self.tls) if kafka else None
        self._bucket = bucket
        self._metadata = metadata
        etcd = settings.metadata if settings.metadata.etcd else None
        self.check_stores = StoreChecks(bucket, metadata, layout, etcd, now_ms=wall_clock_ms).check
        self._layout = layout
        self._cluster = settings.registration
        self._flush_s = settings.segments.put_deadline_ms / 1000

    def _load_pages(self, app: HttpApp) -> Pages:
        """Loads the console and its templates, which a broker needs with the first request for a page."""
        from gateway.console.console import load_console

        return load_console(self, app)

    @property
    def session(self) -> int | None:
        return self._leadership.session

    @property
    def serving(self) -> bool:
        """Returns whether requests can succeed: False while the broker starts or stops, and between two sessions."""
        return self.started and self._leadership.serving

    @property
    def left_to_hand_over(self) -> int:
        """Returns the number of partitions that this broker leads and another could lead. A stop hands these over first."""
        return self._leadership.left_to_hand_over

    @property
    def bucket_trouble(self) -> StoreTrouble | None:
        """Returns why the bucket takes no writes; None while it takes them."""
        return self._bucket.trouble

    @property
    def tls_not_after_s(self) -> float | None:
        """Returns the end of this broker's certificate in seconds since 1970; None without TLS."""
        return self.tls.not_after_s if self.tls is not None else None

    @property
    def tls_refused_count(self) -> int:
        """Returns the number of times that the TLS files were read and rejected."""
        return self.tls.refused_count if self.tls is not None else 0

    @property
    def http_connections(self) -> ConnectionLimiter:
        """Returns the connections of the HTTP listener."""
        return self._http.connections

    @property
    def kafka_connections(self) -> ConnectionLimiter:
        """Returns the connections of all Kafka listeners; a limiter without connections if there is no such listener."""
        return self._kafka.connections if self._kafka is not None else NO_CONNECTIONS

    @property
    def log(self) -> SessionLog:
        """Returns the log of the present session. Raises NoLeader or Stopping while there is none."""
        return self._leadership.log

    def leader(self, partition: TopicPartition) -> BrokerRegistration | None:
        return self.view.leader(partition)

    def leader_epoch(self, partition: TopicPartition) -> int:
        state = self.view.partitions.get(partition)
        return state.leader_epoch if state is not None else -1

    def last_leader(self, partition: TopicPartition) -> BrokerRegistration | None:
        state = self.view.partitions.get(partition)
        return self.view.brokers.last_with_session(state.leader_session) if state is not None else None

    def registrations(self) -> Iterable[BrokerRegistration]:
        return self.view.brokers.brokers.values()

    def registration(self, broker_id: str) -> BrokerRegistration | None:
        return self.view.brokers.brokers.get(broker_id)

    def brokers(self) -> list[BrokerDescription]:
        return describe_brokers(self.view)

    @property
    def metadata_age_ms(self) -> int:
        return round(1000 * self._metadata.idle_s)

    @property
    def metadata_trouble(self) -> StoreTrouble | None:
        idle_s = self._metadata.idle_s
        if 1000 * idle_s < self._cluster.session_timeout_ms:
            return None
        return StoreTrouble(
            f"the metadata store has not answered for {idle_s:.0f} s: topics and brokers are shown as they were, and cannot change",
            self._metadata_remedy,
        )

    @property
    def refused(self) -> Mapping[TopicPartition, Corrupt]:
        """Returns the partitions that this broker was appointed to lead and does not serve, each with the damage on the bucket."""
        try:
            return self.log.partitions.damaged
        except TidelogError:
            return {}

    def stop(self) -> None:
        """Begins a clean stop. `run` returns when everything is flushed and the session is sealed."""
        self.stopping.set()

    async def run(self, ports: Ports, ready: asyncio.Event, *, loaded: Callable[[], None] = lambda: None) -> None:
        """Serves at these ports until `stop`. Sets `ready` when all listeners are open and the first session leads its partitions.

        Calls `loaded` before that session begins: objects that exist at this point live as long as the broker. Raises
        OutcomeUnknown if the bucket did not take the last records in time.
        """
        async with asyncio.TaskGroup() as background:
            following = background.create_task(self.view.run(), name="view of the cluster")
            forwarding = background.create_task(self._forwarding.run(), name="forwarding")
            lagging = background.create_task(self._lag.run(), name="event loop lag")
            grouping = background.create_task(self._groups.run(), name="groups")
            measuring = background.create_task(self.usage.run(), name="usage of the bucket")
            certified = background.create_task(self._follow_certificates(), name="certificates")
            staying = background.create_task(
                watch_identity(self._metadata, self._layout, self.cluster_id, set_back=lambda: self.view.partitions.set_back),
                name="identity",
            )
            guarding = background.create_task(self._run_guard(), name="access")
            await self.view.read(timeout_s=TOPICS_TIMEOUT_S)
            if self.guard is not None:
                await self.guard.cache.read(timeout_s=TOPICS_TIMEOUT_S)
            self.http_address = await self._http.start(ports.http)
            self.grpc_address = await self._grpc.start(ports.grpc)
            if self._kafka is not None:
                self.kafka_listeners = await self._kafka.start(ports.kafka)
            self._leadership.registration = msgspec.structs.replace(
                self._leadership.registration,
                http_address=self._cluster.advertise_http or self.http_address,
                grpc_address=self._cluster.advertise_grpc or self.grpc_address,
                kafka_listeners=self.kafka_listeners,
            )
            loaded()
            leading = background.create_task(self._leadership.run(), name="leadership")
            compacting = background.create_task(self._compact(), name="compaction")
            try:
                await self._serve(ready, leading)
            finally:
                compacting.cancel()
                await self._stop(leading)
                grouping.cancel()
                forwarding.cancel()
                following.cancel()
                lagging.cancel()
                measuring.cancel()
                certified.cancel()
                staying.cancel()
                guarding.cancel()

    async def _serve(self, ready: asyncio.Event, leading: asyncio.Task[None]) -> None:
        async with asyncio.TaskGroup() as waits:
            stopping = waits.create_task(self.stopping.wait(), name="stop")
            serving = waits.create_task(self._leadership.first_session(self._ready_s), name="first session")
            await asyncio.wait((stopping, serving, leading), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                self.started = True
                ready.set()
                await asyncio.wait((stopping, leading), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            serving.cancel()

    async def _follow_certificates(self) -> None:
        if self.tls is not None:
            await self.tls.run()

    async def _run_guard(self) -> None:
        if self.guard is not None:
            await self.guard.run()

    async def _compact(self) -> None:
        if self._compaction is not None:
            await self._compaction.run()

    async def _stop(self, leading: asyncio.Task[None]) -> None:
        grace_s = self.settings.shutdown_grace_ms / 1000
        self._leadership.stop()
        await asyncio.wait((leading,), timeout=self._flush_s + self._cluster.drain_timeout_ms / 1000)
        bytes_left = 0 if leading.done() else self._leadership.budget.bytes_used
        leading.cancel()
        ends_s = asyncio.get_running_loop().time() + grace_s
        await self._until_left(grace_s / 2)
        grace_s = ends_s - asyncio.get_running_loop().time()
        listeners = [self._http, self._grpc, *([self._kafka] if self._kafka is not None else ())]
        await asyncio.gather(*(listener.stop(grace_s) for listener in listeners))
        if bytes_left:
            raise OutcomeUnknown(
                f"the broker stopped with {bytes_left} bytes of records that the bucket did not take within {self._flush_s:g} s",
                hint="Records acknowledged with acks=all are safe. Check the bucket before you start the broker again.",
            )

    async def _until_left(self, timeout_s: float) -> None:
        """Waits until producers have moved to the new leaders. Returns at once if no other broker could lead."""
        ends_s = asyncio.get_running_loop().time() + timeout_s
        await self._forwarding.wait_until_quiet(quiet_s=QUIET_S, timeout_s=timeout_s)
        if self._forwarding.no_leader_reason() is None:
            left_s = max(0.0, ends_s - asyncio.get_running_loop().time())
            await self._grpc.producers.until_left(in_use_s=IN_USE_S, timeout_s=left_s)

    async def drain(self, broker_id: str, *, draining: bool, validate_only: bool = False) -> DrainState:
        """Starts or ends the drain of a broker of the cluster; gateway/cluster/drain.py says how."""
        note_validate_only(validate_only)
        note_resource("broker", broker_id)
        return await set_draining(
            self._metadata, self._layout, self.view, broker_id, draining=draining, validate_only=validate_only
        )
