"""The disk tier: what was read from the bucket once is found again, bounded, and never believed unchecked."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from segments.read.disk_cache import DiskCache
from segments.read.log_reader import LogReader
from tests.kit.segments.batches import batch_of
from tests.kit.segments.tiered_partition import TieredPartition
from tests.simulation.virtual_loop import run

V = [batch_of(b"a%d" % number, b"b%d" % number) for number in range(12)]


def files_in(folder: Path) -> int:
    return len(list(folder.iterdir()))


def damage_all(folder: Path) -> None:
    for file in folder.iterdir():
        body = bytearray(file.read_bytes())
        body[len(body) // 2] ^= 0xFF
        file.write_bytes(body)


def test_a_run_that_was_put_is_found_again_and_the_least_recently_used_one_makes_room(tmp_path: Path) -> None:
    async def main() -> None:
        tier = DiskCache(tmp_path / "cold", bytes_max=25)
        for identity in ("a", "b"):
            await tier.put(identity, identity.encode() * 10)
        assert await tier.get("a") == b"a" * 10
        await tier.put("c", b"c" * 10)
        assert [await tier.get(identity) for identity in ("a", "b", "c")] == [b"a" * 10, None, b"c" * 10]
        assert (tier.bytes_used, files_in(tmp_path / "cold")) == (20, 2)
        await tier.drop("a")
        assert (await tier.get("a"), tier.bytes_used, files_in(tmp_path / "cold")) == (None, 10, 1)
        await tier.put("larger than all", b"x" * 26)
        assert await tier.get("larger than all") is None

    run(main())


def test_files_of_an_earlier_process_are_removed_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "0000000000000000.cold").write_bytes(b"of a process that crashed")
    (tmp_path / "notes.txt").write_bytes(b"somebody's")
    DiskCache(tmp_path, bytes_max=100)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_writes_at_the_same_time_keep_within_the_bound(tmp_path: Path) -> None:
    async def main() -> None:
        tier = DiskCache(tmp_path, bytes_max=25)
        await asyncio.gather(*[tier.put(number, b"x" * 10) for number in range(10)])
        assert tier.bytes_used <= 25
        assert files_in(tmp_path) == tier.bytes_used // 10

    asyncio.run(main())


def test_reads_that_are_given_up_before_a_thread_is_free_leave_no_file_behind(tmp_path: Path) -> None:
    async def main() -> None:
        loop, busy = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        tier = DiskCache(tmp_path, bytes_max=30)
        for number in range(3):
            await tier.put(number, b"x" * 10)
        held_up = loop.run_in_executor(None, busy.wait)
        for work in (tier.put(3, b"x" * 10), tier.drop(1)):
            given_up = asyncio.ensure_future(work)
            await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.wait((given_up,))
        busy.set()
        await held_up
        assert await tier.get(3) is None, "it was never written"
        await tier.put(4, b"x" * 10)
        assert [await tier.get(number) is not None for number in range(5)] == [False, False, True, False, True]
        assert (tier.bytes_used, files_in(tmp_path)) == (20, 2)

    asyncio.run(main())


def test_a_failing_disk_turns_the_tier_off_and_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        folder = tmp_path / "cold"
        tier = DiskCache(folder, bytes_max=100)
        await tier.put("a", b"a")
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        assert await tier.get("a") is None
        for identity in ("b", "c"):
            await tier.put(identity, b"b")
            assert await tier.get(identity) is None
        assert tier.bytes_used == 0

    run(main())
    assert len([message for message in caplog.messages if "the disk tier is off" in message]) == 1


def test_row_groups_and_runs_that_memory_has_no_room_for_are_read_from_the_bucket_once(tmp_path: Path) -> None:
    partition = TieredPartition(V, compacted=6, group_bytes=200, cold_bytes_max=1, disk_folder=tmp_path)

    async def work(reader: LogReader) -> None:
        gets = []
        for _ in range(3):
            assert await partition.read_on(reader, 0, bytes_max=1) == partition.records
            gets.append(partition.store.count("get"))
        assert gets[1:] == gets[:-1]

    partition.with_reader(work)


def test_a_damaged_copy_on_disk_is_not_believed_the_bucket_is_asked_again(tmp_path: Path) -> None:
    partition = TieredPartition(V, compacted=6, group_bytes=200, cold_bytes_max=1, disk_folder=tmp_path)

    async def work(reader: LogReader) -> None:
        for _ in range(2):
            assert await partition.read_on(reader, 0, bytes_max=1) == partition.records
            damage_all(tmp_path)
        assert await partition.read_on(reader, 0, bytes_max=1) == partition.records

    partition.with_reader(work)
