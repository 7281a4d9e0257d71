"""Numbers that are handed out once: sessions and producer ids. And the cluster's id, which is written once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path

import pytest

from metadata.cluster.id_allocation import ATTEMPTS_MAX, BLOCK, DERIVED_IDS, NUMBER_MAX, ProducerIds, next_session, take_numbers
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


def test_a_thousand_producers_cost_one_write(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            ids = ProducerIds(store)
            assert [await ids.next() for _ in range(BLOCK)] == list(range(1, BLOCK + 1))
            assert len(store.transactions) == 1
            assert await ids.next() == BLOCK + 1
            assert len(store.transactions) == 2

    run(test())


def test_no_producer_id_is_given_twice_over_brokers_and_restarts(tmp_path: Path) -> None:
    async def test() -> None:
        taken: list[int] = []
        for _ in range(2):
            async with opened(tmp_path) as store:
                brokers = [ProducerIds(store) for _ in range(4)]
                taken += await asyncio.gather(*chain.from_iterable((broker.next() for _ in range(5)) for broker in brokers))
                store.lose_answers = 1
                taken.append(await ProducerIds(store).next())
        assert len(taken) == 42
        assert len(set(taken)) == 42

    run(test())


def test_one_who_hangs_up_while_a_block_is_taken_does_not_stop_the_others(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            ids = ProducerIds(store)
            leaving, *staying = [asyncio.ensure_future(ids.next()) for _ in range(4)]
            await asyncio.sleep(0)
            leaving.cancel()
            assert len(set(await asyncio.gather(*staying))) == 3
            assert leaving.cancelled()

    run(test())


def test_producer_ids_stay_below_those_of_idempotency_keys(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            await put(store, LAYOUT.next_producer_id, str(DERIVED_IDS - BLOCK).encode())
            ids = ProducerIds(store)
            assert [await ids.next() for _ in range(BLOCK)][-1] == DERIVED_IDS - 1
            with pytest.raises(Rejected, match="used up"):
                await ids.next()

    run(test())


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


def test_producers_can_begin_while_the_store_is_away_as_long_as_half_a_block_lasts(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as store:
            ids = ProducerIds(store)
            async with asyncio.TaskGroup() as tasks:
                ahead = tasks.create_task(ids.run())
                while not ids.in_hand:  # noqa: ASYNC110  # the store has no event for what only a test looks at
                    await asyncio.sleep(0)
                first = [await ids.next() for _ in range(BLOCK // 2 + 1)]
                while ids.in_hand < BLOCK:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                ahead.cancel()
            with pytest.MonkeyPatch.context() as broken:
                broken.setattr(store, "transact", lambda *_: pytest.fail("the store is away"))
                more = [await ids.next() for _ in range(BLOCK // 2)]
            assert first + more == list(range(1, len(first + more) + 1))

    run(test())
