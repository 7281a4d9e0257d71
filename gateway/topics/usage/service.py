"""Assembles what measures the use of the bucket, as a broker runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from gateway.concurrency.offload import BoundedExecutor
from gateway.routing.peer_channels import PeerChannels
from gateway.telemetry.settings import TelemetrySettings
from gateway.topics.usage.broker_usage import BrokerUsageMeter
from gateway.topics.usage.bucket_snapshots import BucketSnapshot, BucketSnapshots
from gateway.topics.usage.cluster_usage import ClusterUsage, ClusterUsageReader
from gateway.topics.usage.cost_forecast import CostBasis, CostSettings, CountedTopic, Forecast, Prices, forecast
from gateway.topics.usage.storage_report import StoredTopic, UnownedBytes, stored_topics, unowned
from gateway.topics.usage.verification import BucketVerifier
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import InvalidArgument
from metadata.topics.cache import TopicCache
from metadata.topics.settings import TopicSettings
from metadata.topics.topic import Topic
from segments.counters import LogCounters
from segments.log.session_log import SessionLog
from segments.object_store.instrumented import BucketMeter
from segments.object_store.interface import ObjectStore

# How long a request waits for the listing that it begins; one of a small bucket ends in that time.
LISTING_WAIT_S: Final = 0.3


class StorageReport(NamedTuple):
    """Says where the bytes of the bucket are."""

    topics: list[StoredTopic]
    unowned: UnownedBytes
    usage: ClusterUsage
    # None before the first listing has ended.
    snapshot: BucketSnapshot | None


class UsageService:
    """Answers what the cluster takes of its bucket and what that costs. Its owner runs `run()` as a task."""

    def __init__(
        self,
        store: ObjectStore,
        meter: BucketMeter,
        counters: LogCounters,
        log: Callable[[], SessionLog | None],
        topics: TopicCache,
        peers: PeerChannels,
        registrations: Callable[[], Iterable[BrokerRegistration]],
        *,
        broker_id: str,
        prices: TelemetrySettings,
        settings: CostSettings,
        compacts: bool,
        now_ms: Callable[[], int],
    ) -> None:
        """`log` is that of the present session, None without one; `counters` and `meter` count since the process began.

        `compacts`: this process runs a compactor, whose requests are in `meter`.
        """
        self._topics = topics
        self._settings = settings
        self._now_ms = now_ms
        self._threads = BoundedExecutor(1)
        self._kept: StorageReport | None = None
        self._kept_topics: tuple[Topic, ...] = ()
        self.prices = Prices(prices.price_1000_writes, prices.price_1000_reads, prices.price_gib_month)
        self.here = BrokerUsageMeter(counters, meter, log, topics, compacts=compacts)
        self.cluster = ClusterUsageReader(self.here.usage, peers, registrations, broker_id=broker_id)
        self.snapshots = BucketSnapshots(store, now_ms)
        self.verifier = BucketVerifier(store, now_ms)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.here.run(), name="rates of topics")
            tasks.create_task(self.snapshots.run(), name="listings of the bucket")
            tasks.create_task(self.verifier.run(), name="verifications of the bucket")

    async def storage(self) -> StorageReport:
        """Returns where the bytes of all topics are, in the order of their names. Raises Unavailable before topics were read."""
        topics = self._topics.topics()
        usage, snapshot = await asyncio.gather(self.cluster.read(), self.snapshots.ask(wait_s=LISTING_WAIT_S))
        kept = self._kept
        if kept is None or kept.usage is not usage or kept.snapshot is not snapshot or topics != self._kept_topics:
            kept = await self._threads.run(lambda: _joined(topics, usage, snapshot))
            self._kept, self._kept_topics = kept, topics
        return kept

    async def costs(self, report: StorageReport, prices: Prices) -> Forecast:
        """Returns what the next 30 days cost at these prices."""
        return await self._threads.run(lambda: forecast(self._basis(report, prices)))

    def age_ms(self, snapshot: BucketSnapshot) -> int:
        """Returns how long ago the snapshot was begun."""
        return max(0, self._now_ms() - snapshot.taken_at_ms)

    def _basis(self, report: StorageReport, prices: Prices) -> CostBasis:
        usage = report.usage
        return CostBasis(
            prices=prices,
            requests=usage.requests,
            segments_per_second=usage.segments_per_second,
            compacts=usage.compacts,
            topics=[_counted(stored) for stored in report.topics],
            other_bytes=report.unowned.bytes,
            settings=self._settings,
        )


def _joined(topics: Iterable[Topic], usage: ClusterUsage, snapshot: BucketSnapshot | None) -> StorageReport:
    ordered = sorted(topics, key=lambda topic: topic.name)
    return StorageReport(
        stored_topics(ordered, usage, snapshot), unowned((topic.id for topic in ordered), usage, snapshot), usage, snapshot
    )


def _counted(stored: StoredTopic) -> CountedTopic:
    topic = stored.topic
    try:
        settings = TopicSettings.parse(topic.settings, skip_unknown=True)
    except InvalidArgument:  # a newer version allows more
        settings = TopicSettings()
    return CountedTopic(topic.name, stored.bytes, stored.figures.bytes_in_per_second, topic.partition_count, settings)
