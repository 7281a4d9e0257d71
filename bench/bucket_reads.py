"""Counts the reads of a bucket in a directory by any process. The kernel reports (inotify) each file that is closed after it was
opened for reading, and each directory that was listed. It reports once where the same file is read twice with nothing between.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_IN_CLOSE_NOWRITE, _IN_Q_OVERFLOW, _IN_ISDIR = 0x10, 0x4000, 0x4000_0000
_EVENT = struct.Struct("iIII")
_READ_BYTES = 1 << 20


@dataclass(slots=True)
class BucketReads:
    """Updated by `look`."""

    # How often each was read, by its path below the bucket.
    objects: dict[str, int] = field(default_factory=dict)
    # Directories that were listed.
    listings: int = 0
    _file: int = -1
    _names: dict[int, str] = field(default_factory=dict)

    @property
    def gets(self) -> int:
        return sum(self.objects.values())

    def look(self) -> None:
        """Takes in what the kernel reported since the last time. It holds about 16,000 events, then raises RuntimeError here."""
        while True:
            try:
                reported = os.read(self._file, _READ_BYTES)
            except BlockingIOError:
                return
            self._take_in(reported)

    def _take_in(self, reported: bytes) -> None:
        at = 0
        while at < len(reported):
            watch, mask, _, length = _EVENT.unpack_from(reported, at)
            name = reported[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0").decode()
            at += _EVENT.size + length
            if mask & _IN_Q_OVERFLOW:
                raise RuntimeError("more was read of the bucket than the kernel could report")
            if mask & _IN_ISDIR:
                self.listings += not name  # reported twice: by the directory, and by the one that it is in
            elif name:
                key = f"{self._names[watch]}/{name}"
                self.objects[key] = self.objects.get(key, 0) + 1


@contextmanager
def bucket_reads(bucket: Path) -> Iterator[BucketReads]:
    """Counts what is read of the directories that are there now."""
    libc = ctypes.CDLL(None, use_errno=True)
    file = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if file < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    try:
        reads = BucketReads(_file=file)
        for folder, _, _ in os.walk(bucket):
            watch = libc.inotify_add_watch(file, os.fsencode(folder), _IN_CLOSE_NOWRITE)
            if watch < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch", folder)
            reads._names[watch] = str(Path(folder).relative_to(bucket))
        reads.look()  # our own walk, where a system tells of it
        reads.objects.clear()
        reads.listings = 0
        yield reads
    finally:
        os.close(file)
