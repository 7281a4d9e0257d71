"""Keeps keys, their recent versions, and leases in one SQLite file: etcd's data model. Blocking; one thread at a time.

    store      one row       revision · compacted_revision · next_lease
    versions   one row for each put or delete of a key, in the order they happened

        revision 5: put a=x      revision 7: put a=y       revision 9: delete a
        ├────── a=x is visible ──┤────── a=y is visible ───┤
        [revision 5, replaced 7) [revision 7, replaced 9)  [revision 9, replaced 9)  value NULL: never visible

So a read at revision r sees the versions with revision <= r < replaced_revision, and compaction to c drops those with
replaced_revision <= c, deletes included. Invariants: of one key at most one version is not replaced; a transaction is in the
file wholly or not at all (WAL, synchronous=FULL: it survives loss of power once it is answered); no other process has the
file open (locking_mode=EXCLUSIVE), so that revisions held in memory are true; only the user of this process may read the files.

A lease lives in memory: its holder of an earlier process is gone, so opening the file ends all leases.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metadata.errors import InvalidArgument, Rejected
from metadata.model import Revision
from metadata.private_files import FILE_MODE, take_rights_of_others
from metadata.store.interface import (
    NO_LEASE,
    Compare,
    Delete,
    Event,
    KeyValue,
    LeaseId,
    LeaseLost,
    Operation,
    Put,
    RangeResult,
    RevisionCompacted,
    TransactionResult,
    WatchBatch,
)
from metadata.store.sqlite.errors import translate
from metadata.store.transaction_limits import check_key, check_transaction, encode_key, prefix_end

APPLICATION_ID = 0x7469_6465  # "tide": SQLite's mark of whose file it is
FORMAT_VERSION = 1
# Events that one read for a watch holds in memory, unless a single transaction has more.
EVENTS_MAX = 512
EVENT_BYTES_MAX = 1 << 20
# Versions that one step of compaction drops, so that callers wait for milliseconds.
VERSIONS_DROPPED_MAX = 1000

_SCHEMA = """
CREATE TABLE store (
    only INTEGER PRIMARY KEY CHECK (only = 1), revision INTEGER NOT NULL,
    compacted_revision INTEGER NOT NULL, next_lease INTEGER NOT NULL
);
INSERT INTO store VALUES (1, 1, 0, 1);
CREATE TABLE versions (
    row INTEGER PRIMARY KEY,
    key BLOB NOT NULL, revision INTEGER NOT NULL, replaced_revision INTEGER,
    create_revision INTEGER NOT NULL, version INTEGER NOT NULL, lease INTEGER NOT NULL,
    value BLOB
);
CREATE UNIQUE INDEX versions_live ON versions (key) WHERE replaced_revision IS NULL;
CREATE INDEX versions_leased ON versions (lease) WHERE replaced_revision IS NULL AND lease != 0;
CREATE INDEX versions_by_key ON versions (key, revision);
CREATE INDEX versions_by_revision ON versions (revision);
CREATE INDEX versions_replaced ON versions (replaced_revision) WHERE replaced_revision IS NOT NULL;
"""
_COLUMNS = "key, value, create_revision, revision, version, lease"


class SqliteMvcc:
    """Implements the calls of MetadataStore on SQLite, blocking. Errors: see errors.py, and as the protocol says."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """Opens or creates the file, and ends what leases an earlier process left behind.

        Raises Rejected where another process has it open or it is not ours, Denied, Corrupt.
        """
        self.path = path
        self._clock = clock
        self._leases: dict[LeaseId, tuple[float, float]] = {}  # time to live, and when it ends by the clock; seconds
        try:
            _keep_private(path)
            self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise translate(error, path) from error
        try:
            self.revision, self.compacted_revision = self._open()
            self._end_leases("lease != 0")
        except BaseException:
            self._connection.close()
            raise

    def get(self, key: str) -> KeyValue | None:
        row = self._one(f"SELECT {_COLUMNS} FROM versions WHERE replaced_revision IS NULL AND key = ?", check_key(key))
        return _key_value(row) if row else None

    def range(self, prefix: str, start_after: str, limit: int, revision: Revision) -> RangeResult:
        """Reads as MetadataStore.range. Raises RevisionCompacted, and InvalidArgument for a future revision."""
        if limit < 0 or revision < 0 or revision > self.revision:
            raise InvalidArgument(f"no range at revision {revision} with limit {limit}: the store is at {self.revision}")
        at = revision or self.revision
        if at < self.compacted_revision:
            raise RevisionCompacted(self.compacted_revision)
        start = max(encode_key(prefix), encode_key(start_after) + b"\0" if start_after else b"")
        visible = "replaced_revision IS NULL"
        moment: tuple[int, ...] = ()
        if at < self.revision:
            visible, moment = "revision <= ? AND (replaced_revision IS NULL OR replaced_revision > ?)", (at, at)
        rows = self._all(
            f"SELECT {_COLUMNS} FROM versions WHERE {visible} AND key >= ? AND key < ? ORDER BY key LIMIT ?",
            *moment,
            start,
            prefix_end(encode_key(prefix)),
            limit + 1 if limit else -1,
        )
        more = bool(limit) and len(rows) > limit
        return RangeResult(tuple(_key_value(row) for row in (rows[:limit] if more else rows)), at, more)

    def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        """Writes as MetadataStore.transact. Raises LeaseLost where a put names a lease that has ended."""
        check_transaction(compares, operations)
        with self._writing() as write:
            if not all(self._holds(compare) for compare in compares):
                return TransactionResult(succeeded=False, revision=self.revision)
            for operation in operations:
                self._apply(operation, write)
        return TransactionResult(succeeded=True, revision=self.revision)

    def grant_lease(self, ttl_s: float) -> LeaseId:
        if not 0 < ttl_s <= 10**9:  # also refuses NaN
            raise InvalidArgument(f"a lease of {ttl_s} s is not between 0 and 10^9 s")
        with self._transaction():
            ((number,),) = self._all("SELECT next_lease FROM store")
            self._all("UPDATE store SET next_lease = ?", number + 1)
        lease = LeaseId(number)
        self._leases[lease] = (ttl_s, self._clock() + ttl_s)
        return lease

    def keep_alive(self, lease: LeaseId) -> float:
        if lease not in self._leases:
            raise LeaseLost(f"lease {lease} has ended")
        ttl_s, _ = self._leases[lease]
        self._leases[lease] = (ttl_s, self._clock() + ttl_s)
        return ttl_s

    def revoke_lease(self, lease: LeaseId) -> None:
        if lease in self._leases:
            self._end_leases("lease = ? AND lease != 0", lease)  # as the index of leased keys is worded
            del self._leases[lease]

    def expire_leases(self) -> None:
        """Ends the leases that are due, each in a transaction of its own."""
        now = self._clock()
        for lease in [lease for lease, (_, ends_at) in self._leases.items() if ends_at <= now]:
            self.revoke_lease(lease)

    def events(self, prefix: str, from_revision: Revision) -> tuple[list[WatchBatch], Revision]:
        """Returns what happened under `prefix` from a revision on, in pieces that fit memory, and the revision to go on from.

        RevisionCompacted where a part of it is no longer there.
        """
        if from_revision <= self.compacted_revision:
            raise RevisionCompacted(Revision(self.compacted_revision + 1))
        start = encode_key(prefix)
        batches: list[WatchBatch] = []
        held: list[Event] = []
        count = size = 0
        with self._translated():
            rows = self._connection.execute(
                "SELECT key, value, revision FROM versions INDEXED BY versions_by_revision "
                "WHERE revision >= ? AND key >= ? AND key < ? ORDER BY revision, row",
                (from_revision, start, prefix_end(start)),
            )
            try:
                for key, value, revision in rows:
                    if held and held[0].mod_revision != revision:
                        batches.append(WatchBatch(held[0].mod_revision, tuple(held)))
                        held = []
                        if count >= EVENTS_MAX or size >= EVENT_BYTES_MAX:
                            return batches, revision
                    held.append(Event("delete" if value is None else "put", key.decode(), value or b"", revision))
                    count += 1
                    size += len(key) + len(value or b"")
            finally:
                rows.close()
        if held:
            batches.append(WatchBatch(held[0].mod_revision, tuple(held)))
        return batches, Revision(max(from_revision, self.revision + 1))

    def compact(self, to_revision: Revision) -> bool:
        """Drops some of what no read at `to_revision` or later sees; returns whether more is left to drop."""
        if to_revision > self.revision:
            raise InvalidArgument(f"cannot compact to revision {to_revision}: the store is at {self.revision}")
        compacted = Revision(max(to_revision, self.compacted_revision))
        with self._transaction():
            self._all("UPDATE store SET compacted_revision = ?", compacted)
            due = self._all("SELECT row FROM versions WHERE replaced_revision <= ? LIMIT ?", compacted, VERSIONS_DROPPED_MAX)
            for (row,) in due:
                self._all("DELETE FROM versions WHERE row = ?", row)
        self.compacted_revision = compacted
        return len(due) == VERSIONS_DROPPED_MAX

    def close(self) -> None:
        with self._translated():
            self._connection.close()

    def _open(self) -> tuple[Revision, Revision]:
        self._all("PRAGMA locking_mode = EXCLUSIVE")
        ((application,),) = self._all("PRAGMA application_id")  # before anything is written to a file that may not be ours
        ((version,),) = self._all("PRAGMA user_version")
        ((tables,),) = self._all("SELECT count(*) FROM sqlite_master")
        if tables and application != APPLICATION_ID:
            raise Rejected(f"{self.path} is a database of another program", hint="Give the broker a directory of its own.")
        if version > FORMAT_VERSION:
            raise Rejected(
                f"{self.path} has format {version}; this version of Tidelog reads up to {FORMAT_VERSION}",
                hint="Start the newer version that wrote it.",
            )
        self._all("PRAGMA journal_mode = WAL")
        self._all("PRAGMA synchronous = FULL")
        if not tables:
            with self._transaction():
                for statement in _SCHEMA.split(";\n"):
                    self._all(statement)
                self._all(f"PRAGMA application_id = {APPLICATION_ID}")
                self._all(f"PRAGMA user_version = {FORMAT_VERSION}")
        ((revision, compacted),) = self._all("SELECT revision, compacted_revision FROM store")
        return Revision(revision), Revision(compacted)

    def _holds(self, compare: Compare) -> bool:
        row = self._one("SELECT revision FROM versions WHERE replaced_revision IS NULL AND key = ?", encode_key(compare.key))
        held, asked = (row[0] if row else 0), compare.mod_revision
        return {"=": held == asked, "!=": held != asked, "<": held < asked, ">": held > asked}[compare.is_]

    @contextmanager
    def _writing(self) -> Iterator[_Write]:
        """Returns a transaction that takes the next revision if it writes any version."""
        write = _Write(Revision(self.revision + 1))
        with self._transaction():
            yield write
            if write.versions:
                self._all("UPDATE store SET revision = ?", write.revision)
        if write.versions:
            self.revision = write.revision

    def _apply(self, operation: Operation, write: _Write) -> None:
        if isinstance(operation, Put):
            self._put(operation, write)
        elif isinstance(operation, Delete):
            self._delete(write, "key = ?", encode_key(operation.key))
        else:
            prefix = encode_key(operation.prefix)
            self._delete(write, "key >= ? AND key < ?", prefix, prefix_end(prefix))

    def _put(self, operation: Put, write: _Write) -> None:
        if operation.lease != NO_LEASE and operation.lease not in self._leases:
            raise LeaseLost(f"{operation.key}: lease {operation.lease} has ended")
        key = encode_key(operation.key)
        live = self._one("SELECT row, create_revision, version FROM versions WHERE replaced_revision IS NULL AND key = ?", key)
        row, create_revision, version = live or (None, write.revision, 0)
        self._replace(row, write)
        self._insert(write, key, None, create_revision, version + 1, operation.lease, operation.value)

    def _delete(self, write: _Write, where: str, *values: object) -> None:
        live = self._all(
            f"SELECT row, key, create_revision FROM versions WHERE replaced_revision IS NULL AND {where} ORDER BY key", *values
        )
        for row, key, create_revision in live:
            self._replace(row, write)
            self._insert(write, key, write.revision, create_revision, 0, NO_LEASE, None)

    def _replace(self, row: int | None, write: _Write) -> None:
        self._all("UPDATE versions SET replaced_revision = ? WHERE row = ?", write.revision, row)

    def _insert(self, write: _Write, *columns: object) -> None:
        self._all(
            "INSERT INTO versions (revision, key, replaced_revision, create_revision, version, lease, value) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            write.revision,
            *columns,
        )
        write.versions += 1

    def _end_leases(self, where: str, *values: object) -> None:
        with self._writing() as write:
            self._delete(write, where, *values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._roll_back()  # where the disk failed so badly that the last one could not be
        self._all("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._roll_back()
            raise
        try:
            self._connection.execute("COMMIT").close()
        except sqlite3.Error as error:
            self._roll_back()
            raise translate(error, self.path, committing=True) from error

    def _roll_back(self) -> None:
        """Rolls back without an error of its own: the one that led here is raised."""
        if self._connection.in_transaction:  # SQLite has rolled back itself after some errors
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK").close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translate(error, self.path) from error

    def _all(self, statement: str, *values: object) -> list[Any]:
        with self._translated():
            cursor = self._connection.execute(statement, values)
            try:
                return cursor.fetchall()
            finally:
                cursor.close()

    def _one(self, statement: str, *values: object) -> Any | None:
        rows = self._all(statement, *values)
        return rows[0] if rows else None


@dataclass(slots=True)
class _Write:
    """Counts the versions of a transaction under way, and holds their revision."""

    revision: Revision
    versions: int = 0


def _key_value(row: Any) -> KeyValue:
    key, value, create_revision, mod_revision, version, lease = row
    return KeyValue(key.decode(), value, Revision(create_revision), Revision(mod_revision), version, LeaseId(lease))


def _keep_private(path: Path) -> None:
    """Creates the database with the rights of its owner alone, or takes the rights of others from one that exists.

    SQLite gives its other files the rights of the database. Files that exist are never opened here: closing one would drop the
    locks that this process holds on it through SQLite. What goes wrong here goes wrong in SQLite too, which says it better.
    """
    if str(path) == ":memory:":
        return
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    for suffix in ("", "-wal", "-shm", "-journal"):
        take_rights_of_others(Path(f"{path}{suffix}"))
