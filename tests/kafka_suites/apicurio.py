"""Apicurio Registry, which keeps schemas in a Kafka topic, unmodified, and confluent-kafka's Avro clients with it.

    AvroSerializer ─▶ Apicurio's Confluent-compatible API ─▶ kafkasql-journal, a topic of the target ─▶ any other Apicurio
         └─▶ records in a topic ─▶ AvroDeserializer

3.0.9 is the newest release that runs on Java 17.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kafka_suites.cache import cached, check_hash, run, unpack
from tests.kafka_suites.process import Server, server
from tests.kafka_suites.python_probes import eventually, expect, new_topic
from tests.kafka_suites.target import Suite, Target, runner
from tests.kit.servers import free_port

VERSION = "3.0.9"
ARCHIVE = f"apicurio-registry-app-{VERSION}-all.tar.gz"
SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
# What confluent-kafka's clients of a registry need besides, with the hash of each file.
REQUIREMENTS = Path(__file__).with_name("apicurio_requirements.txt")
PROBE = Path(__file__).with_name("avro_probe.py")
START_TIMEOUT_S = 180.0
PROBE_TIMEOUT_S = 120.0
HEAP = "400m"
SCHEMA = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "distance", "type": "int"}],
}
# The same with a field that has a default, so that readers of both may be served.
WIDER = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "tailnum", "type": "string", "default": ""}]}


def registry() -> Path:
    return cached(f"apicurio-{VERSION}", _download)


def _download(folder: Path) -> None:
    coordinates = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
    run(["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={coordinates}", f"-DoutputDirectory={folder}"], cwd=folder)
    check_hash(folder / ARCHIVE, SHA256)
    unpack(folder / ARCHIVE, folder)
    (folder / ARCHIVE).unlink()


def packages() -> Path:
    pinned = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    return cached(f"avro-{pinned}-{sys.implementation.cache_tag}", _install)


def _install(folder: Path) -> None:
    options = ["--quiet", "--no-deps", "--require-hashes", "--target", str(folder), "-r", str(REQUIREMENTS)]
    run([sys.executable, "-m", "pip", "install", *options], cwd=folder)


def prepare() -> None:
    registry()
    packages()


@contextmanager
def running(target: Target, journal: str, name: str) -> Iterator[tuple[Server, str]]:
    """A registry whose schemas lie in the topics `journal…`, and the URL of its Confluent-compatible API."""
    port = free_port()
    settings = {
        "quarkus.http.port": str(port),
        "quarkus.http.host": "127.0.0.1",
        "apicurio.storage.kind": "kafkasql",
        "apicurio.kafkasql.bootstrap.servers": target.bootstrap,
        "apicurio.kafkasql.topic": journal,
        "apicurio.kafkasql.snapshots.topic": f"{journal}-snapshots",
        "apicurio.events.kafka.topic": f"{journal}-events",
    }
    flags = [f"-D{key}={value}" for key, value in settings.items()]
    jar = registry() / f"apicurio-registry-app-{VERSION}-runner.jar"
    with server(["java", f"-Xmx{HEAP}", "-XX:TieredStopAtLevel=1", *flags, "-jar", str(jar)], target.directory / name) as process:
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        process.await_value(lambda: ask(f"{url}/subjects"), "Apicurio's API", START_TIMEOUT_S)
        yield process, url


def ask(url: str, body: object = None) -> Any:
    """Returns the decoded answer. Raises OSError where the registry is not there, or refuses."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/vnd.schemaregistry.v1+json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.load(answer)


def register(url: str, subject: str, schema: object) -> int:
    answer = ask(f"{url}/subjects/{subject}/versions", {"schema": json.dumps(schema), "schemaType": "AVRO"})
    return int(answer["id"])


def schema_of(url: str, number: int) -> object:
    """Returns the schema with this id, or None where the registry does not know it yet."""
    try:
        return json.loads(ask(f"{url}/schemas/ids/{number}")["schema"])
    except urllib.error.HTTPError as refusal:
        if refusal.code != 404:
            raise
        return None


def schemas(target: Target) -> None:
    """A second registry on the same topic learns of what the first registers, and so does one that starts when both were killed."""
    journal, subject = f"journal-{uuid.uuid4().hex}", "flights-value"
    with running(target, journal, "first.log") as (first, url), running(target, journal, "second.log") as (_, other):
        numbers = [register(url, subject, SCHEMA), register(url, subject, WIDER)]
        expect(register(url, subject, SCHEMA), numbers[0])
        expect([schema_of(url, number) for number in numbers], [SCHEMA, WIDER])
        eventually(lambda: [schema_of(other, number) for number in numbers], [SCHEMA, WIDER])
        numbers.append(register(other, "airports-value", SCHEMA["fields"][0]["type"]))  # type: ignore[index]  # a list of dicts
        eventually(lambda: schema_of(url, numbers[2]), "string")
        first.kill()
    with running(target, journal, "third.log") as (_, url):
        eventually(lambda: [schema_of(url, number) for number in numbers], [SCHEMA, WIDER, "string"])
        expect(sorted(ask(f"{url}/subjects")), ["airports-value", subject])
        expect(ask(f"{url}/subjects/{subject}/versions"), [1, 2])


def avro(target: Target) -> None:
    """confluent-kafka's Avro producer registers its schema, and its consumer finds the schema by the id in each record."""
    topic = new_topic(target)
    with running(target, f"journal-{uuid.uuid4().hex}", "registry.log") as (_, url):
        done = subprocess.run(
            [sys.executable, str(PROBE), target.bootstrap, url, topic, json.dumps(SCHEMA)],
            cwd=target.directory,
            env={**os.environ, "PYTHONPATH": str(packages()), "NO_PROXY": "127.0.0.1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise AssertionError(f"the probe ended with {done.returncode}: {done.stderr[-600:]}")
        expect(ask(f"{url}/subjects"), [f"{topic}-value"])


TESTS: dict[str, Callable[[Target], None]] = {"schemas": schemas, "avro": avro}
SUITE = Suite(prepare, runner(TESTS))
