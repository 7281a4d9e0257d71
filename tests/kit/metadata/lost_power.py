"""Runs a program over a disk that loses what was not synced: what each moment of its life would leave after a power loss."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.servers import ROOT

_HEADER = struct.Struct("<cIQQ")
_SHIM = Path(__file__).with_name("disk_log.c")


@dataclass(frozen=True)
class Operation:
    """One line of the log that disk_log.c writes."""

    kind: str
    path: Path
    offset: int
    data: bytes


@dataclass
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Operation] = field(default_factory=list)

    def sync(self) -> None:
        for operation in self.pending:
            _apply(operation, self.durable)
        self.pending.clear()

    def left(self, kept: random.Random | None) -> bytes:
        """The bytes after a power loss: of what was not synced nothing, or a random part where `kept` is given."""
        body = bytearray(self.durable)
        for operation in self.pending:
            if kept is not None and kept.random() < 0.5:
                _apply(operation, body)
        return bytes(body)


class Disk:
    """A directory as a sequence of operations leaves it. Names are durable once the directory is synced, bytes once the file is."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}

    def apply(self, operation: Operation) -> None:
        name = str(operation.path.relative_to(self._root))
        match operation.kind:
            case "c":
                self._names.setdefault(name, _File())
            case "u":
                self._names.pop(name, None)
            case "s" if operation.path == self._root:
                self._durable_names = dict(self._names)
            case "s":
                self._names[name].sync()
            case _ if name in self._names:  # else it was unlinked
                self._names[name].pending.append(operation)

    def leave(self, directory: Path, kept: random.Random | None = None) -> None:
        """Writes what a power loss leaves at this moment to a new directory."""
        directory.mkdir()
        for name, file in self._durable_names.items():
            (directory / name).write_bytes(file.left(kept))


def operations_of(program: str, arguments: Sequence[str], root: Path, scratch: Path) -> list[Operation]:
    """Runs a Python program to its end. Returns what it did to the files of `root`."""
    shim, log = scratch / "disk_log.so", scratch / "disk.log"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, _SHIM, "-ldl", "-pthread"], check=True)
    watched = {"LD_PRELOAD": str(shim), "TIDELOG_DISK_ROOT": str(root), "TIDELOG_DISK_LOG": str(log)}
    subprocess.run([sys.executable, "-c", program, *arguments], env=os.environ | watched, cwd=ROOT, check=True, timeout=300)
    return list(_parsed(log.read_bytes()))


def _parsed(log: bytes) -> Iterator[Operation]:
    at = 0
    while at < len(log):
        kind, path_bytes, offset, count = _HEADER.unpack_from(log, at)
        at += _HEADER.size
        path = Path(os.fsdecode(log[at : at + path_bytes]))
        at += path_bytes
        yield Operation(kind.decode(), path, offset, log[at : at + count])
        at += count


def _apply(operation: Operation, body: bytearray) -> None:
    if operation.kind == "t":
        del body[operation.offset :]
        body.extend(bytes(operation.offset - len(body)))
        return
    body.extend(bytes(max(0, operation.offset - len(body))))
    body[operation.offset : operation.offset + len(operation.data)] = operation.data
