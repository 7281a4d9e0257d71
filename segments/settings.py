"""Settings of the log: when it writes, how long it waits, how much memory it may hold. Pure; checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite

from metadata.errors import InvalidArgument

KIB, MIB = 1 << 10, 1 << 20
_MAY_BE_ZERO = frozenset({"linger_ms", "puts_per_second_max", "disk_cache_bytes_max"})


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    segment_bytes_max: int = 8 * MIB
    """A segment is written at the latest when it has this many bytes."""
    linger_ms: float = 100.0
    """A segment is written at the latest when its oldest batch has waited this long. 250 saves money, 5 suits a local disk."""
    puts_per_second_max: float = 20.0
    """Budget for writing before `linger_ms` is over, when nothing is in flight: it makes a quiet broker answer in one PUT time.
    What it costs at most: this many PUTs, or 1000 / linger_ms, per second."""
    puts_in_flight_max: int = 4
    """Segments on their way to the bucket at the same time."""
    put_timeout_ms: float = 10_000.0
    """One PUT is given up after this, and sent again: its outcome is unknown."""
    put_deadline_ms: float = 30_000.0
    """A segment that is not on the bucket by then ends the session: the broker seals itself and opens a new one."""
    hedge_after_ms: float = 1_500.0
    """A PUT that has not answered by then is sent a second time, beside the first."""
    retry_pause_ms: float = 50.0
    """Pause before a failed PUT is sent again; doubles up to `retry_pause_ms_max`."""
    retry_pause_ms_max: float = 2_000.0
    """The longest pause between two tries."""
    buffer_bytes_max: int = 64 * MIB
    """Bytes of batches that are buffered or in flight. Producers wait for room, then are refused as throttled."""
    tail_cache_bytes_max: int = 64 * MIB
    """Newest committed batches, kept for readers at the tail."""
    read_cache_bytes_max: int = 64 * MIB
    """Batches read back from the bucket. Apart from the hot pool, so that a lagging reader can't evict the tail. A row group of
    history takes about 17 MiB; so many as fit are read at a time, and further readers wait for their turn."""
    disk_cache_bytes_max: int = 0
    """What was read back from the bucket is kept on the local disk as well, up to so many bytes, in the directory `cold` of
    data_dir. It is thrown away at the start. 0: it is not kept."""
    history_read_bytes_max: int = 96 * MIB
    """Memory of reads from the bucket in flight; further readers wait for their turn. A row group takes twice its size while it is
    decoded."""
    index_every_segments: int = 32
    """After so many segments their footers are written once more, in one object, so that taking over reads few."""
    footer_reads_max: int = 16
    """Footers read at the same time when partitions are recovered."""
    footer_cache_bytes_max: int = 64 * MIB
    """Footers of sessions that were read a short while ago, so that taking over many partitions reads each once."""
    producers_per_partition_max: int = 20_000
    """Idempotent producers remembered for one partition, and as many Idempotency-Keys; who was silent longest goes first."""
    producers_max: int = 250_000
    """The same for all partitions that a broker leads: so many producers of up to 1.6 KB, and as many keys of half a kilobyte."""
    producer_expiry_ms: int = 24 * 3_600_000
    """An idempotent producer that was silent this long is forgotten."""
    decompressed_bytes_max: int = 64 * MIB
    """The records of one batch may not need more than this when decompressed."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isfinite(value) or value < 0 or (value == 0 and field.name not in _MAY_BE_ZERO):
                raise InvalidArgument(
                    f"{field.name} is {value}; it must be a number above 0", hint=f"Leave {field.name} out for its default."
                )
        if self.buffer_bytes_max < self.segment_bytes_max:
            raise InvalidArgument(
                f"buffer_bytes_max ({self.buffer_bytes_max}) is below segment_bytes_max ({self.segment_bytes_max})",
                hint="Give the buffer room for at least one segment.",
            )
