"""Keeps the runs of a unit between the one read of their segment and the writing of their partition's file.

The file has no name, so it vanishes however its process ends. Segments arrive in any order; runs are looked up by
partition. Only what a unit needs is kept. Invariant: a read returns the bytes that were taken in.
"""

from __future__ import annotations

import os
import tempfile
import threading
from array import array
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from metadata.errors import Unavailable
from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId, TopicPartition
from segments.bucket.layout import segment_key
from segments.wal.segment_file import parse_footer

_BUFFERS_PER_WRITE: Final = 1_000


class WantedRuns(NamedTuple):
    """Bounds the runs of a partition that a unit takes."""

    base_offset: Offset
    end_offset: Offset


class StoredRun(NamedTuple):
    """Locates a run in the scratch file and in its segment."""

    base_offset: Offset
    last_offset: Offset
    # First byte in the scratch file.
    position: int
    size_bytes: int
    leader_epoch: LeaderEpoch
    # When its segment was written.
    written_at_ms: int
    session: SessionId
    seq: SegmentSeq
    # First byte in the segment.
    start: int

    @property
    def key(self) -> str:
        return segment_key(self.session, self.seq)


class ScratchFile:
    """Stores runs. `take_in` and `read` may be called in threads. Raises Unavailable where there is no room."""

    def __init__(self, directory: str, wanted: dict[TopicPartition, WantedRuns]) -> None:
        self._wanted = wanted
        self._runs: dict[TopicPartition, tuple[array[int], ...]] = {}
        self._end = 0
        self._lock = threading.Lock()
        self._using = threading.Lock()
        self._directory = directory or tempfile.gettempdir()
        try:
            self._file = tempfile.TemporaryFile(dir=self._directory, prefix="tidelog-scratch-")  # noqa: SIM115  # closed by `close`
        except OSError as error:
            raise self._no_room(error) from error

    def close(self) -> None:
        """Closes the file, in a thread, since freeing gigabytes takes time.

        A thread that still works for a cancelled caller gets ValueError from now on, never a newer file of the same number.
        """
        with self._using:
            self._file.close()

    @property
    def size_bytes(self) -> int:
        return self._end

    def take_in(self, body: bytes, start: int, session: SessionId, seq: SegmentSeq) -> None:
        """Takes the end of a segment, from byte `start` on. Raises Corrupt where its footer is damaged; then it keeps nothing."""
        key = segment_key(session, seq)
        footer = parse_footer(body, object_size=start + len(body), session=session, seq=seq, key=key)
        view = memoryview(body)
        found: list[tuple[TopicPartition, StoredRun]] = []
        buffers: list[memoryview] = []
        size = 0
        for run in footer.runs:
            wanted = self._wanted.get(run.partition)
            if wanted is None or run.base_offset < wanted.base_offset or run.last_offset >= wanted.end_offset or run.start < start:
                continue
            stored = StoredRun(
                run.base_offset,
                run.last_offset,
                size,
                run.end - run.start,
                run.leader_epoch,
                footer.written_at_ms,
                session,
                seq,
                run.start,
            )
            found.append((run.partition, stored))
            buffers.append(view[run.start - start : run.end - start])
            size += stored.size_bytes
        with self._lock:
            position = self._end
            self._end += size
        try:
            self._write(buffers, position)
        except OSError as error:
            raise self._no_room(error) from error
        with self._lock:
            for partition, stored in found:
                columns = self._runs.setdefault(partition, tuple(array("q") for _ in StoredRun._fields))
                for column, value in zip(columns, stored._replace(position=position + stored.position), strict=True):
                    column.append(value)

    def runs(self, partition: TopicPartition) -> list[StoredRun]:
        """Returns the stored runs of the partition in offset order."""
        columns = self._runs.get(partition)
        if columns is None:
            return []
        return sorted(StoredRun._make(row) for row in zip(*columns, strict=True))

    def read(self, run: StoredRun) -> bytes:
        with self._using:
            return os.pread(self._file.fileno(), run.size_bytes, run.position)

    def _write(self, buffers: list[memoryview], position: int) -> None:
        for part in _joined(buffers):
            with self._using:
                written = os.pwrite(self._file.fileno(), part, position)
                while written < len(part):
                    written += os.pwrite(self._file.fileno(), part[written:], position + written)
            position += len(part)

    def _no_room(self, error: OSError) -> Unavailable:
        return Unavailable(
            f"segments can't be kept in {self._directory} while they are compacted: {error.strerror or error}",
            hint="Free some space there, name another directory with scratch_dir, or lower scratch_bytes_max.",
        )


def _joined(buffers: Iterable[memoryview]) -> Iterator[memoryview]:
    """Joins many small buffers, for fewer writes."""
    held: list[memoryview] = []
    for buffer in buffers:
        held.append(buffer)
        if len(held) == _BUFFERS_PER_WRITE:
            yield memoryview(b"".join(held))
            held = []
    if held:
        yield memoryview(b"".join(held))
