"""Whether another copy of the metadata has gone on: of copies that are made and left at any moment, under virtual time."""

from __future__ import annotations

import pytest

from compaction.metadata_copies import is_overtaken
from metadata.controller.appointments import Batch, Progress, encode_batch, encode_progress
from metadata.errors import Corrupt, NotFound
from metadata.store.interface import Put
from metadata.store.keys import KeyLayout
from segments.bucket.layout import APPOINTMENTS, appointments_key
from segments.object_store.interface import ListPage
from segments.object_store.memory import MemoryObjectStore
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.virtual_loop import run, virtual_loop

LAYOUT = KeyLayout()


async def applied(metadata: EtcdModel, number: int, pending: tuple[str, ...] = ()) -> None:
    await metadata.transact([], [Put(LAYOUT.appointments, encode_progress(Progress(number, pending)))])


async def create(bucket: MemoryObjectStore, number: int, nonce: str = "theirs") -> None:
    await bucket.create(appointments_key(number), [encode_batch(Batch(number, nonce))])


@pytest.mark.parametrize(
    ("number", "batches", "overtaken"),
    [
        (0, [], False),
        (0, [1], True),
        (0, [1, 2], True),
        (7, [6, 7], False),
        (7, [7, 8], True),
        (7, [7, 8, 9], True),
        (7, [200], True),  # those between were collected
        (7, [200, 201], True),
    ],
)
def test_a_copy_has_lost_once_a_batch_is_there_that_it_has_neither_applied_nor_noted(
    number: int, batches: list[int], overtaken: bool
) -> None:
    async def scenario() -> None:
        bucket, metadata = MemoryObjectStore(), EtcdModel(virtual_loop().time)
        if number:
            await applied(metadata, number, pending=("ours",))
        for batch in batches:
            await create(bucket, batch)
        assert await is_overtaken(bucket, metadata, LAYOUT) == overtaken

    run(scenario())


@pytest.mark.parametrize("number", [0, 7])
def test_the_next_batch_is_of_these_metadata_if_they_have_noted_its_nonce(number: int) -> None:
    async def scenario() -> None:
        bucket, metadata = MemoryObjectStore(), EtcdModel(virtual_loop().time)
        await applied(metadata, number, pending=("uncreated", "ours"))
        await create(bucket, number + 1, "ours")
        assert not await is_overtaken(bucket, metadata, LAYOUT)
        await create(bucket, number + 2, "ours")
        assert await is_overtaken(bucket, metadata, LAYOUT), "no nonce is noted for the batch after the next one"

    run(scenario())


def test_a_batch_that_is_collected_during_the_look_is_followed_by_others() -> None:
    async def scenario() -> None:
        bucket, metadata = Collected(), EtcdModel(virtual_loop().time)
        await create(bucket, 1)
        assert await is_overtaken(bucket, metadata, LAYOUT)

    run(scenario())


def test_objects_that_the_controller_of_these_metadata_creates_meanwhile_are_no_other_copy() -> None:
    async def scenario() -> None:
        bucket, metadata = Going(), EtcdModel(virtual_loop().time)
        bucket.metadata = metadata
        assert not await is_overtaken(bucket, metadata, LAYOUT)

    run(scenario())


def test_a_key_that_can_not_be_read_says_nothing() -> None:
    async def scenario() -> None:
        metadata = EtcdModel(virtual_loop().time)
        await metadata.transact([], [Put(LAYOUT.appointments, b"{")])
        with pytest.raises(Corrupt):
            await is_overtaken(MemoryObjectStore(), metadata, LAYOUT)

    run(scenario())


def test_a_batch_that_can_not_be_read_says_nothing() -> None:
    async def scenario() -> None:
        bucket, metadata = MemoryObjectStore(), EtcdModel(virtual_loop().time)
        await bucket.create(appointments_key(1), [b"{}"])
        with pytest.raises(Corrupt):
            await is_overtaken(bucket, metadata, LAYOUT)

    run(scenario())


class Going(MemoryObjectStore):
    """A bucket on which the controller has written three batches by the time that somebody lists them."""

    metadata: EtcdModel

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        for number in (1, 2, 3):
            await create(self, number, "ours")
            await applied(self.metadata, number)
        assert prefix == APPOINTMENTS
        return await super().list(prefix, start_after=start_after, limit=limit)


class Collected(MemoryObjectStore):
    """A bucket on which another controller writes batch 100, and deletes the earlier ones, before the first one is read."""

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        if key == appointments_key(1):
            await create(self, 100)
            await self.delete(key)
            raise NotFound(key)
        return await super().get(key, start=start, end=end)
