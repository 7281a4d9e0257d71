"""What `tidelog serve` loads before it serves: when brokers are replaced, others lack each second that a new one takes to start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.cli.main import BROKER_COMMANDS
from tidelog.cli.serve import app

LATER = {
    "tidelog.cli.commands": "for any other command (tidelog/cli/main.py)",
    "fastapi": "with the first request that administrates over HTTP (gateway/http_app.py)",
    "starlette": "as fastapi",
    "compaction.service": "where the broker compacts (gateway/broker.py)",
    "pyarrow.compute": "with the first Arrow body, and as pyarrow.parquet",
    "pyarrow.parquet": "with the first file of history (segments/history_reads.py)",
    "cryptography": "with TLS, or the first token of OpenID",
    "jwt": "with the first token of OpenID",
    "opentelemetry": "where traces are told",
    "aiobotocore": "for S3",
}
"""When each is loaded."""
SERVE = """
import sys
from tidelog.cli import main, serve

def ready(broker, settings):
    print(*sys.modules)
    broker.stop()

serve._log_addresses = ready
sys.exit(main.run(["serve", "--data-dir", sys.argv[1], "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]))
"""


@pytest.mark.slow
def test_a_broker_is_ready_before_it_loads_what_it_may_never_be_asked_for(tmp_path: Path) -> None:
    said = subprocess.run([sys.executable, "-c", SERVE, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    loaded = set(said.stdout.split())
    assert "gateway.http_app" in loaded
    assert {name: when for name, when in LATER.items() if name in loaded} == {}


def test_the_commands_that_run_a_broker_stand_alone() -> None:
    assert {command.callback.__name__ for command in app.registered_commands if command.callback} == BROKER_COMMANDS
