"""What the manifests of one partition may let go, and when it was gone: retention, key compaction, DeleteRecords. Pure.

    version n ──▶ version n + 1
       ├ the log start rose          to an offset that a client asked for, or past whole files that retention lets go
       ├ records left the files      superseded below `compacted_to` and old enough, or tombstones whose time is over
       └ records came                all of [compacted_to of n, compacted_to of n + 1) that lie at or above the log start

Everything else is a violation. Worked out from what producers sent, from when versions and segments landed on the bucket, and from
the topic's settings; nothing of the code under test but the stored form is used. The writer of a version goes by a clock of its
own: it is granted what the version says of the time, but never more than CLOCK_SKEW_MS ahead of the world's.

Where a record has no timestamp, the time counts at which its file says that all its records had been appended; for the lag of key
compaction that time counts, too, where the record is dated later. A file must not say less than when the records landed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from metadata.topics.settings import TopicSettings
from segments.history.manifest import UNKNOWN_MS, HistoryFile, Manifest
from tests.simulation.history_checker import Invariant, RecordId, Violation

# By which the clock of a compactor is ahead of the world's, at most.
CLOCK_SKEW_MS: Final = 2000


class SentRecord(NamedTuple):
    """What a producer gave a record, beside the id in it."""

    key: bytes | None
    is_tombstone: bool
    timestamp_ms: int


class Version(NamedTuple):
    """A manifest that counted, and when it came to."""

    landed_ms: int
    manifest: Manifest


class LandedRun(NamedTuple):
    """Committed batches in a segment, and when the segment came to lie on the bucket."""

    base_offset: int
    last_offset: int
    size_bytes: int
    landed_ms: int


class Asked(NamedTuple):
    """One DeleteRecords, as it reached the leader."""

    partition: str
    before_offset: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class PartitionPast:
    """All that there was of a partition."""

    partition: str
    settings: TopicSettings
    # What segments ever held.
    log: Mapping[int, RecordId]
    sent: Mapping[RecordId, SentRecord]
    runs: Sequence[LandedRun]
    versions: Sequence[Version]
    offsets_in: Callable[[HistoryFile], Collection[int]]
    asked: Sequence[Asked] = ()


@dataclass(slots=True)
class Gone:
    """What of a partition is read no more, rightly or not."""

    # In the end.
    log_start: int = 0
    # When each offset at or above the log start left the files.
    removed_ms: dict[int, int] = field(default_factory=dict)
    # (when it landed, log start), rising.
    log_starts: list[tuple[int, int]] = field(default_factory=list)

    def is_gone(self, offset: int) -> bool:
        return offset < self.log_start or offset in self.removed_ms

    def may_be_stepped_over(self, start: int, end: int, *, at_ms: int) -> bool:
        """Whether none of the offsets [start, end) was to be read at this time."""
        return start <= end and all(self.removed_ms.get(offset, at_ms + 1) <= at_ms for offset in range(start, end))

    def log_start_by(self, at_ms: int) -> int:
        """The highest that any client could know of then."""
        return max((start for landed_ms, start in self.log_starts if landed_ms <= at_ms), default=0)


def judge_versions(past: PartitionPast) -> tuple[Gone, list[Violation]]:
    walk = _Walk(past)
    found = [violation for before, version in _pairs(past.versions) for violation in walk.step(before, version)]
    return walk.gone, found


def _pairs(versions: Sequence[Version]) -> Iterator[tuple[Manifest | None, Version]]:
    before = None
    for version in versions:
        yield before, version
        before = version.manifest


class _Seen(NamedTuple):
    """Up to where a pass of key compaction has seen tombstones, and when."""

    end_offset: int
    at_ms: int


class _Walk:
    """From one version to the next."""

    def __init__(self, past: PartitionPast) -> None:
        self.gone = Gone()
        self._past = past
        self._held: set[int] = set()
        self._landed = {offset: run.landed_ms for run in past.runs for offset in range(run.base_offset, run.last_offset + 1)}
        self._appended: dict[int, int] = {}
        """By offset, the least `appended_by_ms` of all files that have held it.

        A file that replaces others says the latest of their times, and each of them is true of its records.
        """
        self._seen: list[_Seen] = []
        self._compacted: list[tuple[int, int]] = []
        """(compacted_to, when it landed)."""
        self._latest_ms = 0
        """That a compactor went by so far: what was old enough once, is for those whose clocks are behind, too."""
        self._by_key: dict[bytes, list[int]] = defaultdict(list)
        if past.settings.compacts:
            for offset in sorted(past.log):
                if (key := self._sent(offset).key) is not None:
                    self._by_key[key].append(offset)

    def step(self, before: Manifest | None, version: Version) -> Iterator[Violation]:
        after = version.manifest
        started, compacted_to = (before.log_start_offset, before.compacted_to) if before is not None else (0, 0)
        named = before.files if before is not None else ()
        if after.cause != "delete-records":  # the clocks of brokers jump
            self._latest_ms = max(self._latest_ms, _granted_ms(version))
        if after.log_start_offset < started or after.compacted_to < compacted_to:
            reported = f"log start {after.log_start_offset}, compacted to {after.compacted_to}"
            yield self._violation(Invariant.KEPT, version, f"goes back to {reported}, from {started} and {compacted_to}")
        if after.log_start_offset > started:
            yield from self._log_start_rose(named, compacted_to, version)
        old, new = {file.name for file in named}, {file.name for file in after.files}
        left = {offset for file in named if file.name not in new for offset in self._past.offsets_in(file)}
        came = {offset for file in after.files if file.name not in old for offset in self._past.offsets_in(file)}
        yield from self._came(came - left, compacted_to, version)
        yield from self._left(left - came, version)
        yield from self._appended_by([file for file in after.files if file.name not in old], version)
        self._held = (self._held - left) | came
        if after.compacted_to > compacted_to:
            self._compacted.append((after.compacted_to, version.landed_ms))
        yield from self._keys_seen(version)

    # ── the log start ──

    def _log_start_rose(self, named: Sequence[HistoryFile], compacted_to: int, version: Version) -> Iterator[Violation]:
        past, start = self._past, version.manifest.log_start_offset
        self.gone.log_start = start
        self.gone.log_starts.append((version.landed_ms, start))
        committed_to = max((run.last_offset + 1 for run in past.runs if run.landed_ms <= version.landed_ms), default=0)
        if start > committed_to:
            yield self._violation(Invariant.KEPT, version, f"raises the log start to {start}; committed up to {committed_to}")
        if version.manifest.cause == "delete-records":
            if not any(asked.before_offset == start and asked.at_ms <= version.landed_ms for asked in past.asked):
                yield self._violation(Invariant.KEPT, version, f"raises the log start to {start} without a request")
        elif not past.settings.deletes or version.manifest.cause != "retention":
            yield self._violation(Invariant.KEPT, version, f"raises the log start to {start} where no record may expire")
        elif start not in {compacted_to, *(file.base_offset for file in named)}:
            yield self._violation(Invariant.KEPT, version, f"raises the log start to {start}, which is the border of no file")
        else:
            yield from self._expired([file for file in named if file.last_offset < start], named, compacted_to, version)

    def _expired(
        self, dropped: Sequence[HistoryFile], named: Sequence[HistoryFile], compacted_to: int, version: Version
    ) -> Iterator[Violation]:
        """The first of them may go by retention.bytes, the others by retention.ms."""
        settings = self._past.settings
        by_size = 0
        if settings.retention_bytes >= 0:
            stored = sum(file.size_bytes for file in named) + self._pending_bytes(compacted_to, version.landed_ms)
            totals = accumulate(file.size_bytes for file in dropped)
            by_size = sum(1 for total in totals if stored - total >= settings.retention_bytes)
        before_ms = _granted_ms(version) - settings.retention_ms if settings.retention_ms >= 0 else 0
        for file in dropped[by_size:]:
            for offset in self._past.offsets_in(file):
                if (dated_ms := self._dated_ms(offset)) >= before_ms:
                    may = f"what is older than {before_ms} may, and {by_size} files by size"
                    yield self._violation(Invariant.KEPT, version, f"lets offset {offset} expire, dated {dated_ms}; {may}")
                    break

    def _pending_bytes(self, compacted_to: int, at_ms: int) -> int:
        return sum(run.size_bytes for run in self._past.runs if run.last_offset >= compacted_to and run.landed_ms <= at_ms)

    # ── records ──

    def _came(self, came: set[int], compacted_to: int, version: Version) -> Iterator[Violation]:
        after = version.manifest
        wanted = set(range(max(compacted_to, after.log_start_offset), after.compacted_to))
        if missing := wanted - came:
            yield self._violation(Invariant.EQUIVALENT, version, f"leaves out {_shown(missing)}, which segments hold")
        if alien := {offset for offset in came if not compacted_to <= offset < after.compacted_to}:
            yield self._violation(Invariant.EQUIVALENT, version, f"brings back {_shown(alien)}")

    def _left(self, left: set[int], version: Version) -> Iterator[Violation]:
        kept_from = version.manifest.log_start_offset
        for offset in sorted(left):
            if offset >= kept_from:
                self.gone.removed_ms[offset] = version.landed_ms
                if why := self._why_not(offset, version):
                    yield self._violation(Invariant.KEPT, version, f"removes offset {offset} ({self._past.log.get(offset)}): {why}")

    def _why_not(self, offset: int, version: Version) -> str:
        """Why key compaction must not remove a record; empty where it may."""
        settings, sent = self._past.settings, self._sent(offset)
        if not settings.compacts or sent.key is None:
            return "it has no key" if settings.compacts else "keys are not compacted"
        if self._is_superseded(offset, sent.key, version.manifest.compacted_to):
            old_enough_ms = self._latest_ms - settings.min_compaction_lag_ms
            dated_ms, appended_ms = self._dated_ms(offset), self._appended.get(offset, UNKNOWN_MS)
            if appended_ms != UNKNOWN_MS:
                dated_ms = min(dated_ms, appended_ms)
            is_young = settings.min_compaction_lag_ms > 0 and dated_ms > old_enough_ms
            return f"it is dated {dated_ms}, younger than {old_enough_ms}" if is_young else ""
        if not sent.is_tombstone:
            return f"it is the last of key {sent.key.decode()} below {version.manifest.compacted_to}"
        seen_ms = next((seen.at_ms for seen in self._seen if seen.end_offset > offset), None)
        if seen_ms is None:
            return "it is a tombstone that no pass has seen"
        goes_ms = seen_ms + settings.delete_retention_ms
        return f"it is a tombstone that stays until {goes_ms}, and now is {self._latest_ms}" if goes_ms > self._latest_ms else ""

    def _dated_ms(self, offset: int) -> int:
        sent_ms = self._sent(offset).timestamp_ms
        return sent_ms if sent_ms >= 0 else self._appended.get(offset, UNKNOWN_MS)

    def _appended_by(self, files: Sequence[HistoryFile], version: Version) -> Iterator[Violation]:
        """Notes the time by which the files say that their records had been appended. No clock may say so before they landed."""
        for file in files:
            offsets = self._past.offsets_in(file)
            if file.appended_by_ms != UNKNOWN_MS:
                self._appended |= {
                    offset: min(self._appended.get(offset, file.appended_by_ms), file.appended_by_ms) for offset in offsets
                }
            landed_ms = max((self._landed[offset] for offset in offsets if offset in self._landed), default=UNKNOWN_MS)
            if UNKNOWN_MS != file.appended_by_ms < landed_ms - CLOCK_SKEW_MS:
                what = f"says that {file.name} was appended by {file.appended_by_ms}; a record of it landed at {landed_ms}"
                yield self._violation(Invariant.KEPT, version, what)

    def _is_superseded(self, offset: int, key: bytes, compacted_to: int) -> bool:
        offsets = self._by_key[key]
        following = bisect_right(offsets, offset)
        return following < len(offsets) and offsets[following] < compacted_to

    def _keys_seen(self, version: Version) -> Iterator[Violation]:
        passes = version.manifest.key_passes
        if not passes or (self._seen and passes[-1].end_offset <= self._seen[-1].end_offset):
            return
        end_offset = passes[-1].end_offset
        landed_ms = next((landed_ms for to, landed_ms in self._compacted if to >= end_offset), version.landed_ms)
        self._seen.append(_Seen(end_offset, max(passes[-1].at_ms, landed_ms - CLOCK_SKEW_MS)))
        keys: dict[bytes, int] = {}
        for offset in sorted(held for held in self._held if held < end_offset):
            key = self._sent(offset).key
            if key is not None and (first := keys.setdefault(key, offset)) != offset:
                what = f"says that keys are compacted to {end_offset}, and keeps key {key.decode()} at offsets {first} and {offset}"
                yield self._violation(Invariant.EQUIVALENT, version, what)

    def _sent(self, offset: int) -> SentRecord:
        """Other checkers find records that no producer sent: here they are the newest of no key."""
        record = self._past.log.get(offset)
        return self._past.sent.get(record, _NOBODYS) if record is not None else _NOBODYS

    def _violation(self, invariant: Invariant, version: Version, what: str) -> Violation:
        manifest = version.manifest
        return Violation(invariant, f"version {manifest.version} of {self._past.partition} ({manifest.cause}) {what}")


_NOBODYS: Final = SentRecord(None, False, 1 << 62)


def _granted_ms(version: Version) -> int:
    return min(version.manifest.written_at_ms, version.landed_ms + CLOCK_SKEW_MS)


def _shown(offsets: set[int]) -> str:
    return f"{len(offsets)} offsets from {min(offsets)} on"
