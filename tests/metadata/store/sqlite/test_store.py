"""What the embedded store adds to the contract: files that survive, one process, one thread, history that stays small."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metadata.errors import Corrupt, Denied, OutcomeUnknown, Rejected, Stopping, Throttled, TooLarge, Unavailable
from metadata.model import Revision
from metadata.store.interface import Compare, Delete, LeaseLost, MetadataStore, Put, RevisionCompacted, WatchBatch
from metadata.store.sqlite import mvcc
from metadata.store.sqlite import store as sqlite_store
from metadata.store.sqlite.errors import translate
from metadata.store.sqlite.store import SqliteStore
from tests.kit.metadata.stores import PATIENCE_S, Clock, open_sqlite, run, take, until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


async def put(store: MetadataStore, key: str, value: bytes = b"") -> Revision:
    return (await store.transact([], [Put(key, value)])).revision


class StuckClock(Clock):
    """Holds its reader, the store's thread, as a slow disk would."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.free.set()
        self.reached = threading.Event()

    def stick(self) -> None:
        self.reached.clear()
        self.free.clear()

    def __call__(self) -> float:
        self.reached.set()
        assert self.free.wait(PATIENCE_S)
        return self.now


# What survives


def test_keys_revisions_and_history_survive_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_sqlite(tmp_path) as s:
            first = await s.put("a", b"1")
            await s.put("a", b"2")
            last = await s.delete("b")
        async with open_sqlite(tmp_path) as s:
            assert await s.names() == {"a": b"2"}
            assert await s.names(first) == {"a": b"1"}
            assert await s.put("c") == last + 1
            assert [batch.revision for batch in await s.watched(first, 3)] == [first, first + 1, first + 2]
            found = await s.store.get(s.key("a"))
            assert found is not None
            assert found.version == 2

    run(test())


def test_a_compacted_revision_stays_compacted_after_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_sqlite(tmp_path) as s:
            first = await s.put("a", b"1")
            await s.compact(await s.put("a", b"2"))
        async with open_sqlite(tmp_path) as s:
            with pytest.raises(RevisionCompacted):
                await s.names(first)

    run(test())


def test_opening_ends_the_leases_of_the_process_before_and_watchers_see_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_sqlite(tmp_path) as s:
            old = await s.store.grant_lease(1000)
            last = await s.put("broker", b"1", old)
        async with open_sqlite(tmp_path) as s:
            assert await s.names() == {}
            assert (await s.watched(Revision(last + 1), 1))[0].events[0].kind == "delete"
            new = await s.store.grant_lease(1000)
            assert new != old
            with pytest.raises(LeaseLost):
                await s.store.keep_alive(old)

    run(test())


WRITER = """
import asyncio, sys
from pathlib import Path
from metadata.store.sqlite.store import SqliteStore
from metadata.store.interface import Put

async def main() -> None:
    store = SqliteStore(Path(sys.argv[1]))
    n = 0
    while True:
        await store.transact([], [Put(f"/a/{n}", b"1"), Put(f"/b/{n}", b"1")])
        print(n, flush=True)
        n += 1

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_process_that_is_killed_loses_nothing_that_was_answered_and_leaves_nothing_half_done(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as answers:
        for _ in range(200):
            answered = int(answers.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
        answered = max([answered, *(int(line) for line in answers if line.endswith("\n"))])

    async def test() -> None:
        store = SqliteStore(path)
        try:
            a, b = await store.range("/a/"), await store.range("/b/")
            assert {item.key[3:] for item in a.items} == {item.key[3:] for item in b.items}
            assert {item.key[3:] for item in a.items} >= {str(n) for n in range(answered + 1)}
        finally:
            await store.close()

    run(test())


# Whose file it is


def test_a_second_store_on_the_same_file_is_refused_and_the_first_goes_on(path: Path) -> None:
    async def test() -> None:
        store = SqliteStore(path)
        with pytest.raises(Rejected, match="another process has the metadata file"):
            SqliteStore(path)
        await put(store, "/a")
        await store.close()
        again = SqliteStore(path)
        assert await again.get("/a") is not None
        await again.close()

    run(test())


@pytest.mark.slow
def test_a_second_process_on_the_same_file_is_refused(path: Path) -> None:
    async def test() -> None:
        store = SqliteStore(path)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, str(path), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        await store.close()
        assert out == b""
        assert b"metadata.errors.Rejected: another process has the metadata file" in err

    run(test())


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(Rejected, match="another program"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_file_of_a_newer_format_is_refused(path: Path) -> None:
    run(SqliteStore(path).close())
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(Rejected, match="format 99"):
        SqliteStore(path)


def test_a_file_that_is_no_database_is_corrupt(path: Path) -> None:
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(Corrupt) as corrupt:
        SqliteStore(path)
    assert corrupt.value.details["key"] == str(path)


def test_a_damaged_page_is_corrupt_and_names_the_file(path: Path) -> None:
    async def fill() -> None:
        store = SqliteStore(path)
        for n in range(64):
            await put(store, f"/{n}", os.urandom(4096))
        await store.close()

    async def read() -> None:
        store = SqliteStore(path)
        try:
            await store.range("")
        finally:
            await store.close()

    run(fill())
    body = bytearray(path.read_bytes())
    body[4096 * 2 :] = os.urandom(len(body) - 4096 * 2)
    path.write_bytes(body)
    with pytest.raises(Corrupt) as corrupt:
        run(read())
    assert corrupt.value.details["key"] == str(path)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Denied, match="cannot be opened"):
        SqliteStore(tmp_path / "missing" / "metadata.sqlite")


# When the disk fails


@contextmanager
def full_disk(store: SqliteStore) -> Iterator[None]:
    """Lets the file grow no more, which SQLite reports as it reports a full disk."""
    connection = store._history._connection
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    yield
    connection.execute("PRAGMA max_page_count = 4294967294").fetchall()


def test_a_full_disk_refuses_the_write_whole_and_takes_it_once_there_is_space(path: Path) -> None:
    async def test() -> None:
        store = SqliteStore(path)
        revision = await put(store, "/a", b"old")
        with full_disk(store):
            with pytest.raises(Unavailable, match="full") as full:
                await store.transact([], [Put("/a", b"new"), Put("/b", bytes(100_000))])
            assert full.value.nothing_was_written
            found = await store.range("/")
            assert [(item.key, item.value) for item in found.items] == [("/a", b"old")]
            assert found.revision == revision
        assert await put(store, "/b", bytes(100_000)) == revision + 1
        await store.close()

    run(test())


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("reported by SQLite")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_BUSY, Rejected),
        (sqlite3.SQLITE_LOCKED, Rejected),
        (sqlite3.SQLITE_READONLY, Denied),
        (sqlite3.SQLITE_READONLY_DIRECTORY, Denied),
        (sqlite3.SQLITE_CANTOPEN, Denied),
        (sqlite3.SQLITE_PERM, Denied),
        (sqlite3.SQLITE_CORRUPT, Corrupt),
        (sqlite3.SQLITE_CORRUPT_INDEX, Corrupt),
        (sqlite3.SQLITE_NOTADB, Corrupt),
        (sqlite3.SQLITE_TOOBIG, TooLarge),
        (sqlite3.SQLITE_FULL, Unavailable),
        (sqlite3.SQLITE_NOMEM, Unavailable),
        (sqlite3.SQLITE_IOERR_READ, Unavailable),
    ],
)
def test_each_error_of_sqlite_says_what_to_do_next(path: Path, code: int, kind: type[Exception]) -> None:
    error = translate(sqlite_error(code), path)
    assert type(error) is kind
    assert str(path) in str(error)


def test_a_disk_that_fails_at_the_commit_leaves_the_outcome_unknown(path: Path) -> None:
    assert type(translate(sqlite_error(sqlite3.SQLITE_IOERR_FSYNC), path, committing=True)) is OutcomeUnknown


class FailsAtCommit:
    """A connection whose disk fails once, at a commit."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._failed = False

    def execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        if statement == "COMMIT" and not self._failed:
            self._failed = True
            raise sqlite_error(sqlite3.SQLITE_IOERR_FSYNC)
        return self._connection.execute(statement, values)

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)


def test_after_a_commit_that_failed_the_store_goes_on_from_what_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        store = SqliteStore(path)
        revision = await put(store, "/a", b"1")
        monkeypatch.setattr(store._history, "_connection", FailsAtCommit(store._history._connection))
        with pytest.raises(OutcomeUnknown):
            await put(store, "/a", b"2")
        assert [item.value for item in (await store.range("/")).items] == [b"1"]
        assert await put(store, "/b") == revision + 1
        assert [item.value for item in (await store.range("/")).items] == [b"1", b""]
        await store.close()

    run(test())


def test_a_mistake_of_ours_stays_what_it_is(path: Path) -> None:
    for ours in (sqlite_error(sqlite3.SQLITE_ERROR), sqlite3.ProgrammingError("bad binding")):
        assert translate(ours, path) is ours


# The thread and the loop


def test_the_event_loop_goes_on_while_the_disk_is_slow(path: Path) -> None:
    async def test() -> None:
        clock = StuckClock()
        store = SqliteStore(path, clock=clock)
        await store.grant_lease(10)  # from here on each call reads the clock
        clock.stick()
        writing = asyncio.ensure_future(put(store, "/a"))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not writing.done()
        clock.free.set()
        await writing
        await store.close()

    run(test())


def test_a_transaction_whose_caller_hangs_up_is_finished_and_watched(path: Path) -> None:
    async def test() -> None:
        clock = StuckClock()
        store = SqliteStore(path, clock=clock)
        await store.grant_lease(10)
        watching = asyncio.ensure_future(take(store.watch("/", Revision(2)), 1))
        await asyncio.sleep(0)
        await store.get("/a")  # the watch has read by now, and waits
        clock.stick()
        writing = asyncio.ensure_future(put(store, "/a", b"1"))
        assert await asyncio.to_thread(clock.reached.wait, PATIENCE_S)  # the thread has taken it up
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        clock.free.set()
        (batch,) = await watching
        assert batch.events[0].value == b"1"
        await store.close()

    run(test())


def test_more_calls_than_may_wait_are_throttled(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(sqlite_store, "CALLS_PENDING_MAX", 3)
        clock = StuckClock()
        store = SqliteStore(path, clock=clock)
        await store.grant_lease(10)
        clock.stick()
        waiting = [asyncio.ensure_future(store.get("/a")) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Throttled):
            await store.get("/a")
        clock.free.set()
        assert await asyncio.gather(*waiting) == [None] * 3
        assert await store.get("/a") is None
        await store.close()

    run(test())


def test_a_closed_store_refuses_calls_and_ends_watches(path: Path) -> None:
    async def test() -> None:
        store = SqliteStore(path)
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(until_stopping(store.watch("/", Revision(1)))) for _ in range(3)]
            await store.get("/a")
            await store.close()
        assert [task.result() for task in watching] == [True] * 3
        with pytest.raises(Stopping):
            await store.transact([], [Put("/a", b"")])
        await store.close()  # once more is no error

    async def until_stopping(watch: object) -> bool:
        try:
            await take(watch, 1)  # type: ignore[arg-type]
        except Stopping:
            return True
        return False

    run(test())


def test_closing_waits_for_what_is_under_way(path: Path) -> None:
    async def test() -> None:
        store = SqliteStore(path)
        writes = [asyncio.ensure_future(put(store, f"/{n}")) for n in range(20)]
        await asyncio.sleep(0)
        await store.close()
        assert [await write for write in writes] == list(range(2, 22))

    run(test())


# Watches and history


def test_a_watch_reads_in_pieces_and_never_splits_a_transaction(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mvcc, "EVENTS_MAX", 10)

    async def test() -> None:
        store = SqliteStore(path)
        for n in range(30):
            await store.transact([], [Put(f"/{n}/{m}", b"") for m in range(7)])
        pieces: list[list[WatchBatch]] = []
        at = Revision(2)
        while at <= 31:
            piece, at = store._history.events("/", at)
            pieces.append(piece)
        assert max(sum(len(batch.events) for batch in piece) for piece in pieces) == 14
        batches = [batch for piece in pieces for batch in piece]
        assert [batch.revision for batch in batches] == list(range(2, 32))
        assert {len(batch.events) for batch in batches} == {7}
        assert await take(store.watch("/", Revision(2)), 30) == batches
        await store.close()

    run(test())


def test_large_values_are_read_a_few_at_a_time(path: Path) -> None:
    async def test() -> None:
        store = SqliteStore(path)
        for n in range(8):
            await put(store, f"/{n}", bytes(600_000))
        piece, at = store._history.events("/", Revision(2))
        assert len(piece) == 2
        assert at == 4
        await store.close()

    run(test())


async def versions(store: SqliteStore) -> int:
    ((count,),) = await store._call(lambda history: history._all("SELECT count(*) FROM versions"))
    return int(count)


@pytest.mark.slow
def test_compaction_keeps_one_version_of_each_key_and_goes_in_small_steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mvcc, "VERSIONS_DROPPED_MAX", 10)

    async def test() -> None:
        store = SqliteStore(path)
        for _ in range(50):
            last = await put(store, "/kept", b"1")
            await store.transact([], [Put("/gone", b"1")])
            last = (await store.transact([Compare("/gone", 0, ">")], [Put("/gone", b"")])).revision
        assert store._history.compact(last)  # a step, with more to do
        assert await versions(store) == 140
        await store.compact(last)
        assert await versions(store) == 2
        assert {item.key for item in (await store.range("/", revision=last)).items} == {"/kept", "/gone"}
        await store.close()

    run(test())


def test_a_watch_from_the_compacted_revision_itself_is_refused_since_its_deletes_are_gone(path: Path) -> None:
    async def test() -> None:
        store = SqliteStore(path)
        await put(store, "/a")
        deleted = (await store.transact([], [Put("/b", b""), Delete("/a")])).revision
        await store.compact(deleted)
        with pytest.raises(RevisionCompacted) as compacted:
            await take(store.watch("/", deleted), 1)
        assert compacted.value.oldest == deleted + 1
        assert [item.key for item in (await store.range("/", revision=deleted)).items] == ["/b"]
        await store.close()

    run(test())


def keep_house_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "HOUSEKEEPING_INTERVAL_S", 0)


def test_housekeeping_compacts_what_is_older_than_the_history_that_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_house_at_once(monkeypatch)

    async def test() -> None:
        store = SqliteStore(path, history_revisions=20)
        for _ in range(21):
            await put(store, "/a")
        keeping = asyncio.ensure_future(store.run())
        await store.get("/a")
        assert store._history.compacted_revision == 0  # a little over is not worth it
        last = await put(store, "/a")
        await until(lambda: store._history.compacted_revision > 0)
        assert await versions(store) == 21
        with pytest.raises(RevisionCompacted) as compacted:
            await take(store.watch("/", Revision(1)), 1)
        assert compacted.value.oldest == last - 19
        assert len(await take(store.watch("/", compacted.value.oldest), 20)) == 20
        keeping.cancel()
        await asyncio.wait([keeping])
        await store.close()

    run(test())


def test_housekeeping_ends_leases_without_any_calls(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_house_at_once(monkeypatch)

    async def test() -> None:
        clock = Clock()
        store = SqliteStore(path, clock=clock)
        lease = await store.grant_lease(5)
        last = (await store.transact([], [Put("/broker", b"", lease)])).revision
        keeping = asyncio.ensure_future(store.run())
        watching = asyncio.ensure_future(take(store.watch("/", Revision(last + 1)), 1))
        clock.now += 6
        assert (await watching)[0].events[0].kind == "delete"
        keeping.cancel()
        await asyncio.wait([keeping])
        await store.close()

    run(test())


def test_housekeeping_survives_a_full_disk_and_says_so_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keep_house_at_once(monkeypatch)
    caplog.set_level(logging.WARNING)

    async def test() -> None:
        store = SqliteStore(path)
        tried = 0

        def full() -> None:
            nonlocal tried
            tried += 1
            raise Unavailable("the disk is full")

        with monkeypatch.context() as failing:
            failing.setattr(store._history, "expire_leases", full)
            keeping = asyncio.ensure_future(store.run())
            await until(lambda: tried >= 3)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert not keeping.done()
        assert await put(store, "/a") == 2
        keeping.cancel()
        await asyncio.wait([keeping])
        await store.close()

    run(test())
