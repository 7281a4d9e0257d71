"""API keys and ACLs of a world of routes: an administrator who creates them and takes them back, and guests who use them on.

    steady     the principal of the other clients; its key and its ACL hold all the time
    guests     two principals whose keys are revoked and whose ACLs are removed while they write and read

Guests show keys that were revoked a while ago, too, at any broker. What they are answered goes to the judge (access_judge.py), with
the revision and the time of each change.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import NamedTuple

from gateway.proto import log_pb2
from gateway.proto.status import from_status
from metadata.access.acl import Acl, Operation
from metadata.access.registry import AccessRegistry
from metadata.errors import TidelogError
from metadata.model import Partition, Revision, TopicPartition
from metadata.secret import Secret
from metadata.store.interface import MetadataStore
from metadata.topics.topic import Topic
from segments.bucket.layout import parse_wal_key
from segments.records.columns import encode_records
from tests.simulation.access_judge import AccessFacts, Asked, Moment, Right, Span, judge
from tests.simulation.bucket_reader import BucketContents, parse_record_value, record_value
from tests.simulation.history_checker import AnsweredTogether, Fetched, Invariant, RecordId, Sent, SentTogether, Violation
from tests.simulation.listener_calls import HttpCall, streamed
from tests.simulation.route_clients import DENIALS, RouteClient, RouteClients, authorization
from tests.simulation.route_cluster import RouteCluster
from tests.simulation.route_streams import ConsumeStream, EventStream, RouteStream
from tests.simulation.routed_broker import AccessTerms, RoutedBroker
from tests.simulation.virtual_loop import virtual_loop

PRODUCE_STREAM = "/tidelog.v1.Log/ProduceStream"
STEADY = "steady"
GUESTS = ("guest1", "guest2")
OPERATIONS: tuple[Operation, ...] = ("read", "write")
AGES_S = (0.4, 0.8, 1.6)
# How long a stream of a guest lives, unless it is refused.
STREAM_S = 4.0
# Revoked keys that guests go on to show.
REVOKED_SHOWN = 3
# Until every broker serves a key that holds, once all trouble has passed.
SERVED_AGAIN_S = 20.0


class GuestKey(NamedTuple):
    key_id: str
    principal: str
    # As it stands in `authorization`.
    shown: str


class RouteAccess:
    """The administrator of one world, and what the judge needs."""

    def __init__(self, seed: int, metadata: MetadataStore, cluster: RouteCluster, topic_name: str) -> None:
        self._chance = random.Random(f"{seed}/access")
        self._cluster = cluster
        self.topic_name = topic_name
        self.facts = AccessFacts(self._chance.choice(AGES_S))
        self.terms = AccessTerms(self.facts.age_s, Secret(self._chance.randbytes(32).hex()))
        self._records = AccessRegistry(metadata, now_ms=virtual_loop().now_ms, random_bytes=self._chance.randbytes)
        self._valid: dict[str, list[GuestKey]] = {principal: [] for principal in GUESTS}
        self._revoked: list[GuestKey] = []
        self._sessions: dict[int, str] = {}
        self.revocations = 0

    async def begin(self) -> str:
        """Returns what clients show whose key and rights hold all the time."""
        await self._records.add_acl(Acl(principal=STEADY, operation="all", resource="topic", name="*"))
        steady = await self._records.create_key(STEADY)
        for principal in GUESTS:
            self._valid[principal] = [await self._new_key(principal)]
            for operation in OPERATIONS:
                await self._give(Right(principal, operation, self.topic_name))
        return f"Bearer {steady.text.reveal()}"

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Changes keys and ACLs until then."""
        pace_s = self._chance.choice((0.1, 0.3, 0.8))
        while not is_over():
            await asyncio.sleep(self._chance.expovariate(1 / pace_s))
            await self._change()

    async def _change(self) -> None:
        principal = self._chance.choice(GUESTS)
        right = Right(principal, self._chance.choice(OPERATIONS), self.topic_name)
        match self._chance.choice(("key", "key", "right")):
            case "key":
                self._valid[principal].append(await self._new_key(principal))
                while len(self._valid[principal]) > self._chance.choice((1, 1, 2)):
                    await self._revoke(self._valid[principal].pop(0))
            case _:
                await (self._take(right) if self._holds(right) else self._give(right))

    def guests(self, tasks: asyncio.TaskGroup, clients: RouteClients) -> list[asyncio.Task[None]]:
        """Begins the administrator and the guests. They end when the clients finish, but for those returned: cancel these then."""
        tasks.create_task(self.run(lambda: clients.finishing))
        for number, guest in enumerate((GuestPoster, GuestReader, GuestStreamWriter)):
            tasks.create_task(guest(clients, self, f"guest{number}").run())
        stream = self._chance.choice((GuestConsume, GuestEvents))
        return [tasks.create_task(stream(clients, self, "guest stream").run())]

    async def unserved(self, clients: RouteClients) -> list[Violation]:
        """Returns the brokers that go on refusing a key that holds, though all trouble has passed."""
        found = []
        until_s = virtual_loop().time() + SERVED_AGAIN_S
        for broker_id in list(self._cluster.slots):
            refusal = await self._refusal(broker_id, clients.shown)
            while refusal is not None and virtual_loop().time() < until_s:
                await asyncio.sleep(0.2)
                refusal = await self._refusal(broker_id, clients.shown)
            if refusal is not None:
                why = f"{broker_id} refuses a key that holds, long after all trouble: {refusal.code}: {refusal.message}"
                found.append(Violation(Invariant.AUTHORIZED, why))
        return found

    async def _refusal(self, broker_id: str, shown: str) -> TidelogError | None:
        broker = self._cluster.slots[broker_id]
        assert isinstance(broker, RoutedBroker)
        call = HttpCall("GET", "", [(b"accept", b"application/json"), (b"authorization", shown.encode())])
        try:
            await broker.ask(lambda: broker.read_partition(call, self.topic_name, 0), latency_s=0.001, timeout_s=5.0, hang_up=True)
        except TidelogError as error:
            return error
        return None

    def any_key(self, chance: random.Random) -> GuestKey:
        """One of any guest, which may be revoked."""
        if self._revoked and chance.random() < 0.5:
            return chance.choice(self._revoked[-REVOKED_SHOWN:])
        return chance.choice(self._valid[chance.choice(GUESTS)])

    def note(self, asked: Asked) -> None:
        """Takes down what a guest saw."""
        if asked.position is not None:
            for broker in self._cluster.routed:
                if not broker.ended and (session := broker.leadership.session) is not None:
                    self._sessions[session] = broker.name
        self.facts.asked.append(asked)

    @property
    def tallies(self) -> dict[str, int]:
        """What happened, to see that it was worth the while."""
        served = [asked for asked in self.facts.asked if not asked.refused]
        return {
            "keys and rights taken back": self.revocations,
            "guests' requests served": len(served),
            "guests' requests denied": len(self.facts.asked) - len(served),
        }

    def judged(self, contents: BucketContents) -> list[Violation]:
        """Returns what broke `authorized`."""
        for broker in self._cluster.routed:
            reported, facts = broker.metadata.handed, self.facts.brokers[broker.name]
            facts.keys, facts.acls = ([Moment(*moment) for moment in moments] for moments in reported.values())
            facts.frozen = broker.frozen_spans

        def written_by(partition: str, offset: int) -> str | None:
            for run in contents.stored.get(partition, ()):
                if run.base_offset <= offset <= run.last_offset and (parsed := parse_wal_key(run.key)) is not None:
                    return self._sessions.get(parsed.session)
            return None

        return judge(self.facts, written_by)

    # ── changes ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _new_key(self, principal: str) -> GuestKey:
        made = await self._records.create_key(principal)
        self.facts.keys[made.key.key_id] = Span(made.revision)
        self._changed(made.revision)
        return GuestKey(made.key.key_id, principal, f"Bearer {made.text.reveal()}")

    async def _revoke(self, key: GuestKey) -> None:
        _, revision = await self._records.revoke_key(key.key_id)
        self._revoked.append(key)
        self.facts.keys[key.key_id] = self.facts.keys[key.key_id]._replace(taken=revision)
        self._changed(revision)
        self.revocations += 1

    def _holds(self, right: Right) -> bool:
        spans = self.facts.rights[right]
        return bool(spans) and spans[-1].taken == inf

    async def _give(self, right: Right) -> None:
        _, revision = await self._records.add_acl(_acl(right))
        self.facts.rights[right].append(Span(revision))
        self._changed(revision)

    async def _take(self, right: Right) -> None:
        _, revision = await self._records.remove_acl(_acl(right).acl_id)
        self.facts.rights[right][-1] = self.facts.rights[right][-1]._replace(taken=revision)
        self._changed(revision)
        self.revocations += 1

    def _changed(self, revision: Revision) -> None:
        self.facts.changes.append(Moment(virtual_loop().time(), revision))


def _acl(right: Right) -> Acl:
    return Acl(principal=right.principal, operation=right.operation, resource="topic", name=right.topic)


# ── guests ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Guest(RouteClient):
    """Sends one request after the other, each with some key, and takes down what it is answered."""

    def __init__(self, clients: RouteClients, access: RouteAccess, name: str) -> None:
        super().__init__(clients, name, access.topic_name)
        self._access = access
        self._pace_s = self._chance.choice((0.05, 0.1, 0.2))

    def _note(
        self,
        broker: RoutedBroker,
        key: GuestKey,
        operation: Operation,
        began_s: float,
        *,
        refused: str = "",
        position: tuple[str, int] | None = None,
        lasts: bool = False,
    ) -> None:
        right = Right(key.principal, operation, self._topic_name)
        if refused in DENIALS or not refused:
            now_s = virtual_loop().time()
            self._access.note(Asked(self._name, broker.name, key.key_id, right, began_s, now_s, lasts, refused, position))

    def _records(self) -> tuple[RecordId, ...]:
        number = next(self._numbers)
        return tuple(RecordId(f"{self._name}-{number}", at, 1) for at in range(self._chance.randint(1, 2)))


class GuestPoster(Guest):
    """POST of records, each request once."""

    async def _one(self, topic: Topic) -> None:
        clients, chance = self._clients, self._chance
        broker, key, records = clients.any_broker(chance), self._access.any_key(chance), self._records()
        number, operation = chance.randrange(topic.partition_count), next(clients.operations)
        clients.record(SentTogether(operation, topic.name, "", records))
        body = json.dumps({"records": [{"value": record_value(record).decode()} for record in records]}).encode()
        query = f"partition={number}&timeout_ms={chance.choice((500, 2000))}"
        began_s = virtual_loop().time()
        try:
            answer = await self._post(broker, topic, query, {b"authorization": key.shown.encode()}, body)
        except TidelogError as error:
            clients.refuse(operation, error)
            self._note(broker, key, "write", began_s, refused=error.code)
            return
        results = answer["results"]
        positions = tuple(None if "error" in each else (int(each["partition"]), int(each["offset"])) for each in results)
        codes = [each["error"]["code"] if "error" in each else "" for each in results]
        clients.record(AnsweredTogether(operation, positions, tuple(at for at, code in enumerate(codes) if code in DENIALS)))
        for result, code in zip(positions, codes, strict=True):
            position = None if result is None else (f"{topic.id}/{result[0]}", result[1])
            self._note(broker, key, "write", began_s, refused=code, position=position)


class GuestReader(Guest):
    """GET of the records of a partition: one answer, which may wait for records."""

    def __init__(self, clients: RouteClients, access: RouteAccess, name: str) -> None:
        super().__init__(clients, access, name)
        self._offsets: dict[int, int] = {}

    async def _one(self, topic: Topic) -> None:
        chance = self._chance
        broker, key, number = (
            self._clients.any_broker(chance),
            self._access.any_key(chance),
            chance.randrange(topic.partition_count),
        )
        offset = self._offsets.get(number, 0)
        query = f"offset={offset}&wait_ms={chance.choice((0, 500, 2000))}"
        call = HttpCall("GET", query, [(b"accept", b"application/json"), (b"authorization", key.shown.encode())])
        began_s = virtual_loop().time()
        try:
            await self._ask(broker, lambda: broker.read_partition(call, topic.name, number))
        except TidelogError as error:
            self._note(broker, key, "read", began_s, refused=error.code)
            return
        records = json.loads(call.answer)["records"]
        if records:
            self._offsets[number] = int(records[-1]["offset"]) + 1
            found = tuple((int(each["offset"]), parse_record_value(str(each["value"]).encode())) for each in records)
            self._clients.record(Fetched(self._name, f"{topic.id}/{number}", offset, found, self._offsets[number]))
            self._note(broker, key, "read", virtual_loop().time(), lasts=True)


class GuestStreamWriter(Guest):
    """ProduceStream: each message is a request of its own."""

    async def _one(self, topic: Topic) -> None:
        clients, chance = self._clients, self._chance
        broker, key = clients.any_broker(chance), self._access.any_key(chance)
        unsent: asyncio.Queue[bytes] = asyncio.Queue()
        unanswered: dict[int, tuple[float, TopicPartition, tuple[RecordId, ...]]] = {}

        async def write(message: bytes) -> None:
            await asyncio.sleep(0.001)
            if broker.alive and not broker.unreachable:
                response = log_pb2.ProduceResponse.FromString(message)
                self._answered(broker, key, response, *unanswered.pop(response.correlation_id))

        async def serve() -> None:
            end = await streamed(broker.methods[PRODUCE_STREAM], unsent.get, write, authorization(key.shown))
            if end.bug is not None:
                broker.ended_by(end.bug)
            if end.answer is None:
                raise end.error

        began_s = virtual_loop().time()
        running = asyncio.ensure_future(broker.ask(serve, latency_s=0.002, timeout_s=STREAM_S, hang_up=True))
        while not running.done() and not clients.finishing:
            operation, records = next(clients.operations), self._records()
            partition = TopicPartition(topic.id, Partition(chance.randrange(topic.partition_count)))
            clients.record(Sent(operation, str(partition), records, idempotent=False))
            unanswered[operation] = virtual_loop().time(), partition, records
            unsent.put_nowait(_message(topic, partition, records, operation))
            await asyncio.wait((running,), timeout=chance.uniform(0.05, 0.3))
        running.cancel()
        await asyncio.wait((running,))
        if not running.cancelled() and (error := running.exception()) is not None:
            assert isinstance(error, TidelogError)
            self._note(broker, key, "write", began_s, refused=error.code)

    def _answered(
        self,
        broker: RoutedBroker,
        key: GuestKey,
        response: log_pb2.ProduceResponse,
        began_s: float,
        partition: TopicPartition,
        records: Sequence[RecordId],
    ) -> None:
        [result] = response.results
        if result.HasField("error"):
            error = from_status(result.error)
            self._clients.refuse(response.correlation_id, error)
            self._note(broker, key, "write", began_s, refused=error.code)
        else:
            self._note(broker, key, "write", began_s, position=(str(partition), result.placements[0].base_offset))


def _message(topic: Topic, partition: TopicPartition, records: Sequence[RecordId], operation: int) -> bytes:
    request = log_pb2.ProduceRequest(correlation_id=operation, acks=log_pb2.ACKS_ALL, timeout_ms=2000)
    contents = [(None, record_value(record), (), virtual_loop().now_ms()) for record in records]
    batch = encode_records(contents)
    request.appends.add(topic=topic.name, topic_id=topic.id, partition=partition.partition, record_batch=batch)
    return request.SerializeToString()


class GuestStream(RouteStream):
    """A stream of a guest, which lives for a while, and begins again with another key."""

    def __init__(self, clients: RouteClients, access: RouteAccess, name: str) -> None:
        super().__init__(clients, name, access.topic_name)
        self._access = access
        self._key = GuestKey("", "", "")
        self._broker = ""
        self._began_s = 0.0

    @property
    def _shown(self) -> str:
        return self._key.shown

    async def _ask(self, broker: RoutedBroker, serve: Callable[[], Awaitable[None]]) -> None:
        self._key, self._broker, self._began_s = self._access.any_key(self._chance), broker.name, virtual_loop().time()
        await broker.ask(serve, latency_s=0.002, timeout_s=STREAM_S, hang_up=True)

    def _deliver(self, topic: Topic, partition: int, records: Sequence[tuple[int, RecordId]]) -> None:
        if records:
            self._note(virtual_loop().time())
        super()._deliver(topic, partition, records)

    def _refused(self, error: TidelogError, broker: RoutedBroker) -> None:
        if error.code in DENIALS:
            self._note(self._began_s, refused=error.code)

    def _note(self, began_s: float, *, refused: str = "") -> None:
        right, now_s = Right(self._key.principal, "read", self._topic_name), virtual_loop().time()
        self._access.note(Asked(self.name, self._broker, self._key.key_id, right, began_s, now_s, not refused, refused))


class GuestConsume(GuestStream, ConsumeStream):
    pass


class GuestEvents(GuestStream, EventStream):
    pass
