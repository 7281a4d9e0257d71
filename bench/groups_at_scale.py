"""Many consumer groups with live members on a cluster, and what brokers and etcd do for them in a while that is watched.

What is asked of etcd at rest, before there are groups, is taken off.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from bench.cluster import BROKERS, ServedCluster
from bench.figures import number, percentile
from bench.groups_client import Calls, Lived, live_in_groups
from bench.load import Until
from bench.run import Run
from gateway.groups.coordinator_lease import REFRESH_S

TOPIC = "records"
# Seconds that are watched for each second of a measurement.
WATCHED_PER_SECOND = 20.0
REST_S = 6.0
# Until each member has sent its heartbeat, and its first commit, which makes a key.
SETTLE_S = 6.0
# A little more than `group_metrics_interval_ms`: brokers read what is committed once for each group that they load.
CHECK_INTERVAL_S = 16.0
CHECKS_MAX = 6
POLL_S = 0.05


class Cpu(NamedTuple):
    """Seconds of it, or cores: who used how much."""

    brokers: float
    client: float
    etcd: float
    # All of these, and the other processes here.
    machine: float

    def __str__(self) -> str:
        others = max(0.0, self.machine - self.brokers - self.client - self.etcd)
        reported = (("brokers", self.brokers), ("client", self.client), ("etcd", self.etcd), ("others", others))
        return ", ".join(f"{who} {number(cores)}" for who, cores in reported) + f" of {os.cpu_count()} cores"


@dataclass(frozen=True, slots=True)
class Watched:
    joined_in_s: float
    # Of the calls that joins are made of.
    refused: str
    seconds: float
    heartbeats: Calls
    commits: Calls
    # Of etcd, by method.
    asked: Counter[str]
    # Requests to etcd, but for the one a second by which each broker that coordinates groups proves its view, however many.
    beyond_rest: float
    # Ranges of etcd before that, beyond rest: brokers read what each group has committed when they begin to coordinate it.
    read_once: int
    # With what they take at rest.
    cores: Cpu
    # Of all brokers together.
    cpu_cores_at_rest: float


def watch_groups(run: Run, served: ServedCluster, *, commits: bool) -> Watched:
    served.create_topic(TOPIC, 1)
    topic_id = served.topic_id(TOPIC)
    time.sleep(SETTLE_S)
    client = psutil.Process(run.client.run(os.getpid))
    before, cpu_s, started_s = served.etcd.requests(), served.cpu_seconds(), time.monotonic()
    time.sleep(REST_S)
    rest_s = time.monotonic() - started_s
    rest_per_second = (served.etcd.requests() - before).total() / rest_s
    cpu_cores_at_rest = (served.cpu_seconds() - cpu_s) / rest_s
    with run.new_directory("signals") as signals:
        ready, until = Until(signals / "ready"), Until(signals / "over")
        addresses = [broker.grpc_address for broker in served.brokers.values()]
        living = run.client.start(
            live_in_groups,
            addresses,
            TOPIC,
            topic_id,
            run.groups,
            every_s=run.heartbeat_every_s,
            commits=commits,
            ready=ready,
            until=until,
        )
        try:
            _wait_for(ready, living)
            time.sleep(SETTLE_S)
            read_once = _until_all_are_read(served, rest_per_second)
            before, used, started_s = served.etcd.requests(), _used(served, client), time.monotonic()
            time.sleep(run.seconds * WATCHED_PER_SECOND)
            ended_s = time.monotonic()
            seconds = ended_s - started_s
            asked, after = served.etcd.requests() - before, _used(served, client)
            time.sleep(SETTLE_S)  # the last calls are answered
        finally:
            until.end()
        lived = living.result()
    expected = (rest_per_second + len(BROKERS) / REFRESH_S) * seconds
    return Watched(
        lived.joined_in_s,
        lived.refused,
        seconds,
        lived.heartbeats.due_within(started_s, ended_s),
        lived.commits.due_within(started_s, ended_s),
        asked,
        max(0.0, asked.total() - expected),
        read_once,
        Cpu(*((later - sooner) / seconds for later, sooner in zip(after, used, strict=True))),
        cpu_cores_at_rest,
    )


def waits_note(calls: Calls) -> str:
    """In milliseconds, beside the figure that is the 99th percentile."""
    waited_ms, late_ms = list(calls.waited_s * 1000), list(calls.late_s * 1000)
    return (
        f"p50 {number(percentile(waited_ms, 50))}, longest {number(max(waited_ms))} ms, from when it was due; "
        f"of that the client itself was late by {number(percentile(late_ms, 50))} (p50), {number(percentile(late_ms, 99))} (p99)"
    )


def _used(served: ServedCluster, client: psutil.Process) -> Cpu:
    """So far."""
    machine = psutil.cpu_times()
    working = machine.user + machine.nice + machine.system + machine.irq + machine.softirq
    return Cpu(served.cpu_seconds(), _cpu_seconds(client), _cpu_seconds(psutil.Process(served.etcd.pid)), working)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _wait_for(ready: Until, living: Future[Lived]) -> None:
    while not ready.over:
        if living.done():
            living.result()  # raises what kept groups from being joined
        time.sleep(POLL_S)


def _until_all_are_read(served: ServedCluster, rest_per_second: float) -> int:
    """So many ranges were read."""
    total = 0
    for _ in range(CHECKS_MAX):
        before, started_s = served.etcd.requests(), time.monotonic()
        time.sleep(CHECK_INTERVAL_S)
        found = (served.etcd.requests() - before)["Range"]
        if found <= 2 * rest_per_second * (time.monotonic() - started_s):
            return total
        total += found
    raise RuntimeError(f"brokers still read ranges of etcd {CHECKS_MAX * CHECK_INTERVAL_S:g} s after all groups were joined")
