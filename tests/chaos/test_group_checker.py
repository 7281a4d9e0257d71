"""The judge of groups is judged: a clean history passes, and each anomaly is found by its name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.group_checker import anomalies, figures
from tests.chaos.history import (
    AnyEvent,
    Assigned,
    Committed,
    CommittedReported,
    GaveUp,
    GroupEnd,
    HandedOut,
    Healed,
    Lived,
    Processed,
    Served,
)
from tests.chaos.report import groups


def assigned(member: str, *, generation: int = 1, time_s: float = 1.0) -> Assigned:
    return Assigned(time_s, "g", member, generation, (0,))


def gave_up(member: str) -> GaveUp:
    return GaveUp(5.0, "g", member, (0,))


def handed_out(member: str, *offsets: int, generation: int = 1) -> HandedOut:
    return HandedOut(2.0, "g", member, generation, 0, tuple((offset, f"p#{offset}") for offset in offsets))


def processed(member: str, next_offset: int) -> Processed:
    return Processed(3.0, "g", member, 0, next_offset)


def committed(member: str, offset: int, *, time_s: float = 4.0) -> Committed:
    return Committed(time_s, "g", member, ((0, offset),))


def reported(offset: int, *, asked_s: float = 6.0) -> CommittedReported:
    return CommittedReported(asked_s + 0.1, asked_s, "g", ((0, offset),))


def read(member: str, *offsets: int, generation: int = 1) -> list[AnyEvent]:
    """Handed out, processed, and committed."""
    end = offsets[-1] + 1
    return [handed_out(member, *offsets, generation=generation), processed(member, end), committed(member, end)]


# The first member has read two records of the partition.
BEGUN: list[AnyEvent] = [assigned("a"), *read("a", 0, 1), reported(2)]
# Another member owns it from now on.
MOVED: list[AnyEvent] = [*BEGUN, gave_up("a"), assigned("b", generation=2)]


def ended(offset: int, *, lag: int = 0) -> list[AnyEvent]:
    """Four records lie in the partition."""
    return [Served(9.0, 0, tuple((at, f"p#{at}") for at in range(4))), GroupEnd(9.5, "g", lag, ((0, offset),))]


CLEAN: list[AnyEvent] = [*MOVED, *read("b", 2, 3, generation=2), reported(4, asked_s=8.0), *ended(4)]


def names(events: list[AnyEvent]) -> set[str]:
    return {name for name, _ in anomalies(events)}


def test_a_clean_history_passes() -> None:
    assert anomalies(CLEAN) == []


BROKEN: dict[str, Callable[[], list[AnyEvent]]] = {
    "group-skip": lambda: [*MOVED, handed_out("b", 3, generation=2)],
    "group-gap": lambda: [*BEGUN, handed_out("a", 3)],
    "group-went-back": lambda: [*BEGUN, handed_out("a", 1)],
    "not-owned": lambda: [*BEGUN, gave_up("a"), handed_out("a", 2)],
    "two-owners": lambda: [*BEGUN, assigned("b"), handed_out("b", 2)],
    "lost-commit": lambda: [*MOVED, handed_out("b", 1, generation=2)],
    "commit-went-back": lambda: [*BEGUN, reported(1, asked_s=7.0)],
    "commit-beyond": lambda: [*BEGUN, reported(3, asked_s=7.0)],
    "group-lag": lambda: [*MOVED, *read("b", 2, 3, generation=2), *ended(4, lag=1)],
}


@pytest.mark.parametrize("anomaly", BROKEN)
def test_each_anomaly_is_found_by_its_name_and_no_other(anomaly: str) -> None:
    assert names(BROKEN[anomaly]()) == {anomaly}


def test_records_that_no_member_of_the_group_processed_count_as_skipped() -> None:
    assert names([*BEGUN, *ended(4)]) == {"group-skip"}


def test_offsets_that_are_not_committed_in_the_end_are_lag_whatever_the_group_says() -> None:
    assert names([*MOVED, *read("b", 2, 3, generation=2), *ended(3, lag=0)]) == {"group-lag"}


def test_records_that_a_dropped_member_had_in_its_hands_must_come_again() -> None:
    events = [*BEGUN, handed_out("a", 2), assigned("b", generation=2), handed_out("b", 3, generation=2)]
    assert names(events) == {"group-skip"}


def test_records_that_were_processed_and_not_committed_may_come_again() -> None:
    events = [assigned("a"), handed_out("a", 0, 1), processed("a", 2), assigned("b", generation=2), *read("b", 0, 1, generation=2)]
    assert anomalies(events) == []
    assert figures(events)["g"].again == 2


def test_a_commit_whose_answer_was_lost_may_count_or_not() -> None:
    begun: list[AnyEvent] = [assigned("a"), handed_out("a", 0, 1), processed("a", 2), gave_up("a"), assigned("b", generation=2)]
    assert anomalies([*begun, handed_out("b", 2, generation=2)]) == []
    assert anomalies([*begun, handed_out("b", 0, generation=2)]) == []


def test_a_commit_acknowledged_while_a_broker_was_asked_may_be_reported_or_not() -> None:
    assert anomalies([*BEGUN, handed_out("a", 2), processed("a", 3), committed("a", 3, time_s=7.0), reported(2, asked_s=6.5)]) == []


def test_a_member_that_does_not_know_yet_that_its_partition_went_to_another_is_counted() -> None:
    events = [*BEGUN, assigned("b", generation=2), *read("b", 2, generation=2), handed_out("a", 2)]
    assert anomalies(events) == []
    assert figures(events)["g"].by_former_owners == 1


def test_a_member_may_read_records_again_after_a_new_assignment() -> None:
    assert anomalies([*BEGUN, handed_out("a", 2, 3), assigned("a", generation=2), handed_out("a", 2, generation=2)]) == []


def test_the_report_has_two_lines_for_each_group() -> None:
    first, second = groups([*CLEAN, Lived(9.9, 1.0, "g", "a", dropped=True)])
    assert "handed out 4   again 0   by former owners 0   commits 2" in first
    assert "lives 1   dropped 1   generations 2   assignments 2   longest pause 0.0 s" in second


def test_the_longest_pause_of_a_group_ends_with_the_load() -> None:
    events = [*BEGUN, HandedOut(7.0, "g", "a", 1, 0, ((2, "p#2"),)), Healed(15.0), HandedOut(90.0, "g", "a", 1, 0, ((3, "p#3"),))]
    assert figures(events)["g"].pause_s == 8.0
