"""Row groups read from the bucket: as few requests as there can be, footers kept and bounded, and batches as readers want them."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

import segments.history.parquet_file
from metadata.model import Offset
from segments.byte_budget import ByteBudget
from segments.history.index import RowGroupLocation
from segments.read.read_cache import ReadCache
from segments.read.row_group_loader import RowGroupLoader
from segments.records.batch import parse_header
from tests.kit.segments.batches import batch_of
from tests.kit.segments.scripted_store import REFUSED, slow
from tests.kit.segments.tiered_partition import TieredPartition, tuples_in
from tests.simulation.virtual_loop import run

V = [batch_of(b"a%d" % number, b"b%d" % number) for number in range(12)]


def locations_in(partition: TieredPartition) -> list[RowGroupLocation]:
    """Of all row groups."""
    assert partition.led.history is not None
    found: list[RowGroupLocation] = []
    at = 0
    while (location := partition.led.history.find(at)) is not None:
        found.append(location)
        at = location.last_offset + 1
    return found


def test_a_footer_far_behind_its_row_group_is_read_once_however_many_groups_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segments.read.row_group_loader.SHARED_GET_BYTES", -1)
    partition = TieredPartition(V, compacted=12, group_bytes=200)
    groups = locations_in(partition)
    partition.store.script("get", groups[0].key, slow(1))

    async def main() -> None:
        reads = RowGroupLoader(partition.store)
        read = await asyncio.gather(*map(reads.read, groups))
        assert tuples_in([body for group in read for body in group.batches]) == partition.records

    run(main())
    assert partition.store.count("get") == len(groups) + 1


def test_a_footer_that_could_not_be_read_is_asked_for_again() -> None:
    partition = TieredPartition(V, compacted=12, group_bytes=200)
    first, *_ = locations_in(partition)
    partition.store.script("get", first.key, REFUSED)

    async def main() -> None:
        reads = RowGroupLoader(partition.store)
        with pytest.raises(type(REFUSED.error or Exception())):
            await reads.read(first)
        assert not (await reads.read(first)).damaged

    run(main())


def test_footers_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = TieredPartition(V, compacted=12, file_batches=1)
    groups = locations_in(partition)

    async def main() -> None:
        reads = RowGroupLoader(partition.store)
        await reads.read(groups[0])
        monkeypatch.setattr("segments.read.row_group_loader.FOOTERS_BYTES_MAX", 3 * reads._footers_bytes + 10)
        for group in groups:
            await reads.read(group)
        assert list(reads._footers) == [group.key for group in groups[-3:]]
        assert reads._footers_bytes == sum(footer.memory_bytes for footer in reads._footers.values())

    run(main())


def test_a_row_group_becomes_batches_of_a_bounded_size_and_a_part_of_them_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segments.read.row_group_loader.GROUP_BATCH_BYTES", 100)
    partition = TieredPartition(V, compacted=12, group_bytes=1 << 20, keeps=lambda offset: offset not in range(3, 9))
    [location] = locations_in(partition)

    async def main() -> None:
        group = await RowGroupLoader(partition.store).read(location)
        assert len(group.batches) > 3
        assert group.memory_bytes > sum(map(len, group.batches))
        whole = group.read(0, bytes_max=1 << 20, high_watermark=Offset(24))
        assert whole.next_offset == 24
        assert all(one is other for one, other in zip(whole.buffers, group.batches, strict=True))
        in_the_gap = group.read(5, bytes_max=1, high_watermark=Offset(24))
        assert len(in_the_gap.buffers) == 1
        assert parse_header(in_the_gap.buffers[0]).last_offset >= 9

    run(main())


class Loaders(MetaPathFinder):
    """By which threads a module was loaded."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.threads: list[threading.Thread] = []

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == self._name:
            self.threads.append(threading.current_thread())
        return None


def test_the_module_that_decodes_parquet_is_loaded_once_and_not_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = TieredPartition(V, compacted=12, group_bytes=200)
    groups, loaders = locations_in(partition), Loaders("segments.history.parquet_file")
    monkeypatch.setattr(segments.history, "parquet_file", segments.history.parquet_file)  # as it was before, when this is over
    monkeypatch.delitem(sys.modules, "segments.history.parquet_file")
    monkeypatch.setattr(sys, "meta_path", [loaders, *sys.meta_path])

    async def main() -> None:
        reads = RowGroupLoader(partition.store)
        read = await asyncio.gather(*map(reads.read, groups))
        assert tuples_in([body for group in read for body in group.batches]) == partition.records

    asyncio.run(main())  # in real threads
    assert len(groups) > 1
    assert [thread is threading.main_thread() for thread in loaders.threads] == [False]


def test_a_decoding_that_outlives_its_read_is_counted_until_its_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = TieredPartition(V, compacted=12)
    location = locations_in(partition)[0]
    begun, may_end = threading.Event(), threading.Event()
    read_row_group = segments.history.parquet_file.read_row_group

    def held_up(*args: Any) -> Any:
        begun.set()
        assert may_end.wait(60)
        return read_row_group(*args)

    monkeypatch.setattr("segments.history.parquet_file.read_row_group", held_up)

    async def main() -> None:
        budget = ByteBudget(1 << 20)
        pool = ReadCache(
            partition.store, bytes_max=1 << 20, reads=budget, read_timeout_s=60, spawn=asyncio.get_running_loop().create_task
        )
        reading = pool.read(location)
        await asyncio.to_thread(begun.wait, 60)
        taken = budget.bytes_used
        assert taken > 0
        reading.cancel()
        await asyncio.wait((reading,))
        assert budget.bytes_used == taken
        next_one = asyncio.ensure_future(budget.acquire(budget.bytes_max, timeout_s=60))
        may_end.set()
        await next_one
        assert budget.bytes_used == budget.bytes_max

    asyncio.run(main())
