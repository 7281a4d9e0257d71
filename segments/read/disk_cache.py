"""The disk tier of the read cache: bytes as they came from the bucket, in files of a local folder, so that what memory has no room
for is not fetched from the bucket twice.

    folder/{number:016x}.cold      one run of batches, or one row group of a Parquet file

What is in the folder is known in memory only, and what is found there at the start is thrown away: so a crash can't leave anything
that is mistaken for something else, and nothing is synced. Readers check what they get as if it came from the bucket. Least
recently used out first. Where the disk fails, the tier is turned off, once, and readers go on without it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from metadata.private_files import make_private_directories, open_private

log = logging.getLogger(__name__)

_SUFFIX: Final = ".cold"


class _Stored(NamedTuple):
    path: Path
    size_bytes: int


class DiskCache:
    """Caches copies of runs and row groups on a local disk."""

    def __init__(self, folder: Path, *, bytes_max: int) -> None:
        """`folder` is made where it is not there; another process must not use it. OSError."""
        make_private_directories(folder)
        for left_over in folder.glob(f"*{_SUFFIX}"):
            left_over.unlink()
        self._folder = folder
        self._bytes_max = bytes_max
        self._stored: OrderedDict[Hashable, _Stored] = OrderedDict()
        self._next_number = 0
        # Files that the next free thread removes, since a call may be cancelled before a thread is free.
        self._unneeded: list[Path] = []
        self._is_off = False
        self.bytes_used = 0

    @property
    def is_off(self) -> bool:
        """Returns whether the disk has failed."""
        return self._is_off

    async def get(self, identity: Hashable) -> bytes | None:
        """Returns the cached bytes, if any; the caller checks them."""
        stored = self._stored.get(identity)
        if stored is None:
            return None
        self._stored.move_to_end(identity)
        try:
            body = await asyncio.to_thread(stored.path.read_bytes)
        except OSError as error:
            log.warning("disk tier read failed path=%s: %s; reading from the bucket", stored.path, error)
            await self.drop(identity)
            return None
        return body if len(body) == stored.size_bytes else None

    async def put(self, identity: Hashable, body: bytes) -> None:
        """Makes room, and writes the bytes. What is larger than the tier, or here already, is left as it is."""
        if self._is_off or identity in self._stored or len(body) > self._bytes_max:
            return
        self.bytes_used += len(body)
        while self.bytes_used > self._bytes_max and self._stored:
            self._forget(next(iter(self._stored)))
        if self.bytes_used > self._bytes_max:  # with those that are written at this moment
            self.bytes_used -= len(body)
            await asyncio.to_thread(_remove, self._unneeded)
            return
        stored = _Stored(self._folder / f"{self._next_number:016x}{_SUFFIX}", len(body))
        self._next_number += 1
        try:
            await asyncio.to_thread(_write, stored.path, body, self._unneeded)
        except OSError as error:
            log.warning(
                "disk tier write failed path=%s: %s; the disk tier is off until the broker is started again", stored.path, error
            )
            self._is_off = True
            self.bytes_used -= len(body)
            self._unneeded.append(stored.path)
            for other in list(self._stored):
                self._forget(other)
            await asyncio.to_thread(_remove, self._unneeded)
        except asyncio.CancelledError:
            self._stored[identity] = stored  # the thread ends what it has begun; where it has not, nothing is found there
            raise
        else:
            self._stored[identity] = stored

    async def drop(self, identity: Hashable) -> None:
        if identity in self._stored:
            self._forget(identity)
            await asyncio.to_thread(_remove, self._unneeded)

    def _forget(self, identity: Hashable) -> None:
        stored = self._stored.pop(identity)
        self.bytes_used -= stored.size_bytes
        self._unneeded.append(stored.path)


def _write(path: Path, body: bytes, unneeded: list[Path]) -> None:
    _remove(unneeded)
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(body)


def _remove(unneeded: list[Path]) -> None:
    """Empties the list, beside other threads that may be at it, too."""
    with suppress(IndexError):
        while True:
            path = unneeded.pop()
            with suppress(OSError):
                path.unlink()
