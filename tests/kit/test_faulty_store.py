"""The bad network of the simulation does what it says, and the same seed gives the same run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from metadata.errors import AlreadyExists, NotFound, OutcomeUnknown, Throttled, TidelogError, Unavailable
from segments.object_store.memory import MemoryObjectStore
from tests.kit.faulty_store import STORMY, Faults, FaultyStore, Outage, between
from tests.simulation.virtual_loop import run, virtual_loop


def keys_of(store: MemoryObjectStore) -> list[str]:
    return list(store._keys)


async def outcome(store: FaultyStore, key: str) -> type[TidelogError] | None:
    try:
        await store.create(key, [b"body"])
    except TidelogError as error:
        return type(error)
    return None


def test_a_calm_network_only_takes_time() -> None:
    async def scenario() -> None:
        shared = MemoryObjectStore()
        store = FaultyStore(shared, random.Random(1), Faults(request_s=between(0.1, 0.1), answer_s=between(0.05, 0.05)))
        await store.create("a", [b"bo", b"dy"])
        assert virtual_loop().time() == pytest.approx(0.15)
        assert await store.get("a", start=1, end=3) == b"od"
        assert (await store.tail("a", 2)).size == 4
        assert [found.key for found in (await store.list("")).objects] == ["a"]
        with pytest.raises(AlreadyExists):
            await store.create("a", [b"again"])
        await store.delete("a")
        with pytest.raises(NotFound):
            await store.get("a")
        store.slow_factor = 10
        before = virtual_loop().time()
        await store.create("a", [b"body"])
        assert virtual_loop().time() - before == pytest.approx(1.5)

    run(scenario())


@pytest.mark.parametrize(
    ("fault", "error", "happened"),
    [
        ("answer_lost", OutcomeUnknown, True),
        ("request_lost", OutcomeUnknown, False),
        ("error_503", Throttled, False),
        ("conflict_409", OutcomeUnknown, False),
    ],
)
def test_a_fault_raises_its_error_and_has_its_effect_on_the_store(fault: str, error: type[TidelogError], happened: bool) -> None:
    async def scenario() -> None:
        shared = MemoryObjectStore()
        store = FaultyStore(shared, random.Random(1), Faults(**{fault: 1.0}))  # type: ignore[arg-type]
        assert await outcome(store, "a") is error
        assert (keys_of(shared) == ["a"]) == happened
        await store.settle()
        assert (keys_of(shared) == ["a"]) == happened

    run(scenario())


def test_a_500_happened_or_not() -> None:
    async def scenario() -> None:
        shared = MemoryObjectStore()
        store = FaultyStore(shared, random.Random(1), Faults(error_500=1.0))
        outcomes = {await outcome(store, f"{number}") for number in range(40)}
        assert outcomes == {OutcomeUnknown}
        assert 5 < len(keys_of(shared)) < 35

    run(scenario())


def test_a_late_write_lands_after_its_caller_got_outcome_unknown() -> None:
    async def scenario() -> None:
        shared = MemoryObjectStore()
        store = FaultyStore(shared, random.Random(1), Faults(late=1.0, late_s=between(8.0, 8.0)))
        assert await outcome(store, "a") is OutcomeUnknown
        assert keys_of(shared) == []
        assert store.on_the_wire == 1
        await asyncio.sleep(7.9)
        assert keys_of(shared) == []
        await store.settle()
        assert keys_of(shared) == ["a"]
        assert store.counts["landed late"] == 1

    run(scenario())


def test_a_late_write_loses_against_one_that_came_before_it() -> None:
    async def scenario() -> None:
        shared = MemoryObjectStore()
        zombie = FaultyStore(shared, random.Random(1), Faults(late=1.0), name="zombie")
        assert await outcome(zombie, "a") is OutcomeUnknown
        await shared.create("a", [b"seal"])
        await zombie.settle()
        assert await shared.get("a") == b"seal"
        assert zombie.counts["landed late"] == 1

    run(scenario())


def test_writes_that_are_under_way_together_land_in_any_order() -> None:
    async def order(seed: int) -> tuple[str, ...]:
        landed: list[str] = []
        store = FaultyStore(MemoryObjectStore(), random.Random(seed), after_create=landed.append)
        await asyncio.gather(*(store.create(key, [b""]) for key in "abcd"))
        return tuple(landed)

    assert len({run(order(seed)) for seed in range(40)}) > 10


def test_a_write_outlives_its_caller_or_is_lost_with_it() -> None:
    async def landed(lands_after_cancel: float) -> list[str]:
        shared = MemoryObjectStore()
        store = FaultyStore(shared, random.Random(1), Faults(lands_after_cancel=lands_after_cancel))
        create = asyncio.ensure_future(store.create("a", [b"x"]))
        await asyncio.sleep(0.001)
        create.cancel()
        with pytest.raises(asyncio.CancelledError):
            await create
        await store.settle()
        return keys_of(shared)

    assert run(landed(1.0)) == ["a"]
    assert run(landed(0.0)) == []


def test_a_process_that_died_does_not_take_its_requests_with_it() -> None:
    async def scenario() -> None:
        shared = MemoryObjectStore()
        store = FaultyStore(shared, random.Random(1))
        loop = virtual_loop()
        create = loop.create_task(outcome(store, "a"), context=loop.context_of("broker"))
        await asyncio.sleep(0.001)
        loop.freeze("broker")
        await asyncio.sleep(60)
        assert keys_of(shared) == ["a"]
        assert not create.done()

    run(scenario())


def test_a_request_of_a_frozen_client_stays_on_the_wire_until_it_thaws() -> None:
    async def scenario() -> None:
        shared = MemoryObjectStore()
        zombie, other = (FaultyStore(shared, random.Random(seed)) for seed in range(2))
        create = asyncio.ensure_future(outcome(zombie, "a"))
        await asyncio.sleep(0.001)
        zombie.freeze()
        read = asyncio.ensure_future(zombie.list(""))
        assert await outcome(other, "b") is None
        await asyncio.sleep(3600)
        assert keys_of(shared) == ["b"]
        assert not create.done()
        assert not read.done()
        zombie.thaw()
        assert await create is None
        assert keys_of(shared) == ["a", "b"]
        await read

    run(scenario())


def test_an_outage_that_refuses_sends_nothing() -> None:
    async def scenario() -> None:
        shared = MemoryObjectStore()
        store = FaultyStore(shared, random.Random(1))
        store.outage = Outage.REFUSES
        assert await outcome(store, "a") is Unavailable
        with pytest.raises(Unavailable):
            await store.list("")
        store.outage = Outage.NONE
        assert await outcome(store, "a") is None

    run(scenario())


def test_an_outage_that_hangs_lets_everything_go_on_when_it_is_over() -> None:
    async def scenario() -> None:
        store = FaultyStore(MemoryObjectStore(), random.Random(1))
        store.outage = Outage.HANGS
        create = asyncio.ensure_future(outcome(store, "a"))
        await asyncio.sleep(600)
        assert not create.done()
        store.outage = Outage.NONE
        assert await create is None

    run(scenario())


def test_an_outage_of_errors_leaves_every_write_unknown_and_every_read_unanswered() -> None:
    async def scenario() -> None:
        shared = MemoryObjectStore()
        store = FaultyStore(shared, random.Random(1))
        store.outage = Outage.ERRORS
        assert {await outcome(store, f"{number}") for number in range(40)} == {OutcomeUnknown}
        assert 5 < len(keys_of(shared)) < 35
        with pytest.raises(Unavailable):
            await store.list("")

    run(scenario())


def test_a_crash_point_is_called_just_before_and_just_after_the_object_exists() -> None:
    seen: list[tuple[str, str, list[str]]] = []

    async def scenario() -> None:
        shared = MemoryObjectStore()

        def note(when: str) -> Callable[[str], None]:
            return lambda key: seen.append((when, key, keys_of(shared)))

        store = FaultyStore(shared, random.Random(1), before_create=note("before"), after_create=note("after"))
        await store.create("a", [b"x"])
        assert await outcome(store, "a") is AlreadyExists

    run(scenario())
    assert seen == [("before", "a", []), ("after", "a", ["a"]), ("before", "a", ["a"])]


def test_a_bug_in_the_store_reaches_the_caller() -> None:
    def broken(key: str) -> None:
        raise ZeroDivisionError(key)

    async def scenario() -> None:
        with pytest.raises(ZeroDivisionError):
            await FaultyStore(MemoryObjectStore(), random.Random(1), before_create=broken).create("a", [b"x"])

    run(scenario())


async def storm(seed: int) -> tuple[str, list[str]]:
    chance, shared, log = random.Random(seed), MemoryObjectStore(), list[str]()
    clients = [FaultyStore(shared, random.Random(chance.random()), STORMY, name=name, log=log) for name in ("b1", "b2")]

    async def use(store: FaultyStore) -> None:
        for number in range(30):
            await asyncio.gather(*(outcome(store, f"{number}/{index}") for index in range(3)))
            try:
                await store.list("")
                await store.get(f"{number}/0")
            except TidelogError:
                await asyncio.sleep(0.1)

    await asyncio.gather(*(use(client) for client in clients))
    for client in clients:
        await client.settle()
    return clients[0].digest(), keys_of(shared)


def test_the_same_seed_gives_the_same_run_byte_for_byte() -> None:
    assert run(storm(7)) == run(storm(7))
    assert run(storm(7)) != run(storm(8))


def test_a_storm_brings_every_fault() -> None:
    async def scenario() -> None:
        store = FaultyStore(MemoryObjectStore(), random.Random(3), STORMY)
        for number in range(400):
            await outcome(store, f"{number}")
        await store.settle()
        faults = ["answer lost", "request lost", "late", "500 and done", "500 and not done", "503", "409", "landed late"]
        assert all(store.counts[fault] for fault in faults), store.counts
        assert store.counts["create"] == 400

    run(scenario())
