"""Asks brokers about topics, and sends record batches to the leaders of their partitions, for the sink."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, NamedTuple, Protocol

from gateway.proto import admin_pb2, log_pb2
from gateway.proto.status import from_status
from metadata.errors import NotFound, OutcomeUnknown, Rejected, TidelogError, Unavailable, UnknownTopic
from metadata.retry import RetryPauses, retry
from metadata.topics.settings import TopicSettings
from segments.bucket.cluster_record import read_cluster_record
from segments.object_store.interface import ObjectStore
from spark.sink.row_encoder import TopicFacts
from spark.sink.staged_files import StagedPartition
from spark.sink.topic_views import TopicView, present_topic
from tidelog.settings import SettingChanges, credentials_from, settings_from
from tidelog.transport.addresses import with_tls
from tidelog.transport.connection import METADATA_AGE_MS_MAX, Connection, Stubs, TopicRoute

REQUEST_TIMEOUT_S: Final = 30.0
# For brokers that are just being restarted.
OPEN_PATIENCE_S = 5.0
PAUSE_S: Final = 0.5
# Answers that must agree before a topic counts as made again, since a broker that lags describes the former one. On one connection,
# a client that asks again at once goes to another broker with the third question.
ANSWERS_MIN: Final = 3
# Brokers that are asked whether a topic is the present one, at most.
VIEWS_MAX: Final = 5
VIEW_TIMEOUT_S: Final = 2.0
DATE_SETTINGS: Final = frozenset({"message.timestamp.type", "message.timestamp.after.max.ms"})

log = logging.getLogger(__name__)


class StagedTopicGone(Rejected):
    """Reports that the topic for which rows were staged was deleted, or is another one under the same name."""


class UnconfirmedTopic(Unavailable):
    """Reports that brokers describe different topics of a name, or that none of them knows the present one."""


class Append(NamedTuple):
    """A record batch and its target partition."""

    where: StagedPartition
    batch: bytes


class Brokers(Protocol):
    """The broker calls that a delivery needs."""

    async def leader_of(self, where: StagedPartition, *, fresh: bool = False) -> str:
        """Returns the address that takes records for the partition; `fresh` bypasses the cached route.

        Raises StagedTopicGone where the topic is gone, or is another one under the same name; Unavailable.
        """
        ...

    async def check_present(self, where: StagedPartition) -> None:
        """Checks that rows are staged for the present topic of its name, as several brokers describe it.

        Raises StagedTopicGone as `leader_of`; Unavailable where brokers do not agree, or none knows the present state.
        """
        ...

    async def produce(self, address: str, appends: Sequence[Append]) -> list[TidelogError | None]:
        """Sends the batches. Returns one outcome each: None if committed, else the error.

        A batch behind a refused one of the same partition was not written.
        """
        ...


Connect = Callable[[], AbstractAsyncContextManager[Brokers]]


@asynccontextmanager
async def connected(
    brokers: str, credentials: Iterable[tuple[str, str]] = (), *, patience_s: float | None = None
) -> AsyncIterator[ConnectedBrokers]:
    """Raises Unavailable, with what each address met, where no broker answers within `patience_s`; Rejected, InvalidArgument.

    `credentials`: settings of a client; what they leave out, the environment of this process may say.
    """
    given = SettingChanges(**dict(credentials))  # type: ignore[typeddict-item]  # options.py knows their names
    environment = credentials_from(os.environ, given, tls=with_tls([brokers]))
    connection = Connection([brokers], settings_from({**environment, **given}))
    try:
        try:
            for_s = OPEN_PATIENCE_S if patience_s is None else patience_s
            await retry(connection.open, on=Unavailable, pauses=RetryPauses(PAUSE_S, PAUSE_S), for_s=for_s)
        except Unavailable as error:
            raise Unavailable(f"{error.message}. Nothing was sent", hint=error.hint) from None
        yield ConnectedBrokers(connection)
    finally:
        await connection.close()


class ConnectedBrokers:
    """The broker calls of the sink over one connection; implements `Brokers`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # gRPC addresses of brokers that have not answered.
        self._silent: set[str] = set()

    async def topic_facts(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """Returns the facts of each present topic. Raises UnknownTopic, with the topic's name, and Unavailable."""
        return {name: await self._facts(name) for name in names}

    async def _facts(self, name: str) -> TopicFacts:
        pauses = RetryPauses(PAUSE_S, PAUSE_S)
        try:
            route = await retry(lambda: self._present_route(name), on=UnconfirmedTopic, pauses=pauses, for_s=OPEN_PATIENCE_S)
        except UnknownTopic as error:
            raise UnknownTopic(
                f"{error.message}. Nothing was written", hint=f"Create it first: tidelog topic create {name} --partitions N"
            ) from None
        return facts_of(route)

    async def check_bucket(self, store: ObjectStore) -> None:
        """Raises Rejected if this is not the brokers' bucket: staged files would be neither found nor collected there."""
        record = await read_cluster_record(store)
        cluster = await self._connection.cluster()
        if record is None or record.cluster_id != cluster.cluster_id:
            whose = "no cluster has used it yet" if record is None else f"it is that of cluster {record.cluster_id}"
            raise Rejected(
                f"option bucket: {store.url} is not the bucket of these brokers: {whose}, and they are cluster "
                f"{cluster.cluster_id}. Nothing was written",
                hint=f"Their bucket is {cluster.bucket}, as they name it.",
            )

    async def check_present(self, where: StagedPartition) -> None:
        try:
            route = await self._present_route(where.topic)
        except UnknownTopic as error:
            raise _gone(where, "it was deleted") from error
        if route.topic_id != where.topic_id:
            raise _remade(where, route.topic_id)

    async def _present_route(self, name: str) -> TopicRoute:
        """Returns a route of the present topic of this name. Asks brokers until two agree, or all that answer.

        Passes over brokers that have not heard from the metadata store for long, unless there is only one broker.
        Raises UnknownTopic, UnconfirmedTopic, Unavailable.
        """
        described = (await self._connection.cluster()).brokers
        addresses = list(dict.fromkeys(self._connection.address_of(one.broker_id, one.grpc_address) for one in described))
        if len(addresses) < 2:
            return await self._connection.route(name, from_store=True)
        random.shuffle(addresses)
        ages_ms = await self._metadata_ages([address for address in addresses if address not in self._silent][:VIEWS_MAX])
        # No broker can be reached at its own address, but one answers at the address that was given.
        ages_ms = ages_ms or {None: (await self._connection.cluster()).metadata_age_ms}
        return await self._agreed_route(name, [at for at, age_ms in ages_ms.items() if age_ms <= METADATA_AGE_MS_MAX])

    async def _agreed_route(self, name: str, asked: Sequence[str | None]) -> TopicRoute:
        views: list[TopicView] = []
        routes: dict[str, TopicRoute | UnknownTopic] = {}
        for number, address in enumerate(asked, start=1):
            try:
                route = await self._connection.route(name, from_store=True, at=address)
            except UnknownTopic as error:
                routes[""] = error
                views.append(TopicView(""))
            except Unavailable as error:
                log.info("topic id not known broker=%s topic=%s: %s", address, name, error)
            else:
                routes[route.topic_id] = route
                views.append(TopicView(route.topic_id, max((one.leader_epoch for one in route.partitions), default=-1)))
            present = present_topic(views, is_complete=number == len(asked))
            if present is not None:
                found = routes[present]
                if isinstance(found, UnknownTopic):
                    raise found
                return found
        raise UnconfirmedTopic(
            f"brokers describe different topics {name}, or have not heard from the metadata store for"
            f" {METADATA_AGE_MS_MAX // 1000} s: it may have been deleted or made a moment ago. Nothing was written",
            hint="Try again in a moment.",
        )

    async def _metadata_ages(self, addresses: Iterable[str]) -> dict[str | None, int]:
        """Returns for each broker that answers how long it has not heard from the metadata store, in milliseconds."""
        ages_ms: dict[str | None, int] = {}

        async def ask(to: Stubs, timeout_s: float) -> int:
            answer: admin_pb2.ClusterDescription = await to.cluster.GetCluster(admin_pb2.GetClusterRequest(), timeout=timeout_s)
            return answer.metadata_age_ms

        async def learn(address: str) -> None:
            try:
                ages_ms[address] = await self._connection.ask_once(ask, at=address, writes=False, timeout_s=VIEW_TIMEOUT_S)
            except TidelogError as error:
                log.info("broker not asked about topics broker=%s: %s", address, error)
                self._silent.add(address)

        async with asyncio.TaskGroup() as tasks:
            for address in addresses:
                tasks.create_task(learn(address))
        return ages_ms

    async def leader_of(self, where: StagedPartition, *, fresh: bool = False) -> str:
        try:
            route = await self._connection.route(where.topic, fresh=fresh)
            for _ in range(ANSWERS_MIN - 1):
                if route.topic_id != where.topic_id:
                    route = await self._connection.route(where.topic, from_store=True)
        except UnknownTopic as error:
            raise _gone(where, "it was deleted") from error
        if route.topic_id != where.topic_id:
            raise _remade(where, route.topic_id)
        if where.partition >= route.partition_count:
            raise Unavailable(f"{where}: the brokers do not know the partition yet")
        return route.leaders[where.partition]

    async def produce(self, address: str, appends: Sequence[Append]) -> list[TidelogError | None]:
        request = log_pb2.ProduceRequest(
            acks=log_pb2.ACKS_ALL,
            timeout_ms=int(1000 * REQUEST_TIMEOUT_S),
            appends=[
                log_pb2.Append(topic=where.topic, topic_id=where.topic_id, partition=where.partition, record_batch=batch)
                for where, batch in appends
            ],
        )

        async def ask(to: Stubs, timeout_s: float) -> log_pb2.ProduceResponse:
            answer: log_pb2.ProduceResponse = await to.log.Produce(request, timeout=timeout_s)
            return answer

        try:
            answer = await self._connection.ask_once(ask, at=address, writes=True, timeout_s=REQUEST_TIMEOUT_S + 5)
        except TidelogError as error:
            return [error] * len(appends)
        if len(answer.results) != len(appends):
            return [OutcomeUnknown(f"{address}: the answer is not that of the request")] * len(appends)
        return [_outcome(result, address) for result in answer.results]


def facts_of(route: TopicRoute) -> TopicFacts:
    """Extracts the facts from a route. Reads only the settings it needs: a newer version may have others."""
    dates = TopicSettings.parse({name: route.settings[name] for name in DATE_SETTINGS & route.settings.keys()})
    return TopicFacts(
        route.name,
        route.topic_id,
        route.partition_count,
        route.batch_bytes_max,
        dates.message_timestamp_type,
        dates.message_timestamp_after_max_ms,
    )


def _gone(where: StagedPartition, what: str) -> StagedTopicGone:
    return StagedTopicGone(
        f"topic {where.topic}, for which rows were staged, is not there any more: {what}", hint="Begin a new checkpoint."
    )


def _remade(where: StagedPartition, topic_id: str) -> StagedTopicGone:
    return _gone(where, f"it was deleted and made again: its id was {where.topic_id} and is {topic_id}")


def _outcome(result: log_pb2.AppendResult, address: str) -> TidelogError | None:
    status = result.error if result.HasField("error") else None
    if status is None and result.placements and result.placements[0].HasField("error"):
        status = result.placements[0].error
    if status is None:
        return None if result.placements else OutcomeUnknown(f"{address}: it tells no place of the records")
    error = from_status(status, address=address)
    if isinstance(error, NotFound):  # it may lag behind: who is asked afresh for the leader knows whether the topic is gone
        return Unavailable(error.message, hint=error.hint)
    return error
