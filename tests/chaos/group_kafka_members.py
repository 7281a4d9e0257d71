"""A consumer group of stock Kafka clients, confluent-kafka, in a chaos run. Those of the SDK are in group_members.py.

    one of MEMBERS ─▶ a life ─▶ it leaves, or stops to poll for longer than max.poll.interval.ms ─▶ another life ─▶ …

Until `enough` is set; then the members that live stay, and read on. A member commits what was processed and no more.
"""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.chaos.history import Assigned, Committed, GaveUp, HandedOut, History, Lived, Processed, Unexpected
from tests.chaos.kafka_workload import MESSAGES_PER_TURN, POLL_S, SETTINGS, errors, excused, runs
from tests.chaos.workload import TOPIC

GROUP: Final = "kafka-group"
MEMBERS: Final = 2
LIFE_S: Final = (10.0, 50.0)
STALLED_CHANCE: Final = 0.3
SESSION_TIMEOUT_MS: Final = 6_000
MAX_POLL_INTERVAL_MS: Final = 8_000
STALLED_S: Final = 12.0
COMMIT_EVERY_S: Final = 0.5
# The longest that a member works on what it got.
WORK_S: Final = 0.05
# librdkafka's own form of the metadata of a member: this, then its generation.
METADATA_MAGIC: Final = b"CGMDv2:"

# Errors that a new generation or an ended session explains. The next owner continues from the committed offsets.
_STALE: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError._NO_OFFSET,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._DESTROY,
        KafkaError._STATE,
    }
)


class KafkaMember:
    """One life after the other. `run` until it is cancelled."""

    def __init__(
        self, name: str, bootstrap: str, history: History, *, seed: int, enough: asyncio.Event, assignor: str = "range"
    ) -> None:
        self.name = name
        self._history = history
        self._rng = random.Random(seed)
        self._enough = enough
        own = {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "max.poll.interval.ms": MAX_POLL_INTERVAL_MS,
            "heartbeat.interval.ms": 1_000,
            "partition.assignment.strategy": assignor,
        }
        self._settings = {**SETTINGS, **own}

    async def run(self) -> None:
        lives = 0
        while True:
            life = _Life(f"{self.name}.{lives}", self._settings, self._history, self._rng)
            stalled, began_s = False, self._history.now_s
            try:
                await self._read_on(life)
                if self._rng.random() < STALLED_CHANCE:
                    stalled = True
                    await asyncio.sleep(STALLED_S)
            finally:
                await asyncio.to_thread(life.end)
                self._history.add(Lived(self._history.now_s, began_s, GROUP, life.member, stalled))
            lives += 1

    async def _read_on(self, life: _Life) -> None:
        ends_s = self._history.now_s + self._rng.uniform(*LIFE_S)
        while self._enough.is_set() or self._history.now_s < ends_s:
            await life.turn()
            await asyncio.sleep(POLL_S)


class _Life:
    """One consumer, from its first poll to its end."""

    def __init__(self, member: str, settings: dict[str, object], history: History, rng: random.Random) -> None:
        self.member = member
        self._history = history
        self._rng = rng
        self._owned: set[int] = set()
        # Polled, and not handed out yet.
        self._polled: list[Message] = []
        # The end of what was handed out and is not processed yet, by partition.
        self._in_hand: dict[int, int] = {}
        # The end of what was processed and is not committed yet, by partition.
        self._uncommitted: dict[int, int] = {}
        self._commit_at_s = 0.0
        # One commit at a time: librdkafka repeats a commit whose answer is lost, also after later ones, and the offset goes back.
        self._is_committing = False
        self._consumer = Consumer({**settings, "client.id": member, "on_commit": self._committed})
        self._consumer.subscribe([TOPIC], on_assign=self._assigned, on_revoke=self._gave_up, on_lost=self._gave_up)

    async def turn(self) -> None:
        """Works on what is there. No callback runs while it works, so it owns what it was handed out."""
        while len(self._polled) < MESSAGES_PER_TURN and (message := self._consumer.poll(0)) is not None:
            if _is_stale(message.error()):
                continue
            self._polled.append(message)
        if self._polled:
            self._hand_out()
            await asyncio.sleep(self._rng.uniform(0.0, WORK_S))
            self._process()
        if self._uncommitted and not self._is_committing and self._history.now_s >= self._commit_at_s:
            self._commit()

    def _hand_out(self) -> None:
        messages, self._polled = self._polled, []
        for partition, records in runs(messages):
            generation = generation_of(self._consumer)
            self._history.add(HandedOut(self._history.now_s, GROUP, self.member, generation, partition, records))
            self._in_hand[partition] = records[-1][0] + 1
        for why in errors(messages):
            self._history.add(Unexpected(self._history.now_s, self.member, why))

    def _process(self) -> None:
        for partition, end in self._in_hand.items():
            self._history.add(Processed(self._history.now_s, GROUP, self.member, partition, end))
            self._uncommitted[partition] = end
        self._in_hand = {}

    def _commit(self) -> None:
        self._commit_at_s = self._history.now_s + COMMIT_EVERY_S
        offsets = [TopicPartition(TOPIC, partition, offset) for partition, offset in self._uncommitted.items()]
        self._uncommitted = {}
        self._is_committing = True
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._is_committing = False
            self._refused(error.args[0], offsets)

    def end(self) -> None:
        """Leaves the group, and waits for that."""
        self._consumer.close()
        self._give_up(self._owned.copy())

    # ── callbacks of the client, while it is polled or closed ──

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._finish()
        numbers = tuple(each.partition for each in partitions)
        self._owned.update(numbers)
        self._history.add(Assigned(self._history.now_s, GROUP, self.member, generation_of(self._consumer), numbers))

    def _gave_up(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._finish()
        self._give_up({each.partition for each in partitions})

    def _finish(self) -> None:
        """Works on what was polled before the partitions change: the client does not deliver it again."""
        self._hand_out()
        self._process()

    def _give_up(self, numbers: set[int]) -> None:
        if numbers:
            self._owned -= numbers
            self._uncommitted = {number: end for number, end in self._uncommitted.items() if number not in numbers}
            self._history.add(GaveUp(self._history.now_s, GROUP, self.member, tuple(sorted(numbers))))

    def _committed(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        self._is_committing = False
        if error is not None:
            self._refused(error, offsets)
            return
        taken = tuple((each.partition, each.offset) for each in offsets if each.error is None)
        if taken:
            self._history.add(Committed(self._history.now_s, GROUP, self.member, taken))
        for each in offsets:
            if each.error is not None:
                self._refused(each.error, [each])

    def _refused(self, error: KafkaError, offsets: list[TopicPartition]) -> None:
        """Commits the partitions that the member keeps again: no record may come that would lead to another commit of them."""
        for each in offsets:
            if each.partition in self._owned:
                self._uncommitted.setdefault(each.partition, each.offset)
        if not _is_stale(error) and not excused(error):
            self._history.add(Unexpected(self._history.now_s, self.member, f"commit: {error}"))


def _is_stale(error: KafkaError | None) -> bool:
    return error is not None and error.code() in _STALE


def generation_of(consumer: Consumer) -> int:
    """Returns the generation that the client is in; below 0 where it is in none."""
    metadata = bytes(consumer.consumer_group_metadata())
    assert metadata.startswith(METADATA_MAGIC), f"this librdkafka writes the metadata of members in another form: {metadata!r}"
    generation: int = struct.unpack_from("=i", metadata, len(METADATA_MAGIC))[0]
    return generation
