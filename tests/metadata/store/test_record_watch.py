"""Records of one kind under a prefix: what can be read counts, what can't hides it, and both are forgotten when they go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from metadata.errors import Corrupt
from metadata.model import Revision
from metadata.store.interface import Delete, KeyValue, Operation, Put
from metadata.store.range_watch import RecordWatch
from metadata.store.sqlite.store import SqliteStore
from tests.simulation.virtual_loop import run, virtual_loop

PREFIX = "/numbers/"


def number(kept: KeyValue) -> int:
    try:
        return int(kept.value)
    except ValueError:
        raise Corrupt(f"{kept.key} is no number", key=kept.key) from None


class Numbers:
    def __init__(self) -> None:
        self.store = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        self.changes = 0
        self.records = RecordWatch(self.store, PREFIX, number, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    async def write(self, *operations: Operation) -> Revision:
        """Returns the revision once the watch has reported it."""
        revision = (await self.store.transact([], operations)).revision
        assert await self.records.watched.wait_for(revision, timeout_s=1)
        return revision


def watching(scenario: Callable[[Numbers], Awaitable[None]], *before: Operation) -> None:
    async def main() -> None:
        numbers = Numbers()
        await numbers.store.transact([], before)
        task = asyncio.ensure_future(numbers.records.watched.run())
        await scenario(numbers)
        task.cancel()
        await asyncio.wait((task,))
        await numbers.store.close()

    run(main())


def test_records_are_known_by_the_ends_of_their_keys_with_the_revisions_in_which_they_were_written() -> None:
    async def scenario(numbers: Numbers) -> None:
        records = numbers.records
        second = await numbers.write(Put(PREFIX + "b", b"2"))
        assert records.by_name == {"a": 1, "b": 2}
        assert records.revisions["a"] < records.revisions["b"] == second
        await numbers.write(Delete(PREFIX + "a"))
        assert records.by_name == {"b": 2}
        assert records.revisions == {"b": second}

    watching(scenario, Put(PREFIX + "a", b"1"))


def test_a_value_that_can_not_be_read_takes_the_place_of_the_record_before_it_and_another_one_its_own() -> None:
    async def scenario(numbers: Numbers) -> None:
        records = numbers.records
        damaged = await numbers.write(Put(PREFIX + "b", b"?"))
        assert (records.by_name, records.damaged) == ({"c": 3}, {"a", "b"})
        assert records.revisions["b"] == damaged, "what is damaged was written, too"
        await numbers.write(Put(PREFIX + "a", b"7"), Delete(PREFIX + "b"))
        assert (records.by_name, records.damaged) == ({"a": 7, "c": 3}, set())

    watching(scenario, Put(PREFIX + "a", b"?"), Put(PREFIX + "b", b"2"), Put(PREFIX + "c", b"3"))


def test_a_transaction_is_one_change() -> None:
    async def scenario(numbers: Numbers) -> None:
        await numbers.write(Put(PREFIX + "a", b"1"))
        before = numbers.changes
        await numbers.write(Put(PREFIX + "a", b"2"), Put(PREFIX + "b", b"2"))
        assert numbers.changes == before + 1

    watching(scenario)
