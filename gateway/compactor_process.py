"""A compactor as a process of its own: `tidelog compact`. It needs the bucket and the metadata, and no broker.

    open metadata and bucket ─▶ are they of one cluster, and not being restored? ─▶ topics ─▶ compaction/service.py

Invariant: it works on no bucket whose cluster is not that of the metadata: to those, every topic there would be unknown.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from compaction.service import CompactionService
from gateway.broker import TOPICS_TIMEOUT_S, VERSION, wall_clock_ms
from gateway.broker_metrics import BuildCollector
from gateway.cluster_identity import stay_in_cluster
from gateway.compactor_http import CompactorHttp
from gateway.heard_metadata import HeardMetadata
from gateway.metrics import Metrics
from gateway.store_metrics import BucketCollector, MetadataCollector
from metadata.data_directory import DataDirectory
from metadata.errors import NotFound, Rejected, Unavailable
from metadata.etcd_layout import EtcdLayout
from metadata.model import Revision
from metadata.notice_cache import NoticeCache
from metadata.open_metadata import open_metadata
from metadata.restoration import check_not_restoring
from metadata.topic_cache import TopicCache
from segments.bucket_layout import proof_key
from segments.cluster_record import read_cluster_record
from segments.create_only_proof import prove_create_only
from segments.metered_store import MeteredStore
from segments.shared_errors import first_of
from segments.store_url import open_store
from segments.watched_store import WatchedStore

if TYPE_CHECKING:
    from gateway.settings import BrokerSettings


class RunningCompactor(NamedTuple):
    service: CompactionService
    door: CompactorHttp
    """For probes and Prometheus, not open yet."""


@asynccontextmanager
async def compacting(settings: BrokerSettings, *, told: Callable[[str], None]) -> AsyncIterator[RunningCompactor]:
    """A compactor that is ready to run; left, everything is closed. Raises Rejected, Denied, Unavailable, Corrupt.

    The body is ended by Rejected where the metadata are not those any more with which it began.
    """
    async with AsyncExitStack() as parts:
        layout = EtcdLayout(settings.cluster)
        metadata_path = settings.data_dir
        if not settings.metadata.etcd:
            if not (settings.data_dir / "metadata.sqlite").is_file():
                raise NotFound(
                    f"{settings.data_dir} is no data directory of a broker",
                    hint="Name the --data-dir of one that is stopped; or the --bucket and the --etcd of a cluster.",
                )
            metadata_path = parts.enter_context(DataDirectory(settings.data_dir)).metadata_path
        metadata = HeardMetadata(
            await parts.enter_async_context(open_metadata(settings.metadata, metadata_path, prefix=layout.prefix))
        )
        metered = MeteredStore(await open_store(settings.bucket_url, settings.s3))
        bucket = WatchedStore(metered)
        parts.push_async_callback(bucket.close)
        await check_not_restoring(metadata, layout)
        record, identity = await read_cluster_record(bucket), await metadata.get(layout.cluster_id)
        if record is None or identity is None or identity.value.decode("utf-8", "replace") != record.cluster_id:
            of_bucket = f"cluster {record.cluster_id}" if record is not None else "no cluster"
            of_metadata = f"cluster {identity.value.decode('utf-8', 'replace')}" if identity is not None else "no cluster"
            raise Rejected(
                f"{bucket.url} belongs to {of_bucket}, and the metadata to {of_metadata}",
                hint="Name the bucket and the metadata that go together (--bucket, --etcd, --cluster), as for the brokers.",
            )
        await prove_create_only(bucket, proof_key(secrets.token_hex(16)))
        topics, notices = TopicCache(metadata, layout), NoticeCache(metadata, layout)
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
            told=told,
        )
        door = CompactorHttp(service, _metrics(settings, service, metered, bucket, metadata), wall_clock_ms)
        try:
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(topics.run(), name="topics")
                hearing = tasks.create_task(notices.run(), name="what leaders deleted")
                staying = tasks.create_task(stay_in_cluster(metadata, layout, record.cluster_id), name="identity")
                try:
                    if not await topics.wait_for(Revision(1), timeout_s=TOPICS_TIMEOUT_S):
                        raise Unavailable(f"the topics could not be read within {TOPICS_TIMEOUT_S:g} s")
                    yield RunningCompactor(service, door)
                finally:
                    following.cancel()
                    hearing.cancel()
                    staying.cancel()
        except BaseExceptionGroup as errors:
            raise first_of(errors) from errors


def _metrics(
    settings: BrokerSettings, service: CompactionService, metered: MeteredStore, bucket: WatchedStore, metadata: HeardMetadata
) -> Metrics:
    metrics = Metrics()
    stores = BucketCollector(metered, bucket, settings.observability), MetadataCollector(metadata)
    for collector in (service.metrics, *stores):
        metrics.tell(collector)
    for store in stores:
        metrics.before(store.look)
    metrics.tell(BuildCollector(VERSION))
    metrics.tell_of_process()
    return metrics
