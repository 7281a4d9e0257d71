"""Which topic of a name is the present one follows from what several brokers say, some of which lag."""

from __future__ import annotations

from itertools import permutations

import pytest

from spark.sink.topic_views import TopicView, present_topic

FORMER, PRESENT = TopicView("a", 3), TopicView("b", 5)
LEADERLESS, UNKNOWN = TopicView("b"), TopicView("")


@pytest.mark.parametrize(
    ("views", "before_all_are_asked", "then"),
    [
        ([], None, None),
        ([PRESENT], None, "b"),
        ([UNKNOWN], None, ""),
        ([PRESENT, PRESENT], "b", "b"),
        ([UNKNOWN, UNKNOWN], "", ""),
        ([LEADERLESS, LEADERLESS], "b", "b"),
        ([PRESENT, LEADERLESS], "b", "b"),
        ([PRESENT, TopicView("b", 4)], "b", "b"),
        ([FORMER, PRESENT], None, "b"),
        ([FORMER, FORMER, PRESENT], None, "b"),
        ([FORMER, PRESENT, PRESENT], "b", "b"),
        ([FORMER, LEADERLESS], None, None),
        ([UNKNOWN, PRESENT], None, None),
        ([UNKNOWN, PRESENT, PRESENT], "b", "b"),
        ([TopicView("a"), TopicView("a"), PRESENT], None, None),
    ],
)
def test_two_brokers_or_all_must_agree_and_older_leader_epochs_do_not_count(
    views: list[TopicView], before_all_are_asked: str | None, then: str | None
) -> None:
    for order in permutations(views):
        assert present_topic(order, is_complete=False) == before_all_are_asked
        assert present_topic(order, is_complete=True) == then
