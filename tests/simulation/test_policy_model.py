"""What retention, key compaction and DeleteRecords may take passes; each way to take more is found by name."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from metadata.model import Offset
from metadata.topics.settings import TopicSettings
from segments.history.manifest import UNKNOWN_MS, HistoryFile, KeyPass, Manifest, RowGroup, no_manifest
from segments.history.manifest_edits import with_compacted, with_key_passes, with_log_start, with_replaced
from tests.kit.segments.batches import ORDERS
from tests.simulation.history_checker import Invariant, RecordId
from tests.simulation.policy_model import CLOCK_SKEW_MS, Asked, Gone, LandedRun, PartitionPast, SentRecord, Version, judge_versions

P = str(ORDERS)
# Of each file.
BYTES = 1000
EXPIRING = TopicSettings(retention_ms=1000)
COMPACTED = TopicSettings(cleanup_policy="compact", delete_retention_ms=1000)


def record(offset: int) -> RecordId:
    return RecordId("p", offset, 1)


def file(*offsets: int, name: str = "") -> HistoryFile:
    first, last = Offset(offsets[0]), Offset(offsets[-1])
    group = RowGroup(first, last, len(offsets), 4, 900, 0, 0)
    name = name or "-".join(map(str, offsets))
    return HistoryFile(name, first, last, len(offsets), BYTES, 500, 0, 0, "0" * 16, 900, 0, 0, (group,))


class Chain:
    """Manifests one after the other; each lands as it is written."""

    def __init__(self, settings: TopicSettings, *sent: SentRecord) -> None:
        self.settings = settings
        self.sent = {record(offset): one for offset, one in enumerate(sent)}
        self.versions: list[Version] = []
        self.asked: list[Asked] = []
        self.runs = [LandedRun(offset, offset, 10, -10_000) for offset in range(len(sent))]
        self.appended_by_ms = UNKNOWN_MS
        """Of the files that come."""
        self._offsets: dict[str, Sequence[int]] = {}

    @property
    def newest(self) -> Manifest:
        return self.versions[-1].manifest if self.versions else no_manifest(ORDERS)

    def file(self, *offsets: int, name: str = "") -> HistoryFile:
        made = msgspec.structs.replace(file(*offsets, name=name), appended_by_ms=self.appended_by_ms)
        self._offsets[made.name] = offsets
        return made

    def then(self, manifest: Manifest, landed_ms: int | None = None) -> None:
        self.versions.append(Version(manifest.written_at_ms if landed_ms is None else landed_ms, manifest))

    def compact(self, *groups: Sequence[int], to: int, at_ms: int = 0) -> None:
        files = [self.file(*offsets) for offsets in groups]
        self.then(
            with_compacted(self.newest, files=files, compacted_to=Offset(to), epochs=(), producers=(), writer="w", now_ms=at_ms)
        )

    def replace(self, *old: str, by: Sequence[int], at_ms: int = 0, end: int | None = None, seen_ms: int = 0) -> None:
        """With `end`, a pass of key compaction is over with it."""
        new = [self.file(*by, name=f"{'-'.join(map(str, by))} at {at_ms}")] if by else []
        passes = None if end is None else (KeyPass(Offset(end), seen_ms, 1),)
        self.then(with_replaced(self.newest, old=old, new=new, cause="key-compaction", writer="w", now_ms=at_ms, passes=passes))

    def expire(self, to: int, at_ms: int, landed_ms: int | None = None) -> None:
        self.then(with_log_start(self.newest, Offset(to), cause="retention", writer="w", now_ms=at_ms), landed_ms)

    def judged(self) -> tuple[Gone, list[tuple[Invariant, str]]]:
        log = {offset: record(offset) for offset in range(len(self.sent))}
        past = PartitionPast(
            P, self.settings, log, self.sent, self.runs, self.versions, lambda file: self._offsets[file.name], self.asked
        )
        gone, found = judge_versions(past)
        return gone, [(violation.invariant, violation.evidence) for violation in found]

    def evidence(self) -> str:
        """Of the one violation there is."""
        ((_, evidence),) = self.judged()[1]
        return evidence


def plain(*dated_ms: int) -> list[SentRecord]:
    return [SentRecord(None, False, at_ms) for at_ms in dated_ms]


def keyed(*keys: str) -> list[SentRecord]:
    """Dated 0; a key in capitals is a tombstone."""
    return [SentRecord(key.lower().encode(), key.isupper(), 0) for key in keys]


# ── retention ──


def test_files_go_when_all_their_records_are_old_enough() -> None:
    chain = Chain(EXPIRING, *plain(0, 500, 900, 2000))
    chain.compact([0, 1], [2, 3], to=4)
    chain.expire(2, at_ms=1501)
    gone, found = chain.judged()
    assert (found, gone.log_start, gone.log_starts) == ([], 2, [(1501, 2)])
    assert [gone.is_gone(offset) for offset in range(4)] == [True, True, False, False]


@pytest.mark.parametrize(("at_ms", "landed_ms"), [(1500, 1500), (9000, 1500 - CLOCK_SKEW_MS)])
def test_a_record_that_is_young_holds_its_file_whatever_the_time_that_a_version_gives_itself(at_ms: int, landed_ms: int) -> None:
    chain = Chain(EXPIRING, *plain(0, 500, 900))
    chain.compact([0, 1], [2], to=3)
    chain.expire(2, at_ms, landed_ms)
    assert "(retention) lets offset 1 expire, dated 500; what is older than 500 may" in chain.evidence()


def test_files_go_by_size_while_as_much_as_was_asked_for_stays_with_what_waits_in_segments() -> None:
    chain = Chain(TopicSettings(retention_ms=-1, retention_bytes=BYTES + 10), *plain(0, 0, 0, 0))
    chain.compact([0], [1], [2], to=3)
    chain.expire(2, at_ms=1)
    assert chain.judged()[1] == []
    chain.runs[3] = LandedRun(3, 3, 10, landed_ms=2)
    assert "lets offset 1 expire, dated 0; what is older than 0 may, and 1 files by size" in chain.evidence()


def test_a_record_without_a_timestamp_goes_when_it_is_old_enough_since_its_append() -> None:
    for at_ms, found in ((1500, ["lets offset 0 expire, dated 500"]), (1501, [])):
        chain = Chain(EXPIRING, *plain(-1, 0))
        chain.appended_by_ms = 500
        chain.compact([0, 1], to=2, at_ms=500)
        chain.expire(2, at_ms)
        assert [evidence.partition("(retention) ")[2].partition(";")[0] for _, evidence in chain.judged()[1]] == found


def test_a_file_says_no_earlier_time_of_append_than_its_records_landed() -> None:
    chain = Chain(EXPIRING, *plain(-1, -1))
    chain.runs[1] = LandedRun(1, 1, 10, landed_ms=5000)
    chain.appended_by_ms = 5000 - CLOCK_SKEW_MS
    chain.compact([0, 1], to=2, at_ms=5000)
    assert chain.judged()[1] == []
    chain.runs[1] = LandedRun(1, 1, 10, landed_ms=5001)
    assert "says that 0-1 was appended by 3000; a record of it landed at 5001" in chain.evidence()


@pytest.mark.parametrize(
    ("settings", "to", "why"),
    [
        (TopicSettings(cleanup_policy="compact"), 2, "where no record may expire"),
        (EXPIRING, 1, "which is the border of no file"),
        (EXPIRING, 5, "committed up to 3"),
    ],
)
def test_retention_is_for_topics_that_delete_and_for_whole_committed_files(settings: TopicSettings, to: int, why: str) -> None:
    chain = Chain(settings, *plain(0, 0, 0))
    chain.compact([0, 1], to=2)
    chain.expire(to, at_ms=5000)
    assert any(why in evidence for _, evidence in chain.judged()[1])


def test_a_log_start_rises_only_to_an_earlier_request_and_never_falls() -> None:
    chain = Chain(TopicSettings(), *plain(0, 0, 0))
    chain.compact([0, 1], to=2)
    chain.then(with_log_start(chain.newest, Offset(1), writer="w", now_ms=7))
    assert "raises the log start to 1 without a request" in chain.evidence()
    chain.asked.append(Asked(P, 1, at_ms=8))
    assert "without a request" in chain.evidence(), "that came later"
    chain.asked.append(Asked(P, 1, at_ms=6))
    assert chain.judged()[1] == []
    first = chain.versions[0].manifest
    chain.then(with_key_passes(first, passes=[KeyPass(Offset(1), 0, 0)], writer="w", now_ms=9))
    assert "goes back to log start 0, compacted to 2, from 1 and 2" in chain.evidence()


# ── compaction ──


def test_a_compaction_holds_all_that_segments_held_from_the_log_start_on() -> None:
    chain = Chain(TopicSettings(), *plain(0, 0, 0, 0))
    chain.asked.append(Asked(P, 1, at_ms=0))
    chain.then(with_log_start(no_manifest(ORDERS), Offset(1), writer="w", now_ms=1))
    chain.compact([1, 2], to=3)
    assert chain.judged()[1] == []
    chain.compact([3], to=4)
    chain.versions[-1] = chain.versions[-1]._replace(manifest=with_compacted(
        chain.versions[-2].manifest, files=[], compacted_to=Offset(4), epochs=(), producers=(), writer="w", now_ms=0
    ))  # fmt: skip
    assert "(compaction) leaves out 1 offsets from 3 on, which segments hold" in chain.evidence()


def test_records_that_were_removed_do_not_come_back() -> None:
    chain = Chain(COMPACTED, *keyed("a", "b", "b"))
    chain.compact([0, 1, 2], to=3)
    chain.replace("0-1-2", by=[0, 2], end=3)
    chain.replace("0-2 at 0", by=[0, 1, 2], at_ms=1)
    assert "brings back 1 offsets from 1 on" in chain.evidence()


# ── keys ──


def test_a_record_goes_when_a_newer_one_of_its_key_is_compacted_as_well() -> None:
    chain = Chain(COMPACTED, *keyed("a", "b", "a", "b"))
    chain.compact([0, 1, 2], to=3)
    chain.replace("0-1-2", by=[1, 2], at_ms=5, end=3)
    gone, found = chain.judged()
    assert (found, gone.removed_ms) == ([], {0: 5})
    assert gone.may_be_stepped_over(0, 1, at_ms=5)
    assert not gone.may_be_stepped_over(0, 1, at_ms=4)
    assert not gone.may_be_stepped_over(0, 2, at_ms=9)
    chain.replace("1-2 at 5", by=[2], at_ms=6)
    assert "removes offset 1 (p#1.1): it is the last of key b below 3" in chain.evidence(), "the other one is in segments"


def test_topics_whose_keys_are_not_compacted_and_records_without_keys_lose_nothing() -> None:
    for settings, sent, why in ((EXPIRING, keyed("a", "a"), "keys are not compacted"), (COMPACTED, plain(0, 0), "it has no key")):
        chain = Chain(settings, *sent)
        chain.compact([0, 1], to=2)
        chain.replace("0-1", by=[1])
        assert why in chain.evidence()


def test_a_young_record_stays_by_the_clock_that_was_furthest() -> None:
    settings = TopicSettings(cleanup_policy="compact", min_compaction_lag_ms=1000)
    chain = Chain(settings, *[SentRecord(b"a", False, 500)] * 2)
    chain.compact([0, 1], to=2)
    chain.replace("0-1", by=[1], at_ms=1400)
    assert "it is dated 500, younger than 400" in chain.evidence()
    chain.versions[0] = chain.versions[0]._replace(
        landed_ms=1500,
        manifest=with_compacted(
            no_manifest(ORDERS), files=[chain.file(0, 1)], compacted_to=Offset(2), epochs=(), producers=(), writer="w", now_ms=1500
        ),
    )
    assert chain.judged()[1] == []


@pytest.mark.parametrize("dated_ms", [-1, 1 << 50])
def test_a_record_that_is_not_dated_or_dated_ahead_is_young_since_its_append(dated_ms: int) -> None:
    settings = TopicSettings(cleanup_policy="compact", min_compaction_lag_ms=1000)
    for at_ms, why in ((1499, ["it is dated 500, younger than 499"]), (1500, [])):
        chain = Chain(settings, *[SentRecord(b"a", False, dated_ms)] * 2)
        chain.appended_by_ms = 500
        chain.compact([0, 1], to=2, at_ms=500)
        chain.replace("0-1", by=[1], at_ms=at_ms)
        assert [evidence.rpartition(": ")[2] for _, evidence in chain.judged()[1]] == why


def test_a_record_is_as_old_as_the_least_append_that_a_file_gave_it() -> None:
    settings = TopicSettings(cleanup_policy="compact", min_compaction_lag_ms=1000)
    chain = Chain(settings, *[SentRecord(b"a", False, 1 << 50)] * 2)
    chain.appended_by_ms = 500
    chain.compact([0, 1], to=2, at_ms=500)
    chain.appended_by_ms = 1900
    chain.replace("0-1", by=[0, 1], at_ms=2000)
    chain.replace("0-1 at 2000", by=[1], at_ms=2100)
    assert chain.judged()[1] == [], "its file was replaced by one of later records; it was appended by 500 all the same"


@pytest.mark.parametrize(("at_ms", "found"), [(1099, ["stays until 1100, and now is 1099"]), (1100, [])])
def test_a_tombstone_stays_for_its_time_from_the_pass_that_saw_it_first(at_ms: int, found: list[str]) -> None:
    chain = Chain(COMPACTED, *keyed("a", "A", "b"))
    chain.compact([0, 1, 2], to=3)
    chain.replace("0-1-2", by=[1, 2], at_ms=200, end=3, seen_ms=100)
    chain.replace("1-2 at 200", by=[2], at_ms=at_ms)
    reported = [evidence.rpartition("tombstone that ")[2] for _, evidence in chain.judged()[1]]
    assert reported == found


def test_a_tombstone_that_no_pass_has_seen_stays() -> None:
    chain = Chain(COMPACTED, *keyed("A", "b"))
    chain.compact([0, 1], to=2)
    chain.replace("0-1", by=[1], at_ms=9000)
    assert "a tombstone that no pass has seen" in chain.evidence()


def test_a_pass_can_not_have_seen_what_was_compacted_later() -> None:
    chain = Chain(TopicSettings(cleanup_policy="compact", delete_retention_ms=3000), *keyed("A", "b"))
    chain.compact([0, 1], to=2, at_ms=5000)
    chain.then(with_key_passes(chain.newest, passes=[KeyPass(Offset(2), 0, 1)], writer="w", now_ms=5000))
    chain.replace("0-1", by=[1], at_ms=5999)
    assert "stays until 6000, and now is 5999" in chain.evidence()


def test_below_the_end_of_a_pass_no_key_is_there_twice() -> None:
    chain = Chain(COMPACTED, *keyed("a", "a", "b"))
    chain.compact([0, 1, 2], to=3)
    chain.then(with_key_passes(chain.newest, passes=[KeyPass(Offset(2), 0, 0)], writer="w", now_ms=0))
    assert "says that keys are compacted to 2, and keeps key a at offsets 0 and 1" in chain.evidence()
