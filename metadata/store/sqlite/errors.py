"""Translates SQLite's errors by what the caller does next. No I/O.

    busy, locked                    Rejected         another process has the file open
    read-only, no permission        Denied
    corrupt, not a database         Corrupt          names the file
    disk full, out of memory        Unavailable      the transaction was rolled back
    input/output error              Unavailable      before the commit
                                    OutcomeUnknown   at the commit: the bytes may have reached the disk
    a value over SQLite's limit     TooLarge

Whatever else SQLite raises is a mistake of ours, and stays what it is.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from metadata.errors import Corrupt, Denied, OutcomeUnknown, Rejected, TooLarge, Unavailable


def translate(error: sqlite3.Error, path: Path, *, committing: bool = False) -> Exception:
    """Returns the error to raise in place of `error`; `committing`: whether it came while a commit was under way."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None
    file = str(path)
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Rejected(
            f"another process has the metadata file {path} open",
            hint="Stop the other broker, or give this one a data directory of its own.",
            file=file,
        )
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH):
        return Denied(
            f"the metadata file {path} cannot be opened for writing ({error})",
            hint="Check that the directory exists, is not mounted read-only, and belongs to this user.",
            file=file,
        )
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Corrupt(
            f"the metadata file {path} is damaged ({error})",
            hint="Restore it from a backup; the log itself lies on the bucket and is not touched.",
            key=file,
        )
    if primary == sqlite3.SQLITE_TOOBIG:
        return TooLarge(f"a value is too large for the metadata file {path}", file=file)
    if primary == sqlite3.SQLITE_FULL:
        return Unavailable(f"the disk of the metadata file {path} is full", hint="Free some space; nothing was written.", file=file)
    if primary == sqlite3.SQLITE_IOERR and committing:
        return OutcomeUnknown(f"the disk failed while {path} was being committed ({error})", file=file)
    if primary in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT):
        return Unavailable(f"the metadata file {path} cannot be read or written now ({error})", file=file)
    return error
