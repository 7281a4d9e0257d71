"""Kafka Connect and MirrorMaker 2, as their users run them: in distributed mode, with their state in topics of the target."""

from __future__ import annotations

import functools
import json
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kafka_suites.java import VERSION, jars, java, tool
from tests.kafka_suites.process import Server, server
from tests.kafka_suites.python_probes import expect, new_topic
from tests.kafka_suites.reference_broker import reference_broker
from tests.kafka_suites.target import Suite, Target, runner
from tests.kit.servers import free_port

LINES = [f"line {number}" for number in range(300)]
START_TIMEOUT_S = 180.0
COPY_TIMEOUT_S = 180.0
HEAP = "300m"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "migrate.md"


def files(target: Target) -> None:
    """A file's lines reach a topic by a source and another file by a sink, also those that are added after a restart."""
    topic = new_topic(target)
    source, sink = target.directory / "source.txt", target.directory / "sink.txt"
    source.write_text(_text(LINES), encoding="utf-8")
    group = f"connect-{uuid.uuid4().hex}"
    with _connect(target, group) as (worker, url):
        for name, settings in (
            ("source", {"connector.class": "FileStreamSource", "topic": topic, "file": str(source)}),
            ("sink", {"connector.class": "FileStreamSink", "topics": topic, "file": str(sink)}),
        ):
            _request(f"{url}/connectors", {"name": name, "config": {**settings, "tasks.max": "1"}})
        worker.await_value(lambda: _has_lines(sink, LINES), "the sink's file", COPY_TIMEOUT_S)
        worker.process.terminate()
        worker.process.wait(60)
    more = [*LINES, "after the restart"]
    source.write_text(_text(more), encoding="utf-8")
    with _connect(target, group) as (worker, _):
        worker.await_value(lambda: _has_lines(sink, more), "the sink's file after a restart", COPY_TIMEOUT_S)


def mirror(target: Target, *, outwards: bool) -> None:
    """MirrorMaker 2 copies records and a group's offsets to or from Apache Kafka, as docs/guides/migrate.md sets it up."""
    kafka = target.directory / "kafka"
    kafka.mkdir()
    with reference_broker(kafka, heap="300m") as other:
        far = Target(other.bootstrap, on_kafka=True, brokers=1, directory=kafka)
        origin, copy = (target, far) if outwards else (far, target)
        topic = new_topic(origin)
        group = f"mirrored-{uuid.uuid4().hex}"
        _produce(origin, topic)
        expect(_consume(origin, topic, group), sorted(LINES))
        configuration = target.directory / "mirror.properties"
        configuration.write_text(_mirror_properties(origin, copy, topic, group), encoding="utf-8")
        command = java("org.apache.kafka.connect.mirror.MirrorMaker", str(configuration), heap=HEAP)
        with server(command, target.directory / "mirror.log") as maker:
            maker.await_value(lambda: _mirrored(copy, topic), "the copy", COPY_TIMEOUT_S)
            maker.await_value(lambda: _translated(copy, topic, group), "the group's offsets", COPY_TIMEOUT_S)


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _has_lines(file: Path, lines: list[str]) -> bool | None:
    return True if sorted(file.read_text(encoding="utf-8").splitlines()) == sorted(lines) else None


@contextmanager
def _connect(target: Target, group: str) -> Iterator[tuple[Server, str]]:
    """A worker in distributed mode that serves its REST interface, and the URL of that."""
    plugins = target.directory / "plugins"
    plugins.mkdir(exist_ok=True)
    jar = plugins / f"connect-file-{VERSION}.jar"
    if not jar.exists():
        jar.symlink_to(jars() / jar.name)
    url = f"http://127.0.0.1:{free_port()}"
    properties = {
        "bootstrap.servers": target.bootstrap,
        "group.id": group,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        **{f"{kind}.storage.topic": f"{group}-{kind}" for kind in ("offset", "config", "status")},
        **{f"{kind}.storage.replication.factor": "1" for kind in ("offset", "config", "status")},
        "offset.storage.partitions": "2",
        "status.storage.partitions": "1",
        "offset.flush.interval.ms": "1000",
        "listeners": url,
        "plugin.path": str(plugins),
        "scheduled.rebalance.max.delay.ms": "1000",
    }
    configuration = target.directory / "connect.properties"
    configuration.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), encoding="utf-8")
    command = java("org.apache.kafka.connect.cli.ConnectDistributed", str(configuration), heap=HEAP)
    with server(command, target.directory / "connect.log") as worker:
        # The root answers once the worker has joined its group and read its topics.
        worker.await_value(lambda: _request(f"{url}/connectors"), "Connect's REST interface", START_TIMEOUT_S)
        yield worker, url


def _request(url: str, body: object = None) -> object:
    """Raises OSError where the worker is not there, or refuses."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.load(answer)


def _mirror_properties(origin: Target, copy: Target, topic: str, group: str) -> str:
    """The file of docs/guides/migrate.md, with addresses and names of this test, and without its waits."""
    _, _, rest = GUIDE.read_text(encoding="utf-8").partition("```properties\n")
    here = {
        "origin.bootstrap.servers": origin.bootstrap,
        "copy.bootstrap.servers": copy.bootstrap,
        "origin->copy.topics": topic,
        "origin->copy.groups": group,
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
    }
    lines = rest.partition("```")[0].splitlines()
    properties = dict(line.split(" = ", 1) for line in lines if line and not line.startswith("#"))
    expect(sorted(here.keys() - properties.keys()), [])
    return "".join(f"{name} = {value}\n" for name, value in (properties | here).items())


def _produce(target: Target, topic: str) -> None:
    tool("org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", target.bootstrap, "--topic", topic, stdin=_text(LINES))


def _consume(target: Target, topic: str, group: str) -> list[str]:
    said = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", target.bootstrap, "--topic", topic, "--group", group, "--from-beginning"),
        *("--max-messages", str(len(LINES)), "--timeout-ms", "60000"),
    )
    return sorted(said.splitlines())


def _mirrored(copy: Target, topic: str) -> bool | None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer({"bootstrap.servers": copy.bootstrap, "group.id": "unused"})
    try:
        partitions = consumer.list_topics(topic, 10).topics[topic].partitions
        ends = [consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, number), 10)[1] for number in partitions]
        return True if sum(ends) == len(LINES) else None
    except confluent_kafka.KafkaException:
        return None
    finally:
        consumer.close()


def _translated(copy: Target, topic: str, group: str) -> bool | None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer({"bootstrap.servers": copy.bootstrap, "group.id": group})
    try:
        partitions = [confluent_kafka.TopicPartition(topic, number) for number in range(2)]
        committed = [max(each.offset, 0) for each in consumer.committed(partitions, 10)]
        return True if sum(committed) == len(LINES) else None
    except confluent_kafka.KafkaException:
        return None
    finally:
        consumer.close()


TESTS: dict[str, Callable[[Target], None]] = {
    "connect-files": files,
    "mirror-to-kafka": functools.partial(mirror, outwards=True),
    "mirror-from-kafka": functools.partial(mirror, outwards=False),
}
SUITE = Suite(jars, runner(TESTS))
