"""Every key of the bucket is spelled here, and nowhere else. Pure.

    cluster.json                                      create-only: cluster id, format version
    wal/{session:016x}/claim                          create-only: whose session this is
    wal/{session:016x}/{seq:016x}                     create-only: a segment, or the seal that ends the session
    wal/{session:016x}/trimmed-{seq:016x}             everything below seq was compacted and may be gone
    wal/{session:016x}/index-{first:016x}-{end:016x}  footers of the segments from first to before end: only saves reads
    proof/{nonce}                                     scratch of the start-up proof that creates are create-only; deleted again

Keys sort by session, then by sequence number, since both are fixed-width hexadecimal; within a session the segments stand
before `trimmed-…`, so that a listing meets the marker after the segments that it explains. Invariant: parsing what was built
gives the same values back; any other name gives None.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from metadata.model import SegmentSeq, SessionId

CLUSTER = "cluster.json"
WAL = "wal/"

_SEQ = re.compile(r"[0-9a-f]{16}", re.ASCII)
_INDEX = re.compile(r"index-([0-9a-f]{16})-([0-9a-f]{16})", re.ASCII)
_TRIMMED = re.compile(r"trimmed-([0-9a-f]{16})", re.ASCII)


def session_prefix(session: SessionId) -> str:
    return f"{WAL}{session:016x}/"


def claim_key(session: SessionId) -> str:
    return f"{session_prefix(session)}claim"


def segment_key(session: SessionId, seq: SegmentSeq) -> str:
    """Where segment `seq` lies; the seal of the session lies at the place of the segment that will never come."""
    return f"{session_prefix(session)}{seq:016x}"


def index_key(session: SessionId, first: SegmentSeq, end: SegmentSeq) -> str:
    return f"{session_prefix(session)}index-{first:016x}-{end:016x}"


def trimmed_prefix(session: SessionId) -> str:
    return f"{session_prefix(session)}trimmed-"


def trimmed_key(session: SessionId, seq: SegmentSeq) -> str:
    return f"{trimmed_prefix(session)}{seq:016x}"


def proof_key(nonce: str) -> str:
    return f"proof/{nonce}"


class WalKey(NamedTuple):
    """What a name below `wal/` says: a place in a session, how far it was trimmed, what an index covers; nothing for the claim."""

    session: SessionId
    seq: SegmentSeq | None = None
    trimmed_to: SegmentSeq | None = None
    indexed: tuple[SegmentSeq, SegmentSeq] | None = None
    """First segment, and the one after the last."""


def parse_wal_key(key: str) -> WalKey | None:
    """The parts of a key below `wal/`, or None for a name that Tidelog did not write."""
    parts = key.removeprefix(WAL).split("/")
    if not key.startswith(WAL) or len(parts) != 2 or not _SEQ.fullmatch(parts[0]):
        return None
    session, name = SessionId(int(parts[0], 16)), parts[1]
    if _SEQ.fullmatch(name):
        return WalKey(session, seq=SegmentSeq(int(name, 16)))
    if trimmed := _TRIMMED.fullmatch(name):
        return WalKey(session, trimmed_to=SegmentSeq(int(trimmed[1], 16)))
    if index := _INDEX.fullmatch(name):
        return WalKey(session, indexed=(SegmentSeq(int(index[1], 16)), SegmentSeq(int(index[2], 16))))
    return WalKey(session) if name == "claim" else None
