"""Tidelog with its Kafka listener, as a target of the suites: `tidelog serve` processes on a real etcd and a real S3 server.

`tidelog_flags` is the one place that knows the names of the Kafka settings.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kafka_suites.reference_broker import PROPERTIES
from tests.kit.etcd_server import running_etcd
from tests.kit.servers import ROOT, chosen_s3_server, free_port

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.1
PREFIX = "kafka-suites"


@dataclass(frozen=True, slots=True)
class TidelogCluster:
    # Of every broker, separated by commas.
    bootstrap: str
    pids: tuple[int, ...]


def tidelog_flags(kafka_port: int) -> dict[str, str]:
    """The settings of the Kafka listener that the suites need, as flags of `tidelog serve`."""
    address = f"127.0.0.1:{kafka_port}"
    return {
        "kafka": address,
        "advertise-kafka": address,
        "kafka-auto-create-topics": "true",
        "kafka-auto-create-partitions": PROPERTIES["num.partitions"],
        "group-session-timeout-ms-min": PROPERTIES["group.min.session.timeout.ms"],
    }


@contextmanager
def start_tidelog(directory: Path, *, brokers: int = 3) -> Iterator[TidelogCluster]:
    """Brokers that serve, on free ports of the loopback; their logs lie in `directory`. They are drained in the end."""
    with ExitStack() as parts:
        s3 = parts.enter_context(chosen_s3_server(directory))
        etcd = parts.enter_context(running_etcd(directory))
        bucket = f"s3://{s3.make_bucket()}/{PREFIX}?endpoint={s3.endpoint_url}&region=us-east-1"
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("TIDELOG_", "AWS_"))
        } | s3.environment
        ports = [free_port() for _ in range(brokers)]
        processes = []
        for number, port in enumerate(ports):
            flags = {
                "bucket": bucket,
                "etcd": etcd.url,
                "broker-id": f"b{number}",
                "http": f"127.0.0.1:{free_port()}",
                "grpc": f"127.0.0.1:{free_port()}",
                "data-dir": str(directory / f"b{number}"),
                "compact": "true",
                "output": "ndjson",
                **tidelog_flags(port),
            }
            processes.append(_start(directory / f"b{number}.log", flags, environment))
            parts.callback(_stop, processes[-1])
        for number, process in enumerate(processes):
            _await_ready(process, directory / f"b{number}.log")
        yield TidelogCluster(",".join(f"127.0.0.1:{port}" for port in ports), tuple(process.pid for process in processes))


def _start(log: Path, flags: dict[str, str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "tidelog.cli.main", "serve", *words]
    with log.open("wb") as said, log.with_suffix(".ready").open("wb") as ready:
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=ready, stderr=said, env=environment)


def _await_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while log.with_suffix(".ready").stat().st_size == 0:
        said = log.read_text(errors="replace")[-1500:]
        if process.poll() is not None:
            raise RuntimeError(f"the broker ended with exit code {process.returncode}: {said}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"the broker is not ready after {START_TIMEOUT_S:g} s: {said}")
        time.sleep(POLL_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
