"""Numbers that are handed out once: sessions and producer ids. And the cluster's id, which is written once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.cluster import id_allocation
from metadata.cluster.id_allocation import (
    ATTEMPTS_MAX,
    DERIVED_IDS,
    IDS_PER_SESSION,
    NUMBER_MAX,
    SESSIONS_END,
    ProducerIds,
    next_session,
    take_numbers,
)
from metadata.cluster.identity import cluster_id
from metadata.errors import Corrupt, InvalidArgument, OutcomeUnknown, Rejected, Unavailable
from metadata.store.interface import Put
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from tests.kit.metadata.faulty_store import FaultyStore, unavailable
from tests.kit.metadata.stores import run

LAYOUT = KeyLayout()


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[FaultyStore]:
    store = FaultyStore(SqliteStore(directory / "metadata.sqlite"))
    try:
        yield store
    finally:
        await store.close()


async def put(store: FaultyStore, key: str, value: bytes) -> None:
    await store.store.transact([], [Put(key, value)])


# Sessions


def test_sessions_are_numbered_from_1_and_go_on_after_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            assert [await next_session(store, LAYOUT) for _ in range(3)] == [1, 2, 3]
        async with opened(tmp_path) as store:
            assert await next_session(store, LAYOUT) == 4

    run(test())


def test_brokers_that_start_at_once_get_sessions_of_their_own(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            sessions = await asyncio.gather(*(next_session(store, LAYOUT) for _ in range(10)))
            assert sorted(sessions) == list(range(1, 11))

    run(test())


def test_a_session_can_be_taken_past_those_on_the_bucket(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            assert await next_session(store, LAYOUT, at_least=40) == 40
            assert await next_session(store, LAYOUT, at_least=7) == 41

    run(test())


def test_numbers_whose_answer_was_lost_are_never_given_out(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            store.lose_answers = 3
            assert await next_session(store, LAYOUT) == 4
            store.lose_requests = 3
            assert await next_session(store, LAYOUT) == 5

    run(test())


def test_a_store_that_never_answers_is_given_up_as_retriable(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            store.lose_requests = ATTEMPTS_MAX
            with pytest.raises(Unavailable, match="no number could be taken") as refused:
                await next_session(store, LAYOUT)
            assert isinstance(refused.value.__cause__, OutcomeUnknown)
            store.down = unavailable()
            with pytest.raises(Unavailable, match="down"):
                await next_session(store, LAYOUT)

    run(test())


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"one", b" 1", b"9" * 20, "٣".encode()])
def test_a_counter_that_holds_no_number_is_corrupt(tmp_path: Path, value: bytes) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            await put(store, LAYOUT.next_session, value)
            with pytest.raises(Corrupt, match=LAYOUT.next_session):
                await next_session(store, LAYOUT)

    run(test())


def test_numbers_end_where_they_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            assert await take_numbers(store, "/n", 5, end=6) == range(1, 6)
            with pytest.raises(Rejected, match="used up"):
                await take_numbers(store, "/n", 1, end=6)
            await put(store, "/n", str(NUMBER_MAX - 1).encode())
            assert await take_numbers(store, "/n", 1) == range(NUMBER_MAX - 1, NUMBER_MAX)
            with pytest.raises(Rejected, match="used up"):
                await take_numbers(store, "/n", 1)

    run(test())


# Producer ids


def beginning_at(*firsts: int) -> Callable[[int], bytes]:
    """Returns a source of randomness by which the ids of the sessions begin at these counts, one after the other."""
    drawn = iter(firsts)
    return lambda size: next(drawn).to_bytes(size)


def test_a_session_counts_its_producer_ids_and_the_next_one_begins_elsewhere() -> None:
    session = 7
    ids = ProducerIds(lambda: session, beginning_at(1000, 50))
    first = [ids.next() for _ in range(3)]
    session = 9
    assert [*first, ids.next()] == [7 * IDS_PER_SESSION + 1000 + count for count in range(3)] + [9 * IDS_PER_SESSION + 50]


def test_a_session_number_that_is_used_again_gives_other_producer_ids() -> None:
    """The bucket was set back to a copy that lacks the session, and the producers of both sessions write to the same partition."""
    chance = random.Random(1)
    lost, again = ProducerIds(lambda: 7, chance.randbytes), ProducerIds(lambda: 7, chance.randbytes)
    handed_out = [ids.next() for _ in range(10_000) for ids in (lost, again)]
    assert len(set(handed_out)) == len(handed_out)


@given(session=st.integers(1, SESSIONS_END - 1), drawn=st.binary(min_size=8, max_size=8))
def test_every_producer_id_is_of_its_session_and_fits_into_an_int64_of_kafka(session: int, drawn: bytes) -> None:
    ids = ProducerIds(lambda: session, lambda size: drawn[:size])
    for given_id in (ids.next(), ids.next()):
        assert given_id // IDS_PER_SESSION == session
        assert 0 <= given_id < DERIVED_IDS < 2**63


def test_between_two_sessions_producer_ids_are_of_the_last_one_and_before_the_first_there_are_none() -> None:
    session: int | None = None
    ids = ProducerIds(lambda: session, beginning_at(1000))
    with pytest.raises(Unavailable, match="no session yet"):
        ids.next()
    session = 7
    first = ids.next()
    session = None
    assert ids.next() == first + 1


def test_producer_ids_stay_within_their_session_and_below_those_that_producers_derive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = ProducerIds(lambda: SESSIONS_END, beginning_at(0))
    with pytest.raises(Rejected, match="used up"):
        ids.next()
    monkeypatch.setattr(id_allocation, "IDS_PER_SESSION", 3)
    ids = ProducerIds(lambda: 3, beginning_at(1))
    assert [ids.next(), ids.next(), ids.next()] == [10, 11, 9]
    with pytest.raises(Rejected, match="used up"):
        ids.next()


# The cluster's id


def test_the_first_broker_names_the_cluster_and_the_others_learn_its_name(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            answers = await asyncio.gather(*(cluster_id(store, f"id-{n}") for n in range(5)))
            assert len(set(answers)) == 1
        async with opened(tmp_path) as store:
            assert await cluster_id(store, "another") == answers[0]

    run(test())


def test_a_lost_answer_does_not_leave_the_cluster_with_two_ids(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            store.lose_answers = 1
            assert await cluster_id(store, "first") == "first"

    run(test())


def test_a_store_that_takes_no_id_is_given_up_as_retriable(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            store.lose_requests = 100
            with pytest.raises(Unavailable, match="cluster's id"):
                await cluster_id(store, "first")

    run(test())


@pytest.mark.parametrize("new_id", ["", "a b", "a/b", "é", "\ud800", "a\n", "a" * 65])
def test_a_bad_id_for_a_cluster_is_refused(tmp_path: Path, new_id: str) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            with pytest.raises(InvalidArgument, match="not an id for a cluster"):
                await cluster_id(store, new_id)
            assert await store.get(LAYOUT.cluster_id) is None

    run(test())


def test_a_stored_id_that_is_none_is_corrupt(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            await put(store, LAYOUT.cluster_id, b"\xff\xff")
            with pytest.raises(Corrupt, match="no cluster id"):
                await cluster_id(store, "first")

    run(test())
