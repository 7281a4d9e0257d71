"""Tidelog with its Kafka listener, as a target of the suites: `tidelog serve` processes on a real etcd and a real S3 server.

`tidelog_flags` is the one place that knows the names of the Kafka settings.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
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


class Broker:
    """One `tidelog serve` process, which can be killed and started again on the same ports and data."""

    def __init__(self, log: Path, flags: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._log = log
        self._flags = flags
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process. `await_ready` says when it serves."""
        words = [word for name, value in self._flags.items() for word in (f"--{name}", value)]
        command = [sys.executable, "-m", "tidelog.cli.main", "serve", *words]
        with self._log.open("ab") as said, self._ready.open("wb") as ready:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=ready, stderr=said, env=self._environment
            )

    def await_ready(self) -> None:
        """Raises RuntimeError where the process ends, or does not serve in time."""
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._ready.stat().st_size == 0:
            said = self._log.read_text(errors="replace")[-1500:]
            if self._process.poll() is not None:
                raise RuntimeError(f"the broker ended with exit code {self._process.returncode}: {said}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the broker is not ready after {START_TIMEOUT_S:g} s: {said}")
            time.sleep(POLL_S)

    def kill(self) -> None:
        """SIGKILL. Raises RuntimeError where the process has ended by itself."""
        assert self._process is not None
        if self._process.poll() is not None:
            said = self._log.read_text(errors="replace")[-1500:]
            raise RuntimeError(f"the broker ended with exit code {self._process.returncode}: {said}")
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, which drains it; SIGKILL where that takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def _ready(self) -> Path:
        return self._log.with_suffix(".ready")


@dataclass(frozen=True, slots=True)
class TidelogCluster:
    # Of every broker, separated by commas.
    bootstrap: str
    brokers: tuple[Broker, ...]
    # URL of the bucket, and the variables with its credentials.
    bucket: str
    environment: Mapping[str, str]


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
def start_tidelog(directory: Path, *, brokers: int = 3, settings: Mapping[str, str] | None = None) -> Iterator[TidelogCluster]:
    """Brokers that serve, on free ports of the loopback; their logs lie in `directory`. They are drained in the end.

    `settings` are flags that come before those of this module.
    """
    with ExitStack() as parts:
        s3 = parts.enter_context(chosen_s3_server(directory))
        etcd = parts.enter_context(running_etcd(directory))
        bucket = f"s3://{s3.make_bucket()}/{PREFIX}?endpoint={s3.endpoint_url}&region=us-east-1"
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("TIDELOG_", "AWS_"))
        } | s3.environment
        ports = [free_port() for _ in range(brokers)]
        running = []
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
                **(settings or {}),
            }
            broker = Broker(directory / f"b{number}.log", flags, environment)
            parts.callback(broker.stop)
            broker.start()
            running.append(broker)
        for broker in running:
            broker.await_ready()
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        yield TidelogCluster(bootstrap, tuple(running), bucket, s3.environment)
