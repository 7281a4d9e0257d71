"""The demo's look at the bucket, with no broker: what is committed there, and how many objects it took."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metadata.model import SegmentSeq, SessionId
from segments.bucket.layout import WAL, parse_wal_key, segment_key
from segments.object_store.interface import ObjectStore, objects_under
from segments.wal.segment_file import SEAL_BYTES
from segments.wal.session_reader import read_session
from tidelog.demo import killer as demo_killer

START_TIMEOUT_S: Final = 10.0
SEGMENTS_AHEAD: Final = 200
"""So many are written, at most, while the killer starts."""


@dataclass(frozen=True, slots=True)
class Objects:
    """What lies under wal/: each object is one PUT."""

    segments: int
    segment_bytes: int
    claims: int
    seals: int
    indexes: int

    @property
    def puts(self) -> int:
        return self.segments + self.claims + self.seals + self.indexes


async def count_objects(bucket: ObjectStore) -> Objects:
    segments = segment_bytes = claims = seals = indexes = 0
    async for found in objects_under(bucket, WAL):
        parsed = parse_wal_key(found.key)
        if parsed is not None and parsed.indexed is not None:
            indexes += 1
        elif parsed is None or parsed.seq is None:
            claims += 1
        elif found.size == SEAL_BYTES:
            seals += 1
        else:
            segments += 1
            segment_bytes += found.size
    return Objects(segments, segment_bytes, claims, seals, indexes)


async def committed_ends(bucket: ObjectStore) -> dict[int, int]:
    """By partition of the only topic: the offset behind the last committed record. Raises Corrupt where a footer is damaged."""
    sessions = {parsed.session async for found in objects_under(bucket, WAL) if (parsed := parse_wal_key(found.key)) is not None}
    ends: dict[int, int] = {}
    for session in sorted(sessions):
        for footer in await read_session(bucket, SessionId(session)):
            if isinstance(footer, Exception):
                raise footer
            for run in footer.runs:
                ends[run.partition.partition] = run.last_offset + 1
    return ends


def kill_at_next_segment(pid: int, directory: Path, *, timeout_s: float) -> None:
    """Returns when the process that writes to the bucket in this directory was killed (killer.py). Blocks."""
    session, seq = max(_segments_in(directory))
    coming = [str(directory / segment_key(session, SegmentSeq(seq + ahead))) for ahead in range(1, SEGMENTS_AHEAD)]
    killer = [sys.executable, "-I", "-S", demo_killer.__file__, str(pid), str(timeout_s), *coming]
    subprocess.run(killer, check=True, timeout=timeout_s + START_TIMEOUT_S)


def _segments_in(directory: Path) -> Iterator[tuple[SessionId, SegmentSeq]]:
    for path in (directory / WAL).glob("*/*"):
        parsed = parse_wal_key(path.relative_to(directory).as_posix())
        if parsed is not None and parsed.seq is not None:
            yield parsed.session, parsed.seq
