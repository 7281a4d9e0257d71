"""Sends the same requests to the target and to Apache Kafka, in every version that both know, and compares the decoded answers.

    scenario ─▶ requests ─▶ target          ─▶ answers ┐
           └──▶ requests ─▶ reference broker ─▶ answers ┴─▶ what differs by nature left out ─▶ equal, or a finding

Two lists name what may differ: `BY_NATURE` holds fields whose values no two clusters share; `differences.txt` holds the rest, each
with its reason. Against Apache Kafka itself the answers must be equal without the second list.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from segments.records.batch import split_batches
from tests.kafka_suites.frames import Answer, ClusterFrames, request_class
from tests.kafka_suites.java import jars
from tests.kafka_suites.reference_broker import reference_broker
from tests.kafka_suites.results import Result
from tests.kafka_suites.target import Suite, Target, timed
from tests.kit.segments.batches import batch_of

DIFFERENCES = Path(__file__).with_name("differences.txt")
# Values that are different in any two clusters, or at any two times. What is left of them is their type.
BY_NATURE = frozenset(
    (
        *(
            "node_id",
            "leader_id",
            "controller_id",
            "replica_nodes",
            "isr_nodes",
            "broker_id",
            "coordinator_id",
            "host",
            "port",
            "rack",
        ),
        *("cluster_id", "topic_id", "member_id", "leader", "leader_epoch", "current_leader", "generation_id", "log_append_time_ms"),
        *("throttle_time_ms", "error_message", "message", "timestamp", "finalized_features_epoch", "session_id", "producer_id"),
        *("partition_leader_epoch", "preferred_read_replica", "coordinators.key"),
    )
)
SHOWN_MAX = 4
PARTITIONS = 2
APPEAR_TIMEOUT_S = 15.0
# What members of consumer groups exchange, version 0: no topics, no user data. Kafka does not answer a join that it cannot read.
SUBSCRIPTION = ASSIGNMENT = b"\x00\x00" + b"\x00\x00\x00\x00" + b"\xff\xff\xff\xff"
# Of every record that is written.
STAMP_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Difference:
    api: str
    # With `*` for any run of characters.
    path: str
    reason: str


@dataclass
class Side:
    """One of the two brokers, with what it called the things that both were asked to make."""

    frames: ClusterFrames
    topic: str
    topic_id: Any = None
    member_id: str = ""
    answers: list[tuple[str, Answer]] = field(default_factory=list)

    def ask(self, api: str, version: int, **fields: object) -> Answer:
        """Asks, and keeps the answer to be compared."""
        answer = self.frames.ask(api, version, **fields)
        self.answers.append((api, answer))
        return answer


Scenario = Callable[[Side, int], None]


def parse_differences(text: str) -> list[Difference]:
    """Reads lines `API PATH REASON`. ValueError where one has no reason."""
    found = []
    for line in text.splitlines():
        words = line.split(maxsplit=2)
        if words and not line.startswith("#"):
            if len(words) < 3:
                raise ValueError(f"a difference needs an API, a path and a reason: {line!r}")
            found.append(Difference(*words))
    return found


def differences(api: str, path: str, wanted: object, found: object) -> Iterator[tuple[str, str]]:
    """Yields path and description of each difference between two decoded answers. Lists of structs are matched by their order."""
    name = path.rpartition(".")[2].partition("[")[0]
    if name in BY_NATURE:
        return
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in sorted(wanted.keys() | found.keys()):
            yield from differences(api, f"{path}.{key}" if path else key, wanted.get(key), found.get(key))
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for number, (one, other) in enumerate(zip(wanted, found, strict=True)):
            yield from differences(api, f"{path}[{number}]", one, other)
    elif name == "records" and isinstance(wanted, bytes) and isinstance(found, bytes):
        if _without_epochs(wanted) != _without_epochs(found):
            yield path, "other batches than on Kafka"
    elif wanted != found:
        yield path, f"{str(found)[:80]}, and {str(wanted)[:80]} on Kafka"


def _without_epochs(records: bytes) -> list[bytes]:
    """Returns the batches without their leader epochs, of which each cluster has its own."""
    return [bytes(batch[:12]) + bytes(batch[16:]) for batch in split_batches(records)]


def unexplained(api: str, wanted: Answer, found: Answer, known: Sequence[Difference]) -> list[str]:
    return [
        f"{api} {path}: {what}"
        for path, what in differences(api, "", _ordered(wanted), _ordered(found))
        if not any(each.api == api and fnmatchcase(path, each.path) for each in known)
    ]


def _ordered(answer: Any) -> Any:
    """Lists whose order Kafka leaves open, sorted by their name."""
    if isinstance(answer, dict):
        return {key: _ordered(value) for key, value in answer.items()}
    if isinstance(answer, list):
        values = [_ordered(value) for value in answer]
        for key in ("name", "api_key", "partition_index", "partition", "key", "group_id"):
            if values and all(isinstance(value, dict) and key in value for value in values):
                return sorted(values, key=lambda value: value[key])
        return values
    return answer


# Scenarios: the API that they are named for is asked in every version.


def _batch() -> bytes:
    return batch_of(b"one", b"two", b"three", timestamps_ms=[STAMP_MS] * 3)


def api_versions(side: Side, version: int) -> None:
    side.ask("ApiVersions", version, **({"client_software_name": "frames", "client_software_version": "1"} if version >= 3 else {}))


def metadata(side: Side, version: int) -> None:
    asked = [{"name": side.topic}, {"name": "no such topic"}, {"name": "absent-" + side.topic}]
    _await_topic(side)
    side.ask("Metadata", version, topics=asked, **({"allow_auto_topic_creation": False} if version >= 4 else {}))


def create_topics(side: Side, version: int) -> None:
    def topic(name: str, **settings: Any) -> dict[str, Any]:
        return {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": [], **settings}

    name = f"created-{version}-{side.topic}"
    asked = [
        topic(name),
        topic("bad name"),
        topic(side.topic),
        topic(f"none-{name}", num_partitions=0),
        topic(f"config-{name}", configs=[{"name": "no.such.setting", "value": "1"}]),
    ]
    side.ask("CreateTopics", version, topics=asked, timeout_ms=10_000, validate_only=False)
    side.ask("DeleteTopics", 5, topic_names=[name, f"absent-{name}"], timeout_ms=10_000)


def produce(side: Side, version: int) -> None:
    _await_topic(side)

    def to(records: bytes, partition: int = 0) -> list[dict[str, Any]]:
        name = {"topic_id": side.topic_id} if version >= 13 else {"name": side.topic}
        return [{**name, "partition_data": [{"index": partition, "records": records}]}]

    broken = bytearray(_batch())
    broken[-1] ^= 1
    for data in (to(_batch()), to(_batch(), 99), to(bytes(broken))):
        side.ask("Produce", version, transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=data)
    side.ask("Produce", version, transactional_id=None, acks=2, timeout_ms=10_000, topic_data=to(_batch()))


def fetch(side: Side, version: int) -> None:
    _await_topic(side)
    _write(side)

    def of(offset: int, partition: int = 0) -> list[dict[str, Any]]:
        name = {"topic_id": side.topic_id} if version >= 13 else {"topic": side.topic}
        return [{**name, "partitions": [{"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}]}]

    for topics in (of(0), of(1), of(1_000_000), of(0, 99)):
        side.ask("Fetch", version, max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, isolation_level=0, topics=topics)


def list_offsets(side: Side, version: int) -> None:
    _await_topic(side)
    _write(side)
    stamps = [-1, -2, 0, STAMP_MS, STAMP_MS + 1, *([-3] if version >= 7 else []), -99]
    for stamp in stamps:
        asked = [{"name": side.topic, "partitions": [{"partition_index": number, "timestamp": stamp} for number in (0, 99)]}]
        side.ask("ListOffsets", version, replica_id=-1, topics=asked)


def find_coordinator(side: Side, version: int) -> None:
    group = f"group-{side.topic}"
    _ready_group(side, group)
    if version >= 4:
        side.ask("FindCoordinator", version, key_type=0, coordinator_keys=[group])
    else:
        side.ask("FindCoordinator", version, key=group, **({"key_type": 0} if version >= 1 else {}))


def groups(
    side: Side, version: int, *, protocol_type: str = "consumer", protocol: str = "range", metadata: bytes = SUBSCRIPTION
) -> None:
    """A member joins, synchronises, commits, fetches, beats and leaves; then it is unknown. A member of another type is refused."""
    group = f"{protocol_type}-{version}-{side.topic}"
    _ready_group(side, group)
    _await_topic(side)

    def join(member_id: str, kind: str = protocol_type) -> Answer:
        return side.ask(
            "JoinGroup",
            version,
            group_id=group,
            session_timeout_ms=10_000,
            **({"rebalance_timeout_ms": 10_000} if version >= 1 else {}),
            member_id=member_id,
            protocol_type=kind,
            protocols=[{"name": protocol, "metadata": metadata}],
        )

    joined = join("")
    if joined["error_code"] == 79:  # MEMBER_ID_REQUIRED, from version 4 on
        joined = join(joined["member_id"])
    member = {"group_id": group, "generation_id": joined["generation_id"], "member_id": joined["member_id"]}
    side.ask("SyncGroup", 3, **member, assignments=[{"member_id": joined["member_id"], "assignment": ASSIGNMENT}])
    side.ask("Heartbeat", 3, **member)
    side.ask("Heartbeat", 3, **{**member, "generation_id": 1_000})
    join("", "unheard-of")
    committed = [{"name": side.topic, "partitions": [{"partition_index": 0, "committed_offset": 2, "committed_metadata": "m"}]}]
    commit = {"group_id": group, "generation_id_or_member_epoch": joined["generation_id"], "member_id": joined["member_id"]}
    side.ask("OffsetCommit", 7, **commit, topics=committed)
    side.ask("OffsetFetch", 5, group_id=group, topics=[{"name": side.topic, "partition_indexes": [0, 1]}])
    side.ask("DescribeGroups", 4, groups=[group])
    _ready_group(side, f"absent-{group}")
    side.ask("DescribeGroups", 4, groups=[f"absent-{group}"])
    _ready_group(side, group)
    side.ask("LeaveGroup", 2, group_id=group, member_id=joined["member_id"])
    side.ask("Heartbeat", 3, **member)


def configs(side: Side, version: int) -> None:
    _await_topic(side)
    keys = ["retention.ms", "cleanup.policy", "max.message.bytes", "no.such.setting"]
    for name in (side.topic, f"absent-{side.topic}"):
        resource = {"resource_type": 2, "resource_name": name, "configuration_keys": keys}
        side.ask("DescribeConfigs", version, resources=[resource], **({"include_synonyms": False} if version >= 1 else {}))


def alter_configs(side: Side, version: int) -> None:
    for setting, value in (("retention.ms", "86400000"), ("retention.ms", "soon"), ("no.such.setting", "1")):
        change = {"name": setting, "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": side.topic, "configs": [change]}
        side.ask("IncrementalAlterConfigs", version, resources=[resource], validate_only=True)


def _await_topic(side: Side) -> None:
    """Returns once every partition has a leader, that of the first one answers, and the topic's id is known."""
    deadline = time.monotonic() + APPEAR_TIMEOUT_S
    while True:
        metadata = side.frames.ask("Metadata", 12, topics=[{"name": side.topic}], allow_auto_topic_creation=False)
        (topic,) = metadata["topics"]
        led = {each["partition_index"]: each["leader_id"] for each in topic["partitions"] if each["error_code"] == 0}
        if topic["error_code"] == 0 and len(led) == PARTITIONS:
            leader = next(broker for broker in metadata["brokers"] if broker["node_id"] == led[0])
            side.frames.lead(leader["host"], leader["port"])
            asked = [{"name": side.topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
            (listed,) = side.frames.ask("ListOffsets", 4, replica_id=-1, topics=asked, isolation_level=0)["topics"]
            if all(each["error_code"] == 0 for each in listed["partitions"]):
                side.topic_id = topic["topic_id"]
                return
        if time.monotonic() > deadline:
            raise AssertionError(f"the topic has no leader: {topic}")
        time.sleep(0.1)


def _ready_group(side: Side, group: str) -> None:
    """The group has a coordinator. Apache Kafka makes its topic of offsets at the first question."""
    deadline = time.monotonic() + APPEAR_TIMEOUT_S
    while True:
        answer = side.frames.ask("FindCoordinator", 3, key=group, key_type=0)
        if answer["error_code"] == 0:
            side.frames.coordinate(answer["host"], answer["port"])
            loaded = side.frames.ask("OffsetFetch", 5, group_id=group, topics=[])
            if loaded["error_code"] == 0:
                return
        if time.monotonic() > deadline:
            raise AssertionError(f"the group has no coordinator: {answer}")
        time.sleep(0.1)


def _write(side: Side) -> None:
    data = [{"name": side.topic, "partition_data": [{"index": 0, "records": _batch()}]}]
    answer = side.frames.ask("Produce", 9, transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=data)
    (partition,) = answer["responses"][0]["partition_responses"]
    if partition["error_code"] != 0:
        raise AssertionError(f"not written: {partition}")


SCENARIOS: dict[str, tuple[str, Scenario]] = {
    "ApiVersions": ("ApiVersions", api_versions),
    "Metadata": ("Metadata", metadata),
    "CreateTopics": ("CreateTopics", create_topics),
    "Produce": ("Produce", produce),
    "Fetch": ("Fetch", fetch),
    "ListOffsets": ("ListOffsets", list_offsets),
    "FindCoordinator": ("FindCoordinator", find_coordinator),
    "groups": ("JoinGroup", groups),
    # As registries of schemas elect a leader, and as Connect's workers share connectors: the broker reads nothing of theirs.
    "groups-sr": ("JoinGroup", partial(groups, protocol_type="sr", protocol="v0", metadata=b'{"host":"127.0.0.1"}')),
    "groups-connect": ("JoinGroup", partial(groups, protocol_type="connect", protocol="sessioned", metadata=b"\x00\x03")),
    "DescribeConfigs": ("DescribeConfigs", configs),
    "IncrementalAlterConfigs": ("IncrementalAlterConfigs", alter_configs),
}


def run_tests(target: Target, tests: Sequence[str]) -> Iterator[Result]:
    known = [] if target.on_kafka else parse_differences(DIFFERENCES.read_text(encoding="utf-8"))
    with reference_broker(target.directory) as reference:
        wanted = reference.bootstrap
        for test in tests:
            yield timed(test, lambda test=test: _compare(test, target.bootstrap, wanted, known))  # type: ignore[misc]


def _compare(test: str, found_at: str, wanted_at: str, known: Sequence[Difference]) -> None:
    api, scenario = SCENARIOS[test]
    findings: dict[str, str] = {}
    for version in _common_versions(api, found_at, wanted_at):
        topic = f"differential-{uuid.uuid4().hex}"
        wanted, found = (_answers(where, topic, scenario, version) for where in (wanted_at, found_at))
        if len(wanted) != len(found):
            findings.setdefault(f"{len(found)} answers, and {len(wanted)} of Kafka", f"v{version}")
        for (asked, one), (_, other) in zip(wanted, found, strict=False):
            for each in unexplained(asked, one, other, known):
                findings.setdefault(each, f"v{version}")
    if findings:
        shown = "; ".join(f"{version} {what}" for what, version in list(findings.items())[:SHOWN_MAX])
        raise AssertionError(f"{len(findings)} differences: {shown}")


def _answers(bootstrap: str, topic: str, scenario: Scenario, version: int) -> list[tuple[str, Answer]]:
    with closing(_connection(bootstrap)) as frames:
        asked = {"name": topic, "num_partitions": PARTITIONS, "replication_factor": 1, "assignments": [], "configs": []}
        frames.ask("CreateTopics", 4, topics=[asked], timeout_ms=10_000, validate_only=False)
        side = Side(frames, topic)
        try:
            scenario(side, version)
        except ConnectionError:
            side.answers.append(("connection", {"closed": True}))
        return side.answers


def _common_versions(api: str, *bootstraps: str) -> list[int]:
    """Versions that both brokers advertise and kafka-python can encode. None is a finding."""
    key, ranges = request_class(api).API_KEY, [(0, request_class(api).max_version)]
    for bootstrap in bootstraps:
        with closing(_connection(bootstrap)) as frames:
            advertised = frames.ask("ApiVersions", 0)["api_keys"]
        ranges += [(each["min_version"], each["max_version"]) for each in advertised if each["api_key"] == key] or [(0, -1)]
    # Produce below 3 is advertised for the sake of librdkafka, and refused.
    lowest = max(3 if api == "Produce" else 0, *(low for low, _ in ranges))
    versions = list(range(lowest, min(high for _, high in ranges) + 1))
    if not versions:
        raise AssertionError(f"no version of {api} is known to both")
    return versions


def _connection(bootstrap: str) -> ClusterFrames:
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    return ClusterFrames(host, int(port))


SUITE = Suite(jars, run_tests)
