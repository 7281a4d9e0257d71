"""What the etcd of the simulation does beyond the contract of the metadata stores, which tests/metadata runs against it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from metadata.errors import Unavailable
from metadata.model import Revision
from metadata.store.interface import LeaseLost, Put
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.virtual_loop import run, virtual_loop


def on_model(test: Callable[[EtcdModel], Awaitable[None]]) -> None:
    async def main() -> None:
        store = EtcdModel(virtual_loop().time)
        running = asyncio.ensure_future(store.run())
        await test(store)
        running.cancel()

    run(main())


async def gone_at_s(store: EtcdModel) -> float:
    """When the key "/leased" was deleted, as a watch reports."""
    async for batch in store.watch("/leased", Revision(1)):
        if batch.events[0].kind == "delete":
            return asyncio.get_running_loop().time()
    raise AssertionError("the watch has ended")


def test_a_lease_that_is_not_renewed_ends_by_itself_when_it_is_due() -> None:
    async def test(store: EtcdModel) -> None:
        await store.transact([], [Put("/leased", b"", await store.grant_lease(5))])
        assert await gone_at_s(store) == pytest.approx(5, abs=0.01)

    on_model(test)


def test_a_lease_may_end_late_and_can_be_renewed_until_then() -> None:
    async def test(store: EtcdModel) -> None:
        store.late_s = 10
        lease = await store.grant_lease(5)
        await store.transact([], [Put("/leased", b"", lease)])
        await asyncio.sleep(14)
        assert await store.keep_alive(lease) == 5
        assert await gone_at_s(store) == pytest.approx(14 + 5 + 10, abs=0.01)
        with pytest.raises(LeaseLost):
            await store.keep_alive(lease)

    on_model(test)


def test_a_restart_breaks_the_watches_and_grants_each_lease_its_whole_time_again() -> None:
    async def test(store: EtcdModel) -> None:
        await store.transact([], [Put("/leased", b"", await store.grant_lease(5))])
        watching = asyncio.ensure_future(gone_at_s(store))
        await asyncio.sleep(4)
        store.restart()
        with pytest.raises(Unavailable, match="restarts"):
            await watching
        assert await gone_at_s(store) == pytest.approx(4 + 5, abs=0.01)

    on_model(test)
