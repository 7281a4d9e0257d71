"""The groups of one simulated world: their settings, their topics, and the consumers that come and go."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from metadata.group_member.settings import MemberSettings
from tests.simulation.group_brokers import GroupBrokers, GroupSite
from tests.simulation.group_consumers import Consumer, ModelLog
from tests.simulation.kafka_members import KafkaConsumer, ReconcilingConsumer
from tests.simulation.simulated_process import Wire

MEMBERS_MAX: Final = 8
PARTITIONS_MAX: Final = 20
COOPERATIVE: Final = ("cooperative-sticky", "range")
# Groups that have Kafka members, and those of them whose members use the consumer protocol (KIP-848).
KAFKA: Final = 0.4
RECONCILING: Final = 0.5
ASSIGNORS: Final = (COOPERATIVE, COOPERATIVE, ("cooperative-sticky",), ("range",), ("sticky",), ("roundrobin", "range"))


class GroupOf(NamedTuple):
    """What all members of one group have in common."""

    name: str
    topics: Sequence[str]
    assignors: tuple[str, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    # How many of its members have an instance id.
    static: float
    # How many of its members speak Kafka's protocol.
    kafka: float = 0.0
    # Whether its members use the consumer protocol (KIP-848), all of them.
    reconciles: bool = False


class GroupLoad:
    def __init__(self, site: GroupSite, brokers: GroupBrokers, chance: random.Random, *, gentle: bool) -> None:
        topics = [f"t{number}" for number in range(chance.choice((1, 1, 2)))]
        self.log = ModelLog(
            {topic: chance.choice((1.0, 10.0, 100.0)) for topic in topics},
            {topic: chance.choice((1, 2, 5, PARTITIONS_MAX)) for topic in topics},
        )
        site.topics.counts = self.log.counts
        groups = [_group(f"g{number}", topics, chance, gentle) for number in range(chance.choice((1, 1, 2)))]
        groups = [_with_kafka(group, site) for group in groups]
        self.groups = {group.name: group for group in groups}
        self.consumers: list[Consumer] = []
        self._site = site
        self._brokers = brokers
        self._chance = chance
        for group in self.groups:
            for _ in range(chance.randint(1, 4)):
                self.join(group)

    # ── who is there ────────────────────────────────────────────────────────────────────────────────────────────────────

    def living(self, group: str | None = None) -> list[Consumer]:
        return [each for each in self.consumers if each.alive and not each.finished and group in (None, each.group)]

    def any(self) -> Consumer | None:
        living = self.living()
        return self._chance.choice(living) if living else None

    def any_static(self) -> Consumer | None:
        living = [each for each in self.living() if each.settings.instance_id]
        return self._chance.choice(living) if living else None

    def any_group(self) -> str:
        return self._chance.choice(list(self.groups))

    def some_lines(self) -> list[Wire]:
        """Of members, or between brokers."""
        if self._chance.random() < 0.2:
            return [broker.wire for broker in self._brokers.alive()]
        return [each.line.wire for each in self.living() if self._chance.random() < 0.5]

    def session_s(self, group: str) -> float:
        return self.groups[group].session_timeout_ms / 1000

    def rebalance_s(self, group: str) -> float:
        return self.groups[group].rebalance_timeout_ms / 1000

    def topics_of(self, group: str) -> Sequence[str]:
        return self.groups[group].topics

    def assignors_of(self, group: str) -> Sequence[str]:
        return self.groups[group].assignors

    @contextlib.contextmanager
    def in_a_hurry(self) -> Iterator[None]:
        """While it lasts, consumers commit whatever they hand out at once."""
        self.log.in_a_hurry += 1
        try:
            yield
        finally:
            self.log.in_a_hurry -= 1

    @contextlib.contextmanager
    def at_leisure(self) -> Iterator[None]:
        """While it lasts, consumers commit nothing but what they give up."""
        self.log.at_leisure += 1
        try:
            yield
        finally:
            self.log.at_leisure -= 1

    # ── who comes and goes ──────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, group: str | None = None, *, instance_id: str | None = None) -> None:
        of = self.groups[group or self.any_group()]
        if len(self.living(of.name)) >= MEMBERS_MAX:
            return
        number = len(self.consumers) + 1
        name = f"c{number}"
        if instance_id is None:
            instance_id = f"i{number}" if self._chance.random() < of.static else ""
        settings = MemberSettings(
            session_timeout_ms=of.session_timeout_ms,
            heartbeat_interval_ms=of.session_timeout_ms // self._chance.choice((3, 5, 10)),
            max_poll_interval_ms=of.rebalance_timeout_ms,
            assignors=of.assignors,
            instance_id=instance_id,
            client_id=name,
            topics_interval_ms=2_000,
        )
        self._site.note(f"{name} starts in {of.name} with {settings}")
        longest_s = of.rebalance_timeout_ms / 1000
        kind = Consumer
        if of.reconciles:
            kind = ReconcilingConsumer
        elif of.kafka and random.Random(f"{self._site.seed}/kafka/{name}").random() < of.kafka:
            kind = KafkaConsumer
        consumer = kind(name, self._site, self._brokers, self.log, settings, group=of.name, topics=of.topics, longest_s=longest_s)
        self.consumers.append(consumer)

    def leave(self) -> None:
        if (leaving := self.any()) is not None:
            self._site.note(f"{leaving.name} leaves")
            leaving.stop()

    def crash(self) -> None:
        if (victim := self.any()) is not None:
            self.kill(victim)

    def kill(self, victim: Consumer) -> None:
        self._site.note(f"{victim.name} is killed")
        victim.kill()
        if self._chance.random() < 0.7:  # else no peer is notified: its connections stand until their calls end
            for broker in self._brokers.processes:
                broker.drop_calls_of(victim.name)

    def grow(self) -> None:
        topic = self._chance.choice(sorted(self.log.counts))
        if self.log.counts[topic] < PARTITIONS_MAX:
            self.log.grow(topic)

    def calm_down(self) -> None:
        self.log.in_a_hurry += 1
        for consumer in self.living():
            consumer.line.wire.calm_down()
            consumer.is_slow = False
            consumer.thaw()
        for group in self.groups:
            if not self.living(group):
                self.join(group)


def _group(name: str, topics: Sequence[str], chance: random.Random, gentle: bool) -> GroupOf:
    session_s = chance.choice((2.0, 4.0, 6.0))
    return GroupOf(
        name,
        topics,
        chance.choice(ASSIGNORS),
        int(session_s * 1000),
        int(session_s * (3.0 if gentle else chance.choice((0.6, 1.0, 2.0))) * 1000),
        0.0 if gentle else chance.choice((0.0, 0.0, 0.5, 1.0)),
    )


def _with_kafka(group: GroupOf, site: GroupSite) -> GroupOf:
    """Gives a share of the groups Kafka members; the others are what they were."""
    chance = random.Random(f"{site.seed}/kafka/{group.name}")
    if chance.random() >= KAFKA:
        return group
    if chance.random() < RECONCILING:
        return group._replace(kafka=1.0, reconciles=True, session_timeout_ms=site.settings.group_consumer_session_timeout_ms)
    return group._replace(kafka=chance.choice((0.5, 1.0)))
