"""A cluster of Kubernetes on this machine, and around it what Tidelog needs: a bucket, and an etcd."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.etcd_server import WHEEL
from tests.real_cluster.control_plane import ADDRESS, ControlPlane
from tests.real_cluster.node import Node, address
from tests.real_cluster.processes import Failed, Processes

NODES = 2
GATEWAY = "10.250.0.1"
ADDRESSES = tuple(address(number) for number in range(NODES))
BUCKET = "logs"
S3_ENDPOINT = f"http://{ADDRESS}:9000"
S3_KEYS = {"access-key-id": "proof", "secret-access-key": "proof-secret"}
ETCD_ENDPOINT = f"http://{ADDRESS}:12379"


@dataclass(frozen=True, slots=True)
class Cluster:
    directory: Path
    programs: Path
    versity: str
    processes: Processes

    def start(self, archives: list[Path]) -> None:
        control = ControlPlane(self._made("control"), self.programs, self.processes)
        nodes = [Node(number, self.directory / f"node-{number}", control) for number in range(NODES)]
        control.prepare([node.name for node in nodes])
        self._start_stores()
        control.start()
        self.processes.until(lambda: self._says("ok", "get", "--raw", "/readyz"), "the API server")
        for node in nodes:
            node.start()
        for node in nodes:
            node.take(archives)
        self.processes.until(self._nodes_are_ready, "nodes that are ready")

    def _made(self, name: str) -> Path:
        made = self.directory / name
        made.mkdir(parents=True)
        return made

    def _start_stores(self) -> None:
        stored = self._made("s3")
        (stored / BUCKET).mkdir()
        keys = {"ROOT_ACCESS_KEY": S3_KEYS["access-key-id"], "ROOT_SECRET_KEY": S3_KEYS["secret-access-key"]}
        gateway: list[str | Path] = [self.versity, "--port", f"{ADDRESS}:9000", "--quiet", "posix", stored]
        self.processes.start("s3", gateway, os.environ | keys)
        etcd: list[str | Path] = [
            WHEEL / "etcd",
            f"--data-dir={self._made('etcd')}",
            f"--listen-client-urls={ETCD_ENDPOINT}",
            f"--advertise-client-urls={ETCD_ENDPOINT}",
            "--listen-peer-urls=http://127.0.0.1:12380",
            "--initial-advertise-peer-urls=http://127.0.0.1:12380",
            "--initial-cluster=default=http://127.0.0.1:12380",
            "--log-level=error",
        ]
        self.processes.start("etcd-of-tidelog", etcd)

    @property
    def environment(self) -> dict[str, str]:
        """Of kubectl and helm."""
        own = {"KUBECONFIG": str(self.directory / "control" / "admin.kubeconfig"), "HOME": str(self.directory)}
        return {**os.environ, **own, "PATH": f"{self.programs}:{os.environ['PATH']}"}

    def run(self, *command: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=self.environment, input=given, capture_output=True, text=True)

    def kubectl(self, *arguments: str, given: str = "") -> str:
        """What it prints. Raises Failed where it fails."""
        return self.done("kubectl", *arguments, given=given)

    def helm(self, *arguments: str) -> str:
        return self.done("helm", *arguments)

    def done(self, *command: str, given: str = "") -> str:
        done = self.run(*command, given=given)
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def apply(self, each: Mapping[str, Any]) -> None:
        self.kubectl("apply", "--filename", "-", given=json.dumps(each))

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", *arguments, "--output", "json"))["items"]
        return found

    def _says(self, expected: str, *arguments: str) -> bool:
        return self.run("kubectl", *arguments).stdout.strip() == expected

    def _nodes_are_ready(self) -> bool:
        done = self.run("kubectl", "get", "nodes", "--output", "json")
        if done.returncode != 0:
            return False
        conditions = [each for node in json.loads(done.stdout)["items"] for each in node["status"]["conditions"]]
        return [each["status"] for each in conditions if each["type"] == "Ready"] == ["True"] * NODES
