"""Members of a group in any trouble: no two read the same at any instant, and soon after the last blow every partition is read.

A seed gives the same run: `python -m tests.metadata.integration.test_group_lives SEED…` says what happened in it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest

from metadata.errors import InconsistentProtocol, OutcomeUnknown, Unavailable
from metadata.groups.model import NO_MEMBER
from tests.kit.metadata.faulty_store import unavailable
from tests.kit.metadata.group_members import Reader, Team, with_team
from tests.kit.seeds import seeds
from tests.simulation.virtual_loop import virtual_loop

BLOWS = 60
# Of the longest: a member that crashed while it waited to join holds up one rebalance, and another one its assignment.
REST_S = 120.0
COOPERATIVE, EAGER = ("cooperative-sticky", "range"), ("range",)
KINDS: list[list[tuple[str, ...]]] = [
    [COOPERATIVE],
    [EAGER],
    [COOPERATIVE, EAGER],
    [("sticky",)],
    [("cooperative-sticky", "sticky"), ("sticky", "range")],
]


class Lives:
    def __init__(self, team: Team, *, shows: bool = False) -> None:
        self.team = team
        self.chance = team.chance
        self.kinds = self.chance.choice(KINDS)
        self.shows = shows
        self.instances = 0
        self.pending: list[Callable[[], None]] = []

    def enter(self, instance_id: str = "") -> None:
        if self.chance.random() < 0.3 and not instance_id:
            self.instances += 1
            instance_id = f"i{self.instances}"
        topics = self.chance.choice([("orders",), ("orders", "events"), ("events",)])
        reader = self.team.enter(
            *topics,
            instance_id=instance_id,
            assignors=self.chance.choice(self.kinds),
            max_poll_interval_ms=12_000,
            session_timeout_ms=self.chance.choice([6_000, 10_000]),
            topics_interval_ms=5_000,
        )
        self.note(f"{reader.name} enters as {instance_id or 'one of many'}, reads {topics}, offers {reader.settings.assignors}")

    def note(self, what: str) -> None:
        if self.shows:
            print(f"{virtual_loop().time():9.3f}  {what}")

    def one(self) -> Reader | None:
        live = [reader for reader in self.team.readers if reader.is_live and not reader.is_frozen]
        return self.chance.choice(live) if live else None

    async def blow(self) -> None:
        chance, reader = self.chance, self.one()
        if reader is None or chance.random() < 0.3:
            self.enter()
            return
        kind = chance.choice(
            [
                "stop",
                "cancel",
                "crash",
                "freeze",
                "cut",
                "deaf",
                "lose",
                "slow",
                "grow",
                "topics",
                "away",
                "move",
                "etcd",
                "restart",
            ]
        )
        self.note(f"{kind} {reader.name} {reader.member.member_id}")
        loop = virtual_loop()
        span_s = chance.choice([0.1, 1.0, 4.0, 9.0, 20.0])
        match kind:
            case "stop":
                reader.member.stop()
            case "cancel":
                assert reader.running is not None
                reader.running.cancel()
                await asyncio.wait([reader.running])
                reader.reading.clear()
                if chance.random() < 0.5:
                    await reader.member.leave()
            case "crash":
                reader.crash()
            case "restart" if reader.settings.instance_id:
                reader.crash()
                self.enter(reader.settings.instance_id)
            case "freeze":
                reader.is_frozen = True
                loop.freeze(reader.name)
                self.later(span_s, lambda: self.thaw(reader))
            case "cut":
                reader.endpoints.is_cut = True
                self.later(span_s, lambda: setattr(reader.endpoints, "is_cut", False))
            case "deaf":
                reader.endpoints.cut_answers = True
                self.later(span_s, lambda: setattr(reader.endpoints, "cut_answers", False))
            case "lose":
                error = chance.choice([Unavailable, OutcomeUnknown])("lost")
                reader.endpoints.refusals[chance.choice(["join", "sync", "heartbeat"])] = [error] * chance.randrange(1, 4)
            case "slow":
                reader.slow_s[chance.choice(["assigned", "revoked", "partition_counts"])] = chance.choice([0.0, 0.5, 3.0])
            case "grow":
                topic = chance.choice(list(self.team.counts))
                self.team.counts[topic] = min(9, self.team.counts[topic] + 1)
            case "topics":
                reader.topics = frozenset(chance.choice([("orders",), ("orders", "events")]))
                if chance.random() < 0.5:
                    reader.member.subscription_changed()
            case "away":
                reader.member.polled()
                self.later(20.0, reader.member.polls)
            case "move":
                await self.team.hand_over()
            case "etcd":
                link = self.team.coordinator.link
                match chance.choice(["down", "lost", "late"]):
                    case "down":
                        link.down = unavailable()
                        self.later(span_s, lambda: setattr(link, "down", None))
                    case "lost":
                        link.lose_answers = 1
                    case "late":
                        link.delay = 1

    def later(self, span_s: float, mend: Callable[[], None]) -> None:
        self.pending.append(mend)
        virtual_loop().call_later(span_s, self._mend, mend)

    def _mend(self, mend: Callable[[], None]) -> None:
        if mend in self.pending:
            self.pending.remove(mend)
            mend()

    def thaw(self, reader: Reader) -> None:
        virtual_loop().thaw(reader.name)
        virtual_loop().call_later(0.001, lambda: setattr(reader, "is_frozen", False))

    async def live(self) -> None:
        team = self.team
        team.counts["events"] = 3
        for _ in range(self.chance.randrange(1, 5)):
            self.enter()
        for _ in range(BLOWS):
            end_s = virtual_loop().time() + self.chance.choice([0.0, 0.01, 0.3, 1.0, 3.0, 8.0])
            while virtual_loop().time() < end_s:
                await asyncio.sleep(min(0.05, max(0.001, end_s - virtual_loop().time())))
                team.check()
            await self.blow()
        for mend in list(self.pending):
            self._mend(mend)
        for reader in team.readers:
            reader.slow_s.clear()
            reader.endpoints.refusals.clear()
        team.coordinator.link.lose_answers = team.coordinator.link.delay = 0
        self.kinds = self.kinds[:1]
        self.enter()
        self.note("all is well from here on")
        await team.rest(REST_S)
        for reader in team.readers:
            if reader.running is not None and reader.running.done() and not reader.running.cancelled():
                error = reader.running.exception()
                assert error is None or isinstance(error, InconsistentProtocol), error
                assert reader.member.member_id == NO_MEMBER or reader.settings.instance_id


def play(seed: int, *, shows: bool = False) -> None:
    async def scenario(team: Team) -> None:
        await Lives(team, shows=shows).live()

    with_team(scenario, seed=seed, shuffled=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(range(20), quick=5))
def test_no_two_read_the_same_at_any_instant_and_soon_after_the_last_blow_everything_is_read(seed: int) -> None:
    play(seed)


if __name__ == "__main__":
    for number in sys.argv[1:]:
        play(int(number), shows=True)
