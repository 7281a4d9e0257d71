"""Compactors share the work, by what the metadata say of each other; nothing depends on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from compaction.work_sharing import CompactorMembership
from metadata.store.keys import KeyLayout
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.virtual_loop import run, virtual_loop

LAYOUT = KeyLayout()
NAMES = [f"session {number}" for number in range(200)]


@asynccontextmanager
async def at_work(store: EtcdModel, name: str) -> AsyncIterator[CompactorMembership]:
    membership = CompactorMembership(store, LAYOUT, name, version="1", ttl_s=15)
    running = asyncio.create_task(membership.run())
    await membership.joined.wait()
    try:
        yield membership
    finally:
        running.cancel()
        await asyncio.wait((running,))


def test_each_name_belongs_to_one_and_all_of_them_to_who_is_left() -> None:
    async def main() -> None:
        store = EtcdModel(virtual_loop().time)
        async with at_work(store, "a") as a:
            assert all(a.is_mine(name) for name in NAMES)
            async with at_work(store, "b") as b:
                await asyncio.sleep(1)
                assert a.compactors == b.compactors == {"a", "b"}
                assert all(a.is_mine(name) != b.is_mine(name) for name in NAMES)
                assert 50 < sum(a.is_mine(name) for name in NAMES) < 150
            await asyncio.sleep(1)
            assert a.compactors == {"a"}, "who ends in order is gone at once"

    run(main())


def test_a_dead_compactor_leaves_when_its_lease_ends_and_one_that_lost_its_lease_registers_again() -> None:
    async def main() -> None:
        store = EtcdModel(virtual_loop().time)
        expiring = asyncio.create_task(store.run())
        async with at_work(store, "a") as a:
            dead = CompactorMembership(store, LAYOUT, "b", version="1", ttl_s=15)
            dying = asyncio.create_task(dead.run(), context=virtual_loop().context_of("b"))
            await dead.joined.wait()
            virtual_loop().freeze("b")
            await asyncio.sleep(1)
            assert a.compactors == {"a", "b"}
            await asyncio.sleep(20)
            assert a.compactors == {"a"}
            virtual_loop().thaw("b")
            await asyncio.sleep(20)
            assert a.compactors == dead.compactors == {"a", "b"}
            dying.cancel()
            await asyncio.wait((dying,))
        expiring.cancel()

    run(main())
