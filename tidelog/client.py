"""The client: `connect` finds the cluster, and what it gives produces, consumes and manages topics over one set of connections.

    async with connect("http://localhost:8080") as log:
        ...

Leaving the block flushes what was sent and ends every task, after an error too; an error in the block is raised as it was. What
other tasks of the program wait for then ends with an error of ours, never by cancellation: a TaskGroup passes over that.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from gateway.proto import admin_pb2
from metadata.errors import InvalidArgument, Rejected, Throttled, TidelogError
from tidelog.admin.access import Access
from tidelog.admin.groups import Groups
from tidelog.admin.topics import Topics
from tidelog.consumer.offset_lookup import end_of_epoch, offset_ranges
from tidelog.positions import StartLike, parse_start
from tidelog.producer.outcomes import Outcomes
from tidelog.records import Ack, HeadersLike
from tidelog.settings import ClientSettings, ResetPolicy, SettingChanges, credentials_from, settings_from
from tidelog.tasks import ClientTasks
from tidelog.transport.addresses import with_tls
from tidelog.transport.connection import Connection
from tidelog.transport.descriptions import (
    BrokerDrain,
    BrokerInfo,
    ClusterInfo,
    EpochEnd,
    Explanation,
    OffsetRange,
    broker_drain,
    cluster_info,
    explanation,
)
from tidelog.transport.rpc_errors import error_of_rpc

if TYPE_CHECKING:
    from re import Pattern

    from tidelog.consumer.consumer import Consumer, TopicsConsumer
    from tidelog.consumer.subscription import Subscription, TopicsLike
    from tidelog.group.consumer import GroupConsumer, OpenReadings
    from tidelog.group.options import GroupOptionChanges
    from tidelog.producer.producer import Delivery, Producer

# How long leaving the block by an error waits for what was sent before it.
CLOSE_AFTER_ERROR_S = 5.0


def connect(*addresses: str, **settings: Unpack[SettingChanges]) -> Client:
    """Returns a client for the cluster at these addresses (http://HOST:8080 or grpc://HOST:9090; one that answers is enough).

    Without an address: http://localhost:8080. `settings` are the fields of tidelog.ClientSettings. Use it as
    `async with connect(…) as log:`; entering raises Unavailable without an answer, and Denied without credentials.

    https:// and grpcs:// speak TLS with all brokers: `ca_file`, `cert_file`, `key_file`. `api_key` says who asks. Where they are
    not given, the variables TIDELOG_CA_FILE, TIDELOG_API_KEY and so on count (tidelog/settings.py).
    """
    environment = credentials_from(os.environ, settings, tls=with_tls(addresses))
    return Client(addresses, settings_from({**environment, **settings}))


class Client:
    """A client of one cluster, for one event loop; `connect` makes it. Its methods raise the errors of `tidelog.errors`."""

    # Create, list, describe, alter, delete, add_partitions.
    topics: Topics
    # Consumer groups: list, describe, offsets, seek, delete, delete_offsets.
    groups: Groups
    # API keys, ACLs and quotas: create_key, keys, revoke_key, add_acl, acls, remove_acl, set_quota, quotas, remove_quota.
    access: Access

    def __init__(self, addresses: Iterable[str], settings: ClientSettings) -> None:
        self._settings = settings
        self._connection = Connection(addresses, settings)
        self._tasks = ClientTasks()
        self._state: Literal["new", "open", "left"] = "new"
        self._sender: Producer | None = None
        self._open_readings: OpenReadings = {}
        self.topics = Topics(self._connection)
        self.groups = Groups(self._connection)
        self.access = Access(self._connection)

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise Rejected("a client is entered once", hint="Call connect() again for another one.")
        self._state = "left"
        try:
            await self._connection.open()
        except BaseException:
            await self._connection.close()
            raise
        await self._tasks.__aenter__()
        self._state = "open"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._state = "left"
        try:
            if error is None:
                await self.flush()
            elif isinstance(error, Exception):
                with suppress(TidelogError, TimeoutError):
                    async with asyncio.timeout(CLOSE_AFTER_ERROR_S):
                        await self.flush()
        finally:
            if self._sender is not None:
                self._sender.close()
            try:
                if self._open_readings:
                    from tidelog.group.consumer import leave_groups

                    close_s = self._settings.request_timeout_ms / 1000 if error is None else CLOSE_AFTER_ERROR_S
                    await leave_groups(self._open_readings, close_s)
            finally:
                await self._end_tasks(kind, error, traceback)

    async def _end_tasks(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._tasks.__aexit__(kind, error, traceback)
        finally:
            await self._connection.close()

    @property
    def _producer(self) -> Producer:
        """Creates the producer at first use: its codec takes 0.2 s to import, which readers need not pay."""
        if self._sender is None:
            self._check_open()
            from tidelog.producer.producer import Producer

            self._sender = Producer(self._connection, self._settings, self._tasks)
        return self._sender

    def _check_open(self) -> None:
        if self._state != "open":
            what = "not connected" if self._state == "new" else "closed"
            raise Rejected(f"the client is {what}", hint="Use it within `async with tidelog.connect(…) as log:`.")

    # ── produce ──

    async def produce(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Ack:
        """Sends one record and waits until it is durable: idempotent, retried, in order within its partition.

        `value` and `key`: bytes as they are, str as UTF-8, None as null, anything else as compact JSON. Without `partition` the key
        decides (murmur2, as Kafka's clients), and without a key the partitions take turns. `timestamp_ms`: now. A caller that is
        cancelled while waiting for the acknowledgement has sent the record all the same.

        Raises UnknownTopic, UnknownPartition, InvalidArgument, TooLarge, Throttled (the buffer stayed full), Unavailable (nothing
        was written), OutcomeUnknown (it may be in the log).
        """
        delivery = await self._producer.send(topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        return await delivery

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Coroutine[Any, Any, Delivery]:
        """Sends a record. Awaited, it returns a Delivery as soon as the record has room in the buffer. Await that for the Ack, or
        `flush`. A caller that is cancelled while waiting for that room has sent nothing.

        Else as `produce`. Plain code that hands a coroutine on: one layer less for each record.
        """
        return self._producer.send(topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)

    async def produce_many(self, topic: str, messages: Iterable[Any]) -> list[Ack]:
        """Sends values, or tidelog.Message where a record has more than a value, and waits for all. Acks in the order given.

        Raises the first failure, once every record has its outcome.
        """
        return await self._producer.produce_many(topic, messages)

    async def flush(self) -> None:
        """Waits until all records sent before have an outcome. Raises the first failure whose Delivery was not awaited."""
        if self._sender is not None:
            await self._sender.flush()

    @property
    def outcomes(self) -> Outcomes:
        """Counts the acknowledged, failed and unknown records. The counts are final once the block is left."""
        return self._sender.outcomes if self._sender is not None else Outcomes()

    @property
    def throttled(self) -> Throttled | None:
        """Returns the quota or limit that a broker gave for throttling this client; None if it is not throttled.

        The client waits by itself, and goes on."""
        return self._connection.throttled

    # ── consume ──

    @overload
    def consume(
        self,
        topics: str,
        *,
        from_: StartLike = "earliest",
        partitions: Iterable[int] | None = None,
        follow: bool = True,
        until: Literal["end"] | None = None,
        auto_offset_reset: ResetPolicy | None = None,
        refuse_outdated: bool = False,
    ) -> Consumer: ...

    @overload
    def consume(
        self,
        topics: list[str] | tuple[str, ...] | set[str] | frozenset[str] | Pattern[str],
        *,
        from_: StartLike = "earliest",
        follow: bool = True,
        until: Literal["end"] | None = None,
        auto_offset_reset: ResetPolicy | None = None,
        refuse_outdated: bool = False,
    ) -> TopicsConsumer: ...

    @overload
    def consume(
        self,
        topics: TopicsLike,
        *,
        group: str,
        follow: bool = True,
        until: Literal["end"] | None = None,
        auto_offset_reset: ResetPolicy | None = None,
        **options: Unpack[GroupOptionChanges],
    ) -> GroupConsumer: ...

    def consume(
        self,
        topics: TopicsLike,
        *,
        from_: StartLike | None = None,
        partitions: Iterable[int] | None = None,
        follow: bool = True,
        until: Literal["end"] | None = None,
        auto_offset_reset: ResetPolicy | None = None,
        refuse_outdated: bool = False,
        group: str | None = None,
        **options: Unpack[GroupOptionChanges],
    ) -> Consumer | TopicsConsumer | GroupConsumer:
        """Reads the records of all partitions (or of `partitions`), in order within each, from `from_` on.

        `topics`: a name, several names, or a pattern, as re.compile("orders-.*"), of whole names; topics that come to match it are
        read as well.
        `from_`: "earliest", "latest", "-10" (the last ten of each partition), "1h" (ago), a time, an offset, or {partition: offset}
        (tidelog/positions.py). It goes on without end, unless `follow` is False or `until` is "end": then it ends at the high
        watermarks of the beginning. Connections that break are made again without repeating or losing a record.
        `auto_offset_reset`: where to go on when an offset is gone, or "error" (the default) to raise OutOfRange.
        `refuse_outdated`: a reading with an end raises Unavailable where no broker can prove that it knows all topics and
        partitions, as while the metadata store is away. Without it, such a reading may leave out what was added a moment ago.

        With `group`, its members share the partitions, and each partition begins at what the group has committed, else where
        `auto_offset_reset` says ("earliest" by default; also where an offset is gone). A partition that is added while the member
        runs begins at its earliest record. Until the end is then up to the high watermark that each partition had when this member
        was given it. `options`: tidelog/group/options.py.
        """
        if until not in (None, "end"):
            raise InvalidArgument(f"until is {until!r}", hint='Use until="end", or leave it out.')
        if auto_offset_reset not in (None, "error", "earliest", "latest"):
            raise InvalidArgument(f"auto_offset_reset is {auto_offset_reset!r}", hint="Use error, earliest or latest.")
        from tidelog.consumer.subscription import parse_topics

        subscription, follow = parse_topics(topics), follow and until is None
        if refuse_outdated and (follow or group is not None):
            raise InvalidArgument(
                "refuse_outdated is for readings with an end, without a group",
                hint="Leave it out: other readings read what was added as soon as they hear of it.",
            )
        if group is not None:
            if from_ is not None or partitions is not None:
                raise InvalidArgument(
                    "the group assigns partitions and offsets to its members: from_ and partitions do not go with group",
                    hint="Use auto_offset_reset, consumer.seek, or `tidelog group seek`; or leave group out.",
                )
            return self._member(group, subscription, options, follow=follow, reset=auto_offset_reset or "earliest")
        if options:
            from tidelog.group.options import group_options

            group_options(options)  # which names what is no option at all
            raise InvalidArgument(
                f"{next(iter(options))} needs a group", hint='Name one, as in consume("orders", group="billing").'
            )
        self._check_open()
        from tidelog.consumer.consumer import Consumer, TopicsConsumer
        from tidelog.consumer.topic_reader import TopicReader

        reading = TopicReader(
            self._connection,
            self._settings,
            subscription,
            start=parse_start("earliest" if from_ is None else from_, now_ms=int(time.time() * 1000)),
            partitions=None if partitions is None else sorted(set(partitions)),
            follow=follow,
            reset=auto_offset_reset or "error",
            refuses_outdated=refuse_outdated,
        )
        return (Consumer if isinstance(topics, str) else TopicsConsumer)(reading, self._tasks)

    def _member(
        self, group: str, subscription: Subscription, options: GroupOptionChanges, *, follow: bool, reset: ResetPolicy
    ) -> GroupConsumer:
        from metadata.groups.model import check_group_name
        from tidelog.group.consumer import GroupConsumer
        from tidelog.group.coordinator_client import GrpcCoordinatorClient
        from tidelog.group.options import group_options
        from tidelog.group.reader import GroupReader

        reading = GroupReader(
            self._connection,
            self._settings,
            subscription,
            GrpcCoordinatorClient(self._connection, self._settings),
            group=check_group_name(group),
            options=group_options(options),
            follow=follow,
            reset=reset,
        )
        self._check_open()
        return GroupConsumer(reading, self._tasks, self._open_readings, close_s=self._settings.request_timeout_ms / 1000)

    # ── the cluster ──

    async def cluster(self) -> ClusterInfo:
        """Returns the cluster's id, its bucket and its brokers."""
        return cluster_info(await self._connection.cluster())

    async def serves(self, broker: BrokerInfo) -> bool:
        """Returns whether the broker reports itself as serving. Raises Unavailable if it does not answer."""
        try:
            with self._connection.held(broker.grpc_address) as to:
                stub: Any = HealthStub(to.channel)
                found = await stub.Check(HealthCheckRequest(), timeout=self._settings.connect_timeout_ms / 1000)
        except grpc.aio.AioRpcError as error:
            raise error_of_rpc(error, address=broker.grpc_address, writes=False) from error
        return bool(found.status == HealthCheckResponse.SERVING)

    async def drain_broker(self, broker_id: str, *, validate_only: bool = False) -> BrokerDrain:
        """Asks a broker to hand over what it leads. Returns at once; asked again, it tells how much is left.

        Raises NotFound, and Rejected where no other broker could take over.
        """
        request = admin_pb2.DrainBrokerRequest(broker_id=broker_id, validate_only=validate_only)
        found: Any = await self._connection.call(
            lambda to, timeout_s: to.cluster.DrainBroker(request, timeout=timeout_s), writes=not validate_only
        )
        return broker_drain(found)

    async def undrain_broker(self, broker_id: str, *, validate_only: bool = False) -> BrokerDrain:
        """Lets a broker take partitions again. Raises NotFound."""
        request = admin_pb2.UndrainBrokerRequest(broker_id=broker_id, validate_only=validate_only)
        found: Any = await self._connection.call(
            lambda to, timeout_s: to.cluster.UndrainBroker(request, timeout=timeout_s), writes=not validate_only
        )
        return broker_drain(found)

    async def offsets(self, topic: str) -> dict[int, OffsetRange]:
        """Returns the readable offsets of each partition. Raises UnknownTopic."""
        route = await self._connection.route(topic, fresh=True)
        return await offset_ranges(self._connection, route)

    async def offset_for_leader_epoch(self, topic: str, partition: int, leader_epoch: int) -> EpochEnd | None:
        """Returns the end of this leader epoch, or of the newest one before it with records (KIP-101, KIP-320).

        None if the log has no record of that epoch or an earlier one. A reader beyond that end, in that epoch, has read records
        that are
        not in the log. Raises UnknownTopic, UnknownPartition, InvalidArgument.
        """
        route = await self._connection.route(topic, fresh=True)
        return await end_of_epoch(self._connection, route, partition, leader_epoch)

    async def explain(self, topic: str, partition: int, offset: int) -> Explanation:
        """Returns where a record lies on the bucket. Raises UnknownTopic, UnknownPartition, OutOfRange."""
        request = admin_pb2.ExplainOffsetRequest(topic=topic, partition=partition, offset=offset)
        found: Any = await self._connection.call(
            lambda to, timeout_s: to.cluster.ExplainOffset(request, timeout=timeout_s), writes=False
        )
        return explanation(topic, partition, offset, found)
