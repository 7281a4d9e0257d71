"""The numbers by which Kafka's protocol names brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from metadata.cluster.id_allocation import ATTEMPTS_MAX
from metadata.cluster.node_ids import NODE_IDS_END, take_node_id
from metadata.errors import Corrupt, OutcomeUnknown, Rejected, Unavailable
from metadata.store.interface import Put
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from tests.kit.metadata.faulty_store import FaultyStore
from tests.kit.metadata.stores import run

LAYOUT = KeyLayout()


def opened(directory: Path) -> FaultyStore:
    return FaultyStore(SqliteStore(directory / "metadata.sqlite"))


def test_brokers_are_numbered_from_0_and_keep_their_number_over_restarts(tmp_path: Path) -> None:
    async def test() -> None:
        store = opened(tmp_path)
        assert [await take_node_id(store, LAYOUT, broker_id) for broker_id in ("b-1", "b-2", "b-1")] == [0, 1, 0]
        await store.close()
        store = opened(tmp_path)
        assert [await take_node_id(store, LAYOUT, broker_id) for broker_id in ("b-3", "b-2", "b-1")] == [2, 1, 0]
        await store.close()

    run(test())


def test_brokers_that_start_at_once_get_numbers_of_their_own(tmp_path: Path) -> None:
    async def test() -> None:
        store = opened(tmp_path)
        taken = await asyncio.gather(*(take_node_id(store, LAYOUT, f"b-{n % 10}") for n in range(20)))
        assert sorted(taken[:10]) == list(range(10))
        assert taken[10:] == taken[:10], "two processes with one id are one broker"
        await store.close()

    run(test())


def test_a_broker_that_loses_the_race_for_a_number_takes_the_next(tmp_path: Path) -> None:
    async def test() -> None:
        store = opened(tmp_path)
        raced: list[int] = []

        async def other() -> None:
            raced.append(await take_node_id(store.store, LAYOUT, "b-2"))

        store.before_transaction = other
        assert await take_node_id(store, LAYOUT, "b-1") == 1
        assert raced == [0]
        await store.close()

    run(test())


def test_a_number_whose_answer_was_lost_is_found_again(tmp_path: Path) -> None:
    async def test() -> None:
        store = opened(tmp_path)
        store.lose_answers = 1
        assert await take_node_id(store, LAYOUT, "b-1") == 0
        store.lose_requests = 1
        assert await take_node_id(store, LAYOUT, "b-2") == 1
        await store.close()

    run(test())


def test_a_store_that_never_answers_is_given_up_as_retriable(tmp_path: Path) -> None:
    async def test() -> None:
        store = opened(tmp_path)
        store.lose_requests = ATTEMPTS_MAX
        with pytest.raises(Unavailable, match="no number could be allotted") as caught:
            await take_node_id(store, LAYOUT, "b-1")
        assert isinstance(caught.value.__cause__, OutcomeUnknown)
        await store.close()

    run(test())


def test_the_last_number_is_given_and_none_after_it(tmp_path: Path) -> None:
    async def test() -> None:
        store = opened(tmp_path)
        await store.transact([], [Put(LAYOUT.next_kafka_node_id, b"%d" % (NODE_IDS_END - 1))])
        assert await take_node_id(store, LAYOUT, "b-1") == NODE_IDS_END - 1
        with pytest.raises(Rejected, match="is used up"):
            await take_node_id(store, LAYOUT, "b-2")
        await store.close()

    run(test())


@pytest.mark.parametrize("value", [b"", b"-1", b"x", b"%d" % NODE_IDS_END])
def test_a_value_that_is_no_number_is_corrupt(tmp_path: Path, value: bytes) -> None:
    async def test() -> None:
        store = opened(tmp_path)
        await store.transact([], [Put(LAYOUT.kafka_node_id("b-1"), value)])
        with pytest.raises(Corrupt):
            await take_node_id(store, LAYOUT, "b-1")
        await store.close()

    run(test())
