"""Runs a compactor as a process of its own, `tidelog compact`. It needs the bucket and the metadata, and no broker.

  listener ─▶ open metadata and bucket ─▶ one cluster, and not being restored? ─▶ topics ─▶ compaction/service.py
                                           └▶ no cluster yet: wait for the first broker

Invariant: it works on no bucket whose cluster is not that of the metadata: to those, every topic there would be unknown.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.service import CompactionService
from gateway.broker.broker import TOPICS_TIMEOUT_S, VERSION, wall_clock_ms
from gateway.cluster.identity import check_not_set_back, watch_identity
from gateway.process.compactor_http import CompactorHttp
from gateway.telemetry.process_metrics import build_info
from gateway.telemetry.registry import MetricsRegistry
from gateway.telemetry.store_metrics import register_stores
from metadata.backup.restore_state import check_not_restoring
from metadata.cluster.manifest_notices import ManifestNoticeCache
from metadata.errors import NotFound, Rejected, Unavailable
from metadata.model import Revision
from metadata.store.data_directory import DataDirectory
from metadata.store.instrumented import InstrumentedMetadataStore
from metadata.store.keys import KeyLayout
from metadata.store.open import open_metadata
from metadata.topics.cache import TopicCache
from segments.bucket.cluster_record import read_cluster_record
from segments.bucket.layout import proof_key
from segments.bucket.object_kinds import kind_of
from segments.object_store.conditional_put_check import check_conditional_put
from segments.object_store.health_tracking import HealthTrackingObjectStore
from segments.object_store.instrumented import InstrumentedObjectStore
from segments.object_store.open import open_store
from segments.object_store.store_clock import StoreClock
from segments.shared_errors import first_error

if TYPE_CHECKING:
    from gateway.settings import BrokerSettings

log = logging.getLogger(__name__)

# Pause between two checks for a cluster, while there is none.
CLUSTER_POLL_S: Final = 1.0


class RunningCompactor(NamedTuple):
    """Holds a compactor that is ready to run, with its HTTP listener."""

    service: CompactionService
    # Serves probes and Prometheus; it is open only if an address was given.
    endpoint: CompactorHttp


@asynccontextmanager
async def run_compactor(
    settings: BrokerSettings, *, report: Callable[[str], None], http: str = "", waits: bool = False
) -> AsyncIterator[RunningCompactor]:
    """Prepares a compactor, and closes everything when left. Raises Rejected, Denied, Unavailable, Corrupt.

    `http` is the address of its listener, which opens first. With `waits` it waits for the first broker if none has ever run.

    Rejected ends the body once the metadata are no longer those with which it began.
    """
    async with AsyncExitStack() as parts:
        metrics = MetricsRegistry()
        build = build_info(VERSION)
        metrics.register(lambda: (build,))
        metrics.register_process()
        endpoint = CompactorHttp(metrics, wall_clock_ms, allowed_hosts=settings.access.hosts)
        if http:
            address = await endpoint.start(http)
            parts.push_async_callback(endpoint.stop)
            report(f"http {address}")
        layout = KeyLayout(settings.cluster)
        metadata_path = settings.data_dir
        if not settings.metadata.etcd:
            if not (settings.data_dir / "metadata.sqlite").is_file():
                raise NotFound(
                    f"{settings.data_dir} is no data directory of a broker",
                    hint="Name the --data-dir of one that is stopped; or the --bucket and the --etcd of a cluster.",
                )
            metadata_path = parts.enter_context(DataDirectory(settings.data_dir)).metadata_path
        metadata = InstrumentedMetadataStore(
            await parts.enter_async_context(open_metadata(settings.metadata, metadata_path, prefix=layout.prefix))
        )
        clock = StoreClock(wall_clock_ms)
        metered = InstrumentedObjectStore(await open_store(settings.bucket_url, settings.s3, clock=clock), kind_of)
        bucket = HealthTrackingObjectStore(metered)
        parts.push_async_callback(bucket.close)
        register_stores(metrics, bucket, metered, metadata, settings.observability)
        cluster = await _cluster(bucket, metadata, layout)
        if cluster is None:
            why = f"no broker has run yet: neither {bucket.url} nor the metadata under {layout.root} know of a cluster"
            if not waits or not settings.metadata.etcd:
                raise Unavailable(why, hint="Start a broker on them first, and then the compactor.")
            endpoint.waits(why)
            report(f"{why}; waiting for the first one")
            cluster = await _first_cluster(bucket, metadata, layout)
        await check_conditional_put(bucket, proof_key(secrets.token_hex(16)))
        topics, notices = TopicCache(metadata, layout), ManifestNoticeCache(metadata, layout)
        service = CompactionService(
            bucket,
            metadata,
            layout,
            topics,
            notices,
            settings.compaction,
            settings.segments,
            compactor_id=settings.broker_id,
            version=VERSION,
            now_ms=wall_clock_ms,
            clock=clock,
            report=report,
        )
        metrics.register(service.measure)
        endpoint.works(service.compactor.metrics)
        try:
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(topics.run(), name="topics")
                hearing = tasks.create_task(notices.run(), name="what leaders deleted")
                staying = tasks.create_task(watch_identity(metadata, layout, cluster), name="identity")
                try:
                    if not await topics.wait_for(Revision(1), timeout_s=TOPICS_TIMEOUT_S):
                        raise Unavailable(f"the topics could not be read within {TOPICS_TIMEOUT_S:g} s")
                    yield RunningCompactor(service, endpoint)
                finally:
                    following.cancel()
                    hearing.cancel()
                    staying.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors


async def _cluster(bucket: HealthTrackingObjectStore, metadata: InstrumentedMetadataStore, layout: KeyLayout) -> str | None:
    """Returns the cluster to which both belong; None if no broker has led on either yet. Raises Rejected if they do not match."""
    await check_not_restoring(metadata, layout)
    has_led = await metadata.get(layout.next_session) is not None  # asked first: a broker signs its bucket before that
    record, identity = await read_cluster_record(bucket), await metadata.get(layout.cluster_id)
    if record is None and not has_led:
        return None
    if record is not None and identity is not None and identity.value.decode("utf-8", "replace") == record.cluster_id:
        await check_not_set_back(bucket, metadata, layout, record.cluster_id)
        return record.cluster_id
    of_bucket = f"cluster {record.cluster_id}" if record is not None else "no cluster"
    of_metadata = f"cluster {identity.value.decode('utf-8', 'replace')}" if identity is not None else "no cluster"
    raise Rejected(
        f"{bucket.url} belongs to {of_bucket}, and the metadata to {of_metadata}",
        hint="Name the bucket and the metadata that go together (--bucket, --etcd, --cluster), as for the brokers.",
    )


async def _first_cluster(bucket: HealthTrackingObjectStore, metadata: InstrumentedMetadataStore, layout: KeyLayout) -> str:
    """Waits until a broker has made a cluster, and returns it. Unreachable stores are asked again."""
    while True:
        await asyncio.sleep(CLUSTER_POLL_S)
        try:
            cluster = await _cluster(bucket, metadata, layout)
        except Unavailable as error:
            log.info("cluster check failed: %s; retrying", error)
        else:
            if cluster is not None:
                return cluster
