"""Partitions that are looked up again: those with news and those that were not at their end, in the order of reading."""

from __future__ import annotations

from segments.read.due_lookups import DueLookups


def test_all_are_due_at_first_and_then_only_those_that_are_marked_whatever_the_order_of_their_news() -> None:
    due = DueLookups("abcd")
    assert due.take() == ["a", "b", "c", "d"]
    assert (due.take(), len(due)) == ([], 0)
    for key in "cac":
        due.mark(key)
    assert len(due) == 2
    assert due.take() == ["a", "c"]
    due.mark_all()
    assert due.take() == ["a", "b", "c", "d"]


def test_one_that_had_records_is_read_last_and_a_new_one_after_it() -> None:
    due = DueLookups("abc")
    due.move_to_end("a")
    due.add("d")
    due.add("b")
    assert due.take() == ["b", "c", "a", "d"]
    due.add("b")
    assert due.take() == ["b"], "one that is known keeps its place"


def test_one_that_was_removed_is_not_due_whatever_news_it_has() -> None:
    due = DueLookups("ab")
    due.remove("a")
    due.mark("a")
    due.mark_all()
    assert due.take() == ["b"]
