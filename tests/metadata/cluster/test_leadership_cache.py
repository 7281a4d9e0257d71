"""Who leads what, as every broker knows it: in step with the store, and by leader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Set
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.cluster.leadership import PartitionState, appointed, handed_over, moving
from metadata.cluster.leadership_cache import PartitionCache
from metadata.model import Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition
from metadata.store.interface import Delete, Operation, Put
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from tests.kit.metadata.faulty_store import FaultyStore, unavailable
from tests.simulation.virtual_loop import run, virtual_loop

LAYOUT = KeyLayout()
P0, P1, P2 = (TopicPartition(TopicId("a" * 32), Partition(number)) for number in range(3))


def led(session: int, *, moving_to: int | None = None) -> PartitionState:
    state = appointed(None, SessionId(session))
    return state if moving_to is None else moving(state, SessionId(moving_to))


def put(partition: TopicPartition, state: PartitionState) -> Put:
    return Put(LAYOUT.partition(partition), msgspec.json.encode(state))


def spoil(partition: TopicPartition, value: bytes = b"{") -> Put:
    return Put(LAYOUT.partition(partition), value)


def forget(partition: TopicPartition) -> Delete:
    return Delete(LAYOUT.partition(partition))


class Cached:
    def __init__(self) -> None:
        self.sqlite = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        self.store = FaultyStore(self.sqlite)
        self.cache = PartitionCache(self.store, LAYOUT)
        self.reported: list[set[TopicPartition]] = []
        self.enough = self.cache.subscribe(lambda changed: self.reported.append(set(changed)))

    async def write(self, *operations: Operation) -> Revision:
        """And waits until the cache has heard of it."""
        revision = (await self.sqlite.transact([], operations)).revision
        assert await self.cache.wait_for(revision, timeout_s=60)
        return revision

    def led_by(self, *sessions: int) -> list[Set[TopicPartition]]:
        return [self.cache.led_by(SessionId(session)) for session in sessions]


def with_cache(scenario: Callable[[Cached], Awaitable[None]]) -> None:
    async def main() -> None:
        cached = Cached()
        following = asyncio.ensure_future(cached.cache.run())
        await scenario(cached)
        following.cancel()
        await cached.sqlite.close()

    run(main())


def test_the_leadership_cache_knows_each_state_with_its_revision_and_the_partitions_of_each_session() -> None:
    async def scenario(c: Cached) -> None:
        first = await c.write(put(P0, led(1)), put(P1, led(1)))
        second = await c.write(put(P1, led(2)))
        assert c.cache.states == {P0: (led(1), first), P1: (led(2), second)}
        assert (c.cache.get(P1), c.cache.get(P2)) == (led(2), None)
        assert c.led_by(1, 2, 3) == [{P0}, {P1}, set()]
        await c.write(forget(P0))
        assert c.cache.states == {P1: (led(2), second)}
        assert c.led_by(1, 2) == [set(), {P1}]

    with_cache(scenario)


def test_the_leadership_cache_knows_which_partitions_are_to_move() -> None:
    async def scenario(c: Cached) -> None:
        asked = led(1, moving_to=2)
        await c.write(put(P0, asked), put(P1, asked), put(P2, led(1)))
        assert c.cache.moving == {P0, P1}
        await c.write(put(P0, handed_over(asked, SegmentSeq(3), set())), forget(P1), put(P2, asked))
        assert c.cache.moving == {P2}
        await c.write(put(P2, led(1)))
        assert c.cache.moving == set()

    with_cache(scenario)


def test_subscribers_hear_which_partitions_have_changed_until_they_have_enough() -> None:
    async def scenario(c: Cached) -> None:
        await c.write(put(P0, led(1)), put(P1, led(1)))
        await c.write(forget(P1), put(P2, led(1)))
        assert c.reported == [{P0, P1}, {P1, P2}]
        c.enough()
        await c.write(forget(P0))
        assert len(c.reported) == 2

    with_cache(scenario)


def test_after_a_gap_in_history_changed_new_and_removed_partitions_are_reported() -> None:
    async def scenario(c: Cached) -> None:
        await c.write(put(P0, led(1, moving_to=2)), put(P1, led(1)))
        c.reported.clear()
        c.store.down = unavailable()
        await c.sqlite.transact([], [put(P1, led(2)), forget(P0), put(P2, led(2))])
        await c.sqlite.compact((await c.sqlite.range("/")).revision)
        await asyncio.sleep(10)
        c.store.down = None
        await asyncio.sleep(10)
        assert c.reported == [{P0, P1, P2}]
        assert set(c.cache.states) == {P1, P2}
        assert c.led_by(1, 2) == [set(), {P1, P2}]
        assert c.cache.moving == set()

    with_cache(scenario)


@pytest.mark.parametrize(
    "value", [b"", b"{", b"\xff", b"{}", b'{"leader_session":1,"leader_epoch":0,"sessions":[]}', b"[]"], ids=repr
)
def test_an_unreadable_value_does_not_take_the_partition_from_its_leader(value: bytes) -> None:
    """As with a topic: damage is not an order. Its leader goes on; no other can be appointed, since every write compares."""

    async def scenario(c: Cached) -> None:
        revision = await c.write(put(P0, led(1)))
        await c.write(spoil(P0, value))
        assert c.cache.corrupt == {P0}
        assert c.cache.states == {P0: (led(1), revision)}
        assert c.led_by(1) == [{P0}]
        repaired = await c.write(put(P0, led(1)))
        assert c.cache.corrupt == set()
        assert c.cache.states == {P0: (led(1), repaired)}

    with_cache(scenario)


def test_a_value_that_could_never_be_read_has_no_state_but_is_known_to_be_there() -> None:
    async def scenario(c: Cached) -> None:
        await c.write(spoil(P0))
        assert (c.cache.get(P0), c.cache.corrupt) == (None, {P0})
        assert c.reported[-1] == {P0}
        await c.write(forget(P0))
        assert c.cache.corrupt == set()
        assert c.reported[-1] == {P0}

    with_cache(scenario)


def test_a_key_that_is_no_partition_is_skipped() -> None:
    async def scenario(c: Cached) -> None:
        await c.write(Put(f"{LAYOUT.partitions}{'A' * 32}/0", b"{}"), Put(f"{LAYOUT.partitions}x", b""), put(P0, led(1)))
        await c.write(Delete(f"{LAYOUT.partitions}x"))
        assert set(c.cache.states) == {P0}

    with_cache(scenario)


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "move", "spoil", "forget", "hole"]), st.sampled_from([P0, P1, P2]), st.integers(1, 3))
)


@given(STEPS)
def test_whatever_is_written_the_tables_agree_with_the_states(steps: list[tuple[str, TopicPartition, int]]) -> None:
    async def scenario(c: Cached) -> None:
        for what, partition, session in steps:
            if what == "put":
                await c.write(put(partition, led(session)))
            elif what == "move":
                await c.write(put(partition, led(session, moving_to=9)))
            elif what == "spoil":
                await c.write(spoil(partition))
            elif what == "forget":
                await c.sqlite.transact([], [forget(partition)])
            else:
                c.store.down = unavailable()
                await c.sqlite.compact((await c.sqlite.range("/")).revision)
                c.store.down = None
        await c.write(put(P2, led(1)))
        states = {partition: state for partition, (state, _) in c.cache.states.items()}
        for session in (1, 2, 3):
            assert c.led_by(session) == [{p for p, state in states.items() if state.leader_session == session}]
        assert c.cache.moving == {p for p, state in states.items() if state.moving_to is not None}
        stored = {LAYOUT.parse_partition(item.key): item for item in (await c.sqlite.range(LAYOUT.partitions)).items}
        assert {*states, *c.cache.corrupt} == set(stored)
        for partition in states.keys() - c.cache.corrupt:
            assert msgspec.json.encode(states[partition]) == stored[partition].value

    with_cache(scenario)


def test_a_repeated_read_of_all_partitions_reports_only_differences() -> None:
    """With many partitions, a report of all that are the same would stop the broker for a moment."""

    async def scenario(c: Cached) -> None:
        await c.write(put(P0, led(1)), put(P1, led(1)), spoil(P2))
        c.reported.clear()
        c.store.down = unavailable()
        await c.sqlite.transact([], [put(P1, led(1))])
        await c.sqlite.compact((await c.sqlite.range("/")).revision)
        await asyncio.sleep(10)
        c.store.down = None
        await asyncio.sleep(10)
        assert c.reported == [{P1}]
        assert c.cache.corrupt == {P2}

    with_cache(scenario)


def test_a_leader_epoch_that_falls_shows_that_the_metadata_were_set_back() -> None:
    async def scenario(cached: Cached) -> None:
        def fallen() -> TopicPartition | None:
            return cached.cache.set_back

        moved = appointed(led(5), SessionId(6))
        await cached.write(put(P0, led(5)), put(P1, led(5)))
        await cached.write(put(P0, moved))
        await cached.write(put(P0, appointed(moved, SessionId(7))))
        await cached.write(forget(P1))
        await cached.write(put(P1, led(7)))
        assert fallen() is None
        await cached.write(put(P0, moved))
        assert fallen() == P0
        await cached.write(put(P0, appointed(moved, SessionId(8))))
        assert fallen() == P0, "it stays so"

    with_cache(scenario)
