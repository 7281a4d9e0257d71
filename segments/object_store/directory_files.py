"""Makes the disk calls of the directory store, all of them blocking; only threads call this module.

    {root}/{key}            an object, whole from the moment that it has its name
    {root}/.tmp/{random}    bytes on their way to an object; held under flock(2) by the thread that writes them

    create:  write .tmp/x   fsync x   link x → key   fsync the directory of key   unlink x
                        nothing exists ┤ may exist ├ exists, and survives a power cut

Invariant: link(2) decides which writer creates a key, and a name always has the whole, durable body. A writer that loses receives
AlreadyExists only once that name is durable as well, since the writer relies on it. Directories are never removed: a create could
lose its parent between making it and linking into it, and an empty directory costs nothing.

Permissions: a root that this module creates belongs to its owner only (0700). Objects and directories get the permissions of the
root, whatever the umask is: below a root of 0750, directories are 0750 and objects 0640. So the user who creates the root decides
who reads the log.

Failed fsync: the kernel drops the data and reports the error once, so the next fsync succeeds without them. Each attempt writes the
body of an object to a new file, so a repeat is sound. A repeat does not write a name again, so in a directory whose fsync failed no
existing name counts as durable while this process lives; new names do. Deletes then stop, since the object that replaces a deleted
one may not be on the disk.

LIST returns objects in the order of their keys, and reads only directories that can hold a wanted key. Keys are ordered by all
their bytes. Sorting the names in each directory would be wrong, because "-" and "." sort before "/". Sorting directories as their
name with "/" appended makes a walk of the tree a walk in key order:

    names  a  a-b  a.d       keys  a-b    a.d/z    a/y
                                   "-" 2d  "." 2e   "/" 2f
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from metadata.errors import AlreadyExists, Denied, InvalidArgument, NotFound, OutcomeUnknown, TidelogError, Unavailable
from metadata.private_files import DIRECTORY_MODE, FILE_MODE, make_private_directory, sync_directory
from segments.object_store.interface import Buffer, ListPage, ObjectInfo, Tail, unsynced
from segments.object_store.store_clock import StoreClock
from segments.object_store.validation import is_key, past_the_end

_TEMPORARIES = ".tmp"
_TEMPORARY = re.compile(r"[0-9a-f]{32}", re.ASCII)
_BUFFERS_PER_WRITE = os.sysconf("SC_IOV_MAX")
_READ_BYTES_MAX = 1 << 30
_DURABLE_FOLDERS_MAX = 10_000
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
# Rights of others on an object, which is read-only for them, since objects are never changed.
_READ_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH
# Bits of the root's mode that are inherited, with the group of the parent (setgid) and the sticky bit.
_INHERITED = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO | stat.S_ISGID | stat.S_ISVTX
_UNSYNCED_HINT = "Look at the disk and its file system (dmesg); once they are mended, start this process again."
_HARD_LINKS_HINT = "Use one local file system that has hard links: ext4, xfs, btrfs, zfs, apfs."


class DirectoryFiles:
    """Keys are checked by the caller. `clock` hears the times that the file system gives to new files."""

    def __init__(self, root: Path, clock: StoreClock | None = None) -> None:
        root = root.absolute()
        self.url = root.as_uri()
        self._root = str(root)
        self._temporaries = str(root / _TEMPORARIES)
        self._durable_folders: set[str] = set()
        self._directory_mode, self._file_mode = DIRECTORY_MODE, FILE_MODE
        self._clock = clock
        self._syncs = _Syncs()

    def create(self, key: str, body: Sequence[Buffer]) -> None:
        folder, _, name = key.rpartition("/")
        with self._explained("create", key), self._temporary() as (file, temporary):
            begun_s = self._clock.steady_s() if self._clock is not None else 0.0
            _write(file, body)
            os.fsync(file)
            if self._clock is not None:
                self._clock.heard(os.fstat(file).st_mtime_ns // 1_000_000, asked_s=begun_s)
            directory = self._open_folder(folder)
            try:
                self._link(temporary, directory, folder, name, key)
            finally:
                os.close(directory)

    def read(self, key: str, start: int, end: int | None) -> bytes:
        with self._opened(key) as (file, size):
            if start >= size and start > 0:
                raise past_the_end(self.url, key, start, size)
            return _read(file, start, size if end is None else min(end, size))

    def read_tail(self, key: str, bytes_max: int) -> Tail:
        with self._opened(key) as (file, size):
            return Tail(_read(file, max(0, size - bytes_max), size), size)

    def list(self, prefix: str, start_after: str, limit: int) -> ListPage:
        objects: list[ObjectInfo] = []
        with self._explained("list", prefix):
            os.stat(self._root)  # fails where the whole bucket is gone: a log that seems empty would be written again
            for key, entry in list_in_key_order(self._root, prefix, start_after):
                if len(objects) == limit:
                    return ListPage(tuple(objects), more=True)
                with suppress(FileNotFoundError):  # deleted since the directory was read
                    objects.append(ObjectInfo(key, entry.stat(follow_symlinks=False).st_size))
        return ListPage(tuple(objects), more=False)

    def delete(self, key: str) -> None:
        """Deletes without making it durable: an object that a power cut brings back is one that is not needed.

        Raises Unavailable where an fsync has failed.
        """
        if self._syncs.any_failed:
            raise Unavailable(
                f"{key} in {self.url} is not deleted: an fsync of a directory failed, so what replaces it may be lost",
                hint=_UNSYNCED_HINT,
                key=key,
            )
        with self._explained("delete", key), suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            os.unlink(self._path(key))

    def open_root(self, *, make: bool) -> None:
        """Checks that the root is a directory, creates it if `make`, and removes what crashed writers left behind."""
        with self._explained("open"):
            if make:
                self._make_root()
            mode = os.stat(self._root).st_mode
            if not stat.S_ISDIR(mode):
                raise Denied(f"{self.url} is not a directory", hint="Name a directory.")
            self._directory_mode = DIRECTORY_MODE | mode & _INHERITED
            self._file_mode = FILE_MODE | mode & _READ_BY_OTHERS
        self._sweep()

    def _link(self, temporary: str, directory: int, folder: str, name: str, key: str) -> None:
        """Gives the written file its name in the open directory, and makes the name durable."""
        try:
            os.link(temporary, name, dst_dir_fd=directory)
            exists_already = False
        except FileExistsError:
            exists_already = True
        except OSError as error:
            if error.errno == errno.EIO:
                raise self._unknown(key, error) from error
            if error.errno in _NO_HARD_LINKS:
                raise Denied(f"can't create {key} in {self.url}: {_reason(error)}", hint=_HARD_LINKS_HINT, key=key) from error
            raise
        try:
            with self._syncs.of(self._folder(folder)):
                os.fsync(directory)
        except OSError as error:
            message = f"{key} exists in {self.url}, and a power cut may take it away: {_reason(error)}"
            raise unsynced(OutcomeUnknown, message, hint=_UNSYNCED_HINT, key=key) from error
        if exists_already and _is_directory(name, directory):
            raise InvalidArgument(f"{key} is a directory in {self.url}, with other objects in it", key=key)
        if exists_already and self._syncs.have_failed(self._folder(folder)):
            message = f"{key} exists in {self.url}, and a power cut may take it away: an earlier fsync of its directory failed"
            raise unsynced(OutcomeUnknown, message, hint=_UNSYNCED_HINT, key=key)
        if exists_already:
            raise AlreadyExists(f"{key} exists already in {self.url}", key=key)

    @contextmanager
    def _temporary(self) -> Iterator[tuple[int, str]]:
        """Returns a new empty file, open for writing, that is gone in the end."""
        file, path = self._new_temporary()
        try:
            yield file, path
        finally:
            with suppress(OSError):  # the next start sweeps it
                os.unlink(path)
            os.close(file)

    def _new_temporary(self) -> tuple[int, str]:
        while True:
            path = f"{self._temporaries}/{secrets.token_hex(16)}"
            try:
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
            except FileNotFoundError:
                self._make_directory(self._temporaries)
                continue
            if self._file_mode != FILE_MODE:
                with suppress(OSError):  # a file system that has one mode for all files
                    os.fchmod(file, self._file_mode)
            if _lock(file) and os.fstat(file).st_nlink:
                return file, path
            os.close(file)  # another process sweeps, and took the file before it was locked

    def _sweep(self) -> None:
        """Removes unlocked temporaries, and no other files. Safe beside other processes and containers on the same directory.

        A writer holds the lock on its file while it needs the file, and the kernel releases it when the writer dies.
        """
        with suppress(OSError), os.scandir(self._temporaries) as entries:  # absent, or a read-only directory
            for entry in entries:
                if not _TEMPORARY.fullmatch(entry.name):  # the directory may be another's, named by mistake
                    continue
                with suppress(OSError):
                    file = os.open(entry.path, os.O_RDWR | os.O_NOFOLLOW)
                    try:
                        if _lock(file):
                            os.unlink(entry.path)
                    finally:
                        os.close(file)

    def _open_folder(self, folder: str) -> int:
        path = self._folder(folder)
        if path not in self._durable_folders:
            self._make_folders(folder)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def _make_folders(self, folder: str) -> None:
        """Makes the directories from the root down to `folder`, durably.

        One that is there already may have been made by another process a moment ago, so its parent is synced all the same,
        once in the life of this store. Raises Unavailable where that proves nothing.
        """
        path = self._root
        for component in folder.split("/") if folder else ():
            parent, path = path, f"{path}/{component}"
            if path not in self._durable_folders:
                self._make_folder(path, parent)
        if len(self._durable_folders) >= _DURABLE_FOLDERS_MAX:
            self._durable_folders.clear()
        self._durable_folders.add(self._folder(folder))

    def _make_folder(self, path: str, parent: str) -> None:
        is_new = self._make_directory(path)
        directory = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with self._syncs.of(parent):
                os.fsync(directory)
        finally:
            os.close(directory)
        if not is_new and self._syncs.have_failed(parent):
            message = f"{path} exists, and a power cut may take it away: an earlier fsync of {parent} failed"
            raise unsynced(Unavailable, message, hint=_UNSYNCED_HINT)
        self._durable_folders.add(path)

    def _make_directory(self, path: str) -> bool:
        """Makes a directory with the rights of the root. Returns False where there is one, which stays as it is."""
        try:
            os.mkdir(path, self._directory_mode)
        except FileExistsError:
            return False
        if stat.S_IMODE(os.stat(path).st_mode) != self._directory_mode:  # the umask has taken some
            with suppress(PermissionError):  # a file system that has one mode for all directories
                os.chmod(path, self._directory_mode)
        return True

    def _make_root(self) -> None:
        """Makes the last directory alone: where its parent is missing too, the path is more likely to be wrong than new."""
        root = Path(self._root)
        if not root.exists():
            make_private_directory(root)
            sync_directory(str(root.parent))

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, int]]:
        """Returns the object's file, and its size in bytes."""
        with self._explained("read", key):
            try:
                file = os.open(self._path(key), os.O_RDONLY | os.O_NONBLOCK)
            except (FileNotFoundError, NotADirectoryError) as error:
                os.stat(self._root)  # as for list
                raise self._not_found(key) from error
            try:
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode):
                    raise self._not_found(key)
                yield file, status.st_size
            finally:
                os.close(file)

    def _path(self, key: str) -> str:
        return os.path.join(self._root, key)

    def _folder(self, folder: str) -> str:
        return os.path.join(self._root, folder) if folder else self._root

    def _not_found(self, key: str) -> NotFound:
        return NotFound(f"{self.url} has no object {key}", key=key)

    def _unknown(self, key: str, error: OSError) -> OutcomeUnknown:
        message = f"{key} may or may not have been created in {self.url}: {_reason(error)}"
        return OutcomeUnknown(message, hint="Create it again with the same bytes.", key=key)

    @contextmanager
    def _explained(self, doing: str, key: str = "") -> Iterator[None]:
        """Translates errors of the operating system that come while nothing has its name yet."""
        try:
            yield
        except OSError as error:
            what = f"can't {doing} {key} in {self.url}" if key else f"can't {doing} {self.url}"
            raise _translated(f"{what}: {_reason(error)}", error.errno, key) from error


class _Syncs:
    """Remembers the directories of which an fsync failed. For threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way: dict[object, str] = {}
        self._failed: set[str] = set()

    @property
    def any_failed(self) -> bool:
        return bool(self._failed)

    @contextmanager
    def of(self, directory: str) -> Iterator[None]:
        """Holds while the directory is synced."""
        sync = object()
        with self._changed:
            self._under_way[sync] = directory
        try:
            yield
        except OSError:
            with self._changed:
                self._failed.add(directory)
            raise
        finally:
            with self._changed:
                del self._under_way[sync]
                self._changed.notify_all()

    def have_failed(self, directory: str) -> bool:
        """Returns whether any sync of the directory failed that began before this call; waits for those that are under way."""
        with self._changed:
            begun = [sync for sync, synced in self._under_way.items() if synced == directory]
            self._changed.wait_for(lambda: directory in self._failed or not any(sync in self._under_way for sync in begun))
            return directory in self._failed


def _translated(message: str, number: int | None, key: str) -> TidelogError:
    match number:
        case errno.ENOSPC | errno.EDQUOT:
            return Unavailable(f"{message}; nothing was written", hint="Free disk space, or raise the quota.", key=key)
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return Denied(message, hint="Let this user read and write the directory.", key=key)
        case errno.ENOENT:
            return Denied(message, hint="The directory is missing: correct its path, make it, or mount it.", key=key)
        case errno.ENOTDIR | errno.ENAMETOOLONG:
            return InvalidArgument(message, hint="Part of the path is a file: no key lies below an object.", key=key)
        case errno.EMFILE | errno.ENFILE:
            return Unavailable(message, hint="Raise the limit of open files (ulimit -n).", key=key)
        case _:
            return Unavailable(message, hint="Look at the disk and its file system (dmesg).", key=key)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _is_directory(name: str, directory: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:  # deleted by now
        return False


def _lock(file: int) -> bool:
    """Locks the file until it is closed; returns False where another process holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(file: int, body: Sequence[Buffer]) -> None:
    """Appends the buffers, up to 1024 of them per system call, without joining them."""
    for first in range(0, len(body), _BUFFERS_PER_WRITE):
        group = body[first : first + _BUFFERS_PER_WRITE]
        bytes_left = sum(map(len, group)) - os.writev(file, group)
        if bytes_left:  # the disk is full, which the next call tells, or the group is over 2 GiB
            rest = memoryview(b"".join(group))[-bytes_left:]
            while rest:
                rest = rest[os.write(file, rest) :]


def _read(file: int, start: int, end: int) -> bytes:
    parts: list[bytes] = []
    while start < end and (part := os.pread(file, min(end - start, _READ_BYTES_MAX), start)):
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def list_in_key_order(root: str, prefix: str, start_after: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Returns the keys that begin with `prefix` and come after `start_after`, each with its entry, which was not stat'ed yet.

    What lies there under a name that is no key (temporaries, a lost+found) is passed over. Raises OSError, except for a
    directory that isn't there.
    """
    folder = prefix[: prefix.rfind("/") + 1]
    return _walk(os.path.join(root, folder), folder, prefix, start_after)


def _walk(path: str, folder: str, prefix: str, start_after: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    wanted: list[tuple[str, os.DirEntry[str]]] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                key = folder + entry.name
                if entry.is_dir(follow_symlinks=False):
                    key += "/"
                    begins = key.startswith(prefix) or prefix.startswith(key)
                    if begins and (key > start_after or start_after.startswith(key)):
                        wanted.append((key, entry))
                elif key > start_after and key.startswith(prefix) and entry.is_file(follow_symlinks=False):
                    wanted.append((key, entry))
    except (FileNotFoundError, NotADirectoryError):
        return
    wanted.sort(key=lambda found: found[0])
    for key, entry in wanted:
        if not is_key(key.removesuffix("/")):
            continue
        if key.endswith("/"):
            yield from _walk(entry.path, key, prefix, start_after)
        else:
            yield key, entry
