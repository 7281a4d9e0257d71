"""Samples of the lag of groups: bounded, in the order of their times, and held once however often brokers send them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from gateway.groups.admin.lag_samples import (
    GAP_MIN_MS,
    GROUPS_MAX,
    KEPT_MS,
    SAMPLES_MAX,
    TOPICS_MAX,
    WATCH_S,
    GroupLagHistory,
    LagSamples,
)


class Row(NamedTuple):
    topic: str
    lag_records: int
    lag_seconds: float | None = 0.0


def store(name: str = "a", *groups: str, requested_s: float = 0.0) -> LagSamples:
    made = LagSamples(name)
    for group in groups:
        made.watch(group, requested_s=requested_s)
    return made


def send(sender: LagSamples, receiver: LagSamples, group: str = "g") -> int:
    """Sends samples as a broker does that another one has asked, and returns their number."""
    store_id, after = receiver.heard(group, sender.store_id)
    found = sender.since(group, after if store_id == sender.store_id else 0)
    receiver.merge(type(found).FromString(found.SerializeToString()), broker_id=sender.store_id, store_id=sender.store_id)
    return len(found.at_ms)


def test_a_sample_is_the_sum_of_records_and_the_largest_age_by_topic_and_of_the_group() -> None:
    held = store("a", "g")
    held.take("g", [Row("orders", 3, 1.5), Row("orders", 4, None), Row("sales", 2, 7.0)], at_ms=1_000)
    held.take("g", [Row("orders", 1, None)], at_ms=20_000)
    history = held.history("g")
    assert (history.at_ms, history.records, history.seconds) == ([1_000, 20_000], [9, 1], [7.0, None])
    assert [(each.topic, each.records, each.seconds) for each in history.topics] == [
        ("orders", [7, 1], [1.5, None]),
        ("sales", [2, None], [7.0, None]),
    ]


def test_a_group_is_sampled_while_somebody_looks_and_some_minutes_longer() -> None:
    held = store("a", "g", requested_s=100.0)
    assert held.is_due("g", now_s=100.0, at_ms=0)
    assert not held.is_due("other", now_s=100.0, at_ms=0)
    held.take("g", [], at_ms=0)
    assert not held.is_due("g", now_s=101.0, at_ms=GAP_MIN_MS - 1)
    assert held.is_due("g", now_s=101.0, at_ms=GAP_MIN_MS)
    assert not held.is_due("g", now_s=100.0 + WATCH_S, at_ms=KEPT_MS)
    assert held.watched(now_s=100.0 + WATCH_S - 1) == {"g": WATCH_S - 1}
    assert held.watched(now_s=100.0 + WATCH_S) == {}
    held.watch("g", requested_s=50.0)  # another broker was asked earlier
    assert held.watched(now_s=101.0) == {"g": 1.0}


def test_samples_older_than_an_hour_and_groups_without_a_request_are_forgotten() -> None:
    held = store("a", "g", "other", requested_s=0.0)
    for at_ms in (0, 20_000, KEPT_MS):
        held.take("g", [Row("orders", 1)], at_ms=at_ms)
    held.watch("g", requested_s=1.0)
    held.drop_old(now_s=KEPT_MS / 1000, now_ms=KEPT_MS + 1)
    assert held.history("g").at_ms == [20_000, KEPT_MS]
    assert "other" not in held


def test_groups_samples_and_topics_are_bounded() -> None:
    held = store("a", "g", requested_s=1e9)
    for number in range(3 * GROUPS_MAX):
        held.watch(f"g{number}", requested_s=number)
    assert sum(f"g{number}" in held for number in range(3 * GROUPS_MAX)) == GROUPS_MAX - 1
    assert "g" in held, "the one that was looked at last"
    for number in range(2 * SAMPLES_MAX):
        held.take("g", [Row(f"t{topic:03}", topic + 1) for topic in range(3 * TOPICS_MAX)], at_ms=number * GAP_MIN_MS)
    history = held.history("g")
    assert len(history.at_ms) == SAMPLES_MAX
    assert history.at_ms[-1] == (2 * SAMPLES_MAX - 1) * GAP_MIN_MS
    assert [each.topic for each in history.topics] == [f"t{topic:03}" for topic in reversed(range(2 * TOPICS_MAX, 3 * TOPICS_MAX))]
    assert history.topics_left_out == 2 * TOPICS_MAX
    assert history.records[-1] == sum(range(1, 3 * TOPICS_MAX + 1)), "the others are in the sum"


def test_a_broker_is_sent_what_it_lacks_and_holds_it_once() -> None:
    one, two, three = store("1", "g"), store("2", "g"), store("3", "g")
    one.take("g", [Row("orders", 5, 2.0)], at_ms=1_000)
    one.take("g", [Row("sales", 1, None), Row("orders", 6, 3.0)], at_ms=20_000)
    assert (send(one, two), send(one, two)) == (2, 0)
    assert two.history("g") == one.history("g")
    two.take("g", [Row("orders", 7)], at_ms=40_000)
    assert (send(two, one), send(two, three), send(one, three)) == (3, 3, 3)
    assert one.history("g") == two.history("g") == three.history("g")
    assert one.history("g").at_ms == [1_000, 20_000, 40_000]


def test_a_broker_that_has_begun_again_is_asked_for_all_that_it_has() -> None:
    one, two = store("1", "g"), store("2", "g")
    one.take("g", [Row("orders", 5)], at_ms=1_000)
    one.take("g", [Row("orders", 6)], at_ms=20_000)
    assert send(one, two) == 2
    again = store("1 again", "g")
    again.take("g", [Row("orders", 7)], at_ms=40_000)
    found = again.since("g", 0 if two.heard("g", "1")[0] != again.store_id else two.heard("g", "1")[1])
    two.merge(found, broker_id="1", store_id=again.store_id)
    assert two.history("g").records == [5, 6, 7]
    assert two.heard("g", "1") == (again.store_id, 1)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["1", "2", "3"]),
            st.integers(0, 50),
            st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9))),
        )
    ),
    st.lists(st.tuples(st.sampled_from("123"), st.sampled_from("123")), max_size=20),
)
def test_brokers_that_hear_of_each_other_in_any_order_end_with_the_same_history(
    taken: Sequence[tuple[str, int, list[tuple[str, int]]]], sent: Sequence[tuple[str, str]]
) -> None:
    stores = {name: store(name, "g") for name in "123"}
    later = iter(sent)
    for index, (name, at, rows) in enumerate(taken):
        stores[name].take("g", [Row(*row) for row in rows], at_ms=GAP_MIN_MS * (100 * at + index))
        if (pair := next(later, None)) is not None:
            send(stores[pair[0]], stores[pair[1]])
    for _ in range(2):
        for sender in "123":
            for receiver in "123":
                if sender != receiver:
                    send(stores[sender], stores[receiver])

    def in_any_order(history: GroupLagHistory) -> tuple[object, ...]:
        """Without the order of the topics, which is that in which a broker has heard of them."""
        return history.at_ms, history.records, history.seconds, sorted(history.topics)

    assert (
        in_any_order(stores["1"].history("g")) == in_any_order(stores["2"].history("g")) == in_any_order(stores["3"].history("g"))
    )
    assert len(stores["1"].history("g").at_ms) == len({GAP_MIN_MS * (100 * at + index) for index, (_, at, _) in enumerate(taken)})


def sees(*topics: str) -> Callable[[str], bool]:
    return lambda topic: topic in topics


def test_a_reader_sees_the_topics_of_its_rights_alone_and_sums_over_them() -> None:
    held = store("a", "g")
    held.take("g", [Row("orders", 3, 1.0), Row("salaries", 100, 9.0)], at_ms=1_000)
    held.take("g", [Row("salaries", 50, 8.0)], at_ms=20_000)
    history = held.history("g")
    assert history.only(sees("orders", "salaries"))[:-1] == history[:-1]
    seen = history.only(sees("orders"))
    assert (seen.records, seen.seconds) == ([3, 0], [1.0, None])
    assert [each.topic for each in seen.topics] == ["orders"]
    assert history.only(sees()).records == [0, 0]


def test_topics_without_a_history_of_their_own_are_in_no_sum_of_a_reader_with_rights() -> None:
    held = store("a", "g")
    rows = [Row(f"t{number:02}", 10) for number in range(TOPICS_MAX)]
    held.take("g", [*rows, Row("unseen", 1)], at_ms=1_000)
    history = held.history("g")
    assert history.records == [10 * TOPICS_MAX + 1]
    seen = history.only(sees(*(row.topic for row in rows)))
    assert (seen.records, seen.topics_left_out) == ([10 * TOPICS_MAX], 0)


def test_a_sum_of_an_older_sample_that_left_topics_out_is_not_shown_to_a_reader_with_rights() -> None:
    held = store("a", "g")
    rows = [Row(f"t{number:02}", 10) for number in range(TOPICS_MAX)]
    held.take("g", [*rows, Row("unseen", 1, 7.0)], at_ms=1_000)
    held.take("g", rows, at_ms=20_000)
    history = held.history("g")
    assert (history.records, history.topics_left_out) == ([10 * TOPICS_MAX + 1, 10 * TOPICS_MAX], 0)
    seen = history.only(sees(*(row.topic for row in rows)))
    assert (seen.records, seen.seconds, seen.is_partial) == ([10 * TOPICS_MAX] * 2, [0.0] * 2, True)
    assert not history.is_partial


def test_the_place_of_a_topic_that_no_sample_has_any_more_is_given_back() -> None:
    held, other = store("a", "g", requested_s=1e6), store("b", "g")
    held.take("g", [Row(f"old{number:02}", 1) for number in range(TOPICS_MAX - 1)], at_ms=0)
    held.take("g", [Row("kept", 2, 3.0), Row("old00", 1)], at_ms=20_000)
    held.drop_old(now_s=1e6, now_ms=KEPT_MS + 1)
    held.take("g", [Row("kept", 4), *(Row(f"new{number:02}", 5) for number in range(TOPICS_MAX - 2))], at_ms=KEPT_MS)
    history = held.history("g")
    assert history.topics_left_out == 0
    assert {each.topic for each in history.topics} == {"kept", "old00", *(f"new{number:02}" for number in range(TOPICS_MAX - 2))}
    by_topic = {each.topic: (each.records, each.seconds) for each in history.topics}
    assert (by_topic["kept"], by_topic["old00"]) == (([2, 4], [3.0, 0.0]), ([1, None], [0.0, None]))
    send(held, other)
    assert sorted(other.history("g").topics) == sorted(history.topics)


def test_a_broker_is_sent_the_topics_of_the_samples_that_it_lacks_alone() -> None:
    held = store("a", "g")
    held.take("g", [Row("orders", 1)], at_ms=1_000)
    first = held.since("g", 0).last
    held.take("g", [Row("sales", 2)], at_ms=20_000)
    assert [each.topic for each in held.since("g", first).topics] == ["sales"]


def test_a_topic_for_which_a_broker_has_no_place_is_counted_as_left_out() -> None:
    one, two = store("1", "g"), store("2", "g")
    two.take("g", [Row(f"t{number:02}", 1) for number in range(TOPICS_MAX)], at_ms=1_000)
    one.take("g", [Row("orders", 3)], at_ms=20_000)
    send(one, two)
    assert (two.history("g").records[-1], two.history("g").topics_left_out) == (3, 1)
