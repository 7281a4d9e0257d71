"""How far a partition is, from what its leader answers."""

from __future__ import annotations

import pytest

from metadata.errors import Corrupt, Fenced, OutcomeUnknown, OutOfOrderSequence, ProducerFenced, Rejected, TooLarge, Unavailable
from metadata.errors import UnknownProducer as Unknown
from segments.records.batch import parse_whole
from segments.records.columns import encode_records
from spark.sink.partition_progress import ForgottenError, PartitionProgress
from spark.sink.staged_files import StagedPartition

ORDERS = StagedPartition("orders", "a" * 32, 0)
TEN = encode_records([(None, b"v", (), 0)] * 10)


def progress_of(batches: int, *, staged: int | None = None) -> PartitionProgress:
    """Of so many record batches, of ten records each."""
    progress = PartitionProgress(ORDERS, 10 * batches)
    for file in range(batches if staged is None else staged):
        assert progress.stage(TEN, parse_whole(TEN), file)
    return progress


def out_of_order(expected: int) -> OutOfOrderSequence:
    return OutOfOrderSequence("gap", expected_sequence=expected)


def test_a_committed_part_is_let_go_and_the_rest_follows() -> None:
    progress = progress_of(4)
    assert [part.first for part in progress.take(1 << 20, 3)] == [0, 10, 20]
    assert not progress.is_ready
    assert [part.file for part in progress.answered([None, None, None])] == [0, 1, 2]
    assert (progress.written, progress.is_done, progress.is_ready) == (30, False, True)
    assert [part.first for part in progress.take(1, 3)] == [30], "one at least"
    progress.answered([None])
    assert progress.is_done


def test_a_success_behind_an_unknown_outcome_counts_when_it_is_answered_in_order() -> None:
    progress = progress_of(2)
    progress.take(1 << 20, 9)
    assert progress.answered([OutcomeUnknown("too late"), None]) == []
    assert (progress.written, progress.is_known, progress.is_ready) == (0, False, True)
    assert isinstance(progress.refusal, OutcomeUnknown)
    assert [part.first for part in progress.take(1 << 20, 9)] == [0, 10]


def test_a_sink_partition_continues_at_the_sequence_that_the_leader_reports() -> None:
    progress = progress_of(5, staged=3)
    progress.take(1 << 20, 9)
    settled = progress.answered([out_of_order(40), Unavailable("behind it"), Unavailable("behind it")])
    assert [part.file for part in settled] == [0, 1, 2]
    assert progress.written == 40
    assert not progress.stage(TEN, parse_whole(TEN), 3), "the topic has it"
    assert progress.stage(TEN, parse_whole(TEN), 4)
    assert [part.first for part in progress.take(1 << 20, 9)] == [40]


@pytest.mark.parametrize("expected", [15, 60])
def test_an_expected_sequence_at_which_no_staged_batch_begins_is_rejected(expected: int) -> None:
    progress = progress_of(5)
    progress.take(1 << 20, 9)
    with pytest.raises(Rejected, match=f"sequence {expected} comes next of this producer, and no staged record batch begins there"):
        progress.answered([out_of_order(expected), *[Unavailable("behind it")] * 4])


def test_a_batch_that_is_staged_later_is_checked_against_the_reported_sequence() -> None:
    progress = progress_of(5, staged=1)
    progress.take(1 << 20, 9)
    progress.answered([out_of_order(15)])
    with pytest.raises(Rejected, match="no staged record batch begins there"):
        progress.stage(TEN, parse_whole(TEN), 1)


def test_a_leader_that_knows_less_than_was_acknowledged_has_lost_it() -> None:
    progress = progress_of(3)
    progress.take(1 << 20, 2)
    progress.answered([None, None])
    progress.take(1 << 20, 9)
    with pytest.raises(Corrupt, match="20 rows of this batch were acknowledged, and its leader knows of 10"):
        progress.answered([out_of_order(10)])


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (Unknown("who?"), ForgottenError),
        (ProducerFenced("newer"), Fenced),
        (TooLarge("too large"), TooLarge),
        (OutOfOrderSequence("which?"), OutOfOrderSequence),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_an_error_that_sending_again_would_not_mend_ends_the_attempt(error: Exception, raised: type[Exception]) -> None:
    progress = progress_of(1)
    progress.take(1 << 20, 9)
    with pytest.raises(raised):
        progress.answered([error])  # type: ignore[list-item]  # the test's own
