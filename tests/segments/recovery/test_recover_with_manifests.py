"""A partition of which some was compacted is what its newest manifest and its footers say, whatever was trimmed meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt
from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId, TopicPartition
from segments.bucket.layout import claim_key, manifest_key, segment_key, trimmed_key
from segments.history.manifest import Manifest, no_manifest
from segments.history.manifest_edits import with_log_start
from segments.object_store.interface import ListPage, Tail
from segments.partition.leader_partitions import LeaderPartition
from segments.recovery.footer_cache import FooterCache
from segments.recovery.recover import recover
from segments.recovery.recovered_partition import RecoveredPartition
from segments.recovery.takeover_prefetch import TakeoverPrefetch
from tests.kit.segments.batches import ORDERS, PAYMENTS, TIMESTAMP_MS, Led, header_of, led, partition_of, sequenced_batch
from tests.kit.segments.manifests import TOPIC, compacted_to, plant, remembered, writer_of
from tests.kit.segments.past_sessions import BY, SETTINGS, Bucket
from tests.simulation.virtual_loop import run

SEGMENTS = 8


class Compacted(Bucket):
    """One session has written a record of ORDERS in each segment, at offsets 0 to 7, as producer 9."""

    def __init__(self, segments: int = SEGMENTS, *, epochs: Sequence[int] = ()) -> None:
        super().__init__()
        for seq in range(segments):
            epoch = epochs[seq] if epochs else 5
            self.segment(1, {ORDERS: [sequenced_batch(9, seq)]}, epoch=epoch)

    def compact(self, offset: int, *, before: Manifest | None = None, **how: Any) -> Manifest:
        manifest = compacted_to(offset, before=before, producers=remembered(offset), **how)
        plant(self, manifest)
        return manifest

    def trim(self, seq: int, *, session: int = 1, delete: bool = True) -> None:
        self.plant(trimmed_key(SessionId(session), SegmentSeq(seq)), b"{}")
        for below in range(seq if delete else 0):
            self.remove(segment_key(SessionId(session), SegmentSeq(below)))

    async def recover_all(
        self, spans: Mapping[TopicPartition, Sequence[Led]], **how: Any
    ) -> dict[TopicPartition, RecoveredPartition | Corrupt]:
        topics = dict.fromkeys(spans, TOPIC)
        return await recover(self, spans, by=BY, settings=SETTINGS, now_ms=lambda: TIMESTAMP_MS, topics=topics, **how)

    def recover(self, *spans: Led, **how: Any) -> RecoveredPartition:
        found = run(self.recover_all({ORDERS: spans or (led(1),)}, **how))[ORDERS]
        if isinstance(found, Corrupt):
            raise found
        return found


def assert_goes_on(found: RecoveredPartition, end: int = SEGMENTS) -> None:
    """Its end, and what its producers may send next, are those of a log that was never compacted."""
    log = found.log(LeaderEpoch(99))
    assert log.bounds[1:3] == (end, end)
    for sequence in range(max(0, end - 5), end):
        repeat = log.append(header_of(sequenced_batch(9, sequence)), now_ms=TIMESTAMP_MS)
        assert (repeat.base_offset, repeat.duplicate) == (sequence, True)
    assert log.append(header_of(sequenced_batch(9, end)), now_ms=TIMESTAMP_MS).base_offset == end


@given(st.integers(0, SEGMENTS), st.data())
def test_however_much_was_compacted_and_trimmed_it_goes_on_where_it_was(compacted: int, data: st.DataObject) -> None:
    bucket = Compacted()
    if compacted:
        bucket.compact(compacted)
    trimmed = data.draw(st.integers(0, compacted))
    if trimmed:
        bucket.trim(trimmed, delete=data.draw(st.booleans()))
    found = bucket.recover()
    assert len(found.runs) == SEGMENTS - compacted
    assert found.sessions == ({1} if compacted < SEGMENTS else set()), "others need not be remembered"
    assert_goes_on(found)


def test_a_partition_is_recovered_from_its_manifest_if_only_a_claim_is_left_of_the_sessions() -> None:
    bucket = Compacted()
    bucket.compact(SEGMENTS)
    bucket.plant(claim_key(SessionId(77)), b"{}")
    assert_goes_on(bucket.recover(led(77)))


@given(st.integers(0, SEGMENTS), st.integers(0, SEGMENTS), st.booleans())
def test_the_log_starts_where_the_manifest_says_also_above_what_was_compacted(compacted: int, start: int, trimmed: bool) -> None:
    bucket = Compacted()
    manifest = bucket.compact(compacted) if compacted else None
    if start:
        plant(bucket, with_log_start(manifest or no_manifest(ORDERS), Offset(start), writer=writer_of(3), now_ms=0))
    if trimmed:
        bucket.trim(max(compacted, start))
    found = bucket.recover()
    assert found.log(LeaderEpoch(9)).bounds[:4] == (start, SEGMENTS, SEGMENTS, 9)
    assert found.runs.end_offset == SEGMENTS, "where the next run begins"
    if not (trimmed and start > compacted):
        assert_goes_on(found)  # else some of what the producer wrote is recorded nowhere any more


def test_a_gap_behind_what_was_compacted_is_damage() -> None:
    bucket = Compacted()
    bucket.compact(3)
    bucket.trim(5)
    with pytest.raises(Corrupt, match="begins at offset 5; what came before is missing"):
        bucket.recover()


def test_a_run_that_was_compacted_in_part_is_damage() -> None:
    bucket = Bucket()
    bucket.segment(1, {ORDERS: [sequenced_batch(9, 0, b"a", b"b")]})
    plant(bucket, compacted_to(1))
    found = run(recover(bucket, {ORDERS: [led(1)]}, by=BY, settings=SETTINGS, now_ms=lambda: TIMESTAMP_MS, topics={ORDERS: TOPIC}))[
        ORDERS
    ]
    assert isinstance(found, Corrupt)
    assert "offsets 0 to 1, but 1 is compacted up to" in found.message


def test_a_damaged_manifest_refuses_its_partition_and_no_other() -> None:
    bucket = Bucket()
    bucket.segment(1, {ORDERS: [sequenced_batch(9, 0)], partition_of(1): [sequenced_batch(9, 0)]})
    bucket.plant(manifest_key(TOPIC, ORDERS, 4), b"{")
    spans = {ORDERS: [led(1)], partition_of(1): [led(1)]}
    found = run(recover(bucket, spans, by=BY, settings=SETTINGS, now_ms=lambda: TIMESTAMP_MS, topics=dict.fromkeys(spans, TOPIC)))
    assert isinstance(error := found[ORDERS], Corrupt)
    assert error.details["key"] == manifest_key(TOPIC, ORDERS, 4)
    assert isinstance(other := found[partition_of(1)], RecoveredPartition)
    assert other.end_offset == 1


def test_the_ends_of_epochs_are_known_across_compacted_records() -> None:
    epochs = [1, 1, 3, 3, 3, 6, 6, 8]
    for compacted in range(SEGMENTS + 1):
        bucket = Compacted(epochs=epochs)
        if compacted:
            starts = [(epoch, epochs.index(epoch)) for epoch in sorted(set(epochs[:compacted]))]
            bucket.compact(compacted, epochs=starts)
            bucket.trim(compacted)
        found = bucket.recover(*(led(1, epoch) for epoch in sorted(set(epochs))))
        partition = LeaderPartition(found.log(LeaderEpoch(9)), found.runs, found.history)
        ends = {asked: tuple(partition.end_of_epoch(asked)) for asked in range(10)}
        assert ends == {
            0: (0, 0),
            1: (1, 2),
            2: (1, 2),
            3: (3, 5),
            4: (3, 5),
            5: (3, 5),
            6: (6, 7),
            7: (6, 7),
            8: (8, 8),
            9: (9, 8),
        }


def test_a_run_of_an_epoch_before_those_that_were_compacted_is_damage() -> None:
    bucket = Compacted(epochs=[5, 5, 5, 5, 4, 4, 4, 4])
    bucket.compact(4)
    with pytest.raises(Corrupt, match="behind records of epoch 5"):
        bucket.recover(led(1, 5), led(1, 4))


# ── what moves on meanwhile ─────────────────────────────────────────────────────────────────────────────────────────────


class MovesOn(Compacted):
    """Compaction comes on and trims at each look of the reader at the bucket, as far as it can."""

    def __init__(self, steps: Sequence[int]) -> None:
        super().__init__()
        self.steps = list(steps)
        self.newest: Manifest | None = None

    def _move_on(self) -> None:
        if self.steps and (offset := self.steps.pop(0)) > (self.newest.compacted_to if self.newest else 0):
            self.newest = self.compact(offset, before=self.newest)
            self.trim(offset)

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        self._move_on()
        return await super().list(prefix, start_after=start_after, limit=limit)

    async def tail(self, key: str, bytes_max: int) -> Tail:
        self._move_on()
        return await super().tail(key, bytes_max)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self._move_on()
        return await super().get(key, start=start, end=end)


@given(st.lists(st.integers(0, SEGMENTS), max_size=20), st.booleans(), st.booleans())
def test_compaction_that_comes_on_while_it_is_read_makes_no_gap(steps: list[int], reads_ahead: bool, keeps: bool) -> None:
    bucket = MovesOn(steps)

    async def recovered() -> RecoveredPartition:
        cache = FooterCache(bytes_max=1 << 20)
        begun = None
        if reads_ahead:
            ahead = TakeoverPrefetch(bucket, SETTINGS, cache if keeps else None)
            await ahead.read({ORDERS: [led(1)]}, {ORDERS: TOPIC})
            begun = ahead.take({ORDERS})
        spans = {ORDERS: [led(1, released_at_seq=SEGMENTS)]}
        found = (await bucket.recover_all(spans, begun=begun, cache=cache))[ORDERS]
        assert isinstance(found, RecoveredPartition), found
        return found

    assert_goes_on(run(recovered()))


def test_a_prefetch_from_before_a_compaction_is_dropped_and_nothing_is_read_again() -> None:
    bucket = Compacted()

    async def recovered() -> RecoveredPartition:
        ahead = TakeoverPrefetch(bucket, SETTINGS)
        await ahead.read({ORDERS: [led(1)]}, {ORDERS: TOPIC})
        bucket.compact(5)
        bucket.trim(5)
        bucket.calls.clear()
        spans = {ORDERS: [led(1, released_at_seq=SEGMENTS)]}
        found = (await bucket.recover_all(spans, begun=ahead.take({ORDERS})))[ORDERS]
        assert isinstance(found, RecoveredPartition)
        return found

    found = run(recovered())
    assert found.runs.start_offset == 5
    assert found.topic == TOPIC
    assert (bucket.count("list"), bucket.count("get"), bucket.count("tail")) == (1, 1, 0), "the manifests, and no footer"
    assert_goes_on(found)


def test_footers_that_a_listing_shows_to_be_trimmed_take_no_memory_in_the_cache() -> None:
    bucket = Compacted()
    cache = FooterCache(bytes_max=1 << 20)

    async def scenario() -> None:
        for end in (4, SEGMENTS):
            await bucket.recover_all({ORDERS: [led(1, released_at_seq=end)]}, cache=cache)
        assert sum(kept.runs.count for kept in cache._kept.values()) == SEGMENTS
        bucket.compact(6)
        bucket.trim(6)
        found = (await bucket.recover_all({ORDERS: [led(1)]}, cache=cache))[ORDERS]
        assert isinstance(found, RecoveredPartition)
        assert sum(kept.runs.count for kept in cache._kept.values()) == 2

    run(scenario())


def test_taking_over_a_thousand_partitions_reads_each_manifest_once_and_lists_a_few_times() -> None:
    bucket = Bucket()
    partitions = [partition_of(number) for number in range(1_000)]
    bucket.segment(1, {partition: [sequenced_batch(9, 0)] for partition in partitions})
    bucket.segment(1, {partition: [sequenced_batch(9, 1)] for partition in partitions})
    for partition in partitions:
        first = compacted_to(1, partition=partition, producers=remembered(1))
        plant(bucket, first)
        plant(bucket, compacted_to(2, before=first, partition=partition, producers=remembered(2)))
    spans = {partition: [led(1)] for partition in partitions}
    topics = dict.fromkeys(partitions, TOPIC)
    found = run(recover(bucket, spans, by=BY, settings=SETTINGS, now_ms=lambda: TIMESTAMP_MS, topics=topics))
    assert all(isinstance(each, RecoveredPartition) and each.end_offset == 2 for each in found.values())
    assert bucket.count("get") == 1_000
    assert bucket.count("tail") <= 4
    assert bucket.count("list") == 2 + 4 + 4, "to seal the session, and manifests and files of 256 partitions at a time"


def test_a_partition_without_a_manifest_is_recovered_from_its_footers() -> None:
    bucket = Compacted()
    assert bucket.recover().history is None
    assert PAYMENTS not in bucket.ends
