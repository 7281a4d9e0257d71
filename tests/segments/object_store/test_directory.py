"""The directory store beyond the contract: what survives a crash or a power cut, disks that fail, several processes."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import pytest

from metadata.errors import AlreadyExists, Denied, InvalidArgument, NotFound, OutcomeUnknown, TidelogError, Unavailable
from segments.object_store.directory import DirectoryObjectStore
from segments.object_store.interface import is_unsynced
from segments.object_store.store_clock import StoreClock
from tests.kit.servers import ROOT


def with_store(root: Path, scenario: Callable[[DirectoryObjectStore], Awaitable[None]], *, make_root: bool = False) -> None:
    async def main() -> None:
        store = await DirectoryObjectStore.open(root, make_root=make_root)
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(main())


async def never(store: DirectoryObjectStore) -> None:
    pytest.fail(f"{store.url} was opened")


def temporaries(root: Path) -> list[Path]:
    return list((root / ".tmp").iterdir())


# Durability


def record_disk_calls(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """What the store asks of the disk from now on, in order, with temporaries shown as "x"."""
    calls: list[str] = []

    def name_of(path: str) -> str:
        relative = os.path.relpath(path, root)
        return "x" if relative.startswith(".tmp/") else relative

    def recorded(name: str, describe: Callable[..., str]) -> None:
        call = getattr(os, name)

        def recording(*args: object, **kwargs: object) -> object:
            calls.append(f"{name} {describe(*args)}")
            return call(*args, **kwargs)

        monkeypatch.setattr(os, name, recording)

    def of_file(file: int, *_: object) -> str:
        return name_of(os.readlink(f"/proc/self/fd/{file}"))

    recorded("writev", of_file)
    recorded("fsync", of_file)
    recorded("mkdir", lambda path, *_: name_of(str(path)))
    recorded("link", lambda source, target: f"{name_of(source)} {target}")
    recorded("unlink", lambda path: name_of(path))
    return calls


def test_the_name_appears_when_the_bytes_are_durable_and_is_durable_when_create_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("wal/00/0", [b"makes the directories"])
        calls = record_disk_calls(monkeypatch, tmp_path)
        await store.create("wal/00/1", [b"a", b"b"])
        assert calls == ["writev x", "fsync x", "link x 1", "fsync wal/00", "unlink x"]

    with_store(tmp_path, scenario)


def test_new_directories_are_durable_before_anything_is_named_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: DirectoryObjectStore) -> None:
        calls = record_disk_calls(monkeypatch, tmp_path)
        await store.create("wal/00/0", [b"a"])
        made = ["mkdir wal", "fsync .", "mkdir wal/00", "fsync wal"]
        assert [call for call in calls if call.split()[-1] not in {"x", ".tmp"}] == [*made, "link x 0", "fsync wal/00"]

    with_store(tmp_path, scenario)


def test_directories_made_by_another_process_are_synced_too_but_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wal/00").mkdir(parents=True)

    async def scenario(store: DirectoryObjectStore) -> None:
        calls = record_disk_calls(monkeypatch, tmp_path)
        await store.create("wal/00/0", [b"a"])
        assert {"fsync .", "fsync wal"} <= set(calls)
        calls.clear()
        await store.create("wal/00/1", [b"a"])
        assert not {"fsync .", "fsync wal"} & set(calls)

    with_store(tmp_path, scenario)


def test_a_losing_create_returns_only_after_the_winning_name_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("wal/0", [b"the winner's"])
        calls = record_disk_calls(monkeypatch, tmp_path)
        with pytest.raises(AlreadyExists):
            await store.create("wal/0", [b"the loser's"])
        assert calls[2:4] == ["link x 0", "fsync wal"]

    with_store(tmp_path, scenario)


def test_a_missing_root_is_made_durably_where_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = record_disk_calls(monkeypatch, tmp_path)

    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("a", [b"x"])

    with_store(tmp_path / "bucket", scenario, make_root=True)
    assert next(call for call in synced if call.startswith("fsync")) == "fsync ."
    assert (tmp_path / "bucket/a").read_bytes() == b"x"


# A disk that fails


class Disk:
    """Lets one system call fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def fails(self, call: str, number: int, *, of_directory: bool = False) -> None:
        original = getattr(os, call)

        def failing(*args: object, **kwargs: object) -> object:
            if call == "fsync" and os.path.isdir(os.readlink(f"/proc/self/fd/{args[0]}")) != of_directory:
                return original(*args, **kwargs)
            if call in {"open", "unlink"} and ".tmp" in str(args[0]):
                return original(*args, **kwargs)
            raise OSError(number, os.strerror(number))

        self._monkeypatch.setattr(os, call, failing)

    def recovers(self) -> None:
        self._monkeypatch.undo()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "number", "error", "says"),
    [
        ("writev", errno.ENOSPC, Unavailable, "No space left on device; nothing was written"),
        ("writev", errno.EDQUOT, Unavailable, "nothing was written"),
        ("writev", errno.EIO, Unavailable, "Input/output error"),
        ("fsync", errno.EIO, Unavailable, "Input/output error"),
        ("fsync", errno.ENOSPC, Unavailable, "nothing was written"),
        ("link", errno.ENOSPC, Unavailable, "nothing was written"),
        ("link", errno.EROFS, Denied, "Read-only file system"),
        ("link", errno.EACCES, Denied, "Permission denied"),
        ("link", errno.EPERM, Denied, "not permitted"),
        ("link", errno.EOPNOTSUPP, Denied, "not supported"),
        ("open", errno.EMFILE, Unavailable, "Too many open files"),
        ("mkdir", errno.EROFS, Denied, "Read-only file system"),
        ("mkdir", errno.ENOSPC, Unavailable, "nothing was written"),
    ],
)
def test_a_create_that_fails_before_it_has_its_name_wrote_nothing(
    tmp_path: Path, disk: Disk, call: str, number: int, error: type[TidelogError], says: str
) -> None:
    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("made/before", [b"x"])
        disk.fails(call, number)
        with pytest.raises(error, match=says) as failure:
            await store.create("wal/0", [b"body"])
        assert failure.value.nothing_was_written
        assert "wal/0" in str(failure.value)
        assert store.url in str(failure.value)
        assert failure.value.hint
        disk.recovers()
        assert [found.key for found in (await store.list("")).objects] == ["made/before"]
        assert temporaries(tmp_path) == []
        await store.create("wal/0", [b"body"])

    with_store(tmp_path, scenario)


def test_a_file_system_without_hard_links_is_named_as_the_reason(tmp_path: Path, disk: Disk) -> None:
    async def scenario(store: DirectoryObjectStore) -> None:
        disk.fails("link", errno.EPERM)
        with pytest.raises(Denied) as failure:
            await store.create("a", [b"x"])
        assert "hard links" in failure.value.hint

    with_store(tmp_path, scenario)


@pytest.mark.parametrize("call", ["link", "fsync"])
def test_a_disk_that_fails_once_the_name_may_exist_leaves_the_outcome_unknown(tmp_path: Path, disk: Disk, call: str) -> None:
    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("wal/0", [b"x"])
        disk.fails(call, errno.EIO, of_directory=True)
        with pytest.raises(OutcomeUnknown, match="wal/1"):
            await store.create("wal/1", [b"body"])
        disk.recovers()
        assert temporaries(tmp_path) == []
        if call == "fsync":  # it already has its name
            assert await store.get("wal/1") == b"body"

    with_store(tmp_path, scenario)


def test_after_a_failed_fsync_no_name_that_was_there_counts_as_durable_though_the_next_fsync_succeeds(
    tmp_path: Path, disk: Disk
) -> None:
    """The kernel reports an error once, and has dropped what it could not write."""

    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("wal/1/0", [b"x"])
        disk.fails("fsync", errno.EIO, of_directory=True)
        with pytest.raises(OutcomeUnknown) as failure:
            await store.create("wal/1/1", [b"body"])
        assert is_unsynced(failure.value)
        disk.recovers()
        for key in ("wal/1/1", "wal/1/0"):
            with pytest.raises(OutcomeUnknown, match="an earlier fsync of its directory failed") as failure:
                await store.create(key, [b"body"])
            assert is_unsynced(failure.value)
        await store.create("wal/1/2", [b"a new name"])
        await store.create("wal/2/0", [b"another directory"])
        with pytest.raises(AlreadyExists):
            await store.create("wal/2/0", [b"another directory"])

    with_store(tmp_path, scenario)


def test_a_directory_whose_name_could_not_be_synced_takes_no_objects_though_the_next_fsync_succeeds(
    tmp_path: Path, disk: Disk
) -> None:
    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("wal/1/0", [b"x"])
        disk.fails("fsync", errno.EIO, of_directory=True)
        with pytest.raises(Unavailable) as first:
            await store.create("wal/2/0", [b"x"])
        assert not is_unsynced(first.value)
        disk.recovers()
        with pytest.raises(Unavailable, match="wal/2 exists, and a power cut may take it away") as again:
            await store.create("wal/2/0", [b"x"])
        assert is_unsynced(again.value)
        await store.create("wal/3/0", [b"a new directory"])
        await store.create("wal/1/1", [b"in a directory that was durable before"])

    with_store(tmp_path, scenario)


def test_a_failed_fsync_of_the_root_counts_for_objects_in_it_and_for_directories(tmp_path: Path, disk: Disk) -> None:
    async def scenario(store: DirectoryObjectStore) -> None:
        (tmp_path / "wal").mkdir()
        disk.fails("fsync", errno.EIO, of_directory=True)
        with pytest.raises(OutcomeUnknown):
            await store.create("cluster.json", [b"{}"])
        disk.recovers()
        with pytest.raises(OutcomeUnknown):
            await store.create("cluster.json", [b"{}"])
        with pytest.raises(Unavailable, match="wal exists, and a power cut may take it away"):
            await store.create("wal/0", [b"x"])

    with_store(tmp_path, scenario)


def test_after_a_failed_fsync_nothing_is_deleted(tmp_path: Path, disk: Disk) -> None:
    """A manifest that is not on the disk would be the reason to delete the segments that are."""

    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("wal/0", [b"x"])
        disk.fails("fsync", errno.EIO, of_directory=True)
        with pytest.raises(OutcomeUnknown):
            await store.create("wal/1", [b"x"])
        disk.recovers()
        with pytest.raises(Unavailable, match=r"wal/0 .* is not deleted: an fsync of a directory failed"):
            await store.delete("wal/0")
        assert await store.get("wal/0") == b"x"

    with_store(tmp_path, scenario)


def test_a_name_that_another_thread_is_still_syncing_is_durable_only_once_that_has_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("wal/0", [b"x"])
        synced, release = threading.Event(), threading.Event()
        original, calls = os.fsync, count()

        def first_fails(file: int) -> None:
            if not os.path.isdir(os.readlink(f"/proc/self/fd/{file}")):
                return original(file)
            if next(calls) == 0:
                synced.set()
                assert release.wait(60)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return original(file)

        monkeypatch.setattr(os, "fsync", first_fails)
        one = asyncio.ensure_future(store.create("wal/1", [b"body"]))
        await asyncio.to_thread(synced.wait, 60)
        other = asyncio.ensure_future(store.create("wal/1", [b"body"]))
        done, _ = await asyncio.wait((other,), timeout=0.2)
        assert not done, "its own fsync has succeeded, and proves nothing yet"
        release.set()
        for create in (one, other):
            with pytest.raises(OutcomeUnknown) as failure:
                await create
            assert is_unsynced(failure.value)

    with_store(tmp_path, scenario)


def test_a_loser_on_a_failing_disk_does_not_claim_that_the_winner_is_durable(tmp_path: Path, disk: Disk) -> None:
    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("wal/0", [b"x"])
        disk.fails("fsync", errno.EIO, of_directory=True)
        with pytest.raises(OutcomeUnknown):
            await store.create("wal/0", [b"x"])

    with_store(tmp_path, scenario)


def test_a_write_that_the_kernel_cut_short_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = [bytes([number]) * 1000 for number in range(10)]
    monkeypatch.setattr(os, "writev", lambda file, buffers: os.write(file, b"".join(buffers)[:4321]))
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, bytes(data)[:5000]))

    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("a", body)
        assert await store.get("a") == b"".join(body)

    with_store(tmp_path, scenario)


def test_a_read_that_the_kernel_cut_short_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, offset: pread(file, min(size, 7), offset))

    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("a", [b"0123456789" * 5])
        assert await store.get("a", start=3, end=33) == (b"0123456789" * 5)[3:33]

    with_store(tmp_path, scenario)


@pytest.mark.parametrize(("number", "error"), [(errno.EIO, Unavailable), (errno.EACCES, Denied), (errno.EMFILE, Unavailable)])
def test_reads_of_a_failing_disk_name_what_failed(tmp_path: Path, disk: Disk, number: int, error: type[TidelogError]) -> None:
    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("a", [b"x"])
        disk.fails("open", number)
        for read in (store.get("a"), store.tail("a", 1)):
            with pytest.raises(error, match="can't read a in file:///"):
                await read

    with_store(tmp_path, scenario)


# A root that is not there


def test_a_root_that_is_missing_is_refused_unless_it_is_to_be_made(tmp_path: Path) -> None:
    with pytest.raises(Denied, match="No such file") as missing:
        with_store(tmp_path / "nowhere", never)
    assert "mount" in missing.value.hint
    assert not (tmp_path / "nowhere").exists()


def test_a_root_is_not_made_where_its_parent_is_missing_too(tmp_path: Path) -> None:
    with pytest.raises(Denied, match="No such file") as missing:
        with_store(tmp_path / "mistyped" / "bucket", never, make_root=True)
    assert "correct its path" in missing.value.hint
    assert list(tmp_path.iterdir()) == []


def test_only_temporaries_are_swept(tmp_path: Path) -> None:
    (tmp_path / ".tmp").mkdir()
    somebodys, left_behind = tmp_path / ".tmp" / "letter.txt", tmp_path / ".tmp" / ("0" * 32)
    somebodys.touch()
    left_behind.touch()

    async def scenario(store: DirectoryObjectStore) -> None:
        pass

    with_store(tmp_path, scenario)
    assert somebodys.exists()
    assert not left_behind.exists()


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        for make_root in (False, True):
            with pytest.raises(TidelogError, match="file"):
                with_store(root, never, make_root=make_root)


def test_a_root_that_vanishes_is_not_taken_for_an_empty_log(tmp_path: Path) -> None:
    root = tmp_path / "mounted"
    root.mkdir()

    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("wal/0", [b"x"])
        root.rename(tmp_path / "unmounted")
        for call in (store.create("wal/1", [b"x"]), store.list("wal/"), store.get("wal/0"), store.tail("wal/0", 1)):
            with pytest.raises(Denied, match="No such file"):
                await call
        assert not root.exists()

    with_store(root, scenario)


def test_a_bucket_can_be_read_where_nothing_may_be_written(tmp_path: Path, disk: Disk) -> None:
    (tmp_path / "a").write_bytes(b"x")
    disk.fails("mkdir", errno.EROFS)

    async def scenario(store: DirectoryObjectStore) -> None:
        assert await store.get("a") == b"x"
        assert len((await store.list("")).objects) == 1
        with pytest.raises(Denied, match="Read-only"):
            await store.create("b", [b"y"])

    with_store(tmp_path, scenario)


def test_a_key_and_a_directory_can_not_have_one_name(tmp_path: Path) -> None:
    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("wal/0", [b"x"])
        with pytest.raises(InvalidArgument, match="is a directory"):
            await store.create("wal", [b"x"])
        with pytest.raises(InvalidArgument, match="wal/0/1"):
            await store.create("wal/0/1", [b"x"])
        assert temporaries(tmp_path) == []

    with_store(tmp_path, scenario)


# Threads


def held(monkeypatch: pytest.MonkeyPatch, call: str) -> tuple[threading.Event, threading.Event]:
    """Lets the next `call` to the disk wait: the first event is set when it is there, the second lets it go on."""
    reached, released = threading.Event(), threading.Event()
    original = getattr(os, call)

    def waiting(*args: object, **kwargs: object) -> object:
        reached.set()
        assert released.wait(30)
        return original(*args, **kwargs)

    monkeypatch.setattr(os, call, waiting)
    return reached, released


def test_a_slow_disk_stops_neither_the_event_loop_nor_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("made", [b"before"])
        reached, released = held(monkeypatch, "fsync")
        slow = [asyncio.ensure_future(store.create(f"slow/{number}", [b"x"])) for number in range(20)]
        await asyncio.to_thread(reached.wait, 30)
        assert await store.get("made") == b"before"
        assert len((await store.list("")).objects) == 1
        assert not any(create.done() for create in slow)
        released.set()
        await asyncio.gather(*slow)

    with_store(tmp_path, scenario)


def test_a_cancelled_create_goes_on_in_its_thread_and_leaves_no_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: DirectoryObjectStore) -> None:
        reached, released = held(monkeypatch, "link")
        create = asyncio.ensure_future(store.create("a", [b"whole"]))
        await asyncio.to_thread(reached.wait, 30)
        assert len(temporaries(tmp_path)) == 1
        create.cancel()
        with pytest.raises(asyncio.CancelledError):
            await create
        released.set()

    with_store(tmp_path, scenario)  # closing waits for the thread
    assert (tmp_path / "a").read_bytes() == b"whole"
    assert temporaries(tmp_path) == []


# Processes that share a directory

WRITER = """
import asyncio, os, sys
from pathlib import Path
from segments.object_store.directory import DirectoryObjectStore

def stop(*args, **kwargs):
    print("written", flush=True)
    sys.stdin.readline()

async def main():
    store = await DirectoryObjectStore.open(Path(sys.argv[1]))
    link = os.link
    os.link = lambda *args, **kwargs: (stop(), link(*args, **kwargs))
    await store.create("wal/0", [b"of the writer"])
    await store.close()

asyncio.run(main())
"""


def writer(root: Path) -> subprocess.Popen[str]:
    """A process that has written all bytes of an object and is about to give it its name."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    return process


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_nothing_that_shows_and_is_swept_up_by_the_next(tmp_path: Path) -> None:
    with writer(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(temporaries(tmp_path)) == 1

    async def scenario(store: DirectoryObjectStore) -> None:
        assert (await store.list("")).objects == ()
        with pytest.raises(NotFound):
            await store.get("wal/0")
        assert temporaries(tmp_path) == []
        await store.create("wal/0", [b"of the next"])

    with_store(tmp_path, scenario)


@pytest.mark.slow
def test_a_store_that_opens_leaves_alone_what_another_process_is_writing(tmp_path: Path) -> None:
    with writer(tmp_path) as process:

        async def scenario(store: DirectoryObjectStore) -> None:
            assert len(temporaries(tmp_path)) == 1
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert await asyncio.to_thread(process.wait) == 0
            assert await store.get("wal/0") == b"of the writer"
            with pytest.raises(AlreadyExists):
                await store.create("wal/0", [b"of the other"])

        with_store(tmp_path, scenario)


def test_a_temporary_that_a_sweep_takes_before_it_is_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: DirectoryObjectStore) -> None:
        await store.create("first", [b"x"])
        fstat = os.fstat
        swept: list[Path] = []

        def sweeping_first(file: int) -> os.stat_result:
            if not swept:
                swept.extend(temporaries(tmp_path))
                swept[0].unlink()
            return fstat(file)

        monkeypatch.setattr(os, "fstat", sweeping_first)
        await store.create("second", [b"y"])
        assert len(swept) == 1
        assert await store.get("second") == b"y"

    with_store(tmp_path, scenario)


# Time from new files


def test_the_clock_hears_the_times_that_the_file_system_gives(tmp_path: Path) -> None:
    async def main() -> None:
        clock = StoreClock(lambda: time.time_ns() // 1_000_000)
        store = await DirectoryObjectStore.open(tmp_path, clock=clock)
        try:
            await store.list("")
            assert clock.reading().store is None
            await store.create("a", [b"x"])
            assert clock.reading().store is not None
            assert clock.reading().difference_ms == 0
        finally:
            await store.close()

    asyncio.run(main())
