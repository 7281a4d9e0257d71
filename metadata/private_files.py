"""Makes directories and files that only the user of this process may use, whatever its umask is.

A directory that exists keeps its rights: the user may have made it for a group. Files that Tidelog made earlier are tightened.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

# The rights of every directory and file that Tidelog makes for itself.
DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600


def make_private_directories(path: Path) -> list[Path]:
    """Makes `path` and its missing parents. Returns what was missing, `path` first. Raises OSError."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing[1:]):
        make_private_directory(directory)
    make_private_directory(path)
    return missing


def make_private_directory(path: Path) -> None:
    """Makes `path` in a directory that exists. Raises OSError, but not where `path` is a directory already."""
    try:
        path.mkdir(mode=DIRECTORY_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    if stat.S_IMODE(path.stat().st_mode) & 0o777 != DIRECTORY_MODE:  # the umask has taken rights of the owner
        path.chmod(DIRECTORY_MODE)


def open_private(path: str | Path, flags: int) -> int:
    """Opens a file as os.open does, close-on-exec, and takes the rights of others from it. Raises OSError."""
    file = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
    take_rights_of_others(file)
    return file


def take_rights_of_others(file: Path | int) -> None:
    """Leaves a file to its owner. A file that is missing, or that this user may not change, stays as it is."""
    with suppress(OSError):
        if stat.S_IMODE(os.stat(file).st_mode) != FILE_MODE:
            os.chmod(file, FILE_MODE)


def sync_directory(path: str | Path) -> None:
    """Makes the entries of the directory outlive a power cut. Blocks. Raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
