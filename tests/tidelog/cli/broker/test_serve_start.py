"""What `tidelog serve` loads before it serves: when brokers are replaced, others lack each second that a new one takes to start."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import NamedTuple

import pytest

from tidelog.cli.broker.serve import app
from tidelog.cli.main import BROKER_COMMANDS

# When each is loaded.
LATER = {
    "tidelog.cli.commands": "for any other command (tidelog/cli/main.py)",
    "fastapi": "with the first request that administrates over HTTP (gateway/http/app.py)",
    "starlette": "as fastapi",
    "compaction.service": "where the broker compacts (gateway/broker/broker.py)",
    "pyarrow.compute": "with the first Arrow body, and as pyarrow.parquet",
    "pyarrow.parquet": "with the first file of history (segments/read/row_group_loader.py)",
    "cryptography": "with TLS, or the first token of OpenID",
    "jwt": "with the first token of OpenID",
    "opentelemetry": "where traces are exported",
    "aiobotocore": "for S3",
}
SERVE = """
import gc, json, sys
from segments.log.session_log import SessionLog
from tidelog.cli import main
from tidelog.cli.broker import serve

def ready(broker, settings):
    logs = sum(isinstance(found, SessionLog) for found in gc.get_objects())
    print(json.dumps([list(sys.modules), gc.get_freeze_count(), logs]))
    broker.stop()

serve._log_addresses = ready
sys.exit(main.run(["serve", "--data-dir", sys.argv[1], "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]))
"""


class Started(NamedTuple):
    """A broker, when it is ready."""

    loaded: list[str]
    # Objects that the garbage collector never looks at.
    spared: int
    # Of those that it does look at.
    logs_looked_at: int


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Started:
    command = [sys.executable, "-c", SERVE, str(tmp_path_factory.mktemp("broker"))]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    return Started(*json.loads(said.stdout.splitlines()[0]))


@pytest.mark.slow
def test_a_broker_is_ready_before_it_loads_what_it_may_never_be_asked_for(started: Started) -> None:
    assert "gateway.http.app" in started.loaded
    assert {name: when for name, when in LATER.items() if name in started.loaded} == {}


@pytest.mark.slow
def test_the_garbage_collector_spares_loaded_modules_and_not_the_first_session(started: Started) -> None:
    """Its log is a cycle that holds up to 128 MiB: spared, it outlived its session."""
    assert started.spared > 10_000
    assert started.logs_looked_at == 1


def test_a_module_that_is_loaded_later_is_there_under_that_name() -> None:
    """What is misspelt here, or was renamed, is never loaded."""
    assert {name for name in LATER if find_spec(name) is None} == set()


def test_the_commands_that_run_a_broker_stand_alone() -> None:
    assert {command.callback.__name__ for command in app.registered_commands if command.callback} == BROKER_COMMANDS
