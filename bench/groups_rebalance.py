"""A hundred members share a hundred partitions: how soon all know what they own, and that no member stops reading what stays."""

from __future__ import annotations

from bench.cluster import cluster
from bench.figures import Figure, Target, number
from bench.groups_members import Settled, rebalance
from bench.run import Run

MEMBERS = PARTITIONS = 100
ROUNDS = 3
STABLE_S_MAX = 3.0


def measure(run: Run, *, members: int = MEMBERS, rounds: int = ROUNDS) -> list[Figure]:
    with cluster(run, "groups-rebalance") as served:
        served.create_topic("records", PARTITIONS)
        measured = run.client.run(rebalance, served.urls, "records", PARTITIONS, members, rounds)
    started, left, came = ([round_[change] for round_ in measured] for change in range(3))
    joined_s = [settled.from_last_join_s for settled in started]
    changes = [*left, *came]
    return [
        Figure(
            f"{members} members that start at once: last join to all stable",
            max(joined_s),
            "s",
            Target(most=STABLE_S_MAX),
            f"rounds: {_listed(joined_s)} s; {PARTITIONS} partitions, cooperative-sticky; 0.5 s of it is waited for more members",
        ),
        _stable("one leaves: last join to all stable", left),
        _stable("one comes: last join to all stable", came),
        Figure(
            "partitions that stopped and did not move",
            sum(settled.stopped for settled in changes),
            "",
            Target(most=0),
            f"moved as one left: {', '.join(str(settled.moved) for settled in left)}; "
            f"as one came: {', '.join(str(settled.moved) for settled in came)}",
        ),
    ]


def _stable(what: str, rounds: list[Settled]) -> Figure:
    note = f"rounds: {_listed([settled.from_last_join_s for settled in rounds])} s"
    from_change_s = _listed([settled.from_change_s for settled in rounds])
    note += f"; from the change {from_change_s} s, since members learn of it at their next heartbeat, each 3 s"
    return Figure(what, max(settled.from_last_join_s for settled in rounds), "s", Target(most=STABLE_S_MAX), note)


def _listed(seconds: list[float]) -> str:
    return ", ".join(number(each) for each in seconds)
