"""10,000 consumer groups with live members on three brokers: heartbeats are answered from memory, and etcd hears of none.

What a call costs is shown beside gRPC's own server for Python, which answers as many without reading them (grpc_floor.py), and so
is how many it answers at full speed on these cores with this client: no broker in Python answers more.
"""

from __future__ import annotations

from typing import NamedTuple

from bench.cluster import BROKERS, cluster
from bench.figures import Figure, Target, number, percentile
from bench.groups_at_scale import waits_note, watch_groups
from bench.groups_client import ANSWER_S_MAX, beat_at, beat_at_full_speed
from bench.grpc_floor import bare_servers
from bench.run import Run

# A renewal of a lease more or less falls into the time that is watched.
PER_HEARTBEAT_MAX = 0.001
# Seconds of the floor for each second of a measurement.
FLOOR_PER_SECOND = 6.0
FULL_SPEED_PER_SECOND = 2.0
OF_FLOOR_MAX = 1.5


class _Floor(NamedTuple):
    # CPU of a bare server for each call, at the pace of the heartbeats.
    us: float
    # Calls that bare servers answer at full speed.
    per_second: float


def measure(run: Run) -> list[Figure]:
    with cluster(run, "groups-heartbeat") as served:
        watched = watch_groups(run, served, commits=False)
    beats = watched.heartbeats
    due = len(beats.due_s) + len(beats.failures)
    if not len(beats.due_s):
        raise RuntimeError(f"of {due:,} heartbeats none was answered: {beats.refusals}")
    us = (watched.cores.brokers - watched.cpu_cores_at_rest) * watched.seconds / len(beats.due_s) * 1e6
    floor = _floor(run)
    wanted = run.groups / run.heartbeat_every_s
    return [
        Figure(
            "heartbeats lost",
            len(beats.failures),
            "",
            Target(most=0),
            f"of {due:,} that were due in {watched.seconds:.0f} s, not answered within {ANSWER_S_MAX:g} s or refused"
            + (f": {beats.refusals}" if beats.failures else ""),
        ),
        Figure(
            "heartbeats answered",
            len(beats.due_s) / watched.seconds,
            "1/s",
            Target(least=0.999 * wanted),
            f"{run.groups:,} groups on {len(BROKERS)} brokers, one each {run.heartbeat_every_s:g} s; joined in "
            f"{watched.joined_in_s:.0f} s, meanwhile {watched.refused}",
        ),
        Figure("heartbeat, p99", percentile(list(beats.waited_s * 1000), 99), "ms", note=waits_note(beats)),
        Figure(
            "requests to etcd for each heartbeat, beyond rest",
            watched.beyond_rest / due,
            "",
            Target(most=PER_HEARTBEAT_MAX),
            ", ".join(f"{method} {count:,}" for method, count in watched.asked.most_common())
            + f", one Range a second by each broker whatever the number of groups; before, {watched.read_once:,} ranges",
        ),
        Figure(
            "CPU of a heartbeat, against gRPC's bare server",
            us / floor.us,
            "×",
            Target(most=OF_FLOOR_MAX),
            f"{number(us)} against {number(floor.us)} µs, of {len(BROKERS)} servers at the same pace, by the same client",
        ),
        Figure(
            "these heartbeats, against what bare servers answer",
            wanted / floor.per_second,
            "×",
            note=f"{number(wanted)} of {number(floor.per_second)} a second that {len(BROKERS)} bare servers answer at full speed, "
            f"the client on the same cores; above 1, {run.groups:,} groups need a longer interval, or more cores",
        ),
        Figure(
            "CPU of the brokers together",
            watched.cores.brokers,
            "cores",
            note=f"{number(watched.cpu_cores_at_rest)} at rest; {watched.cores}",
        ),
    ]


def _floor(run: Run) -> _Floor:
    with bare_servers(len(BROKERS)) as servers:
        addresses = [server.address for server in servers]
        before_s = sum(server.cpu_seconds() for server in servers)
        made = run.client.run(beat_at, addresses, run.groups, every_s=run.heartbeat_every_s, seconds=run.seconds * FLOOR_PER_SECOND)
        us = (sum(server.cpu_seconds() for server in servers) - before_s) / len(made.due_s) * 1e6
        return _Floor(us, run.client.run(beat_at_full_speed, addresses, seconds=run.seconds * FULL_SPEED_PER_SECOND))
