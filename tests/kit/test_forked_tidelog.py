"""A forked `tidelog` is a process like one that was started: arguments, environment, folder, streams, signals, exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.forked_tidelog import TIDELOG, TidelogProcess, run_tidelog

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is not forked")]


def test_a_forked_tidelog_prints_and_exits_as_a_started_one() -> None:
    for arguments in (["--version"], ["consume"], ["topic", "list", "--url", "http://127.0.0.1:1"]):
        started = subprocess.run([*TIDELOG, *arguments], capture_output=True, check=False)
        forked = run_tidelog(arguments, timeout_s=60)
        assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)


def test_a_forked_tidelog_has_only_the_given_environment_and_folder(tmp_path: Path) -> None:
    """Settings come from the environment: an error about them shows which of them it has."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TIDELOG_URL": "http://127.0.0.1:1"}
    with TidelogProcess[bytes](
        [*TIDELOG, "topic", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=tmp_path
    ) as process:
        _, stderr = process.communicate(timeout=60)
    assert b"http://127.0.0.1:1" in stderr
    environment["TIDELOG_URL"] = "http://127.0.0.1:2"
    assert b"http://127.0.0.1:2" in run_tidelog(["topic", "list"], timeout_s=60, env=environment).stderr


def test_a_broker_serves_is_ours_and_ends_by_the_signal_that_it_gets(tmp_path: Path) -> None:
    command = [
        *TIDELOG,
        "dev",
        "-o",
        "json",
        "--data-dir",
        "d",
        "--http",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--kafka",
        "127.0.0.1:0",
    ]
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        with TidelogProcess[bytes](command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as broker:
            assert broker.stdout is not None
            assert json.loads(broker.stdout.readline())["bucket"] == f"file://{tmp_path}/d/bucket"
            assert f"\nPPid:\t{os.getpid()}\n" in Path(f"/proc/{broker.pid}/status").read_text()
            assert broker.poll() is None
            broker.send_signal(number)
            assert broker.wait(60) == code


@pytest.mark.parametrize("process_group", [None, 0])
def test_a_forked_tidelog_is_in_the_given_process_group(process_group: int | None) -> None:
    with TidelogProcess[bytes](
        [*TIDELOG, "produce", "orders"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, process_group=process_group
    ) as producer:
        given = os.getpgid(producer.pid)
        producer.kill()
    assert given == (os.getpgrp() if process_group is None else producer.pid)


def test_a_forked_process_reads_the_input_that_it_is_given() -> None:
    with TidelogProcess[bytes](
        [*TIDELOG, "produce", "orders", "--url", "http://127.0.0.1:1"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as producer:
        _, stderr = producer.communicate(b"a\n", timeout=60)
    assert producer.returncode == 1
    assert b"can't connect" in stderr
