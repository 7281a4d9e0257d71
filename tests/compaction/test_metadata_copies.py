"""Whether another copy of the metadata has gone on: of copies that are made and left at any moment, under virtual time."""

from __future__ import annotations

import pytest

from compaction.metadata_copies import is_overtaken
from metadata.controller.appointments import Progress, encode_progress
from metadata.errors import Corrupt
from metadata.store.interface import Put
from metadata.store.keys import KeyLayout
from segments.bucket.layout import APPOINTMENTS, appointments_key
from segments.object_store.interface import ListPage
from segments.object_store.memory import MemoryObjectStore
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.virtual_loop import run, virtual_loop

LAYOUT = KeyLayout()


async def applied(metadata: EtcdModel, number: int) -> None:
    await metadata.transact([], [Put(LAYOUT.appointments, encode_progress(Progress(number)))])


@pytest.mark.parametrize(
    ("number", "batches", "overtaken"),
    [
        (0, [], False),
        (0, [1], False),  # created, and about to be applied
        (0, [1, 2], True),
        (7, [6, 7], False),
        (7, [7, 8], False),
        (7, [7, 8, 9], True),
        (7, [200, 201], True),  # those between were collected
    ],
)
def test_a_copy_has_lost_once_two_batches_are_there_that_it_has_not_applied(
    number: int, batches: list[int], overtaken: bool
) -> None:
    async def scenario() -> None:
        bucket, metadata = MemoryObjectStore(), EtcdModel(virtual_loop().time)
        if number:
            await applied(metadata, number)
        for batch in batches:
            await bucket.create(appointments_key(batch), [b"{}"])
        assert await is_overtaken(bucket, metadata, LAYOUT) == overtaken

    run(scenario())


def test_what_the_controller_of_these_metadata_creates_during_the_look_is_no_other_copy() -> None:
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


class Going(MemoryObjectStore):
    """A bucket on which the controller has written three batches by the time that somebody lists them."""

    metadata: EtcdModel

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        for number in (1, 2, 3):
            await self.create(appointments_key(number), [b"{}"])
            await applied(self.metadata, number)
        assert prefix == APPOINTMENTS
        return await super().list(prefix, start_after=start_after, limit=limit)
