"""Many consumer groups with live members on a cluster, and what brokers and etcd do for them in a while that is watched.

What is asked of etcd at rest, before there are groups, is taken off.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass

from bench.cluster import ServedCluster
from bench.groups_client import Calls, Lived, live_in_groups
from bench.load import Until
from bench.run import Run

GROUPS = 10_000
TOPIC = "records"
WATCHED_PER_SECOND = 20.0
"""Seconds that are watched for each second of a measurement."""
REST_S = 6.0
SETTLE_S = 6.0
"""Until each member has sent its heartbeat, and its first commit, which makes a key."""
LOOK_S = 16.0
"""A little more than `group_metrics_interval_ms`: brokers read what is committed once for each group that they load."""
LOOKS_MAX = 6
JOIN_S_MAX = 180.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Watched:
    joined_in_s: float
    seconds: float
    heartbeats: Calls
    commits: Calls
    asked: Counter[str]
    """Of etcd, by method."""
    beyond_rest: float
    """Requests to etcd."""
    read_once: int
    """Ranges of etcd before that, beyond rest: brokers read what each group has committed when they begin to coordinate it."""
    cpu_cores: float
    """Of all brokers together, with what they take at rest."""
    cpu_cores_at_rest: float


def watch_groups(run: Run, served: ServedCluster, groups: int, *, commits: bool) -> Watched:
    served.create_topic(TOPIC, 1)
    time.sleep(SETTLE_S)
    before, cpu_s, started_s = served.etcd.requests(), served.cpu_seconds(), time.monotonic()
    time.sleep(REST_S)
    rest_s = time.monotonic() - started_s
    rest_per_second = (served.etcd.requests() - before).total() / rest_s
    cpu_cores_at_rest = (served.cpu_seconds() - cpu_s) / rest_s
    with run.new_directory("signals") as signals:
        ready, until = Until(signals / "ready"), Until(signals / "over")
        addresses = [broker.grpc_address for broker in served.brokers.values()]
        living = run.client.start(live_in_groups, addresses, TOPIC, groups, commits=commits, ready=ready, until=until)
        try:
            _wait_for(ready, living)
            time.sleep(SETTLE_S)
            read_once = _until_all_are_read(served, rest_per_second)
            before, cpu_s, started_s = served.etcd.requests(), served.cpu_seconds(), time.monotonic()
            time.sleep(run.seconds * WATCHED_PER_SECOND)
            ended_s = time.monotonic()
            asked, cpu_cores = served.etcd.requests() - before, (served.cpu_seconds() - cpu_s) / (ended_s - started_s)
            time.sleep(SETTLE_S)  # the last calls are answered
        finally:
            until.end()
        lived = living.result()
    return Watched(
        lived.joined_in_s,
        ended_s - started_s,
        lived.heartbeats.due_within(started_s, ended_s),
        lived.commits.due_within(started_s, ended_s),
        asked,
        max(0.0, asked.total() - rest_per_second * (ended_s - started_s)),
        read_once,
        cpu_cores,
        cpu_cores_at_rest,
    )


def _wait_for(ready: Until, living: Future[Lived]) -> None:
    give_up_s = time.monotonic() + JOIN_S_MAX
    while not ready.over:
        if living.done():
            living.result()
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"after {JOIN_S_MAX:g} s not all groups were joined")
        time.sleep(POLL_S)


def _until_all_are_read(served: ServedCluster, rest_per_second: float) -> int:
    """So many ranges were read."""
    total = 0
    for _ in range(LOOKS_MAX):
        before, started_s = served.etcd.requests(), time.monotonic()
        time.sleep(LOOK_S)
        found = (served.etcd.requests() - before)["Range"]
        if found <= 2 * rest_per_second * (time.monotonic() - started_s):
            return total
        total += found
    raise RuntimeError(f"brokers still read ranges of etcd {LOOKS_MAX * LOOK_S:g} s after all groups were joined")
