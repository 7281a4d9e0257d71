"""A bucket that forgets nothing: for the judge alone, it keeps what was ever created, and looks at each delete as it happens.

    create ─▶ the bucket, and `ever`
    delete ─▶ is it named still, or called retired too lately? ─▶ a violation of "reachable"; deleted all the same, so that a run
              shows what comes of it

What may go is worked out here from the bucket as it stands at that instant, apart from the code under test on purpose: a segment
below its session's trim point whose runs are all in Parquet, or whose topics are gone; a file that no manifest counts on, and a
manifest that is not the newest; one that none names yet and whose topic is gone from the metadata, which its writer takes back; an
index of what is trimmed, a scratch object. Claims, effective seals and trim points stay. What readers may have planned with stays
for the grace, by a clock that is at most CLOCK_SKEW_MS ahead: from when the manifest says that it was retired, or from when a
marker that lies behind the segment says that it was made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import msgspec

from compaction.gc.wal_trim import TrimRecord
from metadata.model import SegmentSeq, SessionId, TopicId, TopicPartition
from segments.bucket.layout import TopicKey, WalKey, parse_topic_key, parse_wal_key
from segments.history.manifest import Manifest, decode_manifest
from segments.object_store.interface import Buffer
from segments.object_store.memory import MemoryObjectStore
from segments.wal.segment_file import SEAL_BYTES, SEAL_MAGIC, parse_footer
from tests.simulation.policy_model import CLOCK_SKEW_MS, Version


class ArchiveStore(MemoryObjectStore):
    def __init__(self, now_ms: Callable[[], int], is_registered: Callable[[str, TopicId], bool]) -> None:
        """`is_registered`: whether the metadata have this life of the topic now."""
        super().__init__()
        self._is_registered = is_registered
        self.grace_ms = 0.0
        """Of the compactors."""
        self._now_ms = now_ms
        self.landed_ms: dict[str, int] = {}
        """When each object came to lie here first."""
        self.versions: dict[TopicPartition, list[Version]] = defaultdict(list)
        """The manifests of each partition that counted, from the first on."""
        self.ever: dict[str, bytes] = {}
        """Every object that was ever created, as it was first."""
        self.wrongly_deleted: list[str] = []
        self.deletes = 0
        self._manifests: dict[TopicPartition, Manifest] = {}
        """The newest; it is never deleted while its topic is there."""
        self._gone: set[TopicId] = set()
        self._trimmed_to: dict[SessionId, SegmentSeq] = defaultdict(lambda: SegmentSeq(0))
        self._markers: dict[SessionId, list[tuple[SegmentSeq, int]]] = defaultdict(list)
        """Of each session, (trimmed to, when it was made)."""

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        await super().create(key, body, crc32c=crc32c)
        self.ever.setdefault(key, self._objects[key])
        self.landed_ms.setdefault(key, self._now_ms())
        wal, topic = parse_wal_key(key), parse_topic_key(key)
        if wal is not None and wal.trimmed_to is not None:
            self._trimmed_to[wal.session] = max(self._trimmed_to[wal.session], wal.trimmed_to)
            made = msgspec.json.decode(self._objects[key], type=TrimRecord)
            made_ms = min(made.trimmed_at_ms, self._now_ms() + CLOCK_SKEW_MS)  # of a clock that was ahead, it counts as made now
            self._markers[wal.session].append((wal.trimmed_to, made_ms))
        if topic is not None and topic.deleted is not None:
            self._gone.add(topic.topic_id)
        if topic is not None and topic.manifest is not None:
            manifest = decode_manifest(self._objects[key], key=key)
            newest = self._manifests.get(manifest.topic_partition)
            if newest is None or manifest.version > newest.version:
                self._manifests[manifest.topic_partition] = manifest
                self.versions[manifest.topic_partition].append(Version(self._now_ms(), manifest))

    async def delete(self, key: str) -> None:
        if key in self._objects:
            self.deletes += 1
            self.wrongly_deleted += [f"{key} was deleted: {why}" for why in self._why_not(key)]
        await super().delete(key)

    def trimmed_to(self, session: SessionId) -> SegmentSeq:
        return self._trimmed_to[session]

    def archive(self) -> MemoryObjectStore:
        """A bucket with every segment and seal that there ever was, as if nothing had been compacted."""
        archive = MemoryObjectStore()
        archive._objects = {
            key: body for key, body in self.ever.items() if (parsed := parse_wal_key(key)) and parsed.seq is not None
        }
        archive._keys = sorted(archive._objects)
        return archive

    def _why_not(self, key: str) -> Iterator[str]:
        wal, topic = parse_wal_key(key), parse_topic_key(key)
        if wal is not None:
            yield from self._why_not_of_session(key, wal)
        elif topic is not None and topic.topic_id not in self._gone:
            yield from self._why_not_of_topic(topic)

    def _why_not_of_session(self, key: str, wal: WalKey) -> Iterator[str]:
        trimmed_to = self._trimmed_to[wal.session]
        if wal.trimmed_to is not None:
            if wal.trimmed_to == trimmed_to:
                yield "it is the trim point of its session"
        elif wal.seq is not None:
            body = self._objects[key]
            if wal.seq >= trimmed_to:
                yield f"the session is trimmed to {trimmed_to}"
            elif not any(wal.seq < to and self._is_over(made_ms) for to, made_ms in self._markers[wal.session]):
                yield "the grace of the marker behind it is not over"
            if len(body) == SEAL_BYTES and body.startswith(SEAL_MAGIC):
                return  # below the trim point it fences nothing: it was created late, where a segment had been
            for run in parse_footer(body, object_size=len(body), session=wal.session, seq=wal.seq, key=key).runs:
                manifest = self._manifests.get(run.partition)
                if (manifest is None or manifest.compacted_to <= run.last_offset) and run.partition.topic_id not in self._gone:
                    yield f"{run.partition} is not compacted to {run.last_offset}"
        elif wal.indexed is not None:
            if wal.indexed[1] > trimmed_to:
                yield f"it tells of segments up to {wal.indexed[1]}, and the session is trimmed to {trimmed_to}"
        else:
            yield "it is a claim"

    def _why_not_of_topic(self, topic: TopicKey) -> Iterator[str]:
        if topic.manifest is not None:
            newest = self._manifests.get(TopicPartition(topic.topic_id, topic.manifest.partition))
            if newest is not None and newest.version == topic.manifest.version:
                yield "it is the newest manifest"
            elif newest is not None:
                at_ms = next((one.at_ms for one in newest.superseded if one.version == topic.manifest.version), None)
                if at_ms is not None and not self._is_over(at_ms):
                    yield f"it was superseded at {at_ms}, and its grace is not over"
        elif topic.history is not None:
            newest = self._manifests.get(TopicPartition(topic.topic_id, topic.history.partition))
            if newest is not None and any(file.name == topic.history.file_name for file in newest.files):
                yield f"version {newest.version} of the manifest names it"
            if newest is not None:
                at_ms = next((one.at_ms for one in newest.retired if one.name == topic.history.file_name), None)
                if at_ms is not None and not self._is_over(at_ms):
                    yield f"it was retired at {at_ms}, and its grace is not over"
            if (newest is None or newest.version < topic.history.version) and self._is_registered(topic.name, topic.topic_id):
                yield f"its writer may still name it in version {topic.history.version}"

    def _is_over(self, begun_ms: int) -> bool:
        """Whether a grace that began then may be over for anybody."""
        return begun_ms + self.grace_ms <= self._now_ms() + CLOCK_SKEW_MS
