"""A partition is what the bucket says it is: rebuilt from the footers of sealed sessions, the damaged ones as errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt, Denied, Unavailable
from metadata.model import LeaderEpoch, SegmentSeq, SessionId, TopicPartition
from segments.bucket.layout import claim_key, index_key, segment_key, session_prefix, trimmed_key
from segments.object_store.interface import Tail
from segments.partition.partition_log import Appended, Bounds
from segments.recovery.footer_cache import FooterCache
from segments.recovery.recovered_partition import RecoveredPartition, empty_partition
from segments.settings import SegmentSettings
from segments.wal.footer_index import IndexBlock, encode_index
from segments.wal.segment_file import FOOTER_READ_BYTES, SEAL_BYTES, FooterBytes, SegmentFooter, footer_bytes_needed
from segments.wal.session_reader import read_session
from tests.kit.segments.batches import (
    ORDERS,
    PAYMENTS,
    TIMESTAMP_MS,
    batch_of,
    header_of,
    led,
    partition_of,
    sequenced_batch,
)
from tests.kit.segments.past_sessions import BY, SETTINGS, Bucket
from tests.kit.segments.scripted_store import REFUSED, Act, fails
from tests.simulation.virtual_loop import run


def locations(found: RecoveredPartition) -> list[tuple[int, int, int]]:
    """(base offset, session, seq) of each of its runs."""
    runs, at = [], found.runs.start_offset
    while at is not None and (location := found.runs.find(at)) is not None:
        runs.append((int(location.base_offset), int(location.session), int(location.seq)))
        at = type(at)(location.last_offset + 1)
    return runs


ONE, TWO = batch_of(b"one"), batch_of(b"one", b"two")


# ── what is found ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_partition_without_writes_begins_at_0() -> None:
    for found in (Bucket().found(ORDERS, led(1)), Bucket().found(ORDERS), empty_partition(ORDERS, SETTINGS)):
        assert found.log(LeaderEpoch(9)).bounds == Bounds(0, 0, 0, 9)  # type: ignore[arg-type]
        assert (len(found.runs), found.sessions) == (0, set())


def test_the_end_offset_is_where_the_last_committed_segment_ends_and_all_below_is_readable() -> None:
    bucket = Bucket()
    bucket.segment(1, {ORDERS: [ONE, TWO], PAYMENTS: [ONE]})
    bucket.segment(1, {PAYMENTS: [ONE]})
    bucket.segment(1, {ORDERS: [TWO]})
    found = bucket.recovered({ORDERS: [led(1)], PAYMENTS: [led(1)]})
    orders, payments = found[ORDERS], found[PAYMENTS]
    assert isinstance(orders, RecoveredPartition)
    assert isinstance(payments, RecoveredPartition)
    assert orders.log(LeaderEpoch(6)).bounds == Bounds(0, 5, 5, 6)  # type: ignore[arg-type]
    assert (locations(orders), locations(payments)) == ([(0, 1, 0), (3, 1, 2)], [(0, 1, 0), (1, 1, 1)])
    assert bucket.count("tail") == 3


def test_a_partition_goes_on_from_session_to_session_in_the_order_of_its_spans() -> None:
    bucket = Bucket()
    bucket.segment(3, {ORDERS: [ONE]}, epoch=1)
    bucket.segment(5, {ORDERS: [ONE]}, epoch=2)
    bucket.segment(4, {ORDERS: [ONE]}, epoch=3)
    found = bucket.found(ORDERS, led(3, 1), led(5, 2), led(9, 3), led(4, 3))
    assert locations(found) == [(0, 3, 0), (1, 5, 0), (2, 4, 0)]
    assert found.sessions == {3, 4, 5}


def test_an_idempotent_producer_is_remembered() -> None:
    bucket = Bucket()
    for sequence in range(7):
        bucket.segment(1, {ORDERS: [sequenced_batch(9, sequence)]}, written_at_ms=TIMESTAMP_MS + sequence)
    log = bucket.found(ORDERS, led(1)).log(LeaderEpoch(6))
    now_ms = TIMESTAMP_MS + SETTINGS.producer_expiry_ms
    repeat = log.append(header_of(sequenced_batch(9, 2)), now_ms=now_ms)
    assert repeat == Appended(2, 2, 6, duplicate=True)  # type: ignore[arg-type]
    assert log.append(header_of(sequenced_batch(9, 7)), now_ms=now_ms).base_offset == 7


def test_a_footer_that_is_longer_than_one_read_is_read_whole() -> None:
    bucket = Bucket()
    count = FOOTER_READ_BYTES // 64 + 1
    bucket.segment(1, {ORDERS: [ONE] * count})
    assert bucket.found(ORDERS, led(1)).end_offset == count
    assert bucket.count("tail") == 2


# ── a session that is gone ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_session_that_is_gone_with_its_claim_is_damage_that_names_the_claim() -> None:
    bucket = Bucket()
    bucket.lost = {1}
    for _ in range(2):  # the second time, its seal stands there
        with pytest.raises(Corrupt, match="wal/0000000000000001/claim is gone, and so are all segments of session 1") as refused:
            bucket.found(ORDERS, led(1))
        assert refused.value.details["key"] == claim_key(SessionId(1))
        assert "Restore wal/0000000000000001/ from a version or a backup" in refused.value.hint


def test_a_session_that_is_gone_behind_others_is_damage_and_so_where_later_ones_wrote_nothing() -> None:
    bucket = Bucket()
    bucket.segment(1, {ORDERS: [ONE]}, epoch=1)
    bucket.lost = {2}
    with pytest.raises(Corrupt, match="all segments of session 2"):
        bucket.found(ORDERS, led(1, 1), led(2, 2), led(3, 3))


def test_a_session_that_is_gone_is_no_harm_to_a_partition_whose_later_records_go_on_without_a_gap() -> None:
    bucket = Bucket()
    bucket.segment(1, {ORDERS: [ONE]}, epoch=1)
    bucket.segment(3, {ORDERS: [ONE]}, epoch=3)
    bucket.lost = {2}
    assert locations(bucket.found(ORDERS, led(1, 1), led(2, 2), led(3, 3))) == [(0, 1, 0), (1, 3, 0)]


def test_a_session_that_is_gone_is_no_harm_to_a_partition_that_it_released_before_its_first_segment() -> None:
    bucket = Bucket()
    bucket.segment(1, {ORDERS: [ONE]}, epoch=1)
    bucket.lost = {2}
    spans = led(1, 1), led(2, 2, released_at_seq=0), led(3, 3)
    assert bucket.found(ORDERS, *spans).end_offset == 1
    found = bucket.recovered({ORDERS: spans, PAYMENTS: [led(2, 2)]})
    assert isinstance(found[PAYMENTS], Corrupt), "it shares the session"
    assert isinstance(found[ORDERS], RecoveredPartition)


def test_a_session_of_which_only_the_claim_is_gone_or_only_the_trimmed_marker_is_left_is_read() -> None:
    bucket = Bucket()
    bucket.lost = {1, 2}
    bucket.segment(1, {ORDERS: [ONE]}, epoch=1)
    bucket.plant(trimmed_key(SessionId(2), SegmentSeq(3)), b"{}")
    assert bucket.found(ORDERS, led(1, 1), led(2, 2)).end_offset == 1


def test_a_session_that_was_gone_is_read_once_it_was_restored() -> None:
    async def main() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=1 << 20)
        bucket.lost = {1}
        found = await bucket.recovering({ORDERS: [led(1)]}, cache=cache)
        assert isinstance(found[ORDERS], Corrupt)
        bucket.lost.clear()
        bucket.segment(1, {ORDERS: [ONE]})
        orders = (await bucket.recovering({ORDERS: [led(1)]}, cache=cache))[ORDERS]
        assert isinstance(orders, RecoveredPartition)
        assert orders.end_offset == 1

    run(main())


# ── a session is sealed before it is read ───────────────────────────────────────────────────────────────────────────────


def test_segments_behind_a_gap_were_never_committed_and_the_seal_goes_into_the_gap() -> None:
    bucket = Bucket()
    bucket.segment(1, {ORDERS: [ONE]})
    bucket.gap(1)
    bucket.segment(1, {ORDERS: [ONE]})
    assert bucket.found(ORDERS, led(1)).end_offset == 1
    assert len(bucket.content(segment_key(SessionId(1), SegmentSeq(1)))) == SEAL_BYTES


def test_a_segment_that_a_zombie_writes_after_the_seal_is_not_found_next_time_either() -> None:
    bucket = Bucket()
    bucket.segment(1, {ORDERS: [ONE]})
    assert bucket.found(ORDERS, led(1)).end_offset == 1
    bucket.gap(1)
    bucket.segment(1, {ORDERS: [ONE]})
    assert locations(bucket.found(ORDERS, led(1))) == [(0, 1, 0)]


def test_each_session_is_sealed_and_read_once() -> None:
    bucket = Bucket()
    for session in (1, 2):
        bucket.segment(session, {partition_of(number): [ONE] for number in range(20)}, epoch=session)
    spans = {partition_of(number): [led(1, 1), led(2, 2)] for number in range(20)}
    bucket.recovered(spans)
    assert bucket.count("create") == bucket.count("tail") == 2
    assert bucket.count("list") == 4, "a look before the seal, and one after it"


def test_a_session_that_released_the_partition_is_not_sealed_even_if_it_is_ones_own() -> None:
    bucket = Bucket()
    for session in (1, BY.id):
        bucket.segment(session, {ORDERS: [ONE]}, epoch=session)
        bucket.segment(session, {PAYMENTS: [ONE]}, epoch=session)
    found = bucket.found(ORDERS, led(1, 1, released_at_seq=1), led(BY.id, BY.id, released_at_seq=1))
    assert locations(found) == [(0, 1, 0), (1, BY.id, 0)]
    assert bucket.count("create") == 0
    assert bucket.count("tail") == 2, "what came after the release is not read"


def test_a_segment_below_the_release_that_is_gone_is_damage_though_nothing_speaks_for_it() -> None:
    bucket = Bucket()
    bucket.segment(1, {ORDERS: [ONE]}, epoch=1)
    deleted = bucket.segment(1, {ORDERS: [ONE]}, epoch=1)
    bucket.remove(deleted)
    with pytest.raises(Corrupt, match="its leader released partitions at 2") as error:
        bucket.found(ORDERS, led(1, 1, released_at_seq=2))
    assert error.value.details["key"] == deleted


# ── footers out of indexes ──────────────────────────────────────────────────────────────────────────────────────────────


def indexed(segments: int, *blocks: tuple[int, int]) -> Bucket:
    """A session with so many segments of one record, and these indexes of their footers."""
    bucket = Bucket()
    keys = [bucket.segment(1, {ORDERS: [ONE]}, epoch=1) for _ in range(segments)]
    ends = [segment_end(bucket.content(key), key) for key in keys]
    for first, end in blocks:
        block = IndexBlock(SegmentSeq(first), SegmentSeq(end), tuple(ends[first:end]))
        bucket.plant(index_key(SessionId(1), block.first, block.end), b"".join(encode_index(SessionId(1), block)))
    return bucket


def segment_end(body: bytes, key: str) -> FooterBytes:
    return FooterBytes(body[-footer_bytes_needed(body, object_size=len(body), key=key) :], len(body))


def test_an_index_saves_the_reads_of_its_footers() -> None:
    bucket = indexed(40, (0, 8), (0, 32))
    assert bucket.found(ORDERS, led(1, 1)).end_offset == 40
    assert (bucket.count("get"), bucket.count("tail")) == (1, 8)


def test_of_indexes_that_overlap_each_footer_counts_once() -> None:
    bucket = indexed(40, (0, 32), (30, 40))
    assert bucket.found(ORDERS, led(1, 1)).end_offset == 40
    assert (bucket.count("get"), bucket.count("tail")) == (2, 0)


def test_a_damaged_index_costs_reads_and_nothing_else() -> None:
    bucket = indexed(10, (0, 8))
    key = index_key(SessionId(1), SegmentSeq(0), SegmentSeq(8))
    bucket.plant(key, bucket.content(key)[:-3])
    assert bucket.found(ORDERS, led(1, 1)).end_offset == 10
    assert bucket.count("tail") == 10


def test_a_release_in_the_middle_of_an_index_ends_there() -> None:
    bucket = indexed(16, (0, 16))
    assert bucket.found(ORDERS, led(1, 1, released_at_seq=5)).end_offset == 5
    assert bucket.count("tail") == 0


def test_a_partition_is_recovered_from_an_index_though_a_segment_in_it_is_gone() -> None:
    bucket = indexed(10, (0, 8))
    bucket.seal(1)
    bucket.remove(segment_key(SessionId(1), SegmentSeq(3)))
    assert bucket.found(ORDERS, led(1, 1)).end_offset == 10


def test_a_seal_below_the_released_segment_shows_that_a_segment_is_missing() -> None:
    bucket = Bucket()
    for _ in range(3):
        bucket.segment(1, {ORDERS: [ONE]}, epoch=1)
    bucket.seal(1)
    with pytest.raises(Corrupt, match="is missing: a seal stands there, and the leader had committed up to 4"):
        bucket.found(ORDERS, led(1, 1, released_at_seq=4))
    assert bucket.found(ORDERS, led(1, 1, released_at_seq=3)).end_offset == 3


def test_a_released_partition_ends_where_it_was_released_whatever_the_session_wrote_later() -> None:
    bucket = Bucket()
    bucket.segment(1, {ORDERS: [ONE], PAYMENTS: [ONE]}, epoch=1)
    released_end = dict(bucket.ends)
    bucket.segment(1, {ORDERS: [ONE]}, epoch=1)
    bucket.ends = released_end
    bucket.segment(2, {ORDERS: [TWO]}, epoch=2)
    assert locations(bucket.found(ORDERS, led(1, 1, released_at_seq=1), led(2, 2))) == [(0, 1, 0), (1, 2, 0)]


def test_an_epoch_that_the_metadata_does_not_name_counts_for_nothing() -> None:
    bucket = Bucket()
    bucket.segment(1, {ORDERS: [ONE]}, epoch=1)
    bucket.segment(1, {ORDERS: [ONE]}, epoch=7)
    assert bucket.found(ORDERS, led(1, 1)).end_offset == 1


def test_a_session_that_goes_on_is_read_without_ending_it() -> None:
    bucket = Bucket()
    bucket.segment(1, {ORDERS: [ONE]})
    bucket.segment(1, {ORDERS: [TWO]})
    footers = run(read_session(bucket, SessionId(1)))
    assert [footer.seq for footer in footers if isinstance(footer, SegmentFooter)] == [0, 1]
    assert bucket.count("create") == 0


# ── the trimmed prefix ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_partition_whose_beginning_was_trimmed_away_is_corrupt_and_one_that_began_later_is_not() -> None:
    bucket = Bucket()
    trimmed = bucket.segment(1, {ORDERS: [ONE]})
    bucket.segment(1, {ORDERS: [ONE], PAYMENTS: [TWO]})
    bucket.plant(trimmed_key(SessionId(1), SegmentSeq(1)), b"")
    bucket.plant(trimmed, b"rubble")
    found = bucket.recovered({ORDERS: [led(1)], PAYMENTS: [led(1)]})
    assert isinstance(found[ORDERS], Corrupt)
    assert "begins at offset 1; what came before is missing" in str(found[ORDERS])
    payments = found[PAYMENTS]
    assert isinstance(payments, RecoveredPartition)
    assert locations(payments) == [(0, 1, 1)]


def test_a_segment_that_is_trimmed_while_it_is_read_makes_recovery_look_again() -> None:
    bucket = Bucket()
    trimmed = bucket.segment(1, {PAYMENTS: [ONE]})
    bucket.segment(1, {ORDERS: [TWO]})

    class Trimming(Bucket):
        async def tail(self, key: str, bytes_max: int) -> Tail:
            if key == trimmed and self.has(trimmed):
                self.plant(trimmed_key(SessionId(1), SegmentSeq(1)), b"")
                del self._objects[trimmed]
                self._keys.remove(trimmed)
            return await super().tail(key, bytes_max)

    trimming = Trimming()
    trimming._objects, trimming._keys = bucket._objects, bucket._keys
    assert locations(trimming.found(ORDERS, led(1))) == [(0, 1, 1)]


# ── damage ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_damaged_footer_is_an_error_of_partitions_that_may_be_in_it_and_of_no_others() -> None:
    bucket = Bucket()
    elsewhere, later, lost, unsure = (partition_of(number) for number in range(4))
    bucket.segment(1, {elsewhere: [ONE], later: [ONE], lost: [ONE], unsure: [ONE]}, epoch=1)
    damaged = bucket.segment(1, {lost: [ONE]}, epoch=1)
    bucket.segment(1, {later: [ONE], lost: [ONE]}, epoch=1)
    bucket.segment(2, {elsewhere: [ONE]}, epoch=2)
    bucket.damage_footer(damaged)
    found = bucket.recovered({partition: [led(1, 1), led(2, 2)] for partition in (elsewhere, later, lost, unsure)})
    for fine in (elsewhere, later):
        partition = found[fine]
        assert isinstance(partition, RecoveredPartition), "its runs continue without a gap: it had nothing in the damaged segment"
        assert partition.end_offset == 2
    for refused in (lost, unsure):
        error = found[refused]
        assert isinstance(error, Corrupt)
        assert error.details["key"] == damaged


def test_a_deleted_committed_segment_is_damage_and_not_the_end_of_its_session() -> None:
    bucket = Bucket()
    lost, fine = partition_of(0), partition_of(1)
    bucket.segment(1, {lost: [ONE], fine: [ONE]})
    deleted = bucket.segment(1, {lost: [ONE]})
    bucket.segment(1, {lost: [ONE], fine: [ONE]})
    bucket.seal(1)
    bucket.remove(deleted)
    found = bucket.recovered({lost: [led(1)], fine: [led(1)]})
    error, partition = found[lost], found[fine]
    assert isinstance(error, Corrupt)
    assert error.details["key"] == deleted
    assert "is gone, and was committed" in error.message
    assert isinstance(partition, RecoveredPartition)
    assert partition.end_offset == 2


def test_damage_after_a_partition_was_released_is_none_of_its_concern() -> None:
    bucket = Bucket()
    bucket.segment(1, {ORDERS: [ONE]}, epoch=1)
    bucket.damage_footer(bucket.segment(1, {PAYMENTS: [ONE]}, epoch=1))
    assert bucket.found(ORDERS, led(1, 1, released_at_seq=1)).end_offset == 1
    with pytest.raises(Corrupt):
        bucket.found(ORDERS, led(1, 1, released_at_seq=2))


@pytest.mark.parametrize("content", [b"", b"x", b"x" * (SEAL_BYTES - 1), b"x" * (SEAL_BYTES + 1), b"x" * 5000])
def test_an_object_that_is_no_segment_at_all_is_damage(content: bytes) -> None:
    bucket = Bucket()
    bucket.segment(1, {PAYMENTS: [ONE]})
    key = bucket.segment(1, {ORDERS: [ONE]})
    bucket.plant(key, content)
    with pytest.raises(Corrupt) as damage:
        bucket.found(ORDERS, led(1))
    assert damage.value.details["key"] == key


def test_a_damaged_seal_does_not_prevent_the_recovery() -> None:
    bucket = Bucket()
    bucket.segment(1, {ORDERS: [ONE]})
    bucket.plant(segment_key(SessionId(1), SegmentSeq(1)), b"\0" * SEAL_BYTES)
    assert bucket.found(ORDERS, led(1)).end_offset == 1


def test_runs_that_overlap_are_corrupt_for_their_partition_only() -> None:
    bucket = Bucket()
    bucket.segment(1, {ORDERS: [TWO], PAYMENTS: [ONE]}, epoch=1)
    bucket.ends[ORDERS] = 1
    bucket.segment(2, {ORDERS: [ONE], PAYMENTS: [ONE]}, epoch=2)
    found = bucket.recovered({ORDERS: [led(1, 1), led(2, 2)], PAYMENTS: [led(1, 1), led(2, 2)]})
    assert isinstance(found[ORDERS], Corrupt)
    assert isinstance(found[PAYMENTS], RecoveredPartition)


# ── a bucket in trouble ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_recovery_waits_until_the_bucket_is_back() -> None:
    bucket = Bucket()
    keys = [bucket.segment(1, {ORDERS: [ONE]}) for _ in range(3)]
    bucket.script("list", session_prefix(SessionId(1)), REFUSED)
    for key in keys:
        bucket.script("tail", key, REFUSED, REFUSED)
    assert bucket.found(ORDERS, led(1)).end_offset == 3


@pytest.mark.parametrize("beside_it", [[], [fails(Unavailable("503"))]])
def test_without_permission_recovery_says_so(beside_it: list[Act]) -> None:
    bucket = Bucket()
    keys = [bucket.segment(1, {ORDERS: [ONE]}) for _ in range(2)]
    bucket.script("tail", keys[0], fails(Denied("403 AccessDenied")))
    bucket.script("tail", keys[1], *beside_it)
    with pytest.raises(Denied):
        bucket.found(ORDERS, led(1))


def test_footers_are_read_some_at_a_time() -> None:
    at_once, most_at_once = 0, 0

    class Counting(Bucket):
        async def tail(self, key: str, bytes_max: int) -> Tail:
            nonlocal at_once, most_at_once
            at_once += 1
            most_at_once = max(most_at_once, at_once)
            try:
                return await super().tail(key, bytes_max)
            finally:
                at_once -= 1

    bucket = Counting()
    for _ in range(20):
        bucket.segment(1, {ORDERS: [ONE]})
    bucket.recovered({ORDERS: [led(1)]}, settings=SegmentSettings(footer_reads_max=3))
    assert most_at_once == 3


# ── against what was written ────────────────────────────────────────────────────────────────────────────────────────────

PARTITIONS = [partition_of(number) for number in range(3)]
histories = st.lists(
    st.lists(st.dictionaries(st.sampled_from(PARTITIONS), st.integers(1, 3), max_size=3).filter(bool), max_size=4),
    min_size=1,
    max_size=4,
)


@given(histories, st.data())
def test_committed_records_are_recovered_and_damage_is_never_passed_over(
    history: list[list[dict[TopicPartition, int]]], data: st.DataObject
) -> None:
    bucket = Bucket()
    written: list[tuple[str, dict[TopicPartition, int]]] = []
    for session, segments in enumerate(history, start=1):
        for lengths in segments:
            key = bucket.segment(session, {where: [ONE] * length for where, length in lengths.items()}, epoch=session)
            written.append((key, lengths))
        bucket.seal(session)
    damaged = data.draw(st.none() | st.integers(0, len(written) - 1)) if written else None
    if damaged is not None:
        data.draw(st.sampled_from([bucket.damage_footer, bucket.remove]))(written[damaged][0])
    found = bucket.recovered({where: [led(session, session) for session in range(1, len(history) + 1)] for where in PARTITIONS})
    for where in PARTITIONS:
        partition = found[where]
        had_records_there = damaged is not None and where in written[damaged][1]
        goes_on_behind_it = damaged is not None and any(where in lengths for _, lengths in written[damaged + 1 :])
        if damaged is not None and (had_records_there or not goes_on_behind_it):
            assert isinstance(partition, Corrupt)
            assert partition.details["key"] == written[damaged][0]
        else:
            assert isinstance(partition, RecoveredPartition)
            assert partition.end_offset == bucket.ends.get(where, 0)
            assert len(partition.runs) == sum(where in lengths for _, lengths in written)
