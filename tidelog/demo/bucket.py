"""Counts what is committed on the demo's bucket, and in how many objects, without a broker."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from metadata.model import SegmentSeq, SessionId
from segments.bucket.layout import WAL, parse_wal_key, segment_key
from segments.object_store.interface import ObjectStore, list_all
from segments.wal.segment_file import SEAL_BYTES
from segments.wal.session_reader import read_session
from tidelog.demo import killer

START_TIMEOUT_S: Final = 10.0
# Segments that the broker may write while the killer starts.
SEGMENTS_AHEAD: Final = 200


async def count_objects(bucket: ObjectStore) -> Counter[str]:
    """Counts `segments`, `claims`, `seals` and `indexes` under wal/, each of which is one PUT, and `segment_bytes`."""
    counted: Counter[str] = Counter()
    async for found in list_all(bucket, WAL):
        parsed = parse_wal_key(found.key)
        if parsed is not None and parsed.indexed is not None:
            counted["indexes"] += 1
        elif parsed is None or parsed.seq is None:
            counted["claims"] += 1
        elif found.size == SEAL_BYTES:
            counted["seals"] += 1
        else:
            counted += Counter(segments=1, segment_bytes=found.size)
    return counted


async def committed_ends(bucket: ObjectStore) -> dict[int, int]:
    """Returns the end offset of each partition of the only topic. Raises Corrupt if a footer is damaged."""
    sessions = {parsed.session async for found in list_all(bucket, WAL) if (parsed := parse_wal_key(found.key)) is not None}
    ends: dict[int, int] = {}
    for session in sorted(sessions):
        for footer in await read_session(bucket, SessionId(session)):
            if isinstance(footer, Exception):
                raise footer
            ends |= {run.partition.partition: run.last_offset + 1 for run in footer.runs}
    return ends


def kill_at_next_segment(pid: int, directory: Path, *, timeout_s: float) -> None:
    """Kills the process that writes to the bucket in this directory when it has written one more segment. Blocks."""
    paths = (path.relative_to(directory).as_posix() for path in (directory / WAL).glob("*/*"))
    written = [(parsed.session, parsed.seq) for path in paths if (parsed := parse_wal_key(path)) and parsed.seq is not None]
    session, seq = max(written)
    coming = [str(directory / segment_key(session, SegmentSeq(seq + ahead))) for ahead in range(1, SEGMENTS_AHEAD)]
    command = [sys.executable, "-I", "-S", killer.__file__, str(pid), str(timeout_s), *coming]
    subprocess.run(command, check=True, timeout=timeout_s + START_TIMEOUT_S)
