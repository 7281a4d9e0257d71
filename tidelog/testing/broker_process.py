"""Runs a broker as a child: `tidelog dev` (or `serve`) on a data directory, to be killed and started again on the same ports.

For the demo and the benchmarks. However the block round it ends, the child is ended, by its process id. It has a process group of
its own: Ctrl-C reaches the parent alone, which then ends it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from metadata.errors import Unavailable

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
LOG_BYTES_SHOWN = 2_000


class BrokerProcess:
    """A broker in a process of its own: `with BrokerProcess(directory) as broker: broker.start()`.

    Its files and its log are in the directory.
    """

    def __init__(
        self,
        directory: Path,
        *,
        flags: Sequence[str] = (),
        command: Literal["dev", "serve"] = "dev",
        module: str = "tidelog.cli.main",
        start_process: Callable[..., subprocess.Popen[Any]] = subprocess.Popen,
    ) -> None:
        """`flags` go to `tidelog COMMAND` as they are. `module` is run in its place. `start_process` takes what Popen takes."""
        self._module = module
        self._start_process = start_process
        self.data_dir = directory / "data"
        self.log_path = directory / "broker.log"
        self.http_address = self.grpc_address = "127.0.0.1:0"
        # Where Kafka clients connect: `dev` listens for them, `serve` where a flag says so.
        self.kafka_address = "127.0.0.1:0" if command == "dev" else ""
        self._flags = list(flags)
        self._command = command
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None
        # While it is down: bound to its ports.
        self._kept: list[socket.socket] = []

    @property
    def http_url(self) -> str:
        return f"http://{self.http_address}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker was never started"
        return self._process.pid

    def start(self, *, flags: Sequence[str] = ()) -> None:
        """Returns when it serves; after the first time, on the same ports. Unavailable, with what it said, if it does not.

        `flags` are for this life alone.
        """
        assert self._process is None or self._process.poll() is not None, "the broker runs already"
        command = [sys.executable, "-m", self._module, self._command, "-o", "json", "--data-dir", str(self.data_dir)]
        command += ["--http", self.http_address, "--grpc", self.grpc_address]
        if self.kafka_address:
            command += ["--kafka", self.kafka_address]
        command += [*self._flags, *flags]
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = self._start_process(
                command, env=surroundings(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, process_group=0
            )
        line = _first_line(self._process, timeout_s=START_TIMEOUT_S)
        if not line:
            self.kill()
            raise Unavailable(f"the broker did not start; it said: {self.said()}", hint=f"Run it yourself: tidelog {self._command}")
        addresses = json.loads(line)
        self.http_address, self.grpc_address = addresses["http_address"], addresses["grpc_address"]
        if self.kafka_address:
            self.kafka_address = addresses["kafka_address"]
        self._let_go_of_ports()

    def kill(self) -> None:
        """Kills the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._end(None)

    def stop(self) -> None:
        """Stops the broker with SIGTERM: it flushes and seals. Raises Unavailable, with its output, unless it ends cleanly."""
        assert self._process is not None, "the broker was never started"
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._end(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Unavailable(f"the broker did not stop within {STOP_TIMEOUT_S:g} s; it said: {self.said()}") from None
        if code != 0:
            raise Unavailable(f"the broker ended with exit code {code}; it said: {self.said()}")

    def _end(self, timeout_s: float | None) -> int:
        """Waits for the process to end, and returns its exit code. Raises subprocess.TimeoutExpired."""
        assert self._process is not None, "the broker was never started"
        code = self._process.wait(timeout_s)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._keep_ports()
        return code

    def _keep_ports(self) -> None:
        """Keeps the kernel from giving the ports away until the broker is started again.

        On Linux a bound socket that does not listen lets servers bind the port by number with SO_REUSEADDR.
        """
        self._let_go_of_ports()
        if sys.platform != "linux":
            return
        for address in filter(None, (self.http_address, self.grpc_address, self.kafka_address)):
            host, _, port = address.rpartition(":")
            kept = socket.socket()
            self._kept.append(kept)
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                kept.bind((host, int(port)))

    def _let_go_of_ports(self) -> None:
        while self._kept:
            self._kept.pop().close()

    def said(self) -> str:
        """Returns the end of its log since the last start."""
        return self.log_path.read_bytes()[self._log_start :][-LOG_BYTES_SHOWN:].decode(errors="replace").strip() or "(nothing)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.kill()
        self._let_go_of_ports()


def surroundings() -> dict[str, str]:
    """Returns the environment of a child process, with no settings of a broker, and no current folder on Python's path."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_")} | {"PYTHONSAFEPATH": "1"}


def _first_line(process: subprocess.Popen[bytes], *, timeout_s: float) -> bytes:
    """Returns the first line of the process's output; empty if it ended or printed nothing in time."""
    assert process.stdout is not None
    ends_s = time.monotonic() + timeout_s
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while b"\n" not in said:
            if not selector.select(max(0.0, ends_s - time.monotonic())):
                return b""
            if not (chunk := process.stdout.read1()):  # type: ignore[attr-defined]  # a pipe is buffered
                return b""
            said += chunk
    return said.partition(b"\n")[0]
