"""Metrics of a broker's log: commits and their times, buffers, caches, and sizes on the bucket.

Sizes on the bucket cover the partitions that this broker leads, so the sum over brokers is that of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from metadata.errors import TidelogError
from metadata.measurements import gauge
from metadata.model import TopicPartition
from metadata.topics.cache import TopicCache
from metadata.topics.topic import Topic
from segments.byte_budget import ByteBudget
from segments.counters import LogCounters
from segments.log.session_log import SessionLog
from segments.partition.leader_partitions import LeaderPartition
from segments.read.disk_cache import DiskCache

# Most partitions on /metrics/detail: each has seven series of half a kilobyte together, and all take a second of a thread.
PARTITIONS_MAX = 10_000


class StoredBytes(NamedTuple):
    """Bytes of one partition on the bucket."""

    # Batches in segments that are in no Parquet file yet.
    segments: int
    # Parquet files of the newest manifest.
    parquet: int


def stored_bytes(led: LeaderPartition) -> StoredBytes:
    """Returns the bytes of a partition on the bucket, as its leader knows them."""
    return StoredBytes(led.runs.size_bytes, led.history.size_bytes if led.history is not None else 0)


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The log of one broker at a scrape: what it holds in memory and on the bucket."""

    segments_in_flight: int = gauge("tidelog_segments_in_flight", "Segments on their way to the bucket.")
    oldest_uncommitted_s: float = gauge(
        "tidelog_oldest_uncommitted_seconds", "Age of the oldest batch that is not committed yet; 0: all are."
    )
    buffered_bytes: int = gauge("tidelog_buffered_bytes", "Batches that are buffered or on their way to the bucket.")
    buffer_limit_bytes: int = gauge("tidelog_buffer_limit_bytes", "Upper bound of tidelog_buffered_bytes (buffer_bytes_max).")
    buffer_waiting: int = gauge("tidelog_buffer_waiting", "Requests that wait for room in the buffer.")
    pool_bytes: Mapping[str, int] = gauge(
        "tidelog_pool_bytes",
        "Memory that the pools of batches take, and what the disk tier takes of the local disk.",
        labels=("pool",),
    )
    disk_tier_failed: bool = gauge("tidelog_disk_tier_failed", "1 where the local disk has failed, and is used no more.")
    stored_bytes: Mapping[str, int] = gauge(
        "tidelog_stored_bytes",
        "On the bucket, of the partitions that this broker leads: `segments` not compacted yet, and `parquet`.",
        labels=("form",),
    )
    stored_dollars_per_day: float = gauge("tidelog_stored_dollars_per_day", "Price of tidelog_stored_bytes, at price_gib_month.")


class LogMetrics:
    """Reads the metrics of a broker's log.

    The registry calls `sample` in the loop before each scrape, and `measure` in a thread.
    """

    def __init__(self, counts: LogCounters, budget: ByteBudget, disk: DiskCache | None, *, gib_month_dollars: float) -> None:
        self._counts = counts
        self._budget = budget
        self._disk = disk
        self._gib_month_dollars = gib_month_dollars
        self._log: SessionLog | None = None
        self._oldest_s = 0.0

    def sample(self, log: SessionLog | None, *, now_s: float) -> None:
        """Reads what only the loop may read. `log` is that of the present session; None without one."""
        self._log = log
        since_s = log.writer.oldest_waits_since_s if log is not None else None
        self._oldest_s = now_s - since_s if since_s is not None else 0.0

    def measure(self) -> tuple[LogCounters, LogStatus]:
        log, disk, budget = self._log, self._disk, self._budget
        sizes = [stored_bytes(led) for led in log.partitions.copy().values()] if log is not None else []
        segments, parquet = sum(size.segments for size in sizes), sum(size.parquet for size in sizes)
        return self._counts, LogStatus(
            segments_in_flight=log.writer.in_flight if log else 0,
            oldest_uncommitted_s=self._oldest_s,
            buffered_bytes=budget.bytes_used,
            buffer_limit_bytes=budget.bytes_max,
            buffer_waiting=budget.waiting,
            pool_bytes={
                "hot": log.reads.tail_cache_bytes if log else 0,
                "cold": log.reads.read_cache_bytes if log else 0,
                "disk": disk.bytes_used if disk else 0,
            },
            disk_tier_failed=disk is not None and disk.is_off,
            stored_bytes={"segments": segments, "parquet": parquet},
            stored_dollars_per_day=(segments + parquet) / (1 << 30) * self._gib_month_dollars / (365.25 / 12),
        )


_PARTITION_LABELS: Final = ("topic", "partition")
_Numbers = Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One series for each partition that this broker leads.

    Names that begin with kafka_, and their labels, are those of kafka_exporter (https://github.com/danielqsj/kafka_exporter).
    """

    high_watermarks: _Numbers = gauge(
        "tidelog_partition_high_watermark", "The offset behind the last committed record.", labels=_PARTITION_LABELS
    )
    log_start_offsets: _Numbers = gauge(
        "tidelog_partition_log_start_offset", "The first offset that can be read.", labels=_PARTITION_LABELS
    )
    leader_epochs: _Numbers = gauge("tidelog_partition_leader_epoch", "Raised by one with each leader.", labels=_PARTITION_LABELS)
    stored_bytes: Mapping[tuple[str, str, str], int] = gauge(
        "tidelog_partition_stored_bytes", "On the bucket, as tidelog_stored_bytes.", labels=(*_PARTITION_LABELS, "form")
    )
    current_offsets: _Numbers = gauge(
        "kafka_topic_partition_current_offset", "As tidelog_partition_high_watermark.", labels=_PARTITION_LABELS
    )
    oldest_offsets: _Numbers = gauge(
        "kafka_topic_partition_oldest_offset", "As tidelog_partition_log_start_offset.", labels=_PARTITION_LABELS
    )
    left_out: int = gauge("tidelog_partitions_omitted", "Partitions that are led here beyond the 10,000 on this page.")
    partition_counts: Mapping[str, int] = gauge(
        "kafka_topic_partitions", "Partitions of the topic, reported by the controller.", labels=("topic",)
    )
    broker_count: int | None = gauge("kafka_brokers", "Brokers of the cluster, reported by the controller.")


class PartitionMetrics:
    """Reads the metrics of partitions for /metrics/detail.

    Each leader reports the offsets of its partitions, and only the controller reports figures of the whole cluster, so that sums
    over brokers are right.
    """

    def __init__(self, topics: TopicCache) -> None:
        self._topics = topics
        self._log: SessionLog | None = None
        self._broker_count: int | None = None

    def sample(self, log: SessionLog | None, *, broker_count: int | None) -> None:
        """Keeps the log of the present session for `measure`. `broker_count` is the cluster's at its controller; else None."""
        self._log = log
        self._broker_count = broker_count

    def measure(self) -> tuple[PartitionStatus]:
        local_log = self._log.partitions.copy() if self._log is not None else {}
        first = sorted(local_log)[:PARTITIONS_MAX]
        led = {(name, str(at.partition)): local_log[at] for at in first if (name := self._name(at))}
        ends = {of: one.log.high_watermark for of, one in led.items()}
        starts = {of: one.log.log_start_offset for of, one in led.items()}
        sizes = {(*of, form): size for of, one in led.items() for form, size in stored_bytes(one)._asdict().items()}
        topics = self._all_topics() if self._broker_count is not None else ()
        status = PartitionStatus(
            high_watermarks=ends,
            log_start_offsets=starts,
            leader_epochs={of: one.log.leader_epoch for of, one in led.items()},
            stored_bytes=sizes,
            current_offsets=ends,
            oldest_offsets=starts,
            left_out=max(0, len(local_log) - PARTITIONS_MAX),
            partition_counts={topic.name: topic.partition_count for topic in topics},
            broker_count=self._broker_count,
        )
        return (status,)

    def _all_topics(self) -> Iterable[Topic]:
        try:
            return self._topics.topics()
        except TidelogError:  # not read yet
            return ()

    def _name(self, partition: TopicPartition) -> str:
        try:
            return self._topics.by_id(partition.topic_id).name
        except TidelogError:  # deleted a moment ago
            return ""
