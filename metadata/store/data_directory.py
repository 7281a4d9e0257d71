"""Locks the directory of one broker process: a second process is refused.

    {data_dir}/
      LOCK              held with flock(2) for life; says whose the directory is
      metadata.sqlite   the embedded metadata store
      bucket/           the objects, where the bucket is a local directory

    LOCK:   tidelog data directory
            {"pid":4711,"host":"a1","since":"2026-01-01T00:00:00+00:00"}

The kernel drops the lock when the process ends, however it ends: what LOCK says counts only while the lock is held. The directory
and the files are made for the user of the broker alone (metadata/private_files.py).
Invariant: while a DataDirectory is open, no other process on this host has opened it.
"""

from __future__ import annotations

import datetime
import errno
import fcntl
import logging
import os
import socket
import stat
from pathlib import Path
from types import TracebackType

import msgspec

from metadata.errors import Denied, Rejected, TidelogError, Unavailable
from metadata.private_files import make_private_directories, open_private, sync_directory

log = logging.getLogger(__name__)

_TITLE = "tidelog data directory"
_OWN = frozenset({"LOCK", "metadata.sqlite", "metadata.sqlite-wal", "metadata.sqlite-shm", "bucket", "lost+found"})
_PROBE = ".probe"
_PROBE_BYTES = 4096


class _Holder(msgspec.Struct, frozen=True):
    pid: int
    host: str
    since: str


class DataDirectory:
    """Opens `path`, creating it where it is missing, and holds its lock until close().

    Raises Rejected (another process holds it, it is no directory, or it holds something else), Denied (permissions, a read-only
    file system) and Unavailable (the disk is full).
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path).absolute()
        self._lock = -1
        try:
            self._create()
            self._check_ours()
            self._lock = open_private(self.path / "LOCK", os.O_RDWR | os.O_CREAT)
            self._take_lock()
            self._prove_writable()
            self._sign()
            self._warn_of_wide_rights()
        except OSError as error:
            self.close()
            raise self._translated(error) from error
        except ValueError as error:  # a NUL in the path
            self.close()
            raise Rejected(f"{str(path)!r} is not a path ({error})", hint="Name a directory as --data-dir.") from error
        except BaseException:
            self.close()
            raise

    @property
    def metadata_path(self) -> Path:
        """Returns the path for SqliteStore."""
        return self.path / "metadata.sqlite"

    @property
    def bucket_path(self) -> Path:
        """Returns the path of the object store in a local directory. Not created here."""
        return self.path / "bucket"

    def close(self) -> None:
        """Gives the lock up. Twice is no error."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> DataDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _create(self) -> None:
        missing = make_private_directories(self.path)
        for directory in missing:  # its name must survive loss of power as well
            sync_directory(directory.parent)

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._signed()
            who = f"process {holder.pid} on {holder.host} since {holder.since}" if holder else "another process"
            raise Rejected(
                f"the data directory {self.path} is in use by {who}",
                hint="Stop that broker first, or give this one another --data-dir.",
                path=str(self.path),
                pid=holder.pid if holder else 0,
            ) from None

    def _check_ours(self) -> None:
        """Checks before the first write: a directory that is mistaken for ours stays as it is."""
        foreign = sorted(name for name in os.listdir(self.path) if name not in _OWN and not name.startswith("."))
        if not foreign:
            return
        lock = self.path / "LOCK"
        if not (lock.is_file() and lock.read_bytes().startswith(_TITLE.encode())):
            shown = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
            raise Rejected(
                f"{self.path} is no data directory of Tidelog: it holds {shown}",
                hint="Name an empty directory, or one that does not exist yet.",
                path=str(self.path),
            )

    def _prove_writable(self) -> None:
        probe = self.path / _PROBE
        try:
            with open(probe, "wb", opener=open_private) as file:
                file.write(bytes(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)

    def _sign(self) -> None:
        """Writes over what LOCK held, then cuts it to length: its title is there at every moment."""
        since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        holder = _Holder(pid=os.getpid(), host=socket.gethostname(), since=since)
        text = f"{_TITLE}\n".encode() + msgspec.json.encode(holder) + b"\n"
        os.pwrite(self._lock, text, 0)
        os.ftruncate(self._lock, len(text))
        os.fsync(self._lock)
        sync_directory(self.path)

    def _warn_of_wide_rights(self) -> None:
        """Logs a warning about wide rights. A directory that existed keeps its rights; the files that Tidelog makes in it are for
        its own user in any case."""
        mode = self.path.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            log.warning(
                "every user of this machine can replace the metadata path=%s; name a directory below it as data_dir", self.path
            )
        if mode & stat.S_IXOTH and self.bucket_path.is_dir() and self.bucket_path.stat().st_mode & stat.S_IXOTH:
            log.warning("every user of this machine can read the records path=%s; run: chmod -R o-rwx %s", *[self.bucket_path] * 2)

    def _signed(self) -> _Holder | None:
        try:
            return msgspec.json.decode(os.pread(self._lock, 4096, 0).split(b"\n")[1], type=_Holder)
        except (IndexError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _translated(self, error: OSError) -> TidelogError:
        path = str(self.path)
        if error.errno in (errno.EACCES, errno.EPERM):
            hint = f"Let uid {os.geteuid()} write there, or name another --data-dir."
            return Denied(f"no permission to use the data directory {path} ({error})", hint=hint, path=path)
        if error.errno == errno.EROFS:
            hint = "Mount it writable, or name another --data-dir."
            return Denied(f"the data directory {path} is on a read-only file system", hint=hint, path=path)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return Unavailable(f"no space is left for the data directory {path}", hint="Free some space.", path=path)
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            return Rejected(f"{path} is not a directory", hint="Name a directory as --data-dir.", path=path)
        return Rejected(f"the data directory {path} cannot be used ({error})", hint="Name another --data-dir.", path=path)
