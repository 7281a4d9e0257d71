"""Many small guarded writes as few transactions, over stores that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from metadata.errors import OutcomeUnknown, Stopping, Throttled, TidelogError, TooLarge, Unavailable
from metadata.model import Revision
from metadata.store import write_batcher
from metadata.store.interface import OPERATIONS_MAX, VALUE_BYTES_MAX, Compare, MetadataStore, Put
from metadata.store.sqlite.store import SqliteStore
from metadata.store.write_batcher import CompareFailed, Outdated, UnchangedSince, WriteBatcher
from tests.kit.metadata.faulty_store import FaultyStore, unavailable
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.virtual_loop import run, virtual_loop

STORES: dict[str, Callable[[], MetadataStore]] = {
    "sqlite": lambda: SqliteStore(Path(":memory:"), clock=virtual_loop().time),
    "model": lambda: EtcdModel(virtual_loop().time),
}


class Writing:
    def __init__(self, kind: str) -> None:
        self.below = STORES[kind]()
        self.store = FaultyStore(self.below)
        self.unknown: list[str] = []
        self.writes = WriteBatcher(self.store, linger_s=0.005, unknown=self.unknown.append)
        self.running = asyncio.ensure_future(self.writes.run())

    async def guard(self, *names: str) -> Revision:
        return (await self.below.transact([], [Put(name, b"") for name in names])).revision

    async def value(self, key: str) -> bytes | None:
        kept = await self.below.get(key)
        return kept.value if kept is not None else None

    def write(
        self, guard: str, revision: int, *puts: tuple[str, str], view: UnchangedSince | None = None
    ) -> asyncio.Task[Revision | BaseException]:
        async def outcome() -> Revision | BaseException:
            try:
                return await self.writes.write(
                    Compare(guard, revision), [Put(key, value.encode()) for key, value in puts], view=view
                )
            except (TidelogError, CompareFailed, Outdated) as error:
                return error

        return asyncio.ensure_future(outcome())


@pytest.fixture(params=list(STORES))
def writing(request: pytest.FixtureRequest) -> Callable[[Callable[[Writing], Awaitable[None]]], None]:
    def with_store(scenario: Callable[[Writing], Awaitable[None]]) -> None:
        async def main() -> None:
            writing = Writing(request.param)
            await scenario(writing)
            writing.running.cancel()
            await asyncio.wait([writing.running])
            await writing.below.close()

        run(main())

    return with_store


Scenarios = Callable[[Callable[[Writing], Awaitable[None]]], None]


def test_writes_that_are_asked_for_together_are_one_transaction(writing: Scenarios) -> None:
    async def scenario(w: Writing) -> None:
        at = await w.guard("/g/a", "/g/b")
        answers = await asyncio.gather(w.write("/g/a", at, ("/1", "a")), w.write("/g/b", at, ("/2", "b"), ("/3", "b")))
        assert list(answers) == [at + 1, at + 1]
        assert w.writes.transactions == 1
        assert [await w.value(key) for key in ("/1", "/2", "/3")] == [b"a", b"b", b"b"]

    writing(scenario)


def test_a_thousand_writes_are_transactions_of_at_most_128_and_happen_in_order(writing: Scenarios) -> None:
    async def scenario(w: Writing) -> None:
        at = await w.guard("/g")
        answers = await asyncio.gather(*(w.write("/g", at, (f"/{number}", "x")) for number in range(1000)))
        assert answers == sorted(answers, key=lambda answer: answer if isinstance(answer, int) else -1)
        assert w.writes.transactions == 8
        assert max(len(operations) for _, operations in w.store.transactions) == 128

    writing(scenario)


def test_of_one_key_the_last_value_that_was_asked_for_stays(writing: Scenarios) -> None:
    async def scenario(w: Writing) -> None:
        at = await w.guard("/g")
        await asyncio.gather(*(w.write("/g", at, ("/offset", str(number))) for number in range(20)))
        assert await w.value("/offset") == b"19"

    writing(scenario)


def test_one_compare_that_fails_among_many_fails_alone(writing: Scenarios) -> None:
    async def scenario(w: Writing) -> None:
        at = await w.guard(*(f"/g/{number}" for number in range(100)))
        answers = await asyncio.gather(
            *(w.write(f"/g/{number}", at - (number == 37), (f"/{number}", "x")) for number in range(100))
        )
        failed = [number for number, answer in enumerate(answers) if not isinstance(answer, int)]
        assert failed == [37]
        assert isinstance(answers[37], CompareFailed)
        assert await w.value("/37") is None
        assert await w.value("/99") == b"x"
        assert w.writes.transactions <= 2 * 7 + 1

    writing(scenario)


def test_writes_with_an_outdated_view_fail_alone_and_are_not_taken_for_those_whose_compare_fails(writing: Scenarios) -> None:
    async def scenario(w: Writing) -> None:
        at = await w.guard(*(f"/g/{number}" for number in range(30)))
        old, now = UnchangedSince("/view", await w.guard("/view")), UnchangedSince("/view", await w.guard("/view"))
        answers = await asyncio.gather(
            *(
                w.write(f"/g/{number}", at - (number == 7), (f"/{number}", "x"), view=(None, old, now)[number % 3])
                for number in range(30)
            )
        )
        kinds = {number: type(answer) for number, answer in enumerate(answers) if not isinstance(answer, int)}
        assert kinds == dict.fromkeys(range(1, 30, 3), Outdated)
        answers = await asyncio.gather(
            *(w.write(f"/g/{number}", at - (number == 7), (f"/{number}", "x"), view=now) for number in range(30))
        )
        assert [number for number, answer in enumerate(answers) if isinstance(answer, CompareFailed)] == [7]
        assert await w.value("/7") is None
        assert await w.value("/8") == b"x"

    writing(scenario)


def test_a_write_is_not_written_where_its_view_becomes_outdated_on_the_way(writing: Scenarios) -> None:
    async def scenario(w: Writing) -> None:
        at = await w.guard("/g")
        view = UnchangedSince("/view", await w.guard("/view"))
        assert isinstance(await w.write("/g", at, ("/1", "x"), view=view), int)
        w.store.before_transaction = lambda: w.guard("/view")
        assert isinstance(await w.write("/g", at, ("/1", "y"), view=view), Outdated)
        assert await w.value("/1") == b"x"

    writing(scenario)


def test_a_view_of_a_key_that_was_never_written_holds(writing: Scenarios) -> None:
    async def scenario(w: Writing) -> None:
        at = await w.guard("/g")
        assert isinstance(await w.write("/g", at, ("/1", "x"), view=UnchangedSince("/view", at)), int)

    writing(scenario)


def test_nothing_was_written_where_it_is_not_known_whether_the_view_is_outdated(writing: Scenarios) -> None:
    async def scenario(w: Writing) -> None:
        at = await w.guard("/g")
        view = UnchangedSince("/view", await w.guard("/view"))
        w.store.before_transaction = lambda: w.guard("/view")
        w.store.get = AsyncMock(side_effect=unavailable())  # type: ignore[method-assign]  # a double
        assert isinstance(await w.write("/g", at, ("/1", "x"), view=view), Unavailable)
        assert await w.value("/1") is None
        assert not w.unknown

    writing(scenario)


def test_views_count_among_the_compares_of_a_transaction(writing: Scenarios) -> None:
    async def scenario(w: Writing) -> None:
        at = await w.guard(*(f"/g/{number}" for number in range(100)))
        views = [UnchangedSince("/view", Revision(at + number)) for number in range(100)]
        answers = await asyncio.gather(
            *(w.write(f"/g/{number}", at, (f"/{number}", "x"), view=views[number]) for number in range(100))
        )
        assert all(isinstance(answer, int) for answer in answers)
        assert max(len(compares) for compares, _ in w.store.transactions) <= OPERATIONS_MAX

    writing(scenario)


def test_one_write_that_the_store_refuses_fails_alone(writing: Scenarios) -> None:
    async def scenario(w: Writing) -> None:
        at = await w.guard("/g")
        small, large, other = await asyncio.gather(
            w.write("/g", at, ("/1", "x")), w.write("/g", at, ("/2", "x" * (VALUE_BYTES_MAX + 1))), w.write("/g", at, ("/3", "x"))
        )
        assert isinstance(large, TooLarge)
        assert isinstance(small, int)
        assert isinstance(other, int)

    writing(scenario)


def test_during_an_outage_each_write_is_unavailable_and_nothing_is_written(writing: Scenarios) -> None:
    async def scenario(w: Writing) -> None:
        at = await w.guard("/g")
        w.store.down = unavailable()
        answers = await asyncio.gather(w.write("/g", at, ("/1", "x")), w.write("/g", at, ("/2", "x")))
        assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
        w.store.down = None
        assert isinstance(await w.write("/g", at, ("/1", "y")), int)
        assert not w.unknown

    writing(scenario)


@pytest.mark.parametrize("lost", ["lose_answers", "lose_requests"])
def test_nothing_under_the_same_compare_follows_a_write_of_unknown_outcome(writing: Scenarios, lost: str) -> None:
    async def scenario(w: Writing) -> None:
        at = await w.guard("/g/a", "/g/b")
        setattr(w.store, lost, 1)
        first = w.write("/g/a", at, ("/offset", "10"))
        second = w.write("/g/a", at, ("/offset", "20"))  # of the same key, and so in the next transaction
        record = w.write("/g/a", at, ("/g/a", "the next generation"), ("/offset", "30"))
        other = w.write("/g/b", at, ("/other", "1"))
        assert isinstance(await first, OutcomeUnknown)
        assert isinstance(await second, CompareFailed), "the first may still land, over the second"
        assert isinstance(await record, int), "after it, the first can't land any more"
        assert isinstance(await other, int)
        assert w.unknown == ["/g/a"]
        assert await w.value("/offset") == b"30"

    writing(scenario)


def test_the_owner_is_notified_of_an_unknown_outcome_though_the_caller_hung_up(writing: Scenarios) -> None:
    async def scenario(w: Writing) -> None:
        at = await w.guard("/g")
        w.store.lose_answers = 1
        caller = w.write("/g", at, ("/1", "x"))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.sleep(1)
        assert w.unknown == ["/g"]

    writing(scenario)


def test_a_write_whose_caller_no_longer_waits_is_written_all_the_same(writing: Scenarios) -> None:
    async def scenario(w: Writing) -> None:
        at = await w.guard("/g")
        caller, other = w.write("/g", at, ("/1", "x")), w.write("/g", at, ("/2", "x"))
        await asyncio.sleep(0)
        caller.cancel()
        assert isinstance(await other, int)
        assert await w.value("/1") == b"x"

    writing(scenario)


def test_a_stop_ends_waiting_writes_and_refuses_later_ones(writing: Scenarios) -> None:
    async def scenario(w: Writing) -> None:
        at = await w.guard("/g")
        held = asyncio.Event()
        w.store.before_transaction = held.wait
        under_way = w.write("/g", at, ("/1", "x"))
        await asyncio.sleep(1)
        waiting = w.write("/g", at, ("/2", "x"))
        await asyncio.sleep(0)
        w.running.cancel()
        assert isinstance(await under_way, OutcomeUnknown)
        assert isinstance(await waiting, Stopping)
        assert isinstance(await w.write("/g", at, ("/3", "x")), Stopping)
        assert w.unknown == ["/g"]

    writing(scenario)


def test_more_than_may_wait_are_refused(writing: Scenarios, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(w: Writing) -> None:
        monkeypatch.setattr(write_batcher, "WAITING_MAX", 2)
        at = await w.guard("/g")
        answers = await asyncio.gather(*(w.write("/g", at, (f"/{number}", "x")) for number in range(3)))
        assert isinstance(answers[2], Throttled)
        assert all(isinstance(answer, int) for answer in answers[:2])

    writing(scenario)
