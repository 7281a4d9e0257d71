"""One partition's batches against a broker that refuses, loses answers, breaks streams and forgets producers."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metadata.errors import (
    InvalidRecord,
    NotLeader,
    OutcomeUnknown,
    OutOfOrderSequence,
    Throttled,
    TidelogError,
    Unavailable,
    UnknownProducer,
    UnknownTopic,
)
from metadata.model import Offset, ProducerId
from segments.partition.producer_state import ProducerStates, SequencedBatch
from tidelog.producer.batch import ProducerBatch
from tidelog.producer.partition_queue import ANSWER_GRACE_S, BATCHES_IN_FLIGHT_MAX, EPOCH_MAX, SEQUENCES, PartitionQueue
from tidelog.settings import AcksName, ClientSettings
from tidelog.transport.routes import RoutePath

DELIVERY_TIMEOUT_S = 10.0


def new_queue(acks: AcksName = "all") -> PartitionQueue:
    queue = PartitionQueue(
        "orders",
        0,
        way=RoutePath("broker:9090"),
        topic_id="1",
        settings=ClientSettings(delivery_timeout_ms=DELIVERY_TIMEOUT_S * 1000, linger_ms=5, retry_pause_ms=100, acks=acks),
    )
    if queue.idempotent:
        queue.identify(7, 0)
    return queue


def add(queue: PartitionQueue, value: int, *, now_s: float = 0.0, count: int = 1) -> ProducerBatch:
    """A closed batch with `count` records."""
    batch = queue.roll(now_s)
    for number in range(count):
        batch.records.append((None, b"%d.%d" % (value, number), (), 0))
        batch.bytes += 100
    queue.close()
    return batch


def send_all(queue: PartitionQueue, now_s: float = 0.0) -> list[ProducerBatch]:
    sent = []
    while (batch := queue.next_batch(now_s)) is not None:
        queue.sent(batch)
        sent.append(batch)
    return sent


def sequences(batches: list[ProducerBatch]) -> list[int]:
    return [batch.base_sequence for batch in batches]


# ── order and sequences ──


def test_batches_leave_in_order_with_consecutive_sequences() -> None:
    queue = new_queue()
    batches = [add(queue, 0, count=3), add(queue, 1, count=2), add(queue, 2)]
    assert send_all(queue) == batches
    assert sequences(batches) == [0, 3, 5]


def test_a_sixth_batch_waits_until_the_first_is_answered() -> None:
    queue = new_queue()
    batches = [add(queue, n) for n in range(7)]
    assert send_all(queue) == batches[:BATCHES_IN_FLIGHT_MAX]
    queue.acknowledged(batches[0], 0, 0.0)
    assert send_all(queue) == [batches[5]]


def test_no_batch_leaves_five_places_behind_one_that_is_unanswered_though_those_between_are_acknowledged() -> None:
    queue = new_queue()
    batches = [add(queue, n) for n in range(7)]
    send_all(queue)
    queue.refused(batches[0], OutcomeUnknown("the broker took too long"), 0.0)
    for n in range(1, 5):
        queue.acknowledged(batches[n], n, 0.0)
    assert send_all(queue, 1.0) == [batches[0]], "the broker remembers five batches: a sixth would push this one out"


def test_sequences_wrap_at_two_to_the_31() -> None:
    queue = new_queue()
    queue._next_sequence = SEQUENCES - 2
    batches = [add(queue, 0, count=3), add(queue, 1)]
    send_all(queue)
    assert sequences(batches) == [SEQUENCES - 2, 1]


def test_a_lone_record_leaves_at_once_and_those_behind_it_linger_together() -> None:
    queue = new_queue()
    first = queue.roll(0.0)
    first.records.append((None, b"", (), 0))
    assert queue.next_batch(0.0) is first
    queue.sent(first)
    second = queue.roll(0.001)
    second.records.append((None, b"", (), 0))
    assert queue.next_batch(0.002) is None
    assert queue.wakes_at_s() == pytest.approx(0.006)
    assert queue.next_batch(0.006) is second


# ── refusals ──


def test_a_refused_batch_and_those_behind_it_go_again_in_order_with_the_same_sequences() -> None:
    queue = new_queue()
    batches = [add(queue, n) for n in range(3)]
    send_all(queue)
    queue.refused(batches[0], Throttled("full", retry_after_s=2.0), 0.0)
    queue.refused(batches[1], OutOfOrderSequence("a gap"), 0.0)
    assert queue.next_batch(0.0) is None, "an answer is still on the wire"
    queue.refused(batches[2], OutOfOrderSequence("a gap"), 0.0)
    assert queue.next_batch(1.9) is None, "the broker asked for 2 s"
    assert send_all(queue, 2.0) == batches
    assert sequences(batches) == [0, 1, 2]


def test_the_pause_between_attempts_doubles() -> None:
    queue = new_queue()
    batch = add(queue, 0)
    pauses = []
    now_s = 0.0
    for _ in range(6):
        assert send_all(queue, now_s) == [batch]
        queue.refused(batch, NotLeader("moved"), now_s)
        pauses.append(queue.retry_at_s - now_s)
        now_s = queue.retry_at_s
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_behind_a_batch_that_was_rejected_the_next_take_over_its_sequence() -> None:
    queue = new_queue()
    batches = [add(queue, 0, count=4), add(queue, 1), add(queue, 2)]
    send_all(queue)
    queue.refused(batches[0], InvalidRecord("torn"), 0.0)
    queue.refused(batches[1], OutOfOrderSequence("a gap"), 0.0)
    queue.refused(batches[2], OutOfOrderSequence("a gap"), 0.0)
    assert isinstance(batches[0].error, InvalidRecord)
    assert send_all(queue) == batches[1:]
    assert sequences(batches[1:]) == [0, 1]


def test_batches_behind_one_of_unknown_outcome_keep_their_sequences_until_the_broker_answers() -> None:
    queue = new_queue()
    batches = [add(queue, 0), add(queue, 1, now_s=5.0)]
    send_all(queue)
    queue.refused(batches[0], OutcomeUnknown("the stream broke"), 6.0)
    queue.refused(batches[1], Unavailable("the broker stops"), 6.0)
    queue.expire(DELIVERY_TIMEOUT_S)
    assert isinstance(batches[0].error, OutcomeUnknown)
    assert send_all(queue, DELIVERY_TIMEOUT_S) == [batches[1]]
    assert batches[1].base_sequence == 1

    queue.refused(batches[1], OutOfOrderSequence("0 comes next"), DELIVERY_TIMEOUT_S)  # so the broker has neither
    assert queue.producer == (7, 1), "a new epoch, which fences copies of the first that are still on their way"
    assert send_all(queue, DELIVERY_TIMEOUT_S) == [batches[1]]
    assert batches[1].base_sequence == 0
    queue.acknowledged(batches[1], 0, DELIVERY_TIMEOUT_S)
    assert batches[1].ack(0).offset == 0


def test_batches_that_a_broken_connection_may_still_bring_are_not_sent_again_under_a_new_epoch() -> None:
    """Both lie in the old connection. The broker has neither yet, and may take both before it hears of the new epoch."""
    queue = new_queue()
    first, second = add(queue, 0), add(queue, 1, now_s=5.0)
    send_all(queue)
    for batch in (first, second):
        queue.refused(batch, OutcomeUnknown("the stream broke"), 6.0)
    queue.expire(DELIVERY_TIMEOUT_S)
    later = add(queue, 2, now_s=DELIVERY_TIMEOUT_S)
    assert send_all(queue, DELIVERY_TIMEOUT_S) == [second, later]
    for batch in (second, later):
        queue.refused(batch, OutOfOrderSequence("0 comes next"), DELIVERY_TIMEOUT_S)
    assert isinstance(second.error, OutcomeUnknown)
    assert "an earlier connection may still bring them" in second.error.message
    assert second.error.hint == "Read the topic, and send what is missing."
    assert send_all(queue, DELIVERY_TIMEOUT_S) == [later], "it was in no broken connection"
    assert (queue.producer, later.base_sequence) == ((7, 1), 0)


def test_a_doubtful_batch_stays_outcome_unknown_after_an_out_of_order_sequence() -> None:
    queue = new_queue()
    first, second = add(queue, 0), add(queue, 1)
    send_all(queue)
    queue.acknowledged(first, 0, 0.0)
    queue.refused(second, OutcomeUnknown("the stream broke"), 0.0)
    send_all(queue, 1.0)
    queue.refused(second, OutOfOrderSequence("0 comes next"), 1.0)
    assert isinstance(second.error, OutcomeUnknown)
    assert "the last one met: 0 comes next" in second.error.message


def test_behind_a_batch_that_was_certainly_not_written_a_late_copy_of_the_next_is_fenced() -> None:
    """The first was throttled until it expired. The second was sent too, and its connection broke: its bytes may come late."""
    queue = new_queue()
    first, second = add(queue, 0), add(queue, 1, now_s=5.0)
    send_all(queue)
    queue.refused(first, Throttled("the buffer is full"), 6.0)
    queue.refused(second, OutcomeUnknown("the stream broke"), 6.0)
    queue.expire(DELIVERY_TIMEOUT_S)
    assert send_all(queue, DELIVERY_TIMEOUT_S) == [second]
    assert (queue.producer, second.base_sequence) == ((7, 1), 0)


def test_when_the_epochs_are_used_up_a_new_id_is_fetched() -> None:
    queue = new_queue()
    queue.identify(7, EPOCH_MAX)
    batch = add(queue, 0)
    send_all(queue)
    queue.refused(batch, UnknownProducer("expired"), 0.0)
    assert queue.producer is None
    assert send_all(queue) == []
    queue.identify(8, 0)
    assert send_all(queue) == [batch]


def test_a_producer_that_the_broker_forgot_begins_a_new_epoch_where_nothing_is_in_doubt() -> None:
    queue = new_queue()
    first = add(queue, 0)
    send_all(queue)
    queue.acknowledged(first, 0, 0.0)
    late = add(queue, 1)
    send_all(queue)
    queue.refused(late, UnknownProducer("expired"), 0.0)
    assert queue.producer == (7, 1)
    assert send_all(queue) == [late]
    assert late.base_sequence == 0


def test_a_batch_in_doubt_is_not_sent_again_under_a_new_id() -> None:
    queue = new_queue()
    first, doubtful, later = add(queue, 0), add(queue, 1), add(queue, 2)
    send_all(queue)
    queue.acknowledged(first, 0, 0.0)
    queue.refused(doubtful, OutcomeUnknown("the stream broke"), 0.0)
    queue.refused(later, Unavailable("the broker stops"), 0.0)
    send_all(queue, 1.0)
    queue.refused(doubtful, UnknownProducer("expired"), 1.0)
    queue.refused(later, UnknownProducer("expired"), 1.0)
    assert isinstance(doubtful.error, OutcomeUnknown)
    assert "forgot producer 7" in str(doubtful.error)
    queue.identify(8, 0)
    assert send_all(queue, 1.0) == [later]


def test_a_gap_that_we_did_not_make_is_reported_since_acknowledged_records_are_missing() -> None:
    queue = new_queue()
    first, second, third = add(queue, 0), add(queue, 1), add(queue, 2)
    send_all(queue)
    queue.acknowledged(first, 0, 0.0)
    queue.refused(second, OutOfOrderSequence("0 comes next"), 0.0)
    queue.refused(third, OutOfOrderSequence("0 comes next"), 0.0)
    assert isinstance(second.error, OutOfOrderSequence)
    queue.identify(8, 0)
    assert send_all(queue) == [third]


def test_with_acks_leader_a_gap_is_allowed_and_everything_goes_again() -> None:
    queue = new_queue("leader")
    first, second = add(queue, 0), add(queue, 1)
    send_all(queue)
    queue.acknowledged(first, 0, 0.0)
    queue.refused(second, OutOfOrderSequence("the leader lost its memory"), 0.0)
    queue.identify(8, 0)
    assert send_all(queue) == [second]


@pytest.mark.parametrize("first_is_about", [False, True])
def test_with_acks_leader_a_batch_in_doubt_goes_again_where_nothing_can_fill_the_gap_before_it(first_is_about: bool) -> None:
    queue = new_queue("leader")
    first, second = add(queue, 0), add(queue, 1)
    send_all(queue)
    if first_is_about:  # a first connection broke, and may still bring both
        queue.refused(first, OutcomeUnknown("the stream broke"), 0.0)
        queue.refused(second, OutcomeUnknown("the stream broke"), 0.0)
        send_all(queue, 1.0)
    queue.acknowledged(first, 0, 1.0)
    queue.refused(second, OutcomeUnknown("the stream broke"), 1.0)
    assert send_all(queue, 2.0) == [second]
    queue.refused(second, OutOfOrderSequence("the leader lost its memory"), 2.0)
    assert send_all(queue, 2.0) == ([] if first_is_about else [second])
    assert isinstance(second.error, OutcomeUnknown) == first_is_about


def test_with_acks_none_nothing_is_numbered_and_nothing_is_tried_again() -> None:
    queue = new_queue("none")
    first, second = add(queue, 0), add(queue, 1)
    assert send_all(queue) == [first, second]
    assert sequences([first, second]) == [-1, -1]
    queue.refused(first, Throttled("full"), 0.0)
    queue.acknowledged(second, -1, 0.0)
    assert isinstance(first.error, Throttled)
    assert second.ack(0).offset == -1
    assert queue.is_idle


def test_a_batch_that_is_rejected_after_an_attempt_without_an_answer_may_be_in_the_log() -> None:
    queue = new_queue()
    batch = add(queue, 0)
    send_all(queue)
    queue.refused(batch, OutcomeUnknown("the stream broke"), 0.0)
    send_all(queue, 1.0)
    queue.refused(batch, InvalidRecord("torn"), 1.0)
    assert isinstance(batch.error, OutcomeUnknown)
    assert "may be in the log by an earlier attempt; the last one met: torn" in batch.error.message


# ── a topic that is recreated ──


def test_a_recreated_topic_gets_a_new_producer_id_and_sequences_from_zero() -> None:
    queue = new_queue()
    batches = [add(queue, n) for n in range(3)]
    send_all(queue)
    for n, batch in enumerate(batches):
        queue.acknowledged(batch, n, 0.0)
    queue.topic_recreated("2", 0.0)
    later = add(queue, 3)
    assert queue.producer is None
    assert send_all(queue) == []
    queue.identify(8, 0)
    assert send_all(queue) == [later]
    assert later.base_sequence == 0


def test_answers_awaited_when_a_topic_is_recreated_count_and_nothing_is_sent_before_them() -> None:
    queue = new_queue()
    taken, refused, doubtful, later = (add(queue, n) for n in range(4))
    send_all(queue)
    closed = add(queue, 4)
    queue.topic_recreated("2", 0.0)
    assert queue.next_batch(0.0) is None
    queue.acknowledged(taken, 7, 0.0)
    queue.refused(refused, UnknownProducer("who?"), 0.0)
    queue.refused(doubtful, OutcomeUnknown("the bucket is slow"), 0.0)
    queue.refused(later, OutOfOrderSequence("a gap"), 0.0)
    assert taken.ack(0).offset == 7
    assert isinstance(doubtful.error, OutcomeUnknown)
    assert "the topic was deleted and created again" in doubtful.error.message
    queue.identify(8, 0)
    assert send_all(queue) == [refused, later, closed]
    assert sequences([refused, later, closed]) == [0, 1, 2]


def test_a_batch_rejected_while_its_topic_is_recreated_fails_with_that_error() -> None:
    queue = new_queue()
    rejected, behind = add(queue, 0), add(queue, 1)
    send_all(queue)
    queue.topic_recreated("2", 0.0)
    queue.refused(rejected, UnknownTopic("there is no such topic"), 0.0)
    queue.refused(behind, Unavailable("not led yet"), 0.0)
    assert isinstance(rejected.error, UnknownTopic)
    queue.identify(8, 0)
    assert send_all(queue, 1.0) == [behind]


def test_without_idempotence_a_recreated_topic_needs_no_new_producer_id() -> None:
    queue = new_queue("none")
    batch = add(queue, 0)
    queue.topic_recreated("2", 0.0)
    assert send_all(queue) == [batch]


def test_an_abandoned_queue_needs_a_new_producer_id_and_restarts_its_sequences() -> None:
    queue = new_queue()
    add(queue, 0)
    send_all(queue)
    queue.abandon(Unavailable("no one may write here"))
    later = add(queue, 1)
    assert send_all(queue) == [], "whether the broker has the one before is not known: its sequences can't go on"
    queue.identify(8, 0)
    assert send_all(queue) == [later]
    assert later.base_sequence == 0


# ── time ──


def test_a_batch_that_never_went_out_in_time_is_unavailable() -> None:
    queue = new_queue()
    batches = [add(queue, n) for n in range(2)]
    queue.last_trouble = Unavailable("broker:9090: can't connect")
    queue.expire(DELIVERY_TIMEOUT_S)
    for batch in batches:
        assert type(batch.error) is Unavailable
        assert "can't connect" in str(batch.error)
    assert queue.is_idle
    assert queue.released_bytes == 200


def test_a_batch_that_went_out_and_was_not_answered_in_time_is_of_unknown_outcome() -> None:
    queue = new_queue()
    batch = add(queue, 0)
    send_all(queue)
    queue.expire(DELIVERY_TIMEOUT_S)
    assert isinstance(batch.error, OutcomeUnknown)
    assert not queue.is_idle, "its place is free when its answer is in"
    assert not queue.is_overdue(DELIVERY_TIMEOUT_S)
    assert queue.is_overdue(DELIVERY_TIMEOUT_S + ANSWER_GRACE_S)
    queue.acknowledged(batch, 0, DELIVERY_TIMEOUT_S + 1)
    assert isinstance(batch.error, OutcomeUnknown), "it was reported once"
    assert queue.is_idle


def test_a_batch_that_was_refused_each_time_is_unavailable() -> None:
    queue = new_queue()
    batch = add(queue, 0)
    send_all(queue)
    queue.refused(batch, Throttled("the buffer is full"), 0.0)
    queue.expire(DELIVERY_TIMEOUT_S)
    assert type(batch.error) is Unavailable
    assert "the buffer is full" in str(batch.error)


def test_closing_distinguishes_sent_batches_of_unknown_outcome_from_unsent_ones() -> None:
    queue = new_queue()
    sent = add(queue, 0)
    send_all(queue)
    kept = add(queue, 1)
    queue.abandon(Unavailable("the client was closed"))
    assert isinstance(sent.error, OutcomeUnknown)
    assert type(kept.error) is Unavailable
    assert queue.is_idle


def test_answers_that_come_after_the_close_change_nothing() -> None:
    queue = new_queue()
    acknowledged, refused = add(queue, 0), add(queue, 1)
    send_all(queue)
    queue.abandon(Unavailable("the client was closed"))
    released_bytes = queue.released_bytes
    queue.acknowledged(acknowledged, 0, 0.0)
    queue.refused(refused, NotLeader("another leads"), 0.0)
    assert isinstance(acknowledged.error, OutcomeUnknown)
    assert isinstance(refused.error, OutcomeUnknown)
    assert (queue.is_idle, queue.on_wire, queue.recovering, queue.released_bytes) == (True, 0, False, released_bytes)


# ── all of it at once ──


@dataclass
class ModelBroker:
    """A partition's log with Kafka's sequence rules; what comes over the wire comes in order."""

    log: list[bytes] = field(default_factory=list)
    producers: ProducerStates = field(default_factory=lambda: ProducerStates(producers_max=100, expiry_ms=10**9))

    def append(self, request: Request) -> int:
        """The base offset. Raises what the sequence rules refuse."""
        count = len(request.values)
        last_sequence = (request.base_sequence + count - 1) % SEQUENCES
        repeated = self.producers.check(
            producer_id=ProducerId(request.producer[0]),
            epoch=request.producer[1],
            base_sequence=request.base_sequence,
            last_sequence=last_sequence,
            now_ms=0,
            high_watermark=len(self.log),
        )
        if repeated is not None:
            return repeated.base_offset
        base_offset = len(self.log)
        self.log += request.values
        producer_id, producer_epoch = ProducerId(request.producer[0]), request.producer[1]
        taken = SequencedBatch(
            producer_id, producer_epoch, request.base_sequence, last_sequence, Offset(base_offset), Offset(base_offset + count - 1)
        )
        self.producers.remember(taken, now_ms=0)
        return base_offset


@dataclass
class Request:
    batch: ProducerBatch
    producer: tuple[int, int]
    base_sequence: int
    values: list[bytes]


FAULTS = [
    "add",
    "add",
    "add",
    "answer",
    "throttle",
    "not leader",
    "reject",
    "append, answer unknown",
    "break",
    "wait",
    "long wait",
    "late",
]
# Two batches are in a connection that broke; the second, sent again, is out of order; then both come.
LATE_BYTES = ["add", "long wait", "long wait", "add", "break", "long wait", "answer", "late", "late", "answer"]


@pytest.mark.slow
@settings(max_examples=8 * settings().max_examples, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(FAULTS), st.integers(0, 5)), max_size=60))
@example([(step, 0) for step in LATE_BYTES])
def test_under_faults_each_record_is_in_the_log_once_and_in_order_or_its_failure_was_reported(steps: list[tuple[str, int]]) -> None:
    queue, broker, wire = new_queue(), ModelBroker(), deque[Request]()
    broken: list[deque[Request]] = []  # connections, with what they may still bring
    batches: list[tuple[ProducerBatch, list[bytes]]] = []
    now_s, producer_id = 0.0, 7

    def send() -> None:
        nonlocal producer_id
        if queue.producer is None:
            producer_id += 1
            queue.identify(producer_id, 0)
        for batch in send_all(queue, now_s):
            assert queue.producer is not None
            assert len(queue.unanswered) <= BATCHES_IN_FLIGHT_MAX
            wire.append(Request(batch, queue.producer, batch.base_sequence, [record[1] or b"" for record in batch.records]))

    def answer(request: Request) -> None:
        try:
            offset = broker.append(request)
        except TidelogError as error:
            queue.refused(request.batch, error, now_s)
        else:
            queue.acknowledged(request.batch, offset, now_s)

    def come_late(connection: deque[Request]) -> None:
        if connection:
            with suppress(TidelogError):
                broker.append(connection.popleft())

    def break_stream(applied: int) -> None:
        broken.append(deque(wire))
        for _ in range(applied):
            come_late(broken[-1])
        while wire:
            queue.refused(wire.popleft().batch, OutcomeUnknown("the stream broke"), now_s)

    for step, number in steps:
        send()
        match step:
            case "add":
                batch = add(queue, len(batches), now_s=now_s, count=1 + number)
                batches.append((batch, [record[1] or b"" for record in batch.records]))
            case "wait" | "long wait":
                now_s += 1.0 if step == "wait" else 4.0
                queue.expire(now_s)
            case "break":
                break_stream(number)
            case "late":
                for connection in broken[-1 - number :]:
                    come_late(connection)
            case _ if not wire:
                pass
            case "answer":
                answer(wire.popleft())
            case "throttle":
                queue.refused(wire.popleft().batch, Throttled("full", retry_after_s=0.1), now_s)
            case "not leader":
                queue.refused(wire.popleft().batch, NotLeader("moved"), now_s)
            case "reject":
                queue.refused(wire.popleft().batch, InvalidRecord("torn"), now_s)
            case "append, answer unknown":
                request = wire.popleft()
                try:
                    broker.append(request)
                except TidelogError as error:
                    queue.refused(request.batch, error, now_s)
                else:
                    queue.refused(request.batch, OutcomeUnknown("the bucket is slow"), now_s)
    for _ in range(200):  # the weather clears
        now_s += 0.3
        queue.expire(now_s)
        send()
        assert (wakes_at_s := queue.wakes_at_s()) is None or wakes_at_s > now_s, "it would spin: there is nothing to send now"
        while wire:
            answer(wire.popleft())
    assert queue.is_idle
    assert queue.released_bytes == sum(100 * len(values) for _, values in batches)
    for connection in broken:
        while connection:
            come_late(connection)

    assert len(set(broker.log)) == len(broker.log), "doubled"
    order = {value: n for n, value in enumerate(value for _, values in batches for value in values)}
    assert [order[value] for value in broker.log] == sorted(order[value] for value in broker.log), "out of order"
    for batch, values in batches:
        present = [value in broker.log for value in values]
        if batch.error is None:
            assert broker.log[batch.base_offset : batch.base_offset + len(values)] == values, "the acknowledgement lied"
        elif batch.error.nothing_was_written:
            assert not any(present), "it was said that nothing was written"
        else:
            assert all(present) or not any(present)


@pytest.mark.parametrize("acks", ["all", "leader"])
def test_a_refusal_of_the_broker_itself_ends_the_batch_at_once(acks: AcksName) -> None:
    queue = new_queue(acks)
    batch = add(queue, 0)
    send_all(queue)
    queue.refused(batch, TidelogError("the broker met an error of its own"), 0.0)
    assert type(batch.error) is TidelogError


RESTARTS = ["add", "add", "answer", "answer", "throttle", "append, answer unknown", "break", "recreated", "learn", "wait"]


@pytest.mark.slow
@settings(max_examples=6 * settings().max_examples, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(RESTARTS), st.integers(0, 3)), max_size=60))
def test_each_recreated_topic_has_its_records_once_and_in_order_and_each_batch_its_outcome(
    steps: list[tuple[str, int]],
) -> None:
    """The queue learns of it at any time later, or when its stream broke: then it asks before it sends again."""
    queue, brokers, wire = new_queue(), [ModelBroker()], deque[Request]()
    batches: list[tuple[ProducerBatch, list[bytes]]] = []
    acknowledged_by: dict[int, ModelBroker] = {}
    now_s, producer_id = 0.0, 7

    def learn() -> None:
        if queue.topic_id != str(len(brokers)):
            queue.topic_recreated(str(len(brokers)), now_s)

    def send() -> None:
        nonlocal producer_id
        if queue.producer is None:
            producer_id += 1
            queue.identify(producer_id, 0)
        for batch in send_all(queue, now_s):
            assert queue.producer is not None
            wire.append(Request(batch, queue.producer, batch.base_sequence, [record[1] or b"" for record in batch.records]))

    def answer(request: Request) -> None:
        try:
            offset = brokers[-1].append(request)
        except TidelogError as error:
            queue.refused(request.batch, error, now_s)
        else:
            acknowledged_by[id(request.batch)] = brokers[-1]
            queue.acknowledged(request.batch, offset, now_s)

    for step, number in steps:
        send()
        match step:
            case "add":
                batch = add(queue, len(batches), now_s=now_s, count=1 + number)
                batches.append((batch, [record[1] or b"" for record in batch.records]))
            case "wait":
                now_s += 1.0
                queue.expire(now_s)
            case "recreated":
                brokers.append(ModelBroker())
            case "learn":
                learn()
            case "break":
                for request in list(wire)[:number]:
                    with suppress(TidelogError):
                        brokers[-1].append(request)
                while wire:
                    queue.refused(wire.popleft().batch, OutcomeUnknown("the stream broke"), now_s)
                learn()
            case _ if not wire:
                pass
            case "answer":
                answer(wire.popleft())
            case "throttle":
                queue.refused(wire.popleft().batch, Throttled("full", retry_after_s=0.1), now_s)
            case "append, answer unknown":
                request = wire.popleft()
                try:
                    brokers[-1].append(request)
                except TidelogError as error:
                    queue.refused(request.batch, error, now_s)
                else:
                    queue.refused(request.batch, OutcomeUnknown("the bucket is slow"), now_s)
    for _ in range(200):  # the weather clears
        now_s += 0.3
        learn()
        queue.expire(now_s)
        send()
        while wire:
            answer(wire.popleft())
    assert queue.is_idle
    assert queue.released_bytes == sum(100 * len(values) for _, values in batches)

    order = {value: n for n, value in enumerate(value for _, values in batches for value in values)}
    for broker in brokers:
        assert len(set(broker.log)) == len(broker.log), "doubled"
        assert [order[value] for value in broker.log] == sorted(order[value] for value in broker.log), "out of order"
    for batch, values in batches:
        assert batch.settled
        if batch.error is None:
            log = acknowledged_by[id(batch)].log
            assert log[batch.base_offset : batch.base_offset + len(values)] == values, "the acknowledgement lied"
        elif batch.error.nothing_was_written:
            assert not any(value in broker.log for broker in brokers for value in values), "it was said that nothing was written"
