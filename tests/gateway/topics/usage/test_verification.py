from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.topics.usage.verification import BucketVerifier
from metadata.errors import AlreadyExists, NotFound, Unavailable
from segments.object_store.interface import ListPage
from segments.object_store.memory import MemoryObjectStore
from tests.simulation.virtual_loop import run


class HeldLists(MemoryObjectStore):
    """Listings wait while it is held, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.fails = False
        self.lists = 0

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        self.lists += 1
        await self.open.wait()
        if self.fails:
            raise Unavailable("the bucket is away")
        return await super().list(prefix, start_after=start_after, limit=limit)


@asynccontextmanager
async def verifier(store: HeldLists) -> AsyncIterator[BucketVerifier]:
    made = BucketVerifier(store, lambda: 5)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.wait((task,))


async def ended(verifying: BucketVerifier) -> str:
    while verifying.state.state == "running":  # noqa: ASYNC110  # it has no event for what only a test looks at
        await asyncio.sleep(1)
    return verifying.state.state


def test_one_verification_runs_at_a_time_and_says_what_it_found() -> None:
    async def scenario() -> None:
        store = HeldLists()
        await store.create("wal/0000000000000001/0000000000000000", [b"no segment"])
        async with verifier(store) as verifying:
            assert verifying.begin("ann").begun_by == "ann"
            with pytest.raises(AlreadyExists):
                verifying.begin("bob")
            store.open.set()
            assert await ended(verifying) == "done"
            found = verifying.state
            assert not found.is_sound
            assert found.findings[0].severity == "damage"
            assert found.ended_at_ms == 5
            verifying.begin("bob")
            assert await ended(verifying) == "done"

    run(scenario())


def test_a_cancelled_verification_ends_at_once_and_another_may_begin() -> None:
    async def scenario() -> None:
        store = HeldLists()
        async with verifier(store) as verifying:
            with pytest.raises(NotFound):
                verifying.cancel()
            verifying.begin("ann")
            await asyncio.sleep(1)
            assert verifying.cancel().state == "cancelled"
            verifying.begin("bob")
            store.open.set()
            assert await ended(verifying) == "done"
            assert verifying.state.begun_by == "bob"
            lists = store.lists
            verifying.begin("ann")
            verifying.cancel()
            await asyncio.sleep(10)
            assert (verifying.state.state, store.lists) == ("cancelled", lists), "it never began to read"

    run(scenario())


def test_a_bucket_that_is_away_or_too_large_ends_it_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        store = HeldLists()
        store.open.set()
        store.fails = True
        async with verifier(store) as verifying:
            verifying.begin("")
            assert await ended(verifying) == "failed"
            assert "away" in verifying.state.error
            store.fails = False
            for session in (1, 2):
                await store.create(f"wal/{session:016x}/claim", [b"{}"])
            monkeypatch.setattr("gateway.topics.usage.verification.RUNS_MAX", 1)
            verifying.begin("")
            assert await ended(verifying) == "failed"
            assert "tidelog bucket verify" in verifying.state.hint

    run(scenario())
