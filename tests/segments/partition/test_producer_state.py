"""What an idempotent producer may send: each batch once, in sequence order, for as long as it is remembered."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import DuplicateSequence, IdempotencyKeyReused, OutOfOrderSequence, ProducerFenced, UnknownProducer
from metadata.model import NO_PRODUCER, Offset, ProducerId
from segments.partition.producer_state import (
    BATCHES_REMEMBERED,
    ONE_SHOT,
    SEQUENCE_MAX,
    ProducerRoom,
    ProducerStates,
    SequencedBatch,
    next_sequence,
)

EXPIRY_MS = 1000
ALICE, BOB = ProducerId(1), ProducerId(2)


class Leader:
    """Appends batches the way segments/partition/partition_log.py does: checked, given the next offsets, remembered."""

    def __init__(self, *, producers_max: int = 100) -> None:
        self.states = ProducerStates(producers_max=producers_max, expiry_ms=EXPIRY_MS)
        self.end_offset = 0
        # Batches at this offset and behind it are not committed.
        self.committed_max = 2**62
        self.now_ms = 0

    def send(self, producer: int, base: int, records: int = 1, *, epoch: int = 0) -> SequencedBatch:
        """The batch as it was appended now, or before when this one repeats it."""
        last = (base + records - 1) % (SEQUENCE_MAX + 1)
        repeated = self.states.check(
            producer_id=ProducerId(producer),
            epoch=epoch,
            base_sequence=base,
            last_sequence=last,
            now_ms=self.now_ms,
            high_watermark=min(self.end_offset, self.committed_max),
        )
        if repeated is not None:
            return repeated
        first_offset, self.end_offset = self.end_offset, self.end_offset + records
        batch = SequencedBatch(ProducerId(producer), epoch, base, last, Offset(first_offset), Offset(self.end_offset - 1))
        self.states.remember(batch, now_ms=self.now_ms)
        return batch


def test_without_a_producer_id_everything_is_new_and_nothing_is_remembered() -> None:
    leader = Leader()
    for base in (-1, -1, 7):
        leader.send(NO_PRODUCER, base)
    assert (leader.end_offset, len(leader.states)) == (3, 0)


def test_batches_in_order_are_appended() -> None:
    leader = Leader()
    assert [leader.send(ALICE, base, records=2).base_offset for base in (0, 2, 4)] == [0, 2, 4]


def test_a_repeat_is_answered_with_the_offsets_of_the_first_time() -> None:
    leader = Leader()
    first = leader.send(ALICE, 0, records=3)
    leader.send(BOB, 0)
    leader.send(ALICE, 3)
    assert leader.send(ALICE, 0, records=3) == first
    assert leader.end_offset == 5


def test_the_last_five_batches_are_remembered_and_an_older_one_is_a_duplicate_without_offsets() -> None:
    """Java's client repeats it: its answer was lost, one behind it was acknowledged, and then four more were written."""
    leader = Leader()
    sent = [leader.send(ALICE, sequence) for sequence in range(BATCHES_REMEMBERED + 1)]
    assert [leader.send(ALICE, sequence) for sequence in range(1, 6)] == sent[1:]
    with pytest.raises(DuplicateSequence, match="sent sequences 0 to 0 again") as refusal:
        leader.send(ALICE, 0)
    assert refusal.value.details["expected_sequence"] == 6
    assert leader.end_offset == 6


def test_a_batch_is_no_duplicate_until_the_oldest_remembered_one_is_committed() -> None:
    leader = Leader()
    for sequence in range(BATCHES_REMEMBERED + 1):
        leader.send(ALICE, sequence)
    leader.committed_max = 1
    with pytest.raises(OutOfOrderSequence, match="sent sequence 0; 6 comes next") as refusal:
        leader.send(ALICE, 0)
    assert type(refusal.value) is OutOfOrderSequence
    leader.committed_max = 2
    with pytest.raises(DuplicateSequence):
        leader.send(ALICE, 0)


def test_a_batch_of_forgotten_and_remembered_records_is_out_of_order() -> None:
    leader = Leader()
    for sequence in range(BATCHES_REMEMBERED + 1):
        leader.send(ALICE, sequence)
    with pytest.raises(OutOfOrderSequence) as refusal:
        leader.send(ALICE, 0, records=2)
    assert type(refusal.value) is OutOfOrderSequence


def test_a_gap_is_refused_and_leaves_the_next_sequence_where_it_was() -> None:
    leader = Leader()
    leader.send(ALICE, 0, records=2)
    with pytest.raises(OutOfOrderSequence) as refusal:
        leader.send(ALICE, 3)
    assert refusal.value.details["expected_sequence"] == 2
    assert leader.send(ALICE, 2).base_offset == 2


@pytest.mark.parametrize("records", [1, 3])
def test_a_batch_that_begins_like_another_but_is_not_as_long_is_no_repeat(records: int) -> None:
    leader = Leader()
    leader.send(ALICE, 0, records=2)
    with pytest.raises(OutOfOrderSequence):
        leader.send(ALICE, 0, records=records)


def test_a_producer_that_is_not_remembered_begins_at_sequence_0() -> None:
    """Stricter than Kafka: else the second batch of a pipeline would be let in when the first was refused."""
    leader = Leader()
    with pytest.raises(UnknownProducer):
        leader.send(ALICE, 1)
    assert leader.send(ALICE, 0).base_offset == 0


# ── the sequence wraps ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_after_the_highest_sequence_comes_0() -> None:
    assert (next_sequence(SEQUENCE_MAX), next_sequence(0)) == (0, 1)
    assert SEQUENCE_MAX == 2**31 - 1


@pytest.mark.parametrize("records", [1, 2, 5])
def test_a_batch_may_end_at_the_highest_sequence_or_run_over_it(records: int) -> None:
    leader = Leader()
    before = SequencedBatch(ALICE, 0, SEQUENCE_MAX - 5, SEQUENCE_MAX - 2, Offset(0), Offset(3))
    leader.states.remember(before, now_ms=0)
    over = leader.send(ALICE, SEQUENCE_MAX - 1, records=records)
    following = next_sequence(over.last_sequence)
    assert following == {1: SEQUENCE_MAX, 2: 0, 5: 3}[records]
    after = leader.send(ALICE, following)
    assert leader.send(ALICE, SEQUENCE_MAX - 1, records=records) == over
    assert leader.send(ALICE, following) == after
    with pytest.raises(OutOfOrderSequence):
        leader.send(ALICE, following + 2)


def test_the_batch_that_comes_next_after_the_highest_sequence_is_new_and_one_ahead_of_it_is_no_repeat() -> None:
    """Both are lower than all that are remembered, and neither is in the log."""
    leader = Leader()
    before = SequencedBatch(ALICE, 0, SEQUENCE_MAX - 5, SEQUENCE_MAX - 2, Offset(0), Offset(3))
    leader.states.remember(before, now_ms=0)
    leader.end_offset = 4
    for ahead in (0, 3):
        with pytest.raises(OutOfOrderSequence) as refusal:
            leader.send(ALICE, ahead)
        assert type(refusal.value) is OutOfOrderSequence
    leader.send(ALICE, SEQUENCE_MAX - 1, records=2)
    assert leader.send(ALICE, 0).base_offset == 6
    with pytest.raises(OutOfOrderSequence) as refusal:
        leader.send(ALICE, 3)
    assert type(refusal.value) is OutOfOrderSequence


# ── epochs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_newer_epoch_begins_again_at_0_and_fences_the_older_one() -> None:
    leader = Leader()
    leader.send(ALICE, 0)
    leader.send(ALICE, 0, epoch=3)
    assert leader.send(ALICE, 1, epoch=3).base_offset == 2
    for repeated_or_not in (0, 1):
        with pytest.raises(ProducerFenced):
            leader.send(ALICE, repeated_or_not, epoch=2)


def test_a_newer_epoch_that_does_not_begin_at_0_is_refused_and_fences_no_producer() -> None:
    leader = Leader()
    leader.send(ALICE, 0)
    with pytest.raises(OutOfOrderSequence, match="begins epoch 1 at sequence 1 instead of 0"):
        leader.send(ALICE, 1, epoch=1)
    assert leader.send(ALICE, 1, epoch=0).base_offset == 1


# ── who is forgotten ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_producer_that_was_silent_for_the_expiry_is_forgotten() -> None:
    leader = Leader()
    leader.send(ALICE, 0)
    leader.now_ms = EXPIRY_MS - 1
    leader.send(ALICE, 1)
    leader.now_ms += EXPIRY_MS - 1
    leader.send(ALICE, 2)
    leader.now_ms += EXPIRY_MS
    with pytest.raises(UnknownProducer):
        leader.send(ALICE, 3)
    assert len(leader.states) == 0


def test_a_producer_that_is_silent_takes_memory_for_at_most_a_second_longer_while_others_write() -> None:
    room = ProducerRoom(10)
    leader = Leader()
    leader.states.enter(room)
    leader.send(ALICE, 0)
    for base in range(21):
        leader.send(BOB, base)
        leader.now_ms += 100
    assert (len(leader.states), room.used) == (1, [1, 0])


def test_a_clock_that_was_set_back_keeps_no_producer_longer() -> None:
    leader = Leader()
    leader.now_ms = 10 * EXPIRY_MS
    leader.send(ALICE, 0)
    leader.now_ms = 0
    leader.send(BOB, 0)
    leader.now_ms = EXPIRY_MS
    leader.send(ALICE, 1)
    assert len(leader.states) == 2, "the one that was active last is in front"
    with pytest.raises(UnknownProducer):
        leader.send(BOB, 1)
    leader.send(BOB, 0)


@given(st.lists(st.tuples(st.sampled_from([ALICE, BOB, 3, ONE_SHOT]), st.integers(-1, 1), st.integers(0, 700)), max_size=60))
def test_producers_are_forgotten_at_their_expiry_whenever_others_were_looked_for(steps: list[tuple[int, int, int]]) -> None:
    leaders = Leader(), Leader()
    room = ProducerRoom(10)
    leaders[0].states.enter(room)
    next_bases: dict[int, int] = {}
    now_ms = 0
    for producer, ahead, later_ms in steps:
        now_ms += later_ms
        base = 7 if producer == ONE_SHOT else max(0, next_bases.get(producer, 0) + ahead)
        found: list[object] = []
        for leader in leaders:
            leader.now_ms = now_ms
            if leader is leaders[1]:
                leader.states.remembered(now_ms=now_ms)  # forgets all that are due
            try:
                found.append(leader.send(producer, base))
            except (UnknownProducer, OutOfOrderSequence, DuplicateSequence) as error:
                found.append(type(error))
        assert found[0] == found[1]
        if isinstance(found[0], SequencedBatch):
            next_bases[producer] = base + 1
        assert room.used == [leaders[0].states.count(table) for table in (0, 1)]
    remembered = [leader.states.remembered(now_ms=now_ms) for leader in leaders]
    assert remembered[0] == remembered[1]


def test_the_producer_that_was_silent_longest_makes_room() -> None:
    leader = Leader(producers_max=2)
    for producer in (ALICE, BOB):
        leader.send(producer, 0)
    leader.send(ALICE, 1)
    leader.send(3, 0)
    assert len(leader.states) == 2
    assert leader.send(ALICE, 2).base_offset == 4
    with pytest.raises(UnknownProducer):
        leader.send(BOB, 1)


# ── one-shot producers: HTTP idempotency keys ───────────────────────────────────────────────────────────────────────────


def test_a_one_shot_producer_begins_at_any_sequence_and_its_repeat_is_recognised() -> None:
    leader = Leader()
    first = leader.send(ONE_SHOT + 5, 0x1234, records=2)
    assert leader.send(ONE_SHOT + 5, 0x1234, records=2) == first
    assert leader.end_offset == 2


@pytest.mark.parametrize(("base", "records"), [(0x1235, 2), (0x1234, 1), (0x1236, 2)])
def test_a_one_shot_producer_writes_one_batch_in_its_life(base: int, records: int) -> None:
    leader = Leader()
    leader.send(ONE_SHOT + 5, 0x1234, records=2)
    with pytest.raises(IdempotencyKeyReused):
        leader.send(ONE_SHOT + 5, base, records=records)


def test_one_shot_producers_are_forgotten_like_others_but_push_out_none_of_them() -> None:
    leader = Leader(producers_max=2)
    leader.send(ALICE, 0)
    for key in range(3):
        leader.send(ONE_SHOT + key, 7)
    assert len(leader.states) == 3
    assert leader.send(ALICE, 1).base_offset == 4
    assert leader.send(ONE_SHOT + 2, 7).base_offset == 3
    assert leader.send(ONE_SHOT, 7).base_offset == 5, "the oldest key was forgotten"
    leader.now_ms = EXPIRY_MS
    leader.send(BOB, 0)
    assert len(leader.states) == 1


def test_the_batch_of_a_one_shot_producer_is_found_until_it_is_forgotten() -> None:
    leader = Leader(producers_max=2)
    key = ProducerId(ONE_SHOT + 5)
    assert leader.states.written_once(key, now_ms=0) is None
    written = leader.send(key, 0x1234, records=2, epoch=6)
    assert leader.states.written_once(key, now_ms=EXPIRY_MS - 1) == written
    assert leader.states.written_once(key, now_ms=EXPIRY_MS) is None
    assert len(leader.states) == 1, "a lookup forgets no producer"
    leader.send(ALICE, 0)
    assert leader.states.written_once(ALICE, now_ms=0) is None, "it writes more than once"
    for other in (1, 2):
        leader.send(ONE_SHOT + other, 7)
    assert leader.states.written_once(key, now_ms=0) is None


# ── against a model that forgets nothing ────────────────────────────────────────────────────────────────────────────────

steps = st.lists(st.tuples(st.sampled_from([ALICE, BOB]), st.integers(-7, 2), st.integers(1, 4)), max_size=40)


@given(steps)
def test_repeats_are_recognised_and_gaps_are_refused_whatever_the_order(steps: list[tuple[ProducerId, int, int]]) -> None:
    """Each step sends the batch at a distance from the next one: behind it a repeat, 0 the next, ahead of it a gap."""
    leader = Leader()
    accepted: dict[ProducerId, list[SequencedBatch]] = {ALICE: [], BOB: []}
    for producer, distance, records in steps:
        sent = accepted[producer]
        following = sent[-1].last_sequence + 1 if sent else 0
        if distance == 0:
            sent.append(leader.send(producer, following, records))
            assert sent[-1].last_offset + 1 == leader.end_offset
        elif distance > 0:
            with pytest.raises(OutOfOrderSequence) as refusal:
                leader.send(producer, following + distance, records)
            assert not isinstance(refusal.value, DuplicateSequence)
        elif -distance <= len(sent):
            batch = sent[distance]
            length = batch.last_sequence - batch.base_sequence + 1
            if -distance <= BATCHES_REMEMBERED:
                assert leader.send(producer, batch.base_sequence, length) == batch
            else:
                with pytest.raises(DuplicateSequence):
                    leader.send(producer, batch.base_sequence, length)
    appended = sorted(batch for batches in accepted.values() for batch in batches)
    assert sum(batch.last_offset - batch.base_offset + 1 for batch in appended) == leader.end_offset


@given(steps)
def test_a_state_that_is_read_back_from_the_bucket_remembers_the_same(steps: list[tuple[ProducerId, int, int]]) -> None:
    leader, log, following = Leader(), [], {ALICE: 0, BOB: 0}
    for producer, _, records in steps:
        log.append(leader.send(producer, following[producer], records))
        following[producer] += records
    successor = Leader()
    successor.end_offset = leader.end_offset
    for batch in log:
        successor.states.remember(batch, now_ms=0)
    for producer in (ALICE, BOB):
        for batch in [batch for batch in log if batch.producer_id == producer][-BATCHES_REMEMBERED:]:
            assert successor.send(producer, batch.base_sequence, batch.last_sequence - batch.base_sequence + 1) == batch
        assert successor.send(producer, following[producer]) == leader.send(producer, following[producer])


# ── all partitions of a broker ──────────────────────────────────────────────────────────────────────────────────────────


def once(leader: Leader, key: int) -> None:
    leader.states.remember(SequencedBatch(ProducerId(ONE_SHOT + key), 6, 7, 7, Offset(key), Offset(key)), now_ms=leader.now_ms)


def test_of_all_partitions_who_was_silent_longest_is_forgotten_first_wherever_it_wrote() -> None:
    room = ProducerRoom(200)
    busy, quiet = Leader(producers_max=1000), Leader(producers_max=1000)
    for leader in (busy, quiet):
        leader.states.enter(room)
    for producer in range(1, 101):
        busy.now_ms = quiet.now_ms = producer
        busy.send(producer, 0)
        quiet.send(producer, 0)
    assert room.used == [200, 0]
    quiet.now_ms = 101
    quiet.send(1, 1)
    busy.now_ms = 102
    busy.send(500, 0)
    assert room.used == [198, 0], "a hundredth more than was due"
    assert busy.send(500, 0).base_offset == 100
    assert quiet.send(1, 1).base_offset == 100, "it was silent longest until a moment ago"
    with pytest.raises(UnknownProducer):
        busy.send(1, 1)
    with pytest.raises(UnknownProducer):
        quiet.send(2, 1)


def test_idempotency_keys_do_not_push_out_producers_and_a_partition_that_is_given_up_makes_room() -> None:
    room = ProducerRoom(100)
    orders, payments = Leader(), Leader()
    for leader in (orders, payments):
        leader.states.enter(room)
    orders.send(ALICE, 0)
    for key in range(90):
        once(orders, key)
        once(payments, 100 + key)
    assert room.used == [1, len(orders.states) - 1 + len(payments.states)]
    assert room.used[1] <= 100
    assert orders.send(ALICE, 1).base_offset == 1
    payments.states.leave()
    assert room.used == [1, len(orders.states) - 1]
    payments.states.leave()
    once(payments, 1000)
    assert room.used == [1, len(orders.states) - 1], "it has no owner any more"


def test_producers_of_a_partition_that_is_taken_over_count_and_those_that_expire_do_not() -> None:
    room = ProducerRoom(10)
    leader = Leader()
    for producer in range(1, 31):
        leader.now_ms = producer
        leader.send(producer, 0)
    leader.states.enter(room)
    assert room.used == [10, 0] == [len(leader.states), 0]
    leader.now_ms = 30 + EXPIRY_MS
    leader.send(BOB, 0)
    assert room.used == [1, 0]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12), st.integers(0, 400), st.booleans()), max_size=60))
def test_the_room_always_knows_how_many_there_are(steps: list[tuple[int, int, int, bool]]) -> None:
    room = ProducerRoom(8)
    leaders = [Leader(producers_max=6) for _ in range(3)]
    now_ms = 0
    for which, producer, later_ms, leaves in steps:
        now_ms += later_ms
        leader = leaders[which]
        leader.now_ms = now_ms
        if leaves:
            leader.states.leave()
        elif leader.states not in room:
            leader.states.enter(room)
        with contextlib.suppress(OutOfOrderSequence):
            leader.send(producer, 0)
        once(leader, producer)
        there = [each.states for each in leaders if each.states in room]
        assert room.used == [sum(states.count(table) for states in there) for table in (0, 1)]
        assert max(room.used) <= 8
