"""Where a member begins is decided by the same rules for the SDK, for Consume and over HTTP."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import NotFound, OutOfRange
from metadata.group_member.start_offsets import GroupStart, StartPolicy, StartRules


class Bounds(NamedTuple):
    log_start_offset: int
    high_watermark: int


LOG = Bounds(3, 10)
BOTH = (StartPolicy.EARLIEST, StartPolicy.LATEST)


def rules(policy: StartPolicy) -> StartRules:
    return StartRules("billing", policy)


@pytest.mark.parametrize("policy", StartPolicy)
def test_a_member_starts_at_the_committed_offset_whatever_the_policy(policy: StartPolicy) -> None:
    assert rules(policy).at_committed("orders/1", 7) == GroupStart(7)
    assert rules(policy).at_committed("orders/1", 7, leader_epoch=4, epoch_end=7) == GroupStart(7)
    assert rules(policy).at_committed("orders/1", 7, leader_epoch=4, epoch_end=9) == GroupStart(7)


@pytest.mark.parametrize("policy", BOTH)
def test_a_member_resumes_at_the_cut_of_a_log_below_the_committed_offset(policy: StartPolicy) -> None:
    start = rules(policy).at_committed("orders/1", 7, leader_epoch=4, epoch_end=5)
    assert isinstance(start, GroupStart)
    assert (start.offset, start.is_end) == (5, False)
    assert "the log of orders/1 was cut at 5, below what group billing has committed (7, of leader epoch 4)" in start.moved


def test_a_cut_is_an_error_for_who_chose_errors() -> None:
    met = rules(StartPolicy.ERROR).at_committed("orders/1", 7, leader_epoch=4, epoch_end=5)
    assert isinstance(met, OutOfRange)
    assert met.hint.startswith("Go on at 5 (tidelog group seek)")


def test_without_a_commit_the_policy_says_where_it_begins_and_the_end_is_to_be_remembered() -> None:
    assert rules(StartPolicy.EARLIEST).within("orders/1", LOG) == GroupStart(3, is_end=False)
    assert rules(StartPolicy.LATEST).within("orders/1", LOG) == GroupStart(10, is_end=True)
    assert isinstance(rules(StartPolicy.ERROR).within("orders/1", LOG), NotFound)


def test_nothing_is_skipped_of_a_partition_that_came_while_the_reader_ran() -> None:
    for policy in BOTH:
        assert rules(policy).within("orders/1", LOG, was_added=True) == GroupStart(3, is_end=False)
    assert isinstance(rules(StartPolicy.ERROR).within("orders/1", LOG, was_added=True), NotFound)


@given(st.sampled_from(BOTH), st.integers(0, 50), st.none() | st.integers(0, 50))
def test_a_start_is_never_behind_what_is_committed(policy: StartPolicy, committed: int, epoch_end: int | None) -> None:
    start = rules(policy).at_committed("orders/1", committed, leader_epoch=1, epoch_end=epoch_end)
    assert isinstance(start, GroupStart)
    assert start.offset == min(committed, committed if epoch_end is None else epoch_end)
    assert bool(start.moved) == (start.offset < committed)
