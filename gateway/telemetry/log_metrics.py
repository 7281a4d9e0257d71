"""What a broker tells Prometheus of its log: what is committed, how long that takes, buffers, pools, and sizes on the bucket.

Sizes on the bucket are those of the partitions that this broker leads, so that the sum over brokers is that of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.telemetry.metric_families import counter, counters, gauge, gauges, histogram
from metadata.errors import TidelogError
from metadata.model import TopicPartition
from metadata.topics.cache import TopicCache
from metadata.topics.topic import Topic
from segments.byte_budget import ByteBudget
from segments.counters import LogCounters
from segments.log.session_log import SessionLog
from segments.partition.leader_partitions import LeaderPartition
from segments.read.disk_cache import DiskTier

PARTITIONS_MAX = 10_000
"""Of which each is told on /metrics/detail: seven series and half a kilobyte each, laid out in a second of a thread for all."""


class StoredBytes(NamedTuple):
    """On the bucket."""

    segments: int
    """Batches in segments that are in no Parquet file yet."""
    parquet: int


def stored_bytes(led: LeaderPartition) -> StoredBytes:
    return StoredBytes(led.runs.size_bytes, led.history.size_bytes if led.history is not None else 0)


class LogCollector(Collector):
    """For /metrics. `look` is called in the loop before each scrape, `collect` in a thread."""

    def __init__(self, counts: LogCounters, budget: ByteBudget, disk: DiskTier | None, *, gib_month_dollars: float) -> None:
        self._counts = counts
        self._budget = budget
        self._disk = disk
        self._gib_month_dollars = gib_month_dollars
        self._log: SessionLog | None = None
        self._oldest_s = 0.0

    def look(self, log: SessionLog | None, *, now_s: float) -> None:
        """`log`: of the present session, where there is one."""
        self._log = log
        since_s = log.writer.oldest_waits_since_s if log is not None else None
        self._oldest_s = now_s - since_s if since_s is not None else 0.0

    def collect(self) -> Iterable[Metric]:
        yield from self._written()
        yield from self._read()
        yield from self._stored()

    def _written(self) -> Iterable[Metric]:
        counts, log = self._counts, self._log
        yield counter("tidelog_committed_records", "Records that were committed on the bucket.", counts.records)
        yield counter("tidelog_committed_bytes", "Bytes of their batches.", counts.record_bytes)
        yield counter("tidelog_segments", "Segments that were committed.", counts.segments)
        yield counter(
            "tidelog_segments_lost",
            "Segments whose session ended before they were committed; their producers were told.",
            counts.segments_lost,
        )
        yield histogram("tidelog_segment_bytes", "Size of segments that were sent to the bucket.", counts.segment_bytes)
        yield histogram(
            "tidelog_segment_linger_seconds", "Time from a segment's first batch until its PUT begins.", counts.linger_seconds
        )
        yield histogram(
            "tidelog_segment_put_seconds", "From there until it is certain to be on the bucket, tries and all.", counts.put_seconds
        )
        yield histogram(
            "tidelog_commit_seconds",
            "Time from a segment's first batch until it is committed: the longest that one of its producers has waited.",
            counts.commit_seconds,
        )
        yield histogram(
            "tidelog_delivery_seconds",
            "Time from a segment's first batch until a reader that waits at the tail has its records.",
            counts.delivery_seconds,
        )
        yield counter("tidelog_segment_hedges", "PUTs that were sent a second time, since the first was slow.", counts.hedges)
        yield gauge("tidelog_segments_in_flight", "Segments on their way to the bucket.", log.writer.in_flight if log else 0)
        yield gauge(
            "tidelog_oldest_uncommitted_seconds", "Age of the oldest batch that is not committed yet; 0: all are.", self._oldest_s
        )
        yield gauge("tidelog_buffered_bytes", "Batches that are buffered or on their way to the bucket.", self._budget.bytes_used)
        yield gauge("tidelog_buffer_limit_bytes", "So many there may be (buffer_bytes_max).", self._budget.bytes_max)
        yield gauge("tidelog_buffer_waiting", "Requests that wait for room in the buffer.", self._budget.waiting)

    def _read(self) -> Iterable[Metric]:
        counts, log, disk = self._counts, self._log, self._disk
        yield counters(
            "tidelog_read_bytes",
            "Bytes of batches that readers got: `hot` from the newest batches in memory, `cold` from what was read back.",
            ("pool",),
            [(("hot",), counts.hot_bytes), (("cold",), counts.cold_bytes)],
        )
        yield counters(
            "tidelog_cold_reads",
            "Runs of batches and row groups that came into the cold pool, from the local disk or from the bucket.",
            ("source",),
            [(("disk",), counts.disk_reads), (("bucket",), counts.bucket_reads)],
        )
        yield gauges(
            "tidelog_pool_bytes",
            "Memory that the pools of batches take, and what the disk tier takes of the local disk.",
            ("pool",),
            [
                (("hot",), log.reads.hot_pool_bytes if log else 0),
                (("cold",), log.reads.cold_pool_bytes if log else 0),
                (("disk",), disk.bytes_used if disk else 0),
            ],
        )
        failed = disk is not None and disk.is_off
        yield gauge("tidelog_disk_tier_failed", "1 where the local disk has failed, and is used no more.", int(failed))

    def _stored(self) -> Iterable[Metric]:
        led = self._log.partitions.copy().values() if self._log is not None else ()
        segments = sum(partition.runs.size_bytes for partition in led)
        parquet = sum(partition.history.size_bytes for partition in led if partition.history is not None)
        yield gauges(
            "tidelog_stored_bytes",
            "On the bucket, of the partitions that this broker leads: `segments` not compacted yet, and `parquet`.",
            ("form",),
            [(("segments",), segments), (("parquet",), parquet)],
        )
        per_day = (segments + parquet) / (1 << 30) * self._gib_month_dollars / (365.25 / 12)
        yield gauge("tidelog_stored_dollars_per_day", "What the bucket asks for them, at price_gib_month.", per_day)


class PartitionCollector(Collector):
    """For /metrics/detail. Those that begin with kafka_ have the names and labels of kafka_exporter
    (https://github.com/danielqsj/kafka_exporter); offsets are told by each partition's leader, what is of the whole cluster by its
    controller alone, so that sums are right."""

    def __init__(self, topics: TopicCache) -> None:
        self._topics = topics
        self._log: SessionLog | None = None
        self._broker_count: int | None = None

    def look(self, log: SessionLog | None, *, broker_count: int | None) -> None:
        """`broker_count`: of the cluster, at its controller; else None."""
        self._log = log
        self._broker_count = broker_count

    def collect(self) -> Iterable[Metric]:
        led_here = self._log.partitions.copy() if self._log is not None else {}
        rows = [row for row in sorted(led_here.items(), key=_place)[:PARTITIONS_MAX] if self._name(row[0])]
        labels = ("topic", "partition")
        named = [((self._name(at), str(at.partition)), led) for at, led in rows]
        ends = [(of, led.log.high_watermark) for of, led in named]
        starts = [(of, led.log.log_start_offset) for of, led in named]
        yield gauges("tidelog_partition_high_watermark", "The offset behind the last committed record.", labels, ends)
        yield gauges("tidelog_partition_log_start_offset", "The first offset that can be read.", labels, starts)
        epochs = [(of, led.log.leader_epoch) for of, led in named]
        yield gauges("tidelog_partition_leader_epoch", "Raised by one with each leader.", labels, epochs)
        sizes = [(of, stored_bytes(led)) for of, led in named]
        yield gauges(
            "tidelog_partition_stored_bytes",
            "On the bucket, as tidelog_stored_bytes.",
            (*labels, "form"),
            [
                row
                for of, size in sizes
                for row in (((*of, "segments"), float(size.segments)), ((*of, "parquet"), float(size.parquet)))
            ],
        )
        yield gauges("kafka_topic_partition_current_offset", "As tidelog_partition_high_watermark.", labels, ends)
        yield gauges("kafka_topic_partition_oldest_offset", "As tidelog_partition_log_start_offset.", labels, starts)
        yield gauge(
            "tidelog_partitions_not_told",
            "Partitions that are led here beyond those told.",
            max(0, len(led_here) - PARTITIONS_MAX),
        )
        is_controller = self._broker_count is not None
        counts = [((topic.name,), topic.partition_count) for topic in self._all_topics()] if is_controller else []
        yield gauges("kafka_topic_partitions", "Partitions of the topic. Told by the controller.", ("topic",), counts)
        brokers = [((), float(self._broker_count))] if self._broker_count is not None else []
        yield gauges("kafka_brokers", "Brokers of the cluster. Told by the controller.", (), brokers)

    def _all_topics(self) -> Iterable[Topic]:
        try:
            return self._topics.topics()
        except TidelogError:  # not read yet
            return ()

    def _name(self, partition: TopicPartition) -> str:
        try:
            return self._topics.by_id(partition.topic_id).name
        except TidelogError:  # just deleted
            return ""


def _place(led: tuple[TopicPartition, LeaderPartition]) -> TopicPartition:
    return led[0]
