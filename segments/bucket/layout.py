"""Spells every key of the bucket, and no other module does. Pure.

    cluster.json                                      create-only: cluster id, format version
    wal/{session:016x}/claim                          create-only: whose session this is
    wal/{session:016x}/{seq:016x}                     create-only: a segment, or the seal that ends the session
    wal/{session:016x}/trimmed-{seq:016x}             everything below seq was compacted and may be gone
    wal/{session:016x}/index-{first:016x}-{end:016x}  footers of the segments from first to before end: only saves reads
    topics/{topic}/{topic_id}/_log/topic-{revision:020d}.json   create-only: the topic's registration as of that revision
    topics/{topic}/{topic_id}/_log/deleted-{revision:020d}      create-only: the topic was gone at that revision
    topics/{topic}/{topic_id}/_log/{partition:05d}/{version:020d}   create-only: a manifest; the highest version counts
    topics/{topic}/{topic_id}/partition={p}/{base:020d}-{last:020d}-{version:x}-{nonce}.parquet   offsets base to last
    metadata/snapshot-{number:020d}-{revision:020d}   create-only: the metadata at that revision, which have applied the batches of
                                                      appointments up to `number`; the newest few are kept
    metadata/restored-{number:016x}                   create-only: the metadata were rebuilt from the bucket (markers.py)
    appointments/{number:020d}                        create-only: leaders that a controller appoints; the newest hundred are kept
    proof/{nonce}                                     scratch of the start-up proof that creates are create-only; deleted again
    spark/{write}/{batch:016x}/rows-{created_ms:016x}-{nonce}-{number:x}   create-only: rows that a task of Spark has staged
    spark/{write}/{batch:016x}/chosen                 create-only: which of them are the batch
    spark/{write}/{batch:016x}/chosen-{topic_id}      create-only: the same, for a topic that was made again after `chosen`
    spark/{write}/{batch:016x}/done                   create-only: all of them are in their topics

Keys sort by session, then by sequence number, since both are fixed-width hexadecimal; within a session the segments stand
before `trimmed-…`, so that a listing meets the marker after the segments that it explains. Revisions are those of the metadata
store, counted on where a restore has begun a new one (`revision_base` in the metadata): the newest of a kind is the one with the
highest revision. Invariant: parsing what was built gives the same values back; any other name gives None.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from metadata.errors import InvalidName
from metadata.model import Offset, Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition, check_topic_name

CLUSTER = "cluster.json"
WAL = "wal/"
TOPICS = "topics/"
SNAPSHOTS = "metadata/snapshot-"
PROOFS = "proof/"
RESTORATIONS = "metadata/restored-"
APPOINTMENTS = "appointments/"
STAGED = "spark/"

_N = "([0-9a-f]{16})"
_WAL_KEY = re.compile(rf"wal/{_N}/(?:{_N}|trimmed-{_N}|index-{_N}-{_N}|claim)", re.ASCII)
_TOPIC_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MIRROR = re.compile(r"(?:topic-([0-9]{20})\.json|deleted-([0-9]{20}))", re.ASCII)
_MANIFEST = re.compile(r"([0-9]{5,})/([0-9]{20})", re.ASCII)
_HISTORY = re.compile(r"partition=([0-9]+)/(([0-9]{20})-([0-9]{20})-([0-9a-f]+)-[0-9a-f]{16}\.parquet)", re.ASCII)
_SNAPSHOT = re.compile(r"metadata/snapshot-(?:([0-9]{20})-)?([0-9]{20})", re.ASCII)
_RESTORATION = re.compile(r"metadata/restored-([0-9a-f]{16})", re.ASCII)
_APPOINTMENTS = re.compile(r"appointments/([0-9]{20})", re.ASCII)
_STAGED = re.compile(
    rf"spark/([0-9a-f]{{32}})/{_N}/(?:rows-{_N}-[0-9a-f]{{16}}-[0-9a-f]+|(chosen)(?:-[0-9a-f]{{32}})?|(done))", re.ASCII
)


def session_prefix(session: SessionId) -> str:
    return f"{WAL}{session:016x}/"


def end_of_session(session: SessionId) -> str:
    """Returns a key after all of this session: a listing that starts after it skips the rest of its objects."""
    return f"{WAL}{session:016x}0"  # '0' is the byte after '/'


def claim_key(session: SessionId) -> str:
    return f"{session_prefix(session)}claim"


def segment_key(session: SessionId, seq: SegmentSeq) -> str:
    """Returns the key of segment `seq`; the seal of a session has the key of the first segment that will never come."""
    return f"{session_prefix(session)}{seq:016x}"


def index_prefix(session: SessionId) -> str:
    return f"{session_prefix(session)}index-"


def index_key(session: SessionId, first: SegmentSeq, end: SegmentSeq) -> str:
    return f"{index_prefix(session)}{first:016x}-{end:016x}"


def trimmed_prefix(session: SessionId) -> str:
    return f"{session_prefix(session)}trimmed-"


def trimmed_key(session: SessionId, seq: SegmentSeq) -> str:
    return f"{trimmed_prefix(session)}{seq:016x}"


def proof_key(nonce: str) -> str:
    return f"{PROOFS}{nonce}"


def topic_mirror_key(name: str, topic_id: TopicId, revision: Revision) -> str:
    """`name` has passed check_topic_name, so it holds no '/'."""
    return f"{TOPICS}{name}/{topic_id}/_log/topic-{revision:020d}.json"


def deleted_topic_key(name: str, topic_id: TopicId, revision: Revision) -> str:
    return f"{TOPICS}{name}/{topic_id}/_log/deleted-{revision:020d}"


def end_of_topic(name: str, topic_id: TopicId) -> str:
    """Returns a key after all of this life of the topic: a listing that starts after it skips the rest of its objects."""
    return f"{TOPICS}{name}/{topic_id}0"  # '0' is the byte after '/'


def manifests_prefix(name: str, partition: TopicPartition) -> str:
    """Returns the prefix of the manifests of one partition, and nothing else."""
    return f"{TOPICS}{name}/{partition.topic_id}/_log/{partition.partition:05d}/"


def manifest_key(name: str, partition: TopicPartition, version: int) -> str:
    return f"{manifests_prefix(name, partition)}{version:020d}"


def history_file_name(base_offset: Offset, last_offset: Offset, version: int, nonce: str) -> str:
    """Returns the name of a file that manifest `version` is to name first. `nonce`: 16 hex digits.

    Once that version, or a later one, exists without the file, no writer can name it any more: its planner loses the create.
    """
    return f"{base_offset:020d}-{last_offset:020d}-{version:x}-{nonce}.parquet"


def history_files_prefix(name: str, partition: TopicPartition) -> str:
    """Returns the prefix of the files of one partition, and nothing else."""
    return f"{TOPICS}{name}/{partition.topic_id}/partition={partition.partition}/"


def history_files_parent(name: str, topic_id: TopicId) -> str:
    """Returns the prefix of the files of all partitions of this life of the topic, and nothing else."""
    return f"{TOPICS}{name}/{topic_id}/partition="


def history_file_key(name: str, partition: TopicPartition, file_name: str) -> str:
    return f"{history_files_prefix(name, partition)}{file_name}"


def topic_prefix(name: str, topic_id: TopicId) -> str:
    """Returns the prefix of all objects of this life of the topic."""
    return f"{TOPICS}{name}/{topic_id}/"


class SnapshotPosition(NamedTuple):
    """The order of a snapshot of the metadata among all: by its last batch of appointments, then by its revision.

    Revisions of two copies of the metadata cannot be compared. A copy that has lost never has the later batch.
    """

    # The last batch of appointments that is applied; 0 before the first, and where the name holds none.
    number: int
    revision: Revision


def snapshot_key(position: SnapshotPosition) -> str:
    return f"{SNAPSHOTS}{position.number:020d}-{position.revision:020d}"


def parse_snapshot_key(key: str) -> SnapshotPosition | None:
    """Returns where the snapshot stands, or None for a name that Tidelog did not write.

    Older names, `metadata/snapshot-{revision:020d}`, hold no number: theirs is 0.
    """
    match = _SNAPSHOT.fullmatch(key)
    return SnapshotPosition(int(match[1] or 0), Revision(int(match[2]))) if match else None


def restoration_key(number: int) -> str:
    return f"{RESTORATIONS}{number:016x}"


def parse_restoration_key(key: str) -> int | None:
    match = _RESTORATION.fullmatch(key)
    return int(match[1], 16) if match else None


def appointments_key(number: int) -> str:
    return f"{APPOINTMENTS}{number:020d}"


def parse_appointments_key(key: str) -> int | None:
    match = _APPOINTMENTS.fullmatch(key)
    return int(match[1]) if match else None


def staged_prefix(write: str, batch: int | None = None) -> str:
    """Returns the prefix of all objects of a Spark write, or of one batch of it. `write`: 32 hex digits."""
    return f"{STAGED}{write}/" if batch is None else f"{STAGED}{write}/{batch:016x}/"


def staged_rows_key(write: str, batch: int, created_ms: int, nonce: str, number: int) -> str:
    """`nonce`: 16 hex digits, of one attempt of a task; `number`: of its files."""
    return f"{staged_prefix(write, batch)}rows-{created_ms:016x}-{nonce}-{number:x}"


def chosen_key(write: str, batch: int, topic_id: str = "") -> str:
    """`topic_id`: of the topic for which a batch is chosen again, since that of its first choice is gone; 32 hex digits."""
    return f"{staged_prefix(write, batch)}chosen" + (f"-{topic_id}" if topic_id else "")


def done_key(write: str, batch: int) -> str:
    return f"{staged_prefix(write, batch)}done"


class StagedKey(NamedTuple):
    """Holds a parsed name below `spark/`: rows since when, or what became of a batch."""

    write: str
    batch: int
    # When rows were staged; None for other objects.
    created_ms: int | None = None
    chosen: bool = False
    done: bool = False


def parse_staged_key(key: str) -> StagedKey | None:
    """Returns the parts of a key below `spark/`, or None for a name that Tidelog did not write."""
    match = _STAGED.fullmatch(key)
    if match is None:
        return None
    write, batch, created_ms, chosen, done = match.groups()
    return StagedKey(write, int(batch, 16), int(created_ms, 16) if created_ms else None, bool(chosen), bool(done))


class ManifestKey(NamedTuple):
    """Holds the parsed name of a manifest."""

    partition: Partition
    version: int


class HistoryKey(NamedTuple):
    """Holds the parsed name of a file of history."""

    partition: Partition
    file_name: str
    base_offset: Offset
    last_offset: Offset
    # As in `history_file_name`.
    version: int


class TopicIncarnation(NamedTuple):
    """Names one life of a topic: a topic that is deleted and created again has another id."""

    name: str
    topic_id: TopicId


class TopicKey(NamedTuple):
    """Holds a parsed name below `topics/`: its topic, and a copy of the registration, a manifest, or a file of history."""

    name: str
    topic_id: TopicId
    registered: Revision | None = None
    deleted: Revision | None = None
    manifest: ManifestKey | None = None
    history: HistoryKey | None = None

    @property
    def incarnation(self) -> TopicIncarnation:
        return TopicIncarnation(self.name, self.topic_id)


def parse_topic_key(key: str) -> TopicKey | None:
    """Returns the parts of a key below `topics/`, or None for a name that Tidelog did not write."""
    parts = key.removeprefix(TOPICS).split("/", 2)
    if not key.startswith(TOPICS) or len(parts) != 3 or not _TOPIC_ID.fullmatch(parts[1]):
        return None
    try:
        name, topic_id = check_topic_name(parts[0]), TopicId(parts[1])
    except InvalidName:
        return None
    folder, _, last = parts[2].partition("/")
    if folder != "_log":
        return TopicKey(name, topic_id, history=_parse_history(parts[2]))
    if found := _MANIFEST.fullmatch(last):
        return TopicKey(name, topic_id, manifest=ManifestKey(Partition(int(found[1])), int(found[2])))
    match = _MIRROR.fullmatch(last)
    if match is None:
        return TopicKey(name, topic_id)
    registered, deleted = (Revision(int(text)) if text else None for text in match.groups())
    return TopicKey(name, topic_id, registered, deleted)


def _parse_history(rest: str) -> HistoryKey | None:
    match = _HISTORY.fullmatch(rest)
    if match is None:
        return None
    return HistoryKey(Partition(int(match[1])), match[2], Offset(int(match[3])), Offset(int(match[4])), int(match[5], 16))


class WalKey(NamedTuple):
    """Holds a parsed name below `wal/`: a place in a session, a trim marker, or the range of an index; all None for the claim."""

    session: SessionId
    seq: SegmentSeq | None = None
    trimmed_to: SegmentSeq | None = None
    # First segment, and the one after the last.
    indexed: tuple[SegmentSeq, SegmentSeq] | None = None


def parse_wal_key(key: str) -> WalKey | None:
    """Returns the parts of a key below `wal/`, or None for a name that Tidelog did not write."""
    match = _WAL_KEY.fullmatch(key)
    if match is None:
        return None
    number, seq, trimmed_to, first, end = match.groups()
    session = SessionId(int(number, 16))
    if seq is not None:
        return WalKey(session, seq=SegmentSeq(int(seq, 16)))
    if trimmed_to is not None:
        return WalKey(session, trimmed_to=SegmentSeq(int(trimmed_to, 16)))
    if first is not None:
        return WalKey(session, indexed=(SegmentSeq(int(first, 16)), SegmentSeq(int(end, 16))))
    return WalKey(session)
