"""Who leads a partition, and in which sessions its records lie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Set
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from metadata.cluster import leadership
from metadata.cluster.leadership import (
    LeadershipChange,
    PartitionState,
    SessionSpan,
    appointed,
    forget,
    handed_over,
    moving,
    pruned,
    read_all,
    write,
)
from metadata.errors import Corrupt, Fenced, Rejected, Unavailable
from metadata.model import LeaderEpoch, Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition
from metadata.store.interface import OPERATIONS_MAX, Compare, Delete, Put
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from tests.kit.metadata.faulty_store import FaultyStore
from tests.kit.metadata.stores import run

LAYOUT = KeyLayout()
TOPIC = TopicId("1f" * 16)
OTHER = TopicId("2f" * 16)

STORED = (
    b'{"format_version":1,"leader_session":9,"leader_epoch":4,"sessions":['
    b'{"leader_epoch":2,"session":5,"released_at_seq":null},'
    b'{"leader_epoch":3,"session":8,"released_at_seq":117},'
    b'{"leader_epoch":4,"session":9,"released_at_seq":null}],"moving_to":null}'
)


def partitions(count: int, topic: TopicId = TOPIC) -> list[TopicPartition]:
    return [TopicPartition(topic, Partition(p)) for p in range(count)]


def span(epoch: int, session: int, released_at_seq: int | None = None) -> SessionSpan:
    return SessionSpan(LeaderEpoch(epoch), SessionId(session), None if released_at_seq is None else SegmentSeq(released_at_seq))


def state(*spans: SessionSpan) -> PartitionState:
    return PartitionState(leader_session=spans[-1].session, leader_epoch=spans[-1].leader_epoch, sessions=spans)


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[FaultyStore]:
    store = FaultyStore(SqliteStore(directory / "metadata.sqlite"))
    try:
        yield store
    finally:
        await store.close()


async def lead_again(
    store: FaultyStore, session: int, holding: Set[int] | None, *led: TopicPartition
) -> dict[TopicPartition, PartitionState]:
    """Appoints the session as leader of what read_all says, as a controller does; `holding`: the others that hold records."""
    held = await read_all(store, LAYOUT)
    decisions = []
    for partition in led:
        current, read_at = held.get(partition, (None, Revision(0)))
        appointed_state = appointed(current, SessionId(session))
        if holding is not None:
            appointed_state = pruned(appointed_state, {SessionId(s) for s in holding})
        decisions.append(LeadershipChange(partition, read_at, appointed_state))
    await write(store, decisions, LAYOUT)
    return {decision.partition: decision.state for decision in decisions}


def appoint(session: int, held: Mapping[TopicPartition, tuple[PartitionState, Revision] | None]) -> list[LeadershipChange]:
    decisions = []
    for partition, found in held.items():
        current, read_at = found or (None, Revision(0))
        decisions.append(LeadershipChange(partition, read_at, appointed(current, SessionId(session))))
    return decisions


# The decisions


def test_the_first_leader_has_epoch_0() -> None:
    assert appointed(None, SessionId(9)) == state(span(0, 9))


def test_each_leader_raises_the_epoch_by_one_and_stands_last_in_the_list() -> None:
    current = state(span(2, 5), span(3, 8, 117))
    assert appointed(current, SessionId(9)) == state(span(2, 5), span(3, 8, 117), span(4, 9))


def test_a_session_that_holds_nothing_is_taken_off_the_list() -> None:
    current = state(span(2, 5), span(3, 8), span(4, 9))
    assert pruned(current, {SessionId(8)}) == state(span(3, 8), span(4, 9))
    assert pruned(current, set()) == state(span(4, 9)), "the leader may still write"


def test_a_leader_that_hands_over_records_the_segment_where_its_records_end() -> None:
    current = moving(state(span(2, 5), span(3, 8)), SessionId(9))
    assert handed_over(current, SegmentSeq(117), {SessionId(5), SessionId(8)}) == state(span(2, 5), span(3, 8, 117), span(4, 9))
    assert handed_over(current, SegmentSeq(0), {SessionId(5)}) == state(span(2, 5), span(4, 9)), "it wrote nothing"
    assert handed_over(current, SegmentSeq(0), set()) == state(span(4, 9))


def test_a_leader_that_hands_over_to_itself_releases_the_partition_without_a_successor() -> None:
    current = state(span(2, 5), span(3, 8))
    assert not current.is_closed
    closed = handed_over(moving(current, SessionId(8)), SegmentSeq(117), {SessionId(5)})
    assert closed == state(span(2, 5), span(3, 8, 117))
    assert closed.is_closed
    assert not appointed(closed, SessionId(9)).is_closed


def test_a_move_changes_nothing_until_the_leader_has_handed_over() -> None:
    current = state(span(2, 5), span(3, 8))
    asked = moving(current, SessionId(9))
    assert (asked.leader_session, asked.leader_epoch, asked.sessions) == (8, 3, current.sessions)
    assert moving(asked, None) == current
    assert appointed(asked, SessionId(7)).moving_to is None, "the leader has died meanwhile"


@given(
    st.lists(
        st.tuples(st.sampled_from(["dies", "hands over"]), st.integers(1, 4), st.sets(st.integers(1, 4)), st.integers(0, 9)),
        max_size=12,
    )
)
def test_epochs_ascend_by_one_and_no_session_that_holds_records_is_lost(
    takeovers: list[tuple[str, int, set[int], int]],
) -> None:
    current = appointed(None, SessionId(1))
    for epoch, (how, session, numbers, released_at) in enumerate(takeovers, start=1):
        before, holding = current, {SessionId(s) for s in numbers}
        if how == "dies":
            current = appointed(current, SessionId(session))
            assert current.sessions[:-1] == before.sessions
        else:
            session += 1 if session == current.leader_session else 0
            current = handed_over(moving(current, SessionId(session)), SegmentSeq(released_at), holding)
            kept = [*before.sessions[:-1], replace(before.sessions[-1], released_at_seq=SegmentSeq(released_at))]
            assert list(current.sessions[:-1]) == [held for held in kept if held.session in holding]
        assert (current.leader_session, current.leader_epoch) == (session, epoch)
        assert current.sessions[-1] == span(epoch, session)
        assert current.moving_to is None
        epochs = [kept.leader_epoch for kept in current.sessions]
        assert epochs == sorted(set(epochs))


# Stored


def test_a_state_is_stored_as_the_documentation_draws_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            (partition,) = partitions(1)
            await store.store.transact([], [Put(LAYOUT.partition(partition), STORED)])
            ((read, _),) = (await read_all(store, LAYOUT)).values()
            assert read == state(span(2, 5), span(3, 8, 117), span(4, 9))
            await lead_again(store, 10, {8, 9}, partition)
            held = await store.get(LAYOUT.partition(partition))
            assert held is not None
            assert held.value == (
                b'{"format_version":1,"leader_session":10,"leader_epoch":5,"sessions":['
                b'{"leader_epoch":3,"session":8,"released_at_seq":117},'
                b'{"leader_epoch":4,"session":9,"released_at_seq":null},'
                b'{"leader_epoch":5,"session":10,"released_at_seq":null}],"moving_to":null}'
            )

    run(test())


def test_a_leadership_reads_back_with_its_revision(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            led = partitions(3)
            first = await lead_again(store, 1, set(), *led)
            assert first == {partition: state(span(0, 1)) for partition in led}
            second = await lead_again(store, 2, {1}, led[1])
            read = await read_all(store, LAYOUT)
            assert {partition: held for partition, (held, _) in read.items()} == first | second
            assert [read[partition][1] for partition in led] == [2, 3, 2]

    run(test())


def test_restarts_without_records_do_not_make_the_list_grow(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            for session in range(1, 20):
                states = await lead_again(store, session, {5}, *partitions(1))
            assert list(states.values()) == [state(span(4, 5), span(18, 19))]

    run(test())


def test_many_partitions_are_read_in_pages_at_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "PAGE_PARTITIONS", 7)

    async def test() -> None:
        async with opened(tmp_path) as store:
            led = partitions(30) + partitions(12, OTHER)
            await lead_again(store, 1, set(), *led)
            assert (await read_all(store, LAYOUT)).keys() == set(led)

    run(test())


def test_pages_are_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "PAGE_PARTITIONS", 2)

    async def test() -> None:
        async with opened(tmp_path) as store:
            before = await lead_again(store, 1, set(), *partitions(5))
            read = store.range

            async def forget_after_the_first_page(*args: object, **kwargs: object) -> object:
                page = await read(*args, **kwargs)  # type: ignore[arg-type]
                if store.ranges == 2:  # the first was that of lead_again
                    await forget(store, partitions(5), LAYOUT)
                return page

            monkeypatch.setattr(store, "range", forget_after_the_first_page)
            assert {partition: held for partition, (held, _) in (await read_all(store, LAYOUT)).items()} == before

    run(test())


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        STORED.replace(b'"leader_session":9', b'"leader_session":8'),
        b'{"format_version":1,"leader_session":1,"leader_epoch":1,"sessions":[]}',
    ],
)
def test_a_value_that_is_no_state_is_corrupt_and_names_its_key(tmp_path: Path, value: bytes) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            key = LAYOUT.partition(partitions(1)[0])
            await store.store.transact([], [Put(key, value)])
            with pytest.raises(Corrupt, match=key) as corrupt:
                await read_all(store, LAYOUT)
            assert corrupt.value.details["key"] == key

    run(test())


def test_a_key_that_is_no_partition_is_corrupt(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            await store.store.transact([], [Put(LAYOUT.partitions + "orders/0", STORED)])
            with pytest.raises(Corrupt, match="orders/0"):
                await read_all(store, LAYOUT)

    run(test())


def test_fields_of_a_newer_version_are_read_but_not_written_over(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            (partition,) = partitions(1)
            newer = STORED.replace(b'{"format_version":1', b'{"from_the_future":1,"format_version":2')
            await store.store.transact([], [Put(LAYOUT.partition(partition), newer)])
            with pytest.raises(Rejected, match="newer version"):
                await lead_again(store, 10, None, partition)
            held = await store.get(LAYOUT.partition(partition))
            assert held is not None
            assert held.value == newer

    run(test())


# Transactions


def test_transactions_hold_at_most_128_operations_and_the_guards_fit_in(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            led = partitions(300)
            await lead_again(store, 1, set(), *led)
            assert [len(operations) for _, operations in store.transactions] == [128, 128, 44]
            store.transactions.clear()
            guards = [Compare("/controller", 0)]
            await write(store, appoint(2, dict(await read_all(store, LAYOUT))), LAYOUT, guards=guards)
            assert [len(operations) for _, operations in store.transactions] == [127, 127, 46]
            assert all(guards[0] in compares and len(compares) <= OPERATIONS_MAX for compares, _ in store.transactions)

    run(test())


def test_transactions_stay_within_the_bytes_that_a_store_takes(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            led = partitions(10)
            long = state(*(span(epoch, epoch + 1) for epoch in range(6000)))  # each value is some 400 KB
            await write(store, appoint(7000, dict.fromkeys(led)), LAYOUT)
            held = {partition: (long, revision) for partition, (_, revision) in (await read_all(store, LAYOUT)).items()}
            store.transactions.clear()
            await write(store, appoint(7001, dict(held)), LAYOUT)
            assert [len(operations) for _, operations in store.transactions] == [2] * 5
            assert {len(read.sessions) for read, _ in (await read_all(store, LAYOUT)).values()} == {6001}

    run(test())


def test_no_partitions_are_led_without_asking_the_store(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            assert await write(store, [], LAYOUT) == 0
            assert store.transactions == []

    run(test())


def test_a_leader_that_comes_second_is_fenced_and_changes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            led = partitions(3)
            await lead_again(store, 1, set(), *led)
            held = await read_all(store, LAYOUT)
            await lead_again(store, 2, set(), led[1])
            before = await read_all(store, LAYOUT)
            with pytest.raises(Fenced, match="came first") as fenced:
                await write(store, appoint(3, dict(held)), LAYOUT)
            assert fenced.value.details["partitions"] == 3
            assert await read_all(store, LAYOUT) == before

    run(test())


def test_a_second_leader_of_a_new_partition_is_fenced(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            led: dict[TopicPartition, None] = dict.fromkeys(partitions(2))
            results = await asyncio.gather(*(write(store, appoint(s, led), LAYOUT) for s in (1, 2)), return_exceptions=True)
            assert [type(result) for result in results if isinstance(result, BaseException)] == [Fenced]
            assert len({read.leader_session for read, _ in (await read_all(store, LAYOUT)).values()}) == 1

    run(test())


def test_nothing_is_forgotten_under_a_guard_that_fails(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            before = await lead_again(store, 1, set(), *partitions(2))
            with pytest.raises(Fenced):
                await forget(store, partitions(2), LAYOUT, guards=[Compare("/controller", 7)])
            assert {partition: held for partition, (held, _) in (await read_all(store, LAYOUT)).items()} == before

    run(test())


def test_a_guard_that_fails_fences(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            with pytest.raises(Fenced):
                await write(store, appoint(1, {partitions(1)[0]: None}), LAYOUT, guards=[Compare("/controller", 7)])
            assert await read_all(store, LAYOUT) == {}

    run(test())


def test_a_lost_answer_is_looked_up_and_the_epoch_is_raised_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            led = partitions(200)
            store.lose_answers = 1
            states = await lead_again(store, 1, set(), *led)
            assert {partition: read for partition, (read, _) in (await read_all(store, LAYOUT)).items()} == states
            assert {read.leader_epoch for read in states.values()} == {0}
            store.lose_requests = 2
            assert {read.leader_epoch for read in (await lead_again(store, 2, set(), *led)).values()} == {1}

    run(test())


def test_a_lost_answer_does_not_hide_that_another_came_first(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            led = partitions(2)
            store.lose_requests = 1
            store.before_transaction = lambda: lead_again(FaultyStore(store.store), 2, set(), *led)
            with pytest.raises(Fenced):
                await lead_again(store, 1, set(), *led)
            assert {read.leader_session for read, _ in (await read_all(store, LAYOUT)).values()} == {2}

    run(test())


def test_a_store_that_never_answers_is_given_up_as_retriable(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            store.lose_requests = 100
            with pytest.raises(Unavailable, match="could not be written"):
                await lead_again(store, 1, set(), *partitions(1))

    run(test())


def test_a_deleted_topic_is_forgotten_and_its_neighbour_is_not(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            await lead_again(store, 1, set(), *partitions(300), *partitions(2, OTHER))
            store.transactions.clear()
            await forget(store, partitions(300), LAYOUT)
            assert [len(operations) for _, operations in store.transactions] == [128, 128, 44]
            assert all(isinstance(operation, Delete) for _, operations in store.transactions for operation in operations)
            assert (await read_all(store, LAYOUT)).keys() == set(partitions(2, OTHER))
            await forget(store, partitions(300), LAYOUT)  # once more is no error

    run(test())
