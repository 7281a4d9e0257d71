"""The metadata that were restored last are the bucket's: each side writes before it looks, so that one of them sees the other."""

from __future__ import annotations

import asyncio

import pytest

from metadata.errors import Rejected
from segments.bucket.markers import begin_restoration, check_not_superseded, last_restoration
from segments.object_store.memory import MemoryObjectStore


def test_restorations_are_counted_on_the_bucket() -> None:
    async def scenario() -> None:
        store = MemoryObjectStore()
        assert await last_restoration(store) == 0
        assert [await begin_restoration(store, "c", now_ms=0) for _ in range(3)] == [1, 2, 3]
        assert await last_restoration(store) == 3

    asyncio.run(scenario())


def test_two_restorations_at_once_have_numbers_of_their_own() -> None:
    async def scenario() -> None:
        store = MemoryObjectStore()
        begun = await asyncio.gather(*(begin_restoration(store, "c", now_ms=0) for _ in range(5)))
        assert sorted(begun) == [1, 2, 3, 4, 5]

    asyncio.run(scenario())


def test_brokers_of_the_newest_metadata_go_on_and_those_of_older_ones_are_refused() -> None:
    async def scenario() -> None:
        store = MemoryObjectStore()
        await check_not_superseded(store, 0)
        number = await begin_restoration(store, "c", now_ms=0)
        await check_not_superseded(store, number)
        with pytest.raises(Rejected, match="were rebuilt from it meanwhile"):
            await check_not_superseded(store, number - 1)

    asyncio.run(scenario())
