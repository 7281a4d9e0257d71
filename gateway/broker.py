"""One broker process: builds the parts, owns their tasks, and ends them in order.

    start   data directory ─▶ metadata ─▶ bucket: proof, cluster id ─▶ topics ─▶ session, recovery ─▶ doors open
    stop    others lead ─▶ all is flushed ─▶ own session sealed ─▶ producers have gone there ─▶ doors close ─▶ stores close

Invariant: no door answers before the bucket has proved that it keeps create-only PUTs; what was acknowledged is on the bucket
whenever the process ends, however it ends.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import secrets
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from gateway.access.administration import AccessAdministration
from gateway.access.audit_metrics import AuditCollector
from gateway.access.caller import may_suggest_topic, note_validate_only
from gateway.access.guard import Guard
from gateway.access.opening import open_guard, peer_metadata
from gateway.broker_groups import BrokerGroups
from gateway.broker_metrics import tell_of_broker
from gateway.cluster_commands import set_draining
from gateway.cluster_identity import identify_cluster, stay_in_cluster
from gateway.cluster_members import describe_brokers
from gateway.cluster_view import ClusterView
from gateway.doors import BrokerDescription, DrainState
from gateway.forwarding import Forwarding
from gateway.freed_memory import keep_freed_memory
from gateway.garbage_collection import look_seldom, spare_what_is_loaded
from gateway.grpc_server import GrpcServer
from gateway.heard_metadata import HeardMetadata
from gateway.http_server import HttpServer
from gateway.leadership import Leadership
from gateway.led_here import LedHere
from gateway.loop_lag import LoopLag
from gateway.metrics import Metrics
from gateway.open_connections import OpenConnections
from gateway.open_files import raise_file_limit
from gateway.peer_reads import PeerReads
from gateway.peers import Peers
from gateway.rack_reads import RackReadCollector
from gateway.request_trace import Tracing
from gateway.routed_log import RoutedLog
from gateway.settings import BrokerSettings, GatewaySettings
from gateway.store_metrics import BucketCollector, MetadataCollector
from gateway.tls_settings import TlsSettings
from metadata.access_records import AccessRecords
from metadata.broker_registry import Registration
from metadata.data_directory import DataDirectory
from metadata.errors import Corrupt, OutcomeUnknown, TidelogError, Unavailable
from metadata.etcd_layout import EtcdLayout
from metadata.group_model import MemberId
from metadata.model import SessionId, TopicPartition
from metadata.open_metadata import open_metadata
from metadata.producer_ids import ProducerIds
from metadata.secret import Secret
from metadata.store import MetadataStore
from metadata.topic import Topic
from metadata.topics import Topics
from segments.bucket_layout import proof_key
from segments.create_only_proof import prove_create_only
from segments.disk_tier import DiskTier
from segments.log import Log
from segments.metered_store import MeteredStore
from segments.store_url import open_store
from segments.watched_store import Trouble, WatchedStore

if TYPE_CHECKING:
    from compaction.service import CompactionService
    from gateway.tls_files import TlsFiles

log = logging.getLogger(__name__)

TOPICS_TIMEOUT_S = 60.0
"""For the first reading of the topics, at the start."""
TAKE_OVER_S = 5.0
"""What a failover takes beyond the lease of the old leader: its seal, an appointment, the footers. So long reads wait."""
QUIET_S = 0.2
LEAVE_S_MAX = 2.0
"""Before the doors close, nothing was to be forwarded for so long: producers have heard who leads now. Some never hear of it."""
VERSION = importlib.metadata.version("tidelog")


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def new_member_id(client: str) -> MemberId:
    """Of a member of a group, by its client id or instance id."""
    return MemberId(f"{client}-{uuid.uuid4()}")


class Broker:
    """What the doors serve (gateway/doors.py). `running` makes one."""

    def __init__(
        self,
        settings: BrokerSettings,
        metered: MeteredStore,
        store: MetadataStore,
        layout: EtcdLayout,
        *,
        cluster_id: str,
        access: tuple[Guard, Secret] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """`access`: the guard of the doors, and the secret of the brokers; None where authentication is off."""
        bucket = WatchedStore(metered)
        metadata = HeardMetadata(store)
        self.guard: Guard | None = access[0] if access is not None else None
        self.access = AccessAdministration(AccessRecords(metadata, layout), self.guard.cache if self.guard is not None else None)
        self.cluster_id = cluster_id
        self.broker_id = settings.broker_id
        self.version = VERSION
        self.bucket_url = bucket.url
        self.settings: GatewaySettings = settings.gateway
        self.http_address = self.grpc_address = ""
        self.started = False
        self.view = ClusterView(metadata, layout)
        self.topic_cache = self.view.topics
        self.topics = Topics(metadata, layout, max_message_bytes=settings.gateway.message_bytes_max)
        self.topics.may_suggest = self.topic_cache.may_suggest = may_suggest_topic
        self.producer_ids = ProducerIds(metadata, layout)
        self.stopping = asyncio.Event()
        disk = _disk_tier(settings)
        self._leadership = Leadership(
            bucket,
            metadata,
            self.view,
            settings.segments,
            settings.membership,
            layout=layout,
            registration=Registration(
                broker_id=settings.broker_id, session=SessionId(0), rack=settings.membership.rack, version=VERSION
            ),
            new_writer=lambda: secrets.token_bytes(16),
            now_ms=wall_clock_ms,
            disk=disk,
        )
        self._leader_wait_s = settings.membership.session_timeout_ms / 1000 + TAKE_OVER_S
        self.tls = _tls_files(settings.tls, has_peers=bool(settings.metadata.etcd))
        call_metadata = peer_metadata(access[1]) if access is not None else None
        peers = Peers(settings.broker_id, self.tls, call_metadata=call_metadata)
        if self.tls is not None:
            self.tls.subscribe(peers.renew)
        self._forwarding = Forwarding(
            lambda: self.log,
            self.view,
            peers,
            broker_id=settings.broker_id,
            budget=self._leadership.budget,
            is_stopping=self.stopping.is_set,
        )
        self._leadership.subscribe(self._forwarding.led_here)
        self.led_here = LedHere(lambda: self.log, self.view)
        routed_log = RoutedLog(
            lambda: self.log,
            self.view,
            self._forwarding,
            PeerReads(peers),
            broker_id=settings.broker_id,
            settings=settings.segments,
            budget=self._leadership.budget,
            leader_wait_s=self._leader_wait_s,
            rack=settings.membership.rack,
            rack_read_bytes_min=settings.membership.rack_read_bytes_min,
        )
        self.routed_log: LedHere = routed_log
        self.tracing = tracing
        self.metrics = Metrics()
        self._lag = LoopLag()
        stores = BucketCollector(metered, bucket, settings.observability), MetadataCollector(metadata)
        tell_of_broker(self, settings, self._leadership, stores, self._lag, disk)
        self.metrics.tell(AuditCollector(self.guard.audit if self.guard is not None else None))
        self.metrics.tell(RackReadCollector(routed_log.racks.counters, routed_log.preferred))
        self._groups = BrokerGroups(
            metadata,
            layout,
            settings.groups,
            self.view.brokers,
            self.topic_cache,
            self.routed_log,
            peers,
            self.metrics,
            broker_id=settings.broker_id,
            session=lambda: self.session,
            is_stopping=self.stopping.is_set,
            now_ms=wall_clock_ms,
            new_member_id=new_member_id,
        )
        self.groups = self._groups.routed
        self.coordinated_groups = self._groups.coordinated
        self.group_operations = self._groups.operations
        self._compaction: CompactionService | None = None
        if settings.compaction.compact:
            from compaction.service import CompactionService  # a tenth of what a broker loads, and few brokers compact

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
            )
            self.metrics.tell(self._compaction.metrics)
        self._http = HttpServer(self, self.tls, metrics_open=settings.access.metrics_open)
        self._grpc = GrpcServer(self, self.tls)
        self._bucket = bucket
        self._metadata = metadata
        self._layout = layout
        self._listen = settings.http, settings.grpc
        self._cluster = settings.membership
        self._flush_s = settings.segments.put_deadline_ms / 1000
        self._ready_s = settings.gateway.topic_ready_timeout_ms / 1000

    @property
    def session(self) -> int | None:
        return self._leadership.session

    @property
    def serving(self) -> bool:
        """Whether requests can succeed: not while it starts or stops, nor between two sessions."""
        return self.started and self._leadership.serving

    @property
    def left_to_hand_over(self) -> int:
        """Partitions that are led here and could be led elsewhere: when it stops, these are handed over first."""
        return self._leadership.left_to_hand_over

    @property
    def bucket_trouble(self) -> Trouble | None:
        """Why the bucket takes no writes, while it takes none."""
        return self._bucket.trouble

    @property
    def tls_not_after_s(self) -> float | None:
        """When this broker's certificate ends, in seconds since 1970; None where there is no TLS."""
        return self.tls.not_after_s if self.tls is not None else None

    @property
    def tls_refused_count(self) -> int:
        """How often the files of TLS were found broken."""
        return self.tls.refused_count if self.tls is not None else 0

    @property
    def http_connections(self) -> OpenConnections:
        """At the HTTP door."""
        return self._http.connections

    @property
    def log(self) -> Log:
        """The log of the present session; raises NoLeader or Stopping while there is none."""
        return self._leadership.log

    def leader(self, partition: TopicPartition) -> Registration | None:
        return self.view.leader(partition)

    def leader_epoch(self, partition: TopicPartition) -> int:
        state = self.view.partitions.get(partition)
        return state.leader_epoch if state is not None else -1

    def brokers(self) -> list[BrokerDescription]:
        return describe_brokers(self.view)

    @property
    def metadata_age_ms(self) -> int:
        return round(1000 * self._metadata.silent_s)

    @property
    def metadata_trouble(self) -> Trouble | None:
        silent_s = self._metadata.silent_s
        if 1000 * silent_s < self._cluster.session_timeout_ms:
            return None
        return Trouble(
            f"the metadata store has not answered for {silent_s:.0f} s: topics and brokers are told as they were, and can't change",
            "Producing and reading go on. Bring back a majority of etcd's members; `tidelog doctor --etcd URL` looks at each.",
        )

    @property
    def refused(self) -> Mapping[TopicPartition, Corrupt]:
        """Partitions that this broker was appointed to lead and does not serve, since what is stored of them is damaged."""
        try:
            return self.log.damaged
        except TidelogError:
            return {}

    def stop(self) -> None:
        """Begins the clean end: `run` returns when everything is flushed and sealed."""
        self.stopping.set()

    async def run(self, ready: asyncio.Event, *, loaded: Callable[[], None] = lambda: None) -> None:
        """Serves until `stop`. Sets `ready` when both doors are open and the first session leads its partitions.

        Calls `loaded` before that session begins: what there is by then stays as long as the broker.
        """
        async with asyncio.TaskGroup() as background:
            following = background.create_task(self.view.run(), name="view of the cluster")
            forwarding = background.create_task(self._forwarding.run(), name="forwarding")
            ahead = background.create_task(self.producer_ids.run(), name="producer ids")
            lagging = background.create_task(self._lag.run(), name="event loop lag")
            grouping = background.create_task(self._groups.run(), name="groups")
            certified = background.create_task(self._follow_certificates(), name="certificates")
            staying = background.create_task(stay_in_cluster(self._metadata, self._layout, self.cluster_id), name="identity")
            guarding = background.create_task(self._run_guard(), name="access")
            await self.view.read(timeout_s=TOPICS_TIMEOUT_S)
            if self.guard is not None:
                await self.guard.cache.read(timeout_s=TOPICS_TIMEOUT_S)
            self.http_address = await self._http.start(self._listen[0])
            self.grpc_address = await self._grpc.start(self._listen[1])
            self._leadership.registration = msgspec.structs.replace(
                self._leadership.registration,
                http_address=self._cluster.advertise_http or self.http_address,
                grpc_address=self._cluster.advertise_grpc or self.grpc_address,
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
                ahead.cancel()
                lagging.cancel()
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
        grace_s = self.settings.stop_grace_ms / 1000
        self._leadership.stop()
        await asyncio.wait((leading,), timeout=self._flush_s + self._cluster.drain_timeout_ms / 1000)
        bytes_left = 0 if leading.done() else self._leadership.budget.bytes_used
        leading.cancel()
        await self._forwarding.until_quiet(quiet_s=QUIET_S, timeout_s=min(LEAVE_S_MAX, grace_s))
        await asyncio.gather(self._http.stop(grace_s), self._grpc.stop(grace_s))
        if bytes_left:
            raise OutcomeUnknown(
                f"the broker stopped with {bytes_left} bytes of records that the bucket did not take within {self._flush_s:g} s",
                hint="Those acknowledged with acks=all are safe. Look at the bucket before you start again.",
            )

    # ── topics: the registry's changes, waited for until they are served ────────────────────────────────────────────────

    async def create_topic(
        self, name: str, partition_count: int, settings: Mapping[str, str] | None = None, *, validate_only: bool = False
    ) -> Topic:
        """Creates a topic, and returns when this broker leads its partitions."""
        note_validate_only(validate_only)
        topic = await self.topics.create(name, partition_count, settings, validate_only=validate_only)
        return topic if validate_only else await self._served(topic)

    async def alter_topic(
        self,
        name: str,
        *,
        settings: Mapping[str, str | None] | None = None,
        replace_settings: bool = False,
        partition_count: int | None = None,
        validate_only: bool = False,
    ) -> Topic:
        """Alters a topic, and returns when the change is in force and new partitions are led."""
        note_validate_only(validate_only)
        topic = await self.topics.alter(
            name,
            settings=settings,
            replace_settings=replace_settings,
            partition_count=partition_count,
            validate_only=validate_only,
        )
        return topic if validate_only else await self._served(topic)

    async def delete_topic(self, name: str, *, validate_only: bool = False) -> Topic:
        """Deletes a topic, and returns when no broker acknowledges anything for it any more.

        A leader that can't be asked is waited for until its session is sealed. OutcomeUnknown where that takes too long.
        """
        note_validate_only(validate_only)
        topic = await self.topics.delete(name, validate_only=validate_only)
        if not validate_only:
            await self.topic_cache.wait_for(topic.revision, timeout_s=self._ready_s)
            if not await self._leadership.let_go(topic, timeout_s=self._leader_wait_s):
                raise OutcomeUnknown(
                    f"topic {name} is deleted; whether its leaders have heard of it is not known after {self._leader_wait_s:g} s",
                    hint="They may acknowledge records for it until then. Make a topic of the same name a little later.",
                )
        return topic

    async def drain(self, broker_id: str, *, draining: bool, validate_only: bool = False) -> DrainState:
        """As in gateway/cluster_commands.py."""
        note_validate_only(validate_only)
        return await set_draining(
            self._metadata, self._layout, self.view, broker_id, draining=draining, validate_only=validate_only
        )

    async def _served(self, topic: Topic) -> Topic:
        """The change is made. Where it takes too long to take effect here, requests for it are told to retry."""
        await self.topic_cache.wait_for(topic.revision, timeout_s=self._ready_s)
        if not await self._leadership.led(topic, timeout_s=self._ready_s):
            log.warning("topic %s is not served yet after %s s", topic.name, self._ready_s)
        return topic


def _tls_files(settings: TlsSettings, *, has_peers: bool) -> TlsFiles | None:
    if not settings.is_on:
        return None
    from gateway.tls_files import TlsFiles  # with cryptography, which nothing else here needs

    return TlsFiles(settings, has_peers=has_peers)


def _disk_tier(settings: BrokerSettings) -> DiskTier | None:
    """In a folder of this broker's own, should others have the same data_dir. Raises Unavailable where there can be none."""
    bytes_max = settings.segments.cold_disk_bytes_max
    if not bytes_max:
        return None
    folder = settings.data_dir / "cold" / settings.broker_id
    try:
        return DiskTier(folder, bytes_max=bytes_max)
    except OSError as error:
        raise Unavailable(f"{folder} can't be used for what is read from the bucket: {error.strerror}") from error


async def _tracing(settings: BrokerSettings, parts: AsyncExitStack) -> Tracing | None:
    """None where it is off. InvalidArgument where OpenTelemetry is not installed."""
    if not settings.observability.otlp_endpoint:
        return None
    from gateway.tracing import OtlpTracing  # here, since it takes a third of a second that others can save

    tracing = OtlpTracing(settings.observability, broker_id=settings.broker_id, cluster=settings.cluster, version=VERSION)
    parts.push_async_callback(tracing.close)
    return tracing


@asynccontextmanager
async def running(settings: BrokerSettings, *, loaded: Callable[[], None] = lambda: None) -> AsyncIterator[Broker]:
    """A broker that serves: entered when both doors are open, left when everything is flushed, sealed and closed.

    `loaded`: as in Broker.run.

    Raises Rejected, Denied or Unavailable when it can't start, before anything but its own directory was written.
    """
    async with AsyncExitStack() as parts:
        layout = EtcdLayout(settings.cluster)
        bucket_url, metadata_path = settings.bucket, settings.data_dir
        if not settings.metadata.etcd:
            directory = parts.enter_context(DataDirectory(settings.data_dir))
            bucket_url, metadata_path = settings.bucket or f"file://{directory.bucket_path}", directory.metadata_path
        metadata = await parts.enter_async_context(open_metadata(settings.metadata, metadata_path, prefix=layout.prefix))
        bucket = MeteredStore(await open_store(bucket_url, settings.s3, make_directory=True))
        parts.push_async_callback(bucket.close)
        await prove_create_only(bucket, proof_key(secrets.token_hex(16)))
        identity = await identify_cluster(bucket, metadata, layout, new_id=uuid.uuid4().hex, now_ms=wall_clock_ms())
        access = await open_guard(settings.access, metadata, layout, broker_id=settings.broker_id, now_ms=wall_clock_ms)
        tracing = await _tracing(settings, parts)
        broker = Broker(settings, bucket, metadata, layout, cluster_id=identity, tracing=tracing, access=access)
        ready = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as process:
                process.create_task(broker.run(ready, loaded=loaded), name="broker")
                await ready.wait()
                try:
                    yield broker
                finally:
                    broker.stop()
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong first, without the groups that the tasks put round it."""
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def serve(settings: BrokerSettings, on_ready: Callable[[Broker], None]) -> None:
    """Runs a broker until SIGTERM or SIGINT, then ends it cleanly."""
    look_seldom()
    keep_freed_memory()
    raise_file_limit(settings.gateway)
    loop = asyncio.get_running_loop()
    async with running(settings, loaded=spare_what_is_loaded) as broker:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, broker.stop)
        on_ready(broker)
        await broker.stopping.wait()
