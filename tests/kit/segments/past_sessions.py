"""A bucket that past sessions have written to, and what is found there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from metadata.errors import Corrupt
from metadata.model import SegmentSeq, SessionId, TopicPartition
from segments.bucket.layout import claim_key, segment_key
from segments.recovery.footer_cache import FooterCache
from segments.recovery.recover import recover
from segments.recovery.recovered_partition import RecoveredPartition
from segments.recovery.session_runs import PrefetchedPartition
from segments.settings import SegmentSettings
from segments.wal.session import Session
from tests.kit.segments.batches import EPOCH, SUCCESSOR, TIMESTAMP_MS, Led, seal_of, segment_of, stamped_run
from tests.kit.segments.scripted_store import ScriptedStore
from tests.simulation.virtual_loop import run

BY = Session(SessionId(100), SUCCESSOR)
SETTINGS = SegmentSettings()
Batches = Mapping[TopicPartition, Sequence[bytes]]


class Bucket(ScriptedStore):
    """A bucket that past sessions have written to."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[TopicPartition, int] = {}
        self.lost: set[int] = set()
        """Sessions whose claims are gone. All others that led a partition have theirs."""
        self._next_seq: dict[int, int] = defaultdict(int)

    def segment(self, session: int, batches: Batches, *, epoch: int = EPOCH, written_at_ms: int = TIMESTAMP_MS) -> str:
        """The session's next segment, with the next offsets of each partition. Its key."""
        runs = []
        for partition, of_partition in batches.items():
            runs.append((partition, stamped_run(self.ends.get(partition, 0), *of_partition, leader_epoch=epoch)))
            self.ends[partition] = runs[-1][1][-1].last_offset + 1
        seq = self._next_seq[session]
        self._next_seq[session] += 1
        segment = segment_of(session, seq, runs, leader_epoch=epoch, written_at_ms=written_at_ms)
        key = segment_key(SessionId(session), SegmentSeq(seq))
        self.plant(key, b"".join(segment.body))
        return key

    def gap(self, session: int) -> None:
        """The place of a segment that never landed."""
        self._next_seq[session] += 1

    def seal(self, session: int) -> None:
        """As a successor does: all places before it were committed."""
        seq = self._next_seq[session]
        self.plant(segment_key(SessionId(session), SegmentSeq(seq)), seal_of(session, seq))

    def damage_footer(self, key: str) -> None:
        body = bytearray(self.content(key))
        body[-30] ^= 1
        self.plant(key, bytes(body))

    def recovered(
        self, spans: Mapping[TopicPartition, Sequence[Led]], *, settings: SegmentSettings = SETTINGS
    ) -> dict[TopicPartition, RecoveredPartition | Corrupt]:
        return run(self.recovering(spans, settings=settings))

    async def recovering(
        self,
        spans: Mapping[TopicPartition, Sequence[Led]],
        *,
        settings: SegmentSettings = SETTINGS,
        cache: FooterCache | None = None,
        begun: Mapping[TopicPartition, PrefetchedPartition] | None = None,
    ) -> dict[TopicPartition, RecoveredPartition | Corrupt]:
        for session in {span.session for held in spans.values() for span in held} - self.lost:
            self.plant(claim_key(session), b"{}")
        return await recover(self, spans, by=BY, settings=settings, now_ms=lambda: TIMESTAMP_MS, cache=cache, begun=begun)

    def found(self, partition: TopicPartition, *spans: Led) -> RecoveredPartition:
        found = self.recovered({partition: spans})[partition]
        if isinstance(found, Corrupt):
            raise found
        return found
