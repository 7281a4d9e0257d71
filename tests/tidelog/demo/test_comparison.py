"""The demo's verdict: it must see every way in which what was read back can differ from what was sent."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tidelog.demo.comparison import Comparison, compare

SENT = {"AA": [b"a1", b"a2", b"a3", b"a4"], "UA": [b"u1", b"u2"]}


def found(comparison: Comparison) -> tuple[int, int, int, int]:
    return comparison.missing, comparison.doubled, comparison.changed, comparison.out_of_order


def test_the_same_rows_in_the_same_order_are_equal() -> None:
    comparison = compare(SENT, {key: list(rows) for key, rows in SENT.items()})
    assert comparison.equal
    assert str(comparison) == "6 rows, each once, unchanged, in order within its key"


def test_a_missing_row_is_found() -> None:
    comparison = compare(SENT, {**SENT, "AA": [b"a1", b"a2", b"a4"]})
    assert found(comparison) == (1, 0, 0, 0)
    assert not comparison.equal
    assert comparison.examples == ["AA missing: a3"]


def test_a_key_that_is_missing_as_a_whole_is_found() -> None:
    assert found(compare(SENT, {"AA": SENT["AA"]})) == (2, 0, 0, 0)


def test_a_doubled_row_is_found() -> None:
    comparison = compare(SENT, {**SENT, "AA": [b"a1", b"a2", b"a2", b"a3", b"a4"]})
    assert found(comparison) == (0, 1, 0, 0)
    assert not comparison.equal


def test_a_batch_that_was_written_twice_is_found_though_the_rows_lie_apart() -> None:
    assert found(compare(SENT, {**SENT, "UA": [b"u1", b"u2", b"u1", b"u2"]})) == (0, 2, 0, 0)


def test_a_changed_row_is_found_and_not_taken_for_a_missing_one() -> None:
    comparison = compare(SENT, {**SENT, "AA": [b"a1", b"a2", b"a3!", b"a4"]})
    assert found(comparison) == (0, 0, 1, 0)
    assert comparison.examples == ["AA changed: a3!"]


def test_a_row_that_nobody_sent_is_found() -> None:
    assert found(compare(SENT, {**SENT, "AA": [*SENT["AA"], b"a5"]})) == (0, 0, 1, 0)


def test_a_row_under_another_key_is_found() -> None:
    assert found(compare(SENT, {"AA": SENT["AA"][1:], "UA": [b"u1", b"a1", b"u2"]})) == (1, 0, 1, 0)


def test_rows_out_of_order_are_found() -> None:
    comparison = compare(SENT, {**SENT, "AA": [b"a1", b"a3", b"a2", b"a4"]})
    assert found(comparison) == (0, 0, 0, 1)
    assert not comparison.equal
    assert str(comparison) == "1 out of order"


def test_equal_rows_are_counted_one_by_one() -> None:
    sent = {"AA": [b"same", b"other", b"same"]}
    assert compare(sent, sent).equal
    assert found(compare(sent, {"AA": [b"same", b"other"]})) == (1, 0, 0, 0)
    assert found(compare(sent, {"AA": [b"same", b"same", b"other"]})) == (0, 0, 0, 1)


@given(
    st.dictionaries(st.sampled_from(["AA", "UA", "DL"]), st.lists(st.sampled_from([b"1", b"2", b"3", b"4"]), max_size=8)),
    st.dictionaries(st.sampled_from(["AA", "UA", "DL"]), st.lists(st.sampled_from([b"1", b"2", b"3", b"4"]), max_size=8)),
)
def test_it_finds_nothing_exactly_when_the_sequences_are_equal(sent: dict[str, list[bytes]], read: dict[str, list[bytes]]) -> None:
    same = all(sent.get(key, []) == read.get(key, []) for key in {*sent, *read})
    assert compare(sent, read).equal is same


@given(st.lists(st.binary(max_size=2), max_size=20), st.randoms(use_true_random=False))
def test_a_shuffle_loses_and_doubles_nothing(rows: list[bytes], shuffler: random.Random) -> None:
    read = list(rows)
    shuffler.shuffle(read)
    assert found(compare({"AA": rows}, {"AA": read}))[:3] == (0, 0, 0)
