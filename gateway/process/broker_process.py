"""Runs a broker as a process: opens what it needs in order, and closes it at the end.

  start   certificates, ports, keys ─▶ directory ─▶ disk ─▶ metadata ─▶ bucket: whose? ─▶ proof ─▶ cluster id ─▶ Broker
  stop    Broker ─▶ stores close

Invariant: no listener answers before the bucket has proved that it keeps create-only PUTs. A refused start has signed no bucket,
and
made no cluster.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from gateway.access.bootstrap import open_access, prepare_access
from gateway.broker.broker import VERSION, Broker, wall_clock_ms
from gateway.cluster.identity import identify_cluster
from gateway.kafka.listener_config import ListenerConfig, check_advertised, parse_listeners
from gateway.net.ports import reserve_ports
from gateway.net.tls.settings import is_loopback
from gateway.process.runtime_tuning import configure_malloc, freeze_startup_objects, raise_file_limit, raise_gc_thresholds
from gateway.settings import BrokerSettings
from metadata.errors import Unavailable
from metadata.store.data_directory import DataDirectory
from metadata.store.keys import KeyLayout
from metadata.store.open import open_metadata
from segments.bucket.cluster_record import check_no_prefix_overlap
from segments.bucket.layout import proof_key
from segments.bucket.object_kinds import kind_of
from segments.object_store.conditional_put_check import check_conditional_put
from segments.object_store.instrumented import InstrumentedObjectStore
from segments.object_store.open import open_store
from segments.object_store.store_clock import StoreClock
from segments.read.disk_cache import DiskCache
from segments.shared_errors import first_error

if TYPE_CHECKING:
    from gateway.net.tls.identity import TlsReloader
    from gateway.telemetry.request_context import Tracer


@asynccontextmanager
async def run_broker(settings: BrokerSettings, *, loaded: Callable[[], None] = lambda: None) -> AsyncIterator[Broker]:
    """Runs a broker that serves: entered when both listeners are open, left when everything is flushed, sealed and closed.

    `loaded`: as in Broker.run.

    Raises Rejected, Denied or Unavailable if it cannot start, before anything but its own directory was written.
    """
    async with AsyncExitStack() as parts:
        tls = tls_files(settings)
        listeners = kafka_listeners(settings)
        ports = await reserve_ports(http=settings.http, grpc=settings.grpc, kafka=[each.address for each in listeners])
        parts.callback(ports.close)
        prepared = await prepare_access(settings.access, broker_id=settings.broker_id, now_ms=wall_clock_ms)
        tracing = await _tracing(settings, parts)
        layout = KeyLayout(settings.cluster)
        bucket_url, metadata_path = settings.bucket, settings.data_dir
        if not settings.metadata.etcd:
            directory = parts.enter_context(DataDirectory(settings.data_dir))
            bucket_url, metadata_path = settings.bucket or f"file://{directory.bucket_path}", directory.metadata_path
        disk = _disk_tier(settings)
        metadata = await parts.enter_async_context(open_metadata(settings.metadata, metadata_path, prefix=layout.prefix))
        # A cluster that has led has a bucket: a missing one was mistyped, or is not mounted.
        has_led = await metadata.get(layout.next_session) is not None
        clock = StoreClock(wall_clock_ms)
        bucket = InstrumentedObjectStore(
            await open_store(bucket_url, settings.s3, make_directory=not has_led, clock=clock), kind_of
        )
        parts.push_async_callback(bucket.close)

        async def before_writing(*, is_new: bool) -> None:
            if is_new:
                await check_no_prefix_overlap(bucket, bucket_url, settings.s3)
            await check_conditional_put(bucket, proof_key(secrets.token_hex(16)))

        identity = await identify_cluster(
            bucket, metadata, layout, new_id=uuid.uuid4().hex, now_ms=wall_clock_ms(), before_writing=before_writing
        )
        access = await open_access(
            settings.access,
            prepared,
            metadata,
            layout,
            cluster_id=identity,
            broker_id=settings.broker_id,
            now_ms=wall_clock_ms,
            has_peers=bool(settings.metadata.etcd),
            peers_speak_tls=settings.tls.is_on,
            view_age_s_max=_view_age_s_max(settings),
        )
        broker = Broker(
            settings,
            bucket,
            metadata,
            layout,
            cluster_id=identity,
            has_peers=bool(settings.metadata.etcd),
            tracing=tracing,
            access=access,
            tls=tls,
            disk=disk,
            clock=clock,
            kafka=listeners,
        )
        ready = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as process:
                process.create_task(broker.run(ports, ready, loaded=loaded), name="broker")
                await ready.wait()
                try:
                    yield broker
                finally:
                    broker.stop()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors


async def serve(settings: BrokerSettings, on_ready: Callable[[Broker], None]) -> None:
    """Runs a broker until SIGTERM or SIGINT, then ends it cleanly."""
    raise_gc_thresholds()
    configure_malloc()
    raise_file_limit(settings.gateway, is_reached_from_elsewhere=not (is_loopback(settings.http) and is_loopback(settings.grpc)))
    loop = asyncio.get_running_loop()
    async with run_broker(settings, loaded=freeze_startup_objects) as broker:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, broker.stop)
        on_ready(broker)
        await broker.stopping.wait()


def kafka_listeners(settings: BrokerSettings) -> tuple[ListenerConfig, ...]:
    """Returns the Kafka listeners of the settings. Raises InvalidArgument, also where other machines could not reach them."""
    listeners = parse_listeners(settings.kafka, settings.registration.advertise_kafka)
    check_advertised(listeners)
    return listeners


def _view_age_s_max(settings: BrokerSettings) -> float | None:
    """Returns how old the view of keys and rights may be, in seconds; None if the metadata are in this process, whose watches never
    lag."""
    if not settings.metadata.etcd:
        return None
    return (settings.access.access_max_age_ms or settings.registration.session_timeout_ms) / 1000


def tls_files(settings: BrokerSettings) -> TlsReloader | None:
    """Loads the certificate; returns None if TLS is off. Raises as TlsReloader."""
    if not settings.tls.is_on:
        return None
    from gateway.net.tls.identity import TlsReloader  # with cryptography, which nothing else here needs

    return TlsReloader(settings.tls, has_peers=bool(settings.metadata.etcd))


async def _tracing(settings: BrokerSettings, parts: AsyncExitStack) -> Tracer | None:
    """Starts tracing; returns None if it is off. Raises InvalidArgument if OpenTelemetry is not installed."""
    if not settings.observability.otlp_endpoint:
        return None
    from gateway.telemetry.otlp import OtlpTracer  # here, since it takes a third of a second that others can save

    tracing = OtlpTracer(settings.observability, broker_id=settings.broker_id, cluster=settings.cluster, version=VERSION)
    parts.push_async_callback(tracing.close)
    return tracing


def _disk_tier(settings: BrokerSettings) -> DiskCache | None:
    """Opens the disk cache in a folder of this broker, since others may share the data_dir. Raises Unavailable if it cannot."""
    bytes_max = settings.segments.disk_cache_bytes_max
    if not bytes_max:
        return None
    folder = settings.data_dir / "cold" / settings.broker_id
    try:
        return DiskCache(folder, bytes_max=bytes_max)
    except OSError as error:
        raise Unavailable(f"{folder} can't be used for what is read from the bucket: {error.strerror}") from error
