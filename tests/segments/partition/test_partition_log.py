"""Where an offset is assigned: densely, in arrival order, and only to batches that are taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import ConditionFailed, DuplicateSequence, InvalidTimestamp, OutOfOrderSequence, OutOfRange
from metadata.model import LeaderEpoch, Offset, ProducerId
from segments.partition.partition_log import Appended, Bounds, PartitionLog
from segments.partition.producer_state import BATCHES_REMEMBERED, ONE_SHOT, ProducerStates, SequencedBatch
from segments.records.batch import parse_header, with_log_append_time
from tests.kit.segments.batches import EPOCH, ORDERS, TIMESTAMP_MS, batch_of, header_of, sequenced_batch


def partition_log(*, log_start_offset: int = 0, end_offset: int = 0) -> PartitionLog:
    return PartitionLog(
        ORDERS,
        leader_epoch=EPOCH,
        log_start_offset=Offset(log_start_offset),
        end_offset=Offset(end_offset),
        producers=ProducerStates(producers_max=10, expiry_ms=1000),
    )


def append(log: PartitionLog, batch: bytes, *, expected_offset: int | None = None) -> Appended:
    return log.append(header_of(batch), now_ms=0, expected_offset=expected_offset)


@given(st.lists(st.integers(1, 5), max_size=20), st.integers(0, 2**50))
def test_offsets_are_dense_and_in_arrival_order(record_counts: list[int], end_offset: int) -> None:
    log = partition_log(end_offset=end_offset)
    for count in record_counts:
        appended = append(log, batch_of(*[b"v"] * count))
        assert appended == Appended(Offset(end_offset), Offset(end_offset + count - 1), EPOCH)
        end_offset += count
    assert log.end_offset == end_offset


def test_a_batch_dated_too_far_ahead_is_refused_unless_it_repeats_a_written_one() -> None:
    log = partition_log()
    first, second = (header_of(sequenced_batch(1, sequence)) for sequence in (0, 1))
    newest = max(first.max_timestamp, second.max_timestamp)
    taken = log.append(first, now_ms=0, timestamp_ms_max=newest)
    with pytest.raises(InvalidTimestamp, match=f"{ORDERS} is dated {newest} ms, 1 ms later than"):
        log.append(second, now_ms=7, timestamp_ms_max=newest - 1)
    assert log.append(first, now_ms=7, timestamp_ms_max=newest - 1) == taken._replace(duplicate=True)
    assert log.append(second, now_ms=7, timestamp_ms_max=newest).base_offset == 1


def test_a_new_leader_goes_on_at_the_end_that_was_found_and_may_be_read_up_to_it() -> None:
    log = partition_log(log_start_offset=3, end_offset=7)
    assert log.bounds == Bounds(Offset(3), Offset(7), Offset(7), EPOCH)
    append(log, batch_of(b"buffered"))
    assert log.bounds == Bounds(Offset(3), Offset(7), Offset(8), EPOCH)


def test_the_high_watermark_rises_with_committed_runs() -> None:
    log = partition_log()
    append(log, batch_of(b"a", b"b"))
    append(log, batch_of(b"c"))
    assert log.high_watermark == 0
    log.commit(base_offset=Offset(0), last_offset=Offset(1))
    assert log.high_watermark == 2
    log.commit(base_offset=Offset(2), last_offset=Offset(2))
    assert log.high_watermark == log.end_offset == 3


def test_a_run_that_does_not_continue_the_committed_ones_is_our_bug() -> None:
    log = partition_log()
    append(log, batch_of(b"a", b"b"))
    with pytest.raises(AssertionError):
        log.commit(base_offset=Offset(1), last_offset=Offset(1))


def test_an_idempotent_repeat_gets_the_offsets_of_the_first_time() -> None:
    log = partition_log(end_offset=10)
    first = append(log, sequenced_batch(1, 0, b"a", b"b"))
    append(log, sequenced_batch(2, 0))
    assert append(log, sequenced_batch(1, 0, b"a", b"b")) == first._replace(duplicate=True)
    assert log.end_offset == 13


def test_a_repeat_has_the_log_append_time_of_the_first_append() -> None:
    log = partition_log()
    batch = sequenced_batch(1, 0, b"a")
    first = log.append(parse_header(with_log_append_time(batch, 1_000)), now_ms=0)
    assert (first.log_append_time_ms, first.duplicate) == (1_000, False)
    again = log.append(parse_header(with_log_append_time(batch, 2_000)), now_ms=0)
    assert (again.log_append_time_ms, again.duplicate) == (1_000, True)
    assert append(log, batch).log_append_time_ms == -1, "the topic has no log append time any more"
    assert append(log, sequenced_batch(1, 1, b"b")).log_append_time_ms == -1


def test_the_batch_of_a_one_shot_producer_is_found_before_and_after_its_commit() -> None:
    log = partition_log(end_offset=10)
    key = ProducerId(ONE_SHOT + 1)
    assert log.written_once(key, now_ms=0) is None
    append(log, sequenced_batch(key, 77, b"a", b"b", producer_epoch=3))
    reported = SequencedBatch(key, 3, 77, 78, Offset(10), Offset(11), TIMESTAMP_MS + 1)
    assert log.written_once(key, now_ms=0) == reported
    log.commit(base_offset=Offset(10), last_offset=Offset(11))
    assert log.written_once(key, now_ms=0) == reported


def test_an_append_may_insist_on_the_end_of_the_log() -> None:
    log = partition_log(end_offset=4)
    assert append(log, batch_of(b"x"), expected_offset=4).base_offset == 4
    with pytest.raises(ConditionFailed) as refusal:
        append(log, batch_of(b"y"), expected_offset=4)
    assert refusal.value.details["end_offset"] == 5


def test_a_repeat_is_recognised_before_its_expected_offset_is_looked_at() -> None:
    """The answer to a conditional append was lost: its repeat can't meet the same end again, and must not fail for that."""
    log = partition_log()
    first = append(log, sequenced_batch(1, 0), expected_offset=0)
    assert append(log, sequenced_batch(1, 0), expected_offset=0) == first._replace(duplicate=True)


def test_a_repeat_whose_offsets_are_forgotten_is_a_duplicate_once_it_is_committed() -> None:
    log = partition_log()
    for sequence in range(BATCHES_REMEMBERED + 1):
        append(log, sequenced_batch(1, sequence))
    with pytest.raises(OutOfOrderSequence, match="6 comes next"):
        append(log, sequenced_batch(1, 0))
    log.commit(base_offset=Offset(0), last_offset=Offset(5))
    with pytest.raises(DuplicateSequence):
        append(log, sequenced_batch(1, 0))
    assert log.end_offset == 6


@pytest.mark.parametrize("refused", ["condition", "sequence"])
def test_a_batch_that_is_refused_changes_nothing(refused: str) -> None:
    log = partition_log()
    append(log, sequenced_batch(1, 0))
    if refused == "condition":
        with pytest.raises(ConditionFailed):
            append(log, sequenced_batch(1, 1), expected_offset=0)
    else:
        with pytest.raises(OutOfOrderSequence):
            append(log, sequenced_batch(1, 2))
    assert log.end_offset == 1
    assert append(log, sequenced_batch(1, 1)) == Appended(Offset(1), Offset(1), EPOCH)


@pytest.mark.parametrize(("offset", "readable"), [(2, False), (3, True), (5, True), (6, False), (-1, False)])
def test_a_reader_may_stand_from_the_log_start_to_the_high_watermark(offset: int, readable: bool) -> None:
    log = partition_log(log_start_offset=3, end_offset=5)
    append(log, batch_of(b"not committed yet"))
    if readable:
        log.check_readable(offset)
    else:
        with pytest.raises(OutOfRange) as refusal:
            log.check_readable(offset)
        assert refusal.value.details == {"log_start_offset": 3, "high_watermark": 5}


def test_the_epoch_of_an_append_is_its_leaders() -> None:
    log = PartitionLog(
        ORDERS,
        leader_epoch=LeaderEpoch(9),
        log_start_offset=Offset(0),
        end_offset=Offset(0),
        producers=ProducerStates(producers_max=1, expiry_ms=1),
    )
    assert append(log, batch_of(b"x")).leader_epoch == 9
