"""What the logs of a broker did, one session after the other, as plain numbers that /metrics tells. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from metadata.measurements import BYTES, Histogram


@dataclass(slots=True)
class LogCounters:
    """Since the process began. Per segment and per fetch, never per record."""

    segments: int = 0
    """Committed."""
    segment_bytes: Histogram = field(default_factory=lambda: Histogram(BYTES))
    """Of each segment that was sent."""
    linger_seconds: Histogram = field(default_factory=Histogram)
    """Of each segment, from its first batch until its PUT begins."""
    put_seconds: Histogram = field(default_factory=Histogram)
    """From there until it is certain to be on the bucket, tries and hedges and all."""
    commit_seconds: Histogram = field(default_factory=Histogram)
    """From its first batch until it is committed: the longest that a producer has waited for it."""
    delivery_seconds: Histogram = field(default_factory=Histogram)
    """From the first batch of a segment until a reader that waits at the tail has its records in hand."""
    records: int = 0
    """Committed."""
    record_bytes: int = 0
    """Of their batches."""
    segments_lost: int = 0
    """Not committed, since their session ended before."""
    hot_bytes: int = 0
    """Answered from the newest batches, in memory."""
    cold_bytes: int = 0
    """Answered from what was read back from the bucket."""
    disk_reads: int = 0
    """Runs and row groups that came into memory from the local disk."""
    bucket_reads: int = 0
    """Likewise from the bucket."""
    hedges: int = 0
    """PUTs that were sent a second time, since the first was slow."""
