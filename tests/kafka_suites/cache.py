"""Downloads of the suites: pinned by version and hash, made once, kept in the user's cache outside the repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

BUILD_TIMEOUT_S = 1800.0


class CannotPrepare(Exception):
    """A suite cannot be downloaded or built here; the message says why."""


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidelog" / "kafka-suites"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """Returns the folder `name` of the cache. `make` fills it the first time; an interrupted attempt leaves nothing behind."""
    folder = cache_directory() / name
    if not folder.exists():
        print(f"preparing {folder}, once", file=sys.stderr, flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
            made = Path(scratch) / name
            made.mkdir()
            make(made)
            if not folder.exists():
                made.rename(folder)
    return folder


def run(
    command: Sequence[str], *, cwd: Path, environment: Mapping[str, str] | None = None, timeout_s: float = BUILD_TIMEOUT_S
) -> str:
    """Returns what the command prints. Raises CannotPrepare where it is missing, fails, or takes longer than `timeout_s`."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except FileNotFoundError:
        raise CannotPrepare(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise CannotPrepare(f"{' '.join(command[:3])} did not end within {timeout_s:g} s") from None
    if done.returncode != 0:
        raise CannotPrepare(f"{' '.join(command[:3])} failed: {(done.stderr or done.stdout)[-1500:]}")
    return done.stdout


def check_hash(file: Path, sha256: str) -> None:
    """Raises CannotPrepare unless the file has this SHA-256."""
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != sha256:
        raise CannotPrepare(f"{file.name} has SHA-256 {found}, not {sha256}")


def unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")


def npm_package(package: str, version: str, sha256: str, folder: Path) -> None:
    """Downloads the package from npm, checks it, and unpacks it below `folder/package`. Runs none of its scripts."""
    name = run(["npm", "pack", "--silent", f"{package}@{version}"], cwd=folder).strip().splitlines()[-1]
    archive = folder / name
    check_hash(archive, sha256)
    unpack(archive, folder)
    archive.unlink()


def python_source(package: str, version: str, sha256: str, folder: Path) -> None:
    """Downloads the source distribution from PyPI, checks it, and unpacks it below `folder`."""
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{package}=={version} --hash=sha256:{sha256}\n", encoding="utf-8")
    options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes", "-r", requirement.name]
    run([sys.executable, "-m", "pip", "download", *options], cwd=folder)
    (archive,) = folder.glob("*.tar.gz")
    unpack(archive, folder)
    archive.unlink()
