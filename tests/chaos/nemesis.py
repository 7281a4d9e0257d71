"""Breaks a cluster on purpose: blows drawn from a seed, by two hands that go on by themselves.

    one hand   kill b2 ── rest ── etcd restart ── rest ── …        each heals its blow before it strikes again,
    the other  ── bucket stalls b1 ── rest ── …                    and leaves a broker alone that the other has struck

`plan` is pure: the same seed gives the same blows, though what they meet differs from run to run. Invariant: `strike` leaves the
cluster whole, whatever happens: no link is broken, no process is stopped or missing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple, get_args

from tests.chaos.cluster import BROKERS, SESSION_TIMEOUT_S, Broker, Cluster
from tests.chaos.history import Blow, Unexpected
from tests.kit.tcp_proxy import Fault, TcpProxy

Kind = Literal[
    "kill",
    "kill two",
    "pause past the lease",
    "short pause",
    "drain",
    "drain by command",
    "etcd refuses",
    "etcd stalls",
    "etcd requests lost",
    "etcd answers lost",
    "bucket refuses",
    "bucket stalls",
    "bucket requests lost",
    "bucket answers lost",
    "cut off from both",
    "slow links",
    "resets",
    "503 storm",
    "etcd restart",
    "etcd pause",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
# These have no single broker for their target.
OF_ALL_BROKERS: Final[frozenset[Kind]] = frozenset({"503 storm", "etcd restart", "etcd pause"})

LASTS_S: Final[dict[Kind, tuple[float, float]]] = {
    "kill": (0.0, 2 * SESSION_TIMEOUT_S),
    "kill two": (0.0, 2 * SESSION_TIMEOUT_S),
    "pause past the lease": (SESSION_TIMEOUT_S, 3 * SESSION_TIMEOUT_S),
    "short pause": (0.1, SESSION_TIMEOUT_S / 2),
    "drain": (0.0, 1.0),
    "etcd restart": (0.0, 2 * SESSION_TIMEOUT_S),
    "etcd pause": (0.1, 2 * SESSION_TIMEOUT_S),
}
OTHERS_LAST_S: Final = (0.3, 3 * SESSION_TIMEOUT_S)
REST_S: Final = (0.5, 3.0)
HANDS: Final = 2
SLOW_S: Final = 0.1
RESET_EVERY_S: Final = 0.2
UNDRAIN_TRIES: Final = 60
UNDRAIN_EVERY_S: Final = 0.5


class Planned(NamedTuple):
    kind: Kind
    # Empty where it strikes all.
    broker: str
    lasts_s: float
    # Afterwards.
    rest_s: float

    @property
    def targets(self) -> frozenset[str]:
        if not self.broker:
            return frozenset(BROKERS)
        if self.kind == "kill two":
            return frozenset({self.broker, BROKERS[(BROKERS.index(self.broker) + 1) % len(BROKERS)]})
        return frozenset({self.broker})


def plan(seed: int) -> Iterator[Planned]:
    """Blows without end: each kind once in every round, in an order that the seed says."""
    rng = random.Random(seed)
    while True:
        kinds = list(KINDS)
        rng.shuffle(kinds)
        for kind in kinds:
            broker = rng.choice(BROKERS)
            lasts_s, rest_s = rng.uniform(*LASTS_S.get(kind, OTHERS_LAST_S)), rng.uniform(*REST_S)
            yield Planned(kind, "" if kind in OF_ALL_BROKERS else broker, round(lasts_s, 2), round(rest_s, 2))


async def torment(cluster: Cluster, seed: int, *, for_s: float, say: Callable[[str], None]) -> None:
    """Blows until the time is over; what is under way is healed first."""
    end_s = asyncio.get_running_loop().time() + for_s
    struck: set[str] = set()
    async with asyncio.TaskGroup() as hands:
        for hand in range(HANDS):
            blows = plan(HANDS * seed + hand)
            hands.create_task(_strike_until(end_s, cluster, blows, struck, say), name=f"hand {hand} of the nemesis")


async def _strike_until(
    end_s: float, cluster: Cluster, blows: Iterator[Planned], struck: set[str], say: Callable[[str], None]
) -> None:
    """`struck`: the brokers that a hand holds now. A blow that would meet one of them is left out."""
    clock = asyncio.get_running_loop().time
    for blow in blows:
        if clock() >= end_s:
            return
        if not blow.targets & struck:
            struck |= blow.targets
            try:
                cluster.history.add(Blow(cluster.history.now_s, blow.kind, blow.broker, blow.lasts_s))
                say(f"{cluster.history.now_s:7.1f} s  {blow.kind} {blow.broker or 'everywhere'} for {blow.lasts_s} s")
                await strike(cluster, blow)
            finally:
                struck -= blow.targets
        await asyncio.sleep(blow.rest_s)


async def strike(cluster: Cluster, blow: Planned) -> None:
    struck = [broker for broker in cluster.brokers if broker.broker_id in blow.targets]
    match blow.kind:
        case "kill" | "kill two":
            await _kill(struck, blow.lasts_s)
        case "pause past the lease" | "short pause":
            await _pause(struck[0], blow.lasts_s)
        case "drain":
            await _drain(cluster, struck[0], blow.lasts_s)
        case "drain by command":
            await _drain_by_command(cluster, struck[0], blow.lasts_s)
        case "etcd restart":
            await _restart_etcd(cluster, blow.lasts_s)
        case "etcd pause":
            await _pause_etcd(cluster, blow.lasts_s)
        case "etcd refuses":
            await _break([struck[0].etcd], "refuses", blow.lasts_s)
        case "etcd stalls":
            await _break([struck[0].etcd], "stalls", blow.lasts_s)
        case "etcd requests lost":
            await _break([struck[0].etcd], "requests are lost", blow.lasts_s)
        case "etcd answers lost":
            await _break([struck[0].etcd], "answers are lost", blow.lasts_s)
        case "bucket refuses":
            await _break([struck[0].s3], "refuses", blow.lasts_s)
        case "bucket stalls":
            await _break([struck[0].s3], "stalls", blow.lasts_s)
        case "bucket requests lost":
            await _break([struck[0].s3], "requests are lost", blow.lasts_s)
        case "bucket answers lost":
            await _break([struck[0].s3], "answers are lost", blow.lasts_s)
        case "cut off from both":
            await _break([struck[0].etcd, struck[0].s3], "stalls", blow.lasts_s)
        case "503 storm":
            await _break([broker.s3 for broker in struck], "answers 503", blow.lasts_s)
        case "slow links":
            await _slow([struck[0].etcd, struck[0].s3], blow.lasts_s)
        case "resets":
            await _reset([struck[0].etcd, struck[0].s3], blow.lasts_s)


async def _kill(brokers: list[Broker], lasts_s: float) -> None:
    for broker in brokers:
        broker.kill()
    try:
        await asyncio.sleep(lasts_s)
    finally:
        for broker in brokers:
            broker.start()


async def _pause(broker: Broker, lasts_s: float) -> None:
    broker.pause()
    try:
        await asyncio.sleep(lasts_s)
    finally:
        broker.resume()


async def _drain(cluster: Cluster, broker: Broker, lasts_s: float) -> None:
    if broker.process is None or not broker.ready:  # one that still starts knows no drain
        return
    try:
        code = await broker.drain()
        if code != 0:
            what = "had to be killed" if code is None else f"ended with exit code {code}"
            cluster.history.add(Unexpected(cluster.history.now_s, broker.broker_id, f"after SIGTERM it {what}"))
        await asyncio.sleep(lasts_s)
    finally:
        if broker.process is not None:
            broker.kill()
        broker.start()


async def _drain_by_command(cluster: Cluster, broker: Broker, lasts_s: float) -> None:
    """Refused where no other broker takes partitions, and then nothing happens; who drains must be let in again."""
    await broker.order("drain")
    try:
        await asyncio.sleep(lasts_s)
    finally:
        for _ in range(UNDRAIN_TRIES):
            if await broker.order("undrain"):
                break
            await asyncio.sleep(UNDRAIN_EVERY_S)
        else:
            what = f"it could not be undrained in {UNDRAIN_TRIES} attempts"
            cluster.history.add(Unexpected(cluster.history.now_s, broker.broker_id, what))


async def _pause_etcd(cluster: Cluster, lasts_s: float) -> None:
    cluster.etcd.freeze()
    try:
        await asyncio.sleep(lasts_s)
    finally:
        cluster.etcd.thaw()


async def _restart_etcd(cluster: Cluster, lasts_s: float) -> None:
    await asyncio.to_thread(cluster.etcd.kill)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        await asyncio.to_thread(cluster.etcd.start)


async def _break(links: list[TcpProxy], fault: Fault, lasts_s: float) -> None:
    for link in links:
        link.break_(fault)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        for link in links:
            link.break_("none")


async def _slow(links: list[TcpProxy], lasts_s: float) -> None:
    for link in links:
        link.delay_s = SLOW_S
    try:
        await asyncio.sleep(lasts_s)
    finally:
        for link in links:
            link.delay_s = 0.0


async def _reset(links: list[TcpProxy], lasts_s: float) -> None:
    for _ in range(max(1, round(lasts_s / RESET_EVERY_S))):
        for link in links:
            link.reset()
        await asyncio.sleep(RESET_EVERY_S)
