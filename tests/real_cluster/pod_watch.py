"""What becomes of the containers of a namespace: which exit codes they end with, and how often they were started again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.real_cluster.cluster import Cluster


@dataclass
class PodWatch:
    # By pod and container: the last one.
    exit_codes: dict[tuple[str, str], int] = field(default_factory=dict)
    restarts: dict[tuple[str, str], int] = field(default_factory=dict)

    def take(self, pod: dict[str, Any]) -> None:
        for each in pod["status"].get("containerStatuses", []):
            container = (pod["metadata"]["name"], each["name"])
            self.restarts[container] = each["restartCount"]
            for state in (each["lastState"], each["state"]):
                if "terminated" in state:
                    self.exit_codes[container] = state["terminated"]["exitCode"]


@contextmanager
def watched(cluster: Cluster, namespace: str) -> Iterator[PodWatch]:
    """It is whole when the block is left."""
    path = cluster.directory / f"pods-of-{namespace}.ndjson"
    command = ["kubectl", "--namespace", namespace, "get", "pods", "--watch", "--output", "json"]
    watch = PodWatch()
    with open(path, "wb") as seen:
        process = subprocess.Popen(command, env=cluster.environment, stdout=seen)
        try:
            yield watch
        finally:
            process.terminate()
            process.wait()
    for pod in objects_of(path.read_text(encoding="utf-8")):
        watch.take(pod)


def objects_of(text: str) -> Iterator[dict[str, Any]]:
    """JSON objects, one after the other; the last may be broken off."""
    decoder, at = json.JSONDecoder(), 0
    while (at := len(text) - len(text[at:].lstrip())) < len(text):
        try:
            each, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            return
        yield each
