"""A broker serves only from a bucket that has shown that it honours create-only PUTs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

import pytest

from metadata.errors import AlreadyExists, Denied, OutcomeUnknown, Rejected, TidelogError, Unavailable
from segments.object_store.conditional_put_check import check_conditional_put
from segments.object_store.interface import Buffer, ListPage
from segments.object_store.memory import MemoryObjectStore
from tests.kit.faulty_store import Faults, FaultyStore, Outage
from tests.simulation.virtual_loop import run, virtual_loop

KEY = "proof/0123"


class Overwriting(MemoryObjectStore):
    """Ignores the condition, as stores do that never heard of it."""

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        await self.delete(key)
        await super().create(key, body)


class Swallowing(MemoryObjectStore):
    """Says that the second create won, and keeps the first."""

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        if not (await self.list(key)).objects:
            await super().create(key, body)


class Lying(MemoryObjectStore):
    """Refuses the second create, and keeps its bytes all the same."""

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        existed = bool((await self.list(key)).objects)
        await self.delete(key)
        await super().create(key, body)
        if existed:
            raise AlreadyExists(key)


class Forgetful(MemoryObjectStore):
    """Does not show what was created a moment ago."""

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return await super().get(f"{key}-elsewhere", start=start, end=end)


class Refusing(MemoryObjectStore):
    def __init__(self, verb: str, error: TidelogError) -> None:
        super().__init__()
        self._verb = verb
        self._error = error
        self.refused = 0

    def _refuse(self, verb: str) -> None:
        if verb == self._verb:
            self.refused += 1
            raise self._error

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        self._refuse("create")
        await super().create(key, body)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self._refuse("get")
        return await super().get(key, start=start, end=end)

    async def delete(self, key: str) -> None:
        self._refuse("delete")
        await super().delete(key)


def test_a_store_that_keeps_its_word_passes_and_is_left_as_it_was() -> None:
    store = MemoryObjectStore()

    async def proving() -> ListPage:
        await check_conditional_put(store, KEY)
        return await store.list("")

    assert run(proving()).objects == ()


@pytest.mark.parametrize("store", [Overwriting(), Swallowing(), Lying(), Forgetful()], ids=lambda store: type(store).__name__)
def test_a_store_that_does_not_keep_its_word_is_refused_with_the_reason(store: MemoryObjectStore) -> None:
    async def proving() -> ListPage:
        with pytest.raises(Rejected, match="memory://") as refused:
            await check_conditional_put(store, KEY)
        assert "If-None-Match" in refused.value.hint
        return await store.list("")

    assert run(proving()).objects == ()


@pytest.mark.parametrize("verb", ["create", "get", "delete"])
def test_a_missing_permission_is_reported_as_the_store_reports_it_and_not_asked_for_again(verb: str) -> None:
    store = Refusing(verb, Denied("403 AccessDenied", hint="s3:PutObject"))
    with pytest.raises(Denied, match="403"):
        run(check_conditional_put(store, KEY))
    assert store.refused == 1


@pytest.mark.parametrize("verb", ["create", "get", "delete"])
@pytest.mark.parametrize("error", [Unavailable("503"), OutcomeUnknown("500")])
def test_a_store_that_is_out_of_order_is_asked_a_few_times(verb: str, error: TidelogError) -> None:
    store = Refusing(verb, error)
    with pytest.raises(type(error)):
        run(check_conditional_put(store, KEY))
    assert store.refused == 5


def test_a_store_that_does_not_answer_is_given_up_in_time() -> None:
    async def proving() -> float:
        store = FaultyStore(MemoryObjectStore(), random.Random(0))
        store.outage = Outage.HANGS
        with pytest.raises(Unavailable, match="7 s"):
            await check_conditional_put(store, KEY, timeout_s=7)
        return virtual_loop().time()

    assert run(proving()) == pytest.approx(7.0)


@pytest.mark.parametrize("seed", range(30))
def test_the_proof_is_neither_won_nor_lost_by_answers_that_are_lost(seed: int) -> None:
    faults = Faults(answer_lost=0.2, request_lost=0.1, error_500=0.2, error_503=0.1, conflict_409=0.1, read_error=0.2)

    async def proving(store: MemoryObjectStore) -> None:
        await check_conditional_put(FaultyStore(store, random.Random(seed), faults), KEY)

    with suppress(Unavailable, OutcomeUnknown):  # five tries in a row failed, but nothing false was said of the store
        run(proving(MemoryObjectStore()))
    with pytest.raises((Rejected, Unavailable, OutcomeUnknown)):
        run(proving(Overwriting()))
