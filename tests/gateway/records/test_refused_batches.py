"""Batches behind a refused one are refused like that one, and no others are."""

from __future__ import annotations

import pytest

from gateway.records.refused_batches import COVERED_S, REMEMBERED_MAX, RefusedBatches, SentBatch
from metadata.errors import (
    DuplicateSequence,
    InvalidRecord,
    NoLeader,
    OutOfOrderSequence,
    ProducerFenced,
    TidelogError,
    UnknownProducer,
)

P0, P1 = 0, 1
PRODUCER, OTHER = 7, 8
REFUSED, GAP = NoLeader("not led"), OutOfOrderSequence("a gap")


def reported(
    batches: RefusedBatches,
    sequence: int,
    outcome: TidelogError | str,
    *,
    topic: str = "orders",
    partition: int = P0,
    producer: int = PRODUCER,
    epoch: int = 0,
    now_s: float = 0.0,
) -> TidelogError | str:
    batch = SentBatch(topic, partition, producer, epoch, sequence)
    if isinstance(outcome, TidelogError):
        return batches.refused(batch, outcome, is_retried=outcome.retryable, now_s=now_s)
    batches.appended(batch)
    return outcome


@pytest.mark.parametrize("gap", [GAP, UnknownProducer("not known")])
def test_batches_behind_a_refused_one_are_refused_like_it_until_it_is_appended(gap: TidelogError) -> None:
    batches = RefusedBatches()
    assert reported(batches, 7, REFUSED) is REFUSED
    assert reported(batches, 8, gap) is REFUSED
    assert reported(batches, 9, gap) is REFUSED
    assert reported(batches, 7, "appended") == "appended"
    assert reported(batches, 9, gap) is gap, "8 is missing, and was not refused"


def test_batches_stay_covered_when_one_in_front_of_the_refused_one_is_appended_after_it() -> None:
    batches = RefusedBatches()
    reported(batches, 7, REFUSED)
    assert reported(batches, 6, "appended") == "appended", "its commit was under way"
    assert reported(batches, 8, GAP) is REFUSED
    assert reported(batches, 8, "appended") == "appended"
    assert reported(batches, 9, GAP) is GAP


def test_a_batch_that_was_refused_while_the_repeat_of_the_first_was_under_way_covers_those_behind_it() -> None:
    batches = RefusedBatches()
    reported(batches, 7, REFUSED)
    reported(batches, 8, REFUSED)
    assert reported(batches, 7, "appended") == "appended"
    assert reported(batches, 10, GAP) is REFUSED
    assert reported(batches, 8, "appended") == "appended"
    assert reported(batches, 10, GAP) is GAP


def test_a_name_that_no_topic_can_have_is_not_kept() -> None:
    batches = RefusedBatches()
    reported(batches, 7, REFUSED, topic="x" * 250)
    assert reported(batches, 8, GAP, topic="x" * 250) is GAP


def test_the_first_of_several_refused_batches_covers_all_behind_it() -> None:
    batches = RefusedBatches()
    later = NoLeader("still not led")
    reported(batches, 7, REFUSED)
    reported(batches, 8, later, now_s=COVERED_S)
    assert reported(batches, 8, GAP, now_s=COVERED_S + 1) is later


@pytest.mark.parametrize("refused", [OutOfOrderSequence("a gap"), InvalidRecord("not a batch"), ProducerFenced("old")])
def test_a_batch_that_may_not_be_sent_again_covers_none(refused: TidelogError) -> None:
    batches = RefusedBatches()
    assert reported(batches, 7, refused) is refused
    assert reported(batches, 8, GAP) is GAP


def test_no_other_partition_producer_or_earlier_batch_is_covered_and_none_for_long() -> None:
    batches = RefusedBatches()
    reported(batches, 7, REFUSED)
    assert reported(batches, 8, GAP, topic="payments") is GAP
    assert reported(batches, 8, GAP, partition=P1) is GAP
    assert reported(batches, 8, GAP, producer=OTHER) is GAP
    assert reported(batches, 8, GAP, epoch=1) is GAP
    assert reported(batches, 7, GAP) is GAP
    assert reported(batches, 6, GAP) is GAP
    assert reported(batches, 8, GAP, now_s=COVERED_S + 0.1) is GAP


def test_other_errors_of_producers_are_answered_as_they_are() -> None:
    batches = RefusedBatches()
    reported(batches, 7, REFUSED)
    for error in (DuplicateSequence("in the log"), ProducerFenced("old")):
        assert reported(batches, 8, error) is error


def test_the_partitions_that_were_refused_last_are_remembered() -> None:
    batches = RefusedBatches()
    for number in (0, *range(1, REMEMBERED_MAX), 0, REMEMBERED_MAX):
        reported(batches, 7, REFUSED, partition=number)
    assert reported(batches, 8, GAP) is REFUSED, "it was refused once more"
    assert reported(batches, 8, GAP, partition=P1) is GAP
    assert reported(batches, 8, GAP, partition=REMEMBERED_MAX) is REFUSED


def test_sequences_wrap() -> None:
    batches = RefusedBatches()
    reported(batches, (1 << 31) - 1, REFUSED)
    assert reported(batches, 0, GAP) is REFUSED
