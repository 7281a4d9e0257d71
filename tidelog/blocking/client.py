"""Provides the blocking client: the asynchronous one, driven by an event loop in a background thread.

    with tidelog.connect_sync("http://localhost:8080") as log:
        log.produce("orders", {"id": 7}, key="c-7")
        for record in log.consume("orders", follow=False):
            ...

Nothing is written twice: each method is made from its asynchronous counterpart, signature and documentation included. It may be
used from several threads at once. A call costs a switch of threads (some 50 µs): for many records use `produce_many`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from metadata.errors import Throttled
from tidelog.admin.access import Access
from tidelog.admin.groups import Groups
from tidelog.admin.topics import Topics
from tidelog.blocking.readers import (
    BlockingConsumer,
    BlockingGroupConsumer,
    BlockingTopicsConsumer,
    reader_twin,
    with_callbacks_in_threads,
)
from tidelog.blocking.thread import ClientThread, blocking, wrapping
from tidelog.client import Client, connect
from tidelog.producer.outcomes import Outcomes
from tidelog.producer.producer import Delivery
from tidelog.records import Ack
from tidelog.settings import ResetPolicy, SettingChanges

if TYPE_CHECKING:
    from re import Pattern

    from tidelog.consumer.subscription import TopicsLike
    from tidelog.group.options import GroupOptionChanges
    from tidelog.positions import StartLike


def connect_sync(*addresses: str, **settings: Unpack[SettingChanges]) -> BlockingClient:
    """Returns a client for code without an event loop, like `connect`: `with connect_sync(…) as log:`."""
    return BlockingClient(connect(*addresses, **settings))


class BlockingDelivery:
    """The handle of one record that was sent."""

    def __init__(self, thread: ClientThread, original: Delivery) -> None:
        self._thread = thread
        self._original = original

    @property
    def done(self) -> bool:
        return self._original.done

    def result(self) -> Ack:
        """Waits for the record's Ack, or raises why it failed."""
        return self._thread.wait_for(lambda: self._original)


class BlockingTopics:
    """The blocking twin of `Topics`."""

    def __init__(self, thread: ClientThread, original: Topics) -> None:
        self._thread = thread
        self._original = original

    create = blocking(Topics.create)
    describe = blocking(Topics.describe)
    alter = blocking(Topics.alter)
    add_partitions = blocking(Topics.add_partitions)
    delete = blocking(Topics.delete)
    delete_records = blocking(Topics.delete_records)
    list = blocking(Topics.list)


class BlockingGroups:
    """The blocking twin of `Groups`."""

    def __init__(self, thread: ClientThread, original: Groups) -> None:
        self._thread = thread
        self._original = original

    list = blocking(Groups.list)
    describe = blocking(Groups.describe)
    offsets = blocking(Groups.offsets)
    seek = blocking(Groups.seek)
    delete = blocking(Groups.delete)
    delete_offsets = blocking(Groups.delete_offsets)


class BlockingAccess:
    """The blocking twin of `Access`."""

    def __init__(self, thread: ClientThread, original: Access) -> None:
        self._thread = thread
        self._original = original

    create_key = blocking(Access.create_key)
    keys = blocking(Access.keys)
    revoke_key = blocking(Access.revoke_key)
    add_acl = blocking(Access.add_acl)
    acls = blocking(Access.acls)
    remove_acl = blocking(Access.remove_acl)
    set_quota = blocking(Access.set_quota)
    quotas = blocking(Access.quotas)
    remove_quota = blocking(Access.remove_quota)


class BlockingClient:
    """Use it as `with connect_sync(…) as log:`. Errors are those of `tidelog.errors`."""

    def __init__(self, original: Client) -> None:
        self._original = original
        self._thread = ClientThread(original)
        self.topics = BlockingTopics(self._thread, original.topics)
        self.groups = BlockingGroups(self._thread, original.groups)
        self.access = BlockingAccess(self._thread, original.access)

    def __enter__(self) -> Self:
        self._thread.enter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._thread.leave(error)

    produce = blocking(Client.produce)
    send = wrapping(Client.send, BlockingDelivery)
    produce_many = blocking(Client.produce_many)
    flush = blocking(Client.flush)

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
    ) -> BlockingConsumer: ...

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
    ) -> BlockingTopicsConsumer: ...

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
    ) -> BlockingGroupConsumer: ...

    @functools.wraps(Client.consume)
    def consume(self, topics: Any, **options: Any) -> Any:
        async def begin() -> Any:
            return self._original.consume(topics, **with_callbacks_in_threads(options))

        return reader_twin(self._thread, self._thread.wait_for(begin))

    @property
    def throttled(self) -> Throttled | None:
        """Returns the quota or limit that throttles this client; None if none does. The client waits by itself."""
        return self._original.throttled

    @property
    def outcomes(self) -> Outcomes:
        """Counts the acknowledged, failed and unknown records. The counts are final once the block is left."""
        return self._original.outcomes

    cluster = blocking(Client.cluster)
    serves = blocking(Client.serves)
    drain_broker = blocking(Client.drain_broker)
    undrain_broker = blocking(Client.undrain_broker)
    offsets = blocking(Client.offsets)
    offset_for_leader_epoch = blocking(Client.offset_for_leader_epoch)
    explain = blocking(Client.explain)
