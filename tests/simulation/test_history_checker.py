"""The judge is judged: a clean history passes, and each way to break an invariant is found by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.history_checker import (
    Acknowledged,
    AnsweredTogether,
    Event,
    Fetched,
    GaveUp,
    History,
    Invariant,
    RecordId,
    Refused,
    Sampled,
    Sent,
    SentTogether,
    Unknown,
    Violation,
    check,
)

P = "orders/0"


def record(number: int, attempt: int = 1, producer: str = "p") -> RecordId:
    return RecordId(producer, number, attempt)


def sent(operation: int, *records: RecordId, idempotent: bool = True) -> Sent:
    return Sent(operation, P, records, idempotent)


def with_offsets(*records: RecordId, start: int = 0) -> tuple[tuple[int, RecordId], ...]:
    return tuple(enumerate(records, start))


def history(events: Sequence[Event], *log: RecordId) -> History:
    return History(events, {P: with_offsets(*log)}, {P: with_offsets(*log)})


CLEAN = history(
    [
        sent(1, record(0), record(1)),
        sent(2, record(2)),
        Acknowledged(1, 0),
        Fetched("r", P, 0, with_offsets(record(0), record(1)), 2),
        Unknown(2, "timeout"),
        sent(3, record(2, attempt=2)),
        Refused(3, "SESSION_FENCED"),
        sent(4, record(2, attempt=3)),
        Sampled("buffered bytes", 100, 100),
        Acknowledged(4, 2),
        Fetched("r", P, 2, with_offsets(record(2), start=2), 3),
        Fetched("r", P, 3, (), 3),
        sent(5, record(0, producer="plain"), idempotent=False),
        Refused(5, "THROTTLED"),
        sent(6, record(0, attempt=2, producer="plain"), idempotent=False),
        Acknowledged(6, 3),
    ],
    record(0),
    record(1),
    record(2),
    record(0, attempt=2, producer="plain"),
)


def broken(history: History) -> list[Invariant]:
    return sorted({violation.invariant for violation in check(history)}, key=lambda invariant: invariant.value)


def test_a_clean_history_passes_with_repeats_refusals_and_unknown_outcomes_in_it() -> None:
    assert check(CLEAN) == []


def test_a_history_in_which_nothing_happened_passes() -> None:
    assert check(History((), {}, {})) == []


def test_an_acknowledged_record_that_is_gone_is_not_durable() -> None:
    assert check(history([sent(1, record(0), record(1)), Acknowledged(1, 0)], record(0))) == [
        Violation(Invariant.DURABLE, "p#1.1 of orders/0 was acknowledged at offset 1 and is not in the log")
    ]


def test_an_acknowledgement_without_an_offset_holds_wherever_the_record_lies() -> None:
    events: list[Event] = [sent(1, record(0)), Unknown(1, "reset"), sent(2, record(0, attempt=2)), Acknowledged(2, None)]
    assert check(history(events, record(0))) == []
    assert check(history(events)) == [
        Violation(Invariant.DURABLE, "p#0.2 of orders/0 was acknowledged without an offset and is not in the log")
    ]


def test_an_acknowledged_attempt_of_a_plain_producer_is_not_replaced_by_another_attempt() -> None:
    events: list[Event] = [
        sent(1, record(0), idempotent=False),
        Acknowledged(1, 0),
        sent(2, record(0, attempt=2), idempotent=False),
    ]
    assert broken(history(events, record(0, attempt=2))) == [Invariant.DURABLE]


def test_an_acknowledgement_with_another_offset_than_the_records_is_not_truthful() -> None:
    events: list[Event] = [sent(1, record(0)), sent(2, record(1)), Acknowledged(2, 7)]
    assert [str(violation) for violation in check(history(events, record(0), record(1)))] == [
        "truthful: p#1.1 of orders/0 was acknowledged at offset 7 and lies at 1"
    ]


def test_a_refused_attempt_that_is_in_the_log_is_not_truthful() -> None:
    events: list[Event] = [sent(1, record(0)), Refused(1, "SESSION_FENCED")]
    assert broken(history(events, record(0))) == [Invariant.TRUTHFUL]


def test_a_refused_attempt_is_a_lie_even_when_a_later_attempt_was_acknowledged() -> None:
    events: list[Event] = [sent(1, record(0)), Refused(1, "UNAVAILABLE"), sent(2, record(0, attempt=2)), Acknowledged(2, 0)]
    assert broken(history(events, record(0))) == [Invariant.TRUTHFUL]


def test_a_record_of_an_idempotent_producer_that_is_there_twice_is_not_unique() -> None:
    events: list[Event] = [sent(1, record(0)), Unknown(1, "reset"), sent(2, record(0, attempt=2)), Acknowledged(2, 0)]
    assert broken(history(events, record(0), record(0, attempt=2))) == [Invariant.UNIQUE]


def test_two_attempts_of_a_plain_producer_are_two_records() -> None:
    events: list[Event] = [
        sent(1, record(0), idempotent=False),
        Unknown(1, "reset"),
        sent(2, record(0, attempt=2), idempotent=False),
    ]
    assert check(history(events, record(0), record(0, attempt=2))) == []


def test_one_attempt_of_a_plain_producer_that_is_there_twice_is_not_unique() -> None:
    assert broken(history([sent(1, record(0), idempotent=False)], record(0), record(0))) == [Invariant.UNIQUE]


@pytest.mark.parametrize("offsets", [(0, 0), (0, 2), (1, 2)], ids=["one offset twice", "a hole", "a hole at the start"])
def test_offsets_that_are_not_dense_are_not_unique(offsets: tuple[int, int]) -> None:
    log = {P: [(offsets[0], record(0)), (offsets[1], record(1))]}
    assert broken(History([sent(1, record(0), record(1))], log, log)) == [Invariant.UNIQUE]


def test_two_readers_that_see_different_records_at_one_offset_break_uniqueness() -> None:
    events: list[Event] = [
        sent(1, record(0)),
        sent(2, record(0, producer="q")),
        Fetched("r", P, 0, with_offsets(record(0, producer="q")), 1),
    ]
    assert broken(history(events, record(0))) == [Invariant.UNIQUE]


def test_records_of_an_idempotent_producer_in_another_order_are_not_ordered() -> None:
    events: list[Event] = [sent(1, record(0)), sent(2, record(1))]
    assert broken(history(events, record(1), record(0))) == [Invariant.ORDERED]


def test_a_record_without_the_one_before_it_is_not_ordered() -> None:
    events: list[Event] = [sent(1, record(0)), sent(2, record(1)), sent(3, record(2))]
    assert check(history(events, record(0), record(2))) == [
        Violation(Invariant.ORDERED, "p#2.1 of orders/0 lies at offset 1, before p#1")
    ]


def test_plain_producers_promise_no_order() -> None:
    events: list[Event] = [sent(1, record(0), idempotent=False), sent(2, record(1), idempotent=False)]
    assert check(history(events, record(1), record(0))) == []


def test_a_high_watermark_that_goes_back_breaks_the_prefix() -> None:
    events: list[Event] = [sent(1, record(0)), Fetched("r", P, 1, (), 1), Fetched("r", P, 1, (), 0)]
    assert broken(history(events, record(0))) == [Invariant.PREFIX]


def test_two_readers_may_be_at_different_high_watermarks() -> None:
    events: list[Event] = [sent(1, record(0)), Fetched("r", P, 1, (), 1), Fetched("s", P, 0, (), 0)]
    assert check(history(events, record(0))) == []


@pytest.mark.parametrize(
    "fetched",
    [
        pytest.param(Fetched("r", P, 0, with_offsets(record(0), record(1)), 1), id="past the high watermark"),
        pytest.param(Fetched("r", P, 0, with_offsets(record(1), start=1), 2), id="with a record left out"),
        pytest.param(Fetched("r", P, 0, with_offsets(record(0), record(1), record(2)), 3), id="of a record that is gone later"),
    ],
)
def test_a_fetch_of_anything_but_the_committed_prefix_breaks_it(fetched: Fetched) -> None:
    events: list[Event] = [sent(1, record(0), record(1)), sent(2, record(2)), fetched]
    assert broken(history(events, record(0), record(1))) == [Invariant.PREFIX]


def test_an_acknowledgement_by_a_sealed_session_is_not_fenced_even_at_the_right_offset() -> None:
    clean = history([sent(1, record(0)), Acknowledged(1, 0), sent(2, record(0, attempt=2))], record(0, attempt=2))
    assert check(clean) == []
    assert broken(replace(clean, hidden={record(0): "in session 1 after its seal"})) == [Invariant.FENCED]


def test_a_record_after_the_seal_that_a_reader_saw_is_not_fenced() -> None:
    seen = history([sent(1, record(0)), Fetched("r", P, 0, with_offsets(record(0)), 1)])
    assert broken(seen) == [Invariant.PREFIX]
    assert broken(replace(seen, hidden={record(0): "in session 1 after its seal"})) == [Invariant.FENCED]


def test_a_record_after_the_seal_that_is_in_the_log_is_not_fenced() -> None:
    assert Invariant.FENCED in broken(replace(history([sent(1, record(0))], record(0)), hidden={record(0): "in session 1"}))


def test_more_than_the_bound_is_not_bounded_and_the_worst_moment_is_shown() -> None:
    samples = [Sampled("buffered bytes", value, 100) for value in (90, 130, 170, 110)]
    assert [str(violation) for violation in check(history(samples))] == ["bounded: buffered bytes reached 170; the bound is 100"]


@pytest.mark.parametrize(
    ("on_bucket", "at_broker"),
    [
        pytest.param([record(0)], [], id="a record that the broker does not serve"),
        pytest.param([], [record(0)], id="a record that is not on the bucket"),
        pytest.param([record(0)], [record(0, attempt=2)], id="another record"),
    ],
)
def test_a_bucket_that_reads_otherwise_than_the_brokers_is_not_sufficient(
    on_bucket: list[RecordId], at_broker: list[RecordId]
) -> None:
    events: list[Event] = [sent(1, record(0)), sent(2, record(0, attempt=2))]
    assert broken(History(events, {P: with_offsets(*on_bucket)}, {P: with_offsets(*at_broker)})) == [Invariant.SUFFICIENT]


@given(st.integers(1, 12), st.data())
def test_any_single_record_that_is_lost_or_doubled_or_moved_is_found(count: int, data: st.DataObject) -> None:
    records = [record(number) for number in range(count)]
    events: list[Event] = []
    for number, each in enumerate(records):
        events += [sent(number, each), Acknowledged(number, number)]
    log = list(records)
    assert check(history(events, *log)) == []
    index = data.draw(st.integers(0, count - 1))
    match data.draw(st.sampled_from(["lose", "double", "move"])):
        case "lose":
            del log[index]
        case "double":
            log.insert(data.draw(st.integers(0, count)), log[index])
        case _:
            log.insert(index, record(99, producer="another"))
    assert check(history(events, *log)) != []


@pytest.mark.parametrize(("may_be_old", "is_found"), [(False, True), (True, False)])
def test_only_a_broker_removed_while_its_lease_lived_may_report_an_old_high_watermark(may_be_old: bool, is_found: bool) -> None:
    reported = [Fetched("r", P, 1, (), 1, 8), Fetched("r", P, 0, (), 0, 7, may_be_old)]
    judged = check(history([sent(1, record(0)), *reported], record(0)))
    assert [violation.invariant for violation in judged] == [Invariant.PREFIX] * is_found


def spread(operation: int, *records: RecordId, key: str = "k") -> SentTogether:
    return SentTogether(operation, "orders", key, records)


ONE, TWO = record(0, producer="k/0"), record(0, producer="k/1")


def over_partitions(events: Sequence[Event], *logs: Sequence[RecordId]) -> History:
    """Each log is a partition of the topic "orders"."""
    log = {f"orders/{number}": with_offsets(*records) for number, records in enumerate(logs)}
    return History(events, log, log)


def test_a_request_that_is_repeated_and_written_once_is_clean() -> None:
    events: list[Event] = [spread(1, ONE, TWO), Unknown(1, "timeout"), spread(2, ONE, TWO), AnsweredTogether(2, ((0, 0), (1, 0)))]
    assert check(over_partitions(events, [ONE], [TWO])) == []


@pytest.mark.parametrize(
    ("events", "logs", "invariant"),
    [
        ([spread(1, ONE), spread(2, ONE)], ([ONE], [ONE]), Invariant.ONCE),
        ([spread(1, ONE, key="")], ([ONE], [ONE]), Invariant.UNIQUE),
        ([spread(1, ONE), AnsweredTogether(1, ((0, 0),))], ([], []), Invariant.DURABLE),
        ([spread(1, ONE), AnsweredTogether(1, ((0, 0),))], ([], [ONE]), Invariant.TRUTHFUL),
        ([spread(1, ONE), Refused(1, "THROTTLED")], ([ONE],), Invariant.TRUTHFUL),
        ([spread(1, ONE, TWO, key=""), AnsweredTogether(1, (None, (0, 0)), refused=(0,))], ([TWO],), Invariant.ORDERED),
    ],
    ids=["written twice", "sent once, written twice", "lost", "elsewhere", "refused", "behind a refused one"],
)
def test_a_request_over_several_partitions_that_breaks_a_promise_is_found(
    events: Sequence[Event], logs: Sequence[Sequence[RecordId]], invariant: Invariant
) -> None:
    assert [violation.invariant for violation in check(over_partitions(events, *logs))] == [invariant]


def test_a_key_may_be_written_again_in_another_life_of_the_topic() -> None:
    events: list[Event] = [spread(1, ONE), spread(2, ONE)]
    log = {"first/0": with_offsets(ONE), "second/0": with_offsets(ONE)}
    names = {"first": "orders", "second": "orders"}
    assert check(History(events, log, log, topics=names)) == []


@pytest.mark.parametrize(
    "reported",
    [Fetched("s", P, 0, with_offsets(record(0)), 1), GaveUp("s", P, "UNKNOWN_PARTITION")],
    ids=["not delivered to the end", "given up"],
)
def test_a_stream_that_leaves_records_of_its_topic_out_is_found(reported: Event) -> None:
    judged = replace(history([sent(1, record(0), record(1)), reported], record(0), record(1)), subscribed={"s": [P]})
    assert {violation.invariant for violation in check(judged)} == {Invariant.ATTENTIVE}
