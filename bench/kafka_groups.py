"""Measures what group members and idle connections of the Kafka listener cost a broker. Its clients need no Java.

    heartbeats    one classic group on each connection; each connection sends a Heartbeat when it has the answer to the last one
    commits       the same with OffsetCommit, six partitions each
    paced         the same with pauses between rounds, so that the broker wakes up for each round
    idle          connections that have asked for ApiVersions and Metadata, as a client does, and then send nothing

CPU is user and system time of one broker's process. Its metadata are in an etcd, whose CPU does not count.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import psutil

from bench.cluster import cluster
from bench.figures import Figure, Target, median, spread
from bench.kafka_client import COMMIT_VERSION, HEARTBEAT_VERSION, KEYS, KafkaConnection, connection, message
from bench.run import Run
from tests.kit.gateway.kafka_codec import INSTALLED

TOPIC, PARTITIONS = "kafka-groups", 6
GROUPS, ROUNDS = 100, 3
IDLE_CONNECTIONS = 5_000
JOIN_VERSION, SYNC_VERSION, API_VERSIONS_VERSION, METADATA_VERSION = 5, 3, 3, 9
SESSION_TIMEOUT_MS = 45_000
MEMBER_ID_REQUIRED = 79
PAUSE_S = 0.1
SETTLE_S = 2.0


class Calls(NamedTuple):
    """Counts the calls of a load, and the time that they took."""

    calls: int
    cpu_s: float
    wall_s: float

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.calls * 1e6


class Member(NamedTuple):
    """The one member of a group, on its own connection."""

    broker: KafkaConnection
    group_id: str
    member_id: str
    generation_id: int

    @property
    def identity(self) -> dict[str, str]:
        return {"group_id": self.group_id, "member_id": self.member_id}


def measure(run: Run) -> list[Figure]:
    with cluster(run, "kafka-groups", broker_ids=("b1",), flags=("--compact", "false"), kafka=True) as served:
        served.create_topic(TOPIC, PARTITIONS)
        broker, figures = served.brokers["b1"], list[Figure]()
        address = broker.kafka_address
        for what, name, most in (("Heartbeat", "Heartbeat", 60.0), ("OffsetCommit of 6", "OffsetCommit", 110.0)):
            for pause_s, how in ((0.0, "saturated"), (PAUSE_S, "paced")):
                rounds = [run.client.run(call_all, address, broker.pid, name, run.seconds, pause_s) for _ in range(ROUNDS)]
                costs = [calls.cpu_us for calls in rounds]
                rate = median([calls.calls / calls.wall_s for calls in rounds])
                note = f"{spread(costs)}; {rate:,.0f} a second, {GROUPS} groups"
                figures.append(Figure(f"{what}, {how}", median(costs), "µs", Target(most=most), note))
        kib, cpu = run.client.run(idle_cost, address, broker.pid, IDLE_CONNECTIONS, run.seconds)
        figures.append(Figure("an idle connection", kib, "KiB", Target(most=4), f"{IDLE_CONNECTIONS:,} connections"))
        figures.append(Figure(f"{IDLE_CONNECTIONS:,} idle connections", cpu, "% of a core"))
        return figures


# ── in the clients' process ─────────────────────────────────────────────────────────────────────────────────────────────


def call_all(address: str, pid: int, name: str, seconds: float, pause_s: float) -> Calls:
    """Sends the call of each member again as soon as it is answered, or all of them once in `pause_s`.

    Raises RuntimeError for a call that was refused.
    """
    with ExitStack() as ending:
        members = joined([ending.enter_context(connection(address)) for _ in range(GROUPS)])
        frames = [_frame(name, member) for member in members]
        watched = psutil.Process(pid)
        begun_s, cpu_s = time.perf_counter(), _cpu_s(watched)
        count = 0
        while time.perf_counter() < begun_s + seconds:
            for member, frame in zip(members, frames, strict=True):
                member.broker.send_frame(frame)
            for member in members:
                _check(name, member.broker)
            count += len(members)
            time.sleep(pause_s)
        return Calls(count, _cpu_s(watched) - cpu_s, time.perf_counter() - begun_s)


def joined(brokers: Sequence[KafkaConnection]) -> list[Member]:
    """Joins a new group on each connection, as its only member: all at once, since an empty group waits for further members.

    Raises RuntimeError if a broker refuses it.
    """
    names = [f"group-{os.getpid()}-{time.monotonic_ns()}-{number}" for number in range(len(brokers))]
    member_ids = [""] * len(brokers)
    for expected in (MEMBER_ID_REQUIRED, 0):
        for each, group_id, member_id in zip(brokers, names, member_ids, strict=True):
            each.send("JoinGroup", JOIN_VERSION, _join(group_id, member_id))
        answers = [each.receive("JoinGroup", JOIN_VERSION) for each in brokers]
        _check_errors("JoinGroup", [answer.error_code for answer in answers], expected)
        member_ids = [answer.member_id for answer in answers]
    members = [
        Member(broker, group_id, answer.member_id, answer.generation_id)
        for broker, group_id, answer in zip(brokers, names, answers, strict=True)
    ]
    for member in members:
        assignment = message("SyncGroupRequestAssignment", member_id=member.member_id, assignment=b"")
        request = message("SyncGroupRequest", **member.identity, generation_id=member.generation_id, assignments=[assignment])
        member.broker.send("SyncGroup", SYNC_VERSION, request)
    _check_errors("SyncGroup", [member.broker.receive("SyncGroup", SYNC_VERSION).error_code for member in members], 0)
    return members


def _join(group_id: str, member_id: str) -> Any:
    return message(
        "JoinGroupRequest",
        group_id=group_id,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        rebalance_timeout_ms=SESSION_TIMEOUT_MS,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[message("JoinGroupRequestProtocol", name="range", metadata=b"")],
    )


def idle_cost(address: str, pid: int, count: int, seconds: float) -> tuple[float, float]:
    """Returns the KiB of memory of a connection, and the percentage of a core that all of them take."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    watched = psutil.Process(pid)
    with ExitStack() as ending:
        for _ in range(count // 10):  # what the first connections make once
            _greet(ending.enter_context(connection(address)))
        before = watched.memory_info().rss
        opened = [ending.enter_context(connection(address)) for _ in range(count)]
        for each in opened:
            _greet(each)
        time.sleep(SETTLE_S)
        kib = (watched.memory_info().rss - before) / count / 1024
        cpu_s = _cpu_s(watched)
        time.sleep(seconds)
        return kib, (_cpu_s(watched) - cpu_s) / seconds * 100


def _greet(broker: KafkaConnection) -> None:
    versions = message("ApiVersionsRequest", client_software_name="bench", client_software_version="1")
    broker.ask("ApiVersions", API_VERSIONS_VERSION, versions)
    metadata = message("MetadataRequest", topics=[message("MetadataRequestTopic", name=TOPIC)])
    broker.ask("Metadata", METADATA_VERSION, metadata)


def _frame(name: str, member: Member) -> bytes:
    if name == "Heartbeat":
        request = message("HeartbeatRequest", **member.identity, generation_id=member.generation_id)
        return INSTALLED.encode_request_frame(KEYS[name], request, HEARTBEAT_VERSION, 1, "bench")
    partitions = [message("OffsetCommitRequestPartition", partition_index=index, committed_offset=0) for index in range(PARTITIONS)]
    topics = [message("OffsetCommitRequestTopic", name=TOPIC, partitions=partitions)]
    request = message("OffsetCommitRequest", **member.identity, generation_id_or_member_epoch=member.generation_id, topics=topics)
    return INSTALLED.encode_request_frame(KEYS[name], request, COMMIT_VERSION, 1, "bench")


def _check(name: str, broker: KafkaConnection) -> None:
    """Returns once the answer is there. Raises RuntimeError if it has an error."""
    if name == "Heartbeat":
        _check_errors(name, [broker.receive(name, HEARTBEAT_VERSION).error_code], 0)
    else:
        _check_errors(name, _errors(broker.receive(name, COMMIT_VERSION).topics), 0)


def _check_errors(name: str, codes: Sequence[int], expected: int) -> None:
    if other := set(codes) - {expected}:
        raise RuntimeError(f"the broker answered {name} with errors {sorted(other)}")


def _errors(topics: Sequence[Any]) -> list[int]:
    return [partition.error_code for topic in topics for partition in topic.partitions]


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
