"""Settings of the log: when it writes, how long it waits, how much memory it may hold. Pure; checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass

from metadata.errors import InvalidArgument
from metadata.setting_fields import check_numbers, fixed

KIB, MIB = 1 << 10, 1 << 20
_MAY_BE_ZERO = frozenset({"linger_ms", "puts_per_second_max", "disk_cache_bytes_max"})


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """Holds the settings of the log of one broker session. Defaults of memory are the shares of a memory_bytes_max of 1 GiB."""

    # A segment is written at the latest when its oldest batch has waited this long. 250 saves money, 5 suits a local disk.
    linger_ms: float = 100.0
    # A segment is written at the latest when it has this many bytes.
    segment_bytes_max: int = 8 * MIB
    # PUTs a second that may be sent before `linger_ms` is over, while none is in flight. They let a quiet broker answer after one
    # PUT. The most that a broker sends is the larger of this and 1000 / linger_ms a second, and the segments of 256 KiB and more
    # that no producer adds to any more. 0: each segment waits for `linger_ms`.
    puts_per_second_max: float = 20.0
    # Segments that are sent to the bucket at the same time.
    puts_in_flight_max: int = 4
    # A PUT without an answer after this time has an unknown outcome, and the broker sends it again.
    put_timeout_ms: float = 10_000.0
    # A segment that is not on the bucket after this time ends the broker's session: the broker seals it and opens a new one.
    put_deadline_ms: float = 30_000.0
    # A PUT without an answer after this time is sent a second time, beside the first.
    hedge_after_ms: float = fixed(1_500.0)
    # Pause before a failed PUT is sent again. It doubles with each try, up to retry_pause_ms_max.
    retry_pause_ms: float = fixed(50.0)
    retry_pause_ms_max: float = fixed(2_000.0)
    # Bytes of batches that wait for the bucket or are being sent. Producers wait until there is room, then are throttled.
    buffer_bytes_max: int = 64 * MIB
    # Newest committed batches, kept in memory for readers at the end of the log.
    tail_cache_bytes_max: int = 64 * MIB
    # Batches that were read from the bucket, kept in memory. It is apart from the tail cache, so that lagging readers do not evict
    # the tail. A row group takes about 17 MiB.
    read_cache_bytes_max: int = 64 * MIB
    # Batches that were read from the bucket, kept on the local disk in the directory `cold` of data_dir, which the broker empties
    # when it starts. 0: no disk cache.
    disk_cache_bytes_max: int = 0
    # Memory of reads from the bucket that are in flight; more readers wait. A row group takes twice its size while it is decoded.
    history_read_bytes_max: int = 96 * MIB
    # After this many segments the broker writes their footers again as one object, so that a takeover reads few objects.
    index_every_segments: int = fixed(32)
    # Footers that a takeover reads at the same time.
    footer_reads_max: int = fixed(16)
    # Footers of recently read sessions, so that a takeover of many partitions reads each footer once. A share of memory_bytes_max.
    footer_cache_bytes_max: int = fixed(64 * MIB)
    # Idempotent producers remembered for one partition, and as many Idempotency-Keys. Those that were silent longest go first.
    producers_per_partition_max: int = fixed(20_000)
    # Idempotent producers remembered for all partitions that a broker leads, up to 1.6 KB each, and as many Idempotency-Keys, half
    # a kilobyte each. Those that were silent longest go first.
    producers_max: int = 250_000
    # An idempotent producer that was silent this long is forgotten.
    producer_expiry_ms: int = 24 * 3_600_000
    # A batch whose records need more than this when decompressed is refused.
    decompressed_bytes_max: int = 64 * MIB

    def __post_init__(self) -> None:
        check_numbers(self, may_be_zero=_MAY_BE_ZERO)
        if self.buffer_bytes_max < self.segment_bytes_max:
            raise InvalidArgument(
                f"buffer_bytes_max ({self.buffer_bytes_max}) is below segment_bytes_max ({self.segment_bytes_max})",
                hint="Give the buffer room for at least one segment.",
            )
