"""10,000 consumer groups with live members on three brokers: heartbeats are answered from memory, and etcd hears of none.

What a call costs is told beside gRPC's own server for Python, which answers as many without looking at them (grpc_floor.py).
"""

from __future__ import annotations

from bench.cluster import BROKERS, cluster
from bench.figures import Figure, Target, number, percentile
from bench.groups_at_scale import GROUPS, watch_groups
from bench.groups_client import ANSWER_S_MAX, HEARTBEAT_EVERY_S, beat_at
from bench.grpc_floor import bare_servers
from bench.run import Run

PER_HEARTBEAT_MAX = 0.001
"""A renewal of a lease more or less falls into the time that is watched."""
FLOOR_PER_SECOND = 6.0
"""Seconds of the floor for each second of a measurement."""
OF_FLOOR_MAX = 1.5


def measure(run: Run, *, groups: int = GROUPS) -> list[Figure]:
    with cluster(run, "groups-heartbeat") as served:
        watched = watch_groups(run, served, groups, commits=False)
    beats = watched.heartbeats
    due = len(beats.due_s) + len(beats.failures)
    if not len(beats.due_s):
        raise RuntimeError(f"of {due:,} heartbeats none was answered; first: {beats.failures[0][1]}")
    us = (watched.cpu_cores - watched.cpu_cores_at_rest) * watched.seconds / len(beats.due_s) * 1e6
    floor_us = _floor_us(run, groups)
    waited_ms = list(beats.waited_s * 1000)
    return [
        Figure(
            "heartbeats lost",
            len(beats.failures),
            "",
            Target(most=0),
            f"of {due:,} that were due in {watched.seconds:.0f} s, not answered within {ANSWER_S_MAX:g} s or refused"
            + (f"; first: {beats.failures[0][1]}" if beats.failures else ""),
        ),
        Figure(
            "heartbeats answered",
            len(beats.due_s) / watched.seconds,
            "1/s",
            Target(least=0.999 * groups / HEARTBEAT_EVERY_S),
            f"{groups:,} groups on {len(BROKERS)} brokers, one each {HEARTBEAT_EVERY_S:g} s; joined in {watched.joined_in_s:.0f} s",
        ),
        Figure(
            "heartbeat, p99",
            percentile(waited_ms, 99),
            "ms",
            note=f"p50 {number(percentile(waited_ms, 50))}, longest {number(max(waited_ms))} ms, from when it was due",
        ),
        Figure(
            "requests to etcd for each heartbeat, beyond rest",
            watched.beyond_rest / due,
            "",
            Target(most=PER_HEARTBEAT_MAX),
            ", ".join(f"{method} {count:,}" for method, count in watched.asked.most_common())
            + f"; before, {watched.read_once:,} ranges, as groups were loaded",
        ),
        Figure(
            "CPU of a heartbeat, against gRPC's bare server",
            us / floor_us,
            "×",
            Target(most=OF_FLOOR_MAX),
            f"{number(us)} against {number(floor_us)} µs, of {len(BROKERS)} servers at the same pace, by the same client",
        ),
        Figure("CPU of the brokers together", watched.cpu_cores, "cores", note=f"{number(watched.cpu_cores_at_rest)} at rest"),
    ]


def _floor_us(run: Run, groups: int) -> float:
    """CPU of a bare server for each call."""
    with bare_servers(len(BROKERS)) as servers:
        before_s = sum(server.cpu_seconds() for server in servers)
        made = run.client.run(beat_at, [server.address for server in servers], groups, seconds=run.seconds * FLOOR_PER_SECOND)
        return (sum(server.cpu_seconds() for server in servers) - before_s) / len(made.due_s) * 1e6
