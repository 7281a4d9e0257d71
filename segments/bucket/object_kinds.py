"""Names the kind of objects that a key or a prefix of the bucket stands for. Pure.

    segments       what producers wrote, as it came, and the seals of sessions    wal/
    wal_notes      claims, indexes of footers, trim markers                       wal/
    parquet        compacted records                                              topics/
    manifests      which Parquet files count                                      topics/
    topic_notes    that a topic was created, changed or deleted                   topics/
    metadata       copies of the metadata, and who was appointed leader           metadata/, appointments/
    staged         rows of Spark that are not in their topics yet                 spark/
    other          all else

Every request to the bucket asks, so nothing is parsed. Invariant: there are no other kinds.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from segments.bucket.layout import APPOINTMENTS, SNAPSHOTS, STAGED, TOPICS, WAL

ObjectKind = Literal["segments", "wal_notes", "parquet", "manifests", "topic_notes", "metadata", "staged", "other"]
KINDS: Final[tuple[ObjectKind, ...]] = get_args(ObjectKind)

_METADATA: Final = (SNAPSHOTS.partition("/")[0] + "/", APPOINTMENTS)
# Behind `wal/` and the sixteen digits of a session.
_NOTES_AT: Final = len(WAL) + 17
_WAL_NOTES: Final = ("claim", "index-", "trimmed-")


def kind_of(key: str) -> ObjectKind:
    """Returns the kind of a key; of a prefix, the kind that its requests are mostly about."""
    if key.startswith(WAL):
        return "wal_notes" if key.startswith(_WAL_NOTES, _NOTES_AT) else "segments"
    if key.startswith(TOPICS):
        if "/partition=" in key:
            return "parquet"
        return "topic_notes" if "/_log/topic-" in key or "/_log/deleted-" in key else "manifests"
    if key.startswith(_METADATA):
        return "metadata"
    return "staged" if key.startswith(STAGED) else "other"
