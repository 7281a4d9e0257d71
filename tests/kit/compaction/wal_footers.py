"""Footers made by hand, and a state that has taken them in: nothing lies on a bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from compaction.wal.state import WalState
from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId, TopicPartition
from segments.bucket.layout import segment_key
from segments.history.manifest import no_manifest
from segments.object_store.interface import ObjectInfo
from segments.wal.known_sessions import KnownSession
from segments.wal.segment_file import BATCH_DTYPE, Run, SegmentFooter
from segments.wal.session_listing import ListedSession

RUN_BYTES = 100
# Session and place in it.
SegmentId = tuple[int, int]


def footer_of(segment: SegmentId, runs: Mapping[TopicPartition, tuple[int, int]], *, written_at_ms: int = 0) -> SegmentFooter:
    """`runs`: base and last offset of each partition's; RUN_BYTES each, side by side."""
    start = 40
    made: list[Run] = []
    for partition, (base, last) in runs.items():
        records = last - base + 1
        run = Run(partition, LeaderEpoch(1), Offset(base), Offset(last), records, start, start + RUN_BYTES, 0, 0, len(made), 1)
        made.append(run)
        start += RUN_BYTES
    session, seq = SessionId(segment[0]), SegmentSeq(segment[1])
    return SegmentFooter(session, seq, seq, written_at_ms, tuple(made), np.zeros(len(made), BATCH_DTYPE))


def state_of(footers: Sequence[SegmentFooter], floors: Mapping[TopicPartition, int] | None = None) -> WalState:
    """Each session's from its place 0 on, in the order of their finding."""
    state = WalState()
    for footer in footers:
        known = KnownSession(footer.session)
        if footer.session not in state.sessions:
            state.listed(known, ListedSession(footer.session))
        known = state.sessions[footer.session].listed
        size = 40 + RUN_BYTES * len(footer.runs)
        state.take_in(known, ObjectInfo(segment_key(footer.session, footer.seq), size), footer)
        known.handed_on(footer)
    for partition in list(state.pending):
        compacted_to = Offset((floors or {}).get(partition, 0))
        state.advance(msgspec.structs.replace(no_manifest(partition), version=1, compacted_to=compacted_to))
    return state
