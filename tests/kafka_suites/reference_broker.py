"""Apache Kafka itself: one broker that is its own controller, on free ports of the loopback, with a log in a given folder."""

from __future__ import annotations

import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kafka_suites.java import java, tool
from tests.kit.servers import free_port

START_TIMEOUT_S = 120.0
HEAP = "400m"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# Every test suite here runs with these. Node id 0 and the session timeout are what kafka-python's suite expects.
PROPERTIES: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "0",
    "controller.listener.names": "CONTROLLER",
    "num.partitions": "4",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@dataclass(frozen=True, slots=True)
class ReferenceBroker:
    bootstrap: str
    pid: int


@contextmanager
def reference_broker(
    directory: Path,
    properties: Mapping[str, str] | None = None,
    *,
    listeners: Mapping[str, int] | None = None,
    heap: str = HEAP,
) -> Iterator[ReferenceBroker]:
    """A broker that serves. `properties` come before those of this module; `listeners` are ports by their security protocol."""
    port, controller_port = free_port(), free_port()
    configuration = directory / "server.properties"
    addresses = ",".join(f"{name}://127.0.0.1:{number}" for name, number in ({"PLAINTEXT": port} | dict(listeners or {})).items())
    lines = {
        **PROPERTIES,
        "controller.quorum.voters": f"0@127.0.0.1:{controller_port}",
        "listeners": f"{addresses},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": addresses,
        # Kafka knows by itself that its controller speaks plain text only where no other listener is secured.
        "listener.security.protocol.map": ",".join(("CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in PROTOCOLS))),
        "log.dirs": str(directory / "kafka-log"),
        **(properties or {}),
    }
    configuration.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
    cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    tool("kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", str(configuration))
    log = directory / "kafka.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            java("kafka.Kafka", str(configuration), heap=heap, warm=True), stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
    try:
        _await_listener(port, process, log)
        yield ReferenceBroker(f"127.0.0.1:{port}", process.pid)
    finally:
        process.kill()
        process.wait()


def _await_listener(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            said = log.read_text(errors="replace")[-1500:]
            assert process.poll() is None, f"Apache Kafka ended with exit code {process.returncode}: {said}"
            assert time.monotonic() < deadline, f"Apache Kafka does not listen after {START_TIMEOUT_S:g} s: {said}"
            time.sleep(0.1)
