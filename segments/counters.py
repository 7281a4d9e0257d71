"""Counts what the logs of a broker did, over all its sessions; /metrics shows the numbers. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from metadata.measurements import BYTES, Histogram, counter, histogram
from metadata.model import TopicId

_READ_BYTES = "tidelog_read_bytes"
_COLD_READS = "tidelog_cold_reads"


@dataclass(slots=True)
class LogCounters:
    """Counts since the process began, for each segment and each fetch, never for each record."""

    records: int = counter("tidelog_committed_records", "Records that were committed on the bucket.")
    record_bytes: int = counter("tidelog_committed_bytes", "Bytes of the batches that were committed on the bucket.")
    segments: int = counter("tidelog_segments", "Segments that were committed.")
    segments_lost: int = counter(
        "tidelog_segments_lost", "Segments whose session ended before they were committed; their producers got an error."
    )
    segment_bytes: Histogram = histogram("tidelog_segment_bytes", "Size of segments that were sent to the bucket.", bounds=BYTES)
    linger_seconds: Histogram = histogram(
        "tidelog_segment_linger_seconds", "Time from a segment's first batch until its PUT begins."
    )
    put_seconds: Histogram = histogram(
        "tidelog_segment_put_seconds",
        "Time from the start of a segment's PUT until it is certain to be on the bucket, with retries.",
    )
    commit_seconds: Histogram = histogram(
        "tidelog_commit_seconds",
        "Time from a segment's first batch until it is committed: the longest that one of its producers has waited.",
    )
    delivery_seconds: Histogram = histogram(
        "tidelog_delivery_seconds", "Time from a segment's first batch until a reader that waits at the tail has its records."
    )
    hedges: int = counter("tidelog_segment_hedges", "PUTs that were sent a second time, since the first was slow.")
    hot_bytes: int = counter(
        _READ_BYTES,
        "Bytes of batches that readers got: `hot` from the newest batches in memory, `cold` from what was read back.",
        pool="hot",
    )
    cold_bytes: int = counter(_READ_BYTES, pool="cold")
    disk_reads: int = counter(
        _COLD_READS,
        "Runs of batches and row groups that came into the read cache, from the local disk or from the bucket.",
        source="disk",
    )
    bucket_reads: int = counter(_COLD_READS, source="bucket")
    # Bytes of batches by topic, of partitions that were led here; no metric shows them. Their reader removes deleted topics.
    topic_bytes_in: Counter[TopicId] = field(default_factory=Counter)
    topic_bytes_out: Counter[TopicId] = field(default_factory=Counter)
