"""What is quick, which modules are imported for it, and which tests run first.

A test that is not marked slow stays in one process, and off the network: it opens no socket and starts no process. Where only
quick tests run (`make check`), one that does fails, whatever it tests. There a module that is slow as a whole is not even imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

# Folders of tests that run for long. They begin first, so that no worker waits for another's last test in the end.
WHOLE = ("cluster", "simulation", "crash", "bench", "chaos")
SOCKETS = {"socket.bind", "socket.connect"}
PROCESSES = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"}

SLOW_MODULE = re.compile(r"^pytestmark = .*\bpytest\.mark\.slow\b", re.MULTILINE)

# Sockets and processes of the test that runs, by their audit events (PEP 578).
reached: list[str] = []


def is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips modules of slow tests alone where none of those runs: each worker would import them and what they need."""
    if config.getoption("markexpr") != "not slow" or not collection_path.match("test_*.py") or _is_named(collection_path, config):
        return None
    return True if SLOW_MODULE.search(collection_path.read_text("utf-8")) else None


def _is_named(path: Path, config: pytest.Config) -> bool:
    return any(path == config.invocation_params.dir / argument.split("::")[0] for argument in config.args)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (not is_slow(item), item.nodeid.split("/")[1] not in WHOLE))


def pytest_collection_finish(session: pytest.Session) -> None:
    # Where slow tests run as well, what they leave behind in threads could be taken for a quick test's doing.
    if not any(is_slow(item) for item in session.items):
        sys.addaudithook(note)


def note(event: str, arguments: tuple[object, ...]) -> None:
    if event in PROCESSES or (event in SOCKETS and isinstance(arguments[1], tuple)):  # a path: a socket of AF_UNIX
        reached.append(f"{event} {arguments[1] if event in SOCKETS else arguments[0]}")


def pytest_runtest_setup() -> None:
    reached.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    if reached and not is_slow(item):
        pytest.fail(f"a quick test opens no socket and starts no process (tests/README.md): mark it slow. It did: {reached}")
    return result
