"""The demo's look at the bucket, with no broker: what is committed there, and how many objects it took."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metadata.model import SessionId
from segments.bucket_layout import WAL, parse_wal_key
from segments.listing import objects_under
from segments.object_store import ObjectStore
from segments.recovery import read_session
from segments.segment_file import SEAL_BYTES

POLL_S: Final = 0.0002


@dataclass(frozen=True, slots=True)
class Objects:
    """What lies under wal/: each object is one PUT."""

    segments: int
    segment_bytes: int
    claims: int
    seals: int

    @property
    def puts(self) -> int:
        return self.segments + self.claims + self.seals


async def count_objects(bucket: ObjectStore) -> Objects:
    segments = segment_bytes = claims = seals = 0
    async for found in objects_under(bucket, WAL):
        parsed = parse_wal_key(found.key)
        if parsed is None or parsed.seq is None:
            claims += 1
        elif found.size == SEAL_BYTES:
            seals += 1
        else:
            segments += 1
            segment_bytes += found.size
    return Objects(segments, segment_bytes, claims, seals)


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


def await_next_segment(directory: Path, *, timeout_s: float) -> None:
    """Returns the moment that another segment lies in the directory of the bucket, or after `timeout_s`. Blocks, and polls hard."""
    session = max((directory / WAL).iterdir())
    known = set(os.listdir(session))
    ends_s = time.monotonic() + timeout_s
    while known.issuperset(os.listdir(session)) and time.monotonic() < ends_s:
        time.sleep(POLL_S)
