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
from metadata.errors import InvalidArgument, UnknownTopic
from metadata.topics.cache import TopicCache
from metadata.topics.settings import TopicSettings
from metadata.topics.topic import Topic
from segments.counters import LogCounters
from segments.log.session_log import SessionLog
from segments.object_store.instrumented import BucketMeter
from segments.object_store.interface import ObjectStore

# How long a request waits for the listing that it begins; one of a small bucket ends in that time.
LISTING_WAIT_S: Final = 0.3
# Forecasts of one report that are kept, each for other prices.
FORECASTS_MAX: Final = 4


class StorageReport(NamedTuple):
    """Says where the bytes of the bucket are."""

    topics: list[StoredTopic]
    # Those of them that were written or read in the last minutes, or wait for compaction.
    of_note: list[StoredTopic]
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
        self._forecasting = asyncio.Lock()
        self._forecasts_of: StorageReport | None = None
        self._forecasts: dict[Prices, Forecast] = {}
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
        """Returns what the next 30 days cost at these prices. Callers with the same report and prices share a forecast."""
        async with self._forecasting:
            if self._forecasts_of is not report:
                self._forecasts_of, self._forecasts = report, {}
            made = self._forecasts.get(prices)
            if made is None:
                made = await self._threads.run(lambda: forecast(self._basis(report, prices)))
                if len(self._forecasts) < FORECASTS_MAX:
                    self._forecasts[prices] = made
            return made

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
            topics=[self._counted(stored) for stored in report.topics],
            other_bytes=report.unowned.bytes,
            settings=self._settings,
        )

    def _counted(self, stored: StoredTopic) -> CountedTopic:
        topic = stored.topic
        return CountedTopic(
            topic.name, stored.bytes, stored.figures.bytes_in_per_second, topic.partition_count, self._settings_of(topic)
        )

    def _settings_of(self, topic: Topic) -> TopicSettings:
        """Returns the settings that the cache has parsed; parses those of a topic that has left it meanwhile. From any thread."""
        try:
            return self._topics.settings(topic.id)
        except (UnknownTopic, KeyError):
            pass
        try:
            return TopicSettings.parse(topic.settings, skip_unknown=True)
        except InvalidArgument:  # a newer version allows more
            return TopicSettings()


def _joined(topics: Iterable[Topic], usage: ClusterUsage, snapshot: BucketSnapshot | None) -> StorageReport:
    ordered = sorted(topics, key=lambda topic: topic.name)
    stored = stored_topics(ordered, usage, snapshot)
    of_note = [each for each in stored if each.figures.is_of_note]
    return StorageReport(stored, of_note, unowned((topic.id for topic in ordered), usage, snapshot), usage, snapshot)
