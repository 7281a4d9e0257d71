"""Sends requests to an etcd cluster: connections, failover, tokens and time limits. store.py makes the requests.

    one request:   member ─▶ connected? ─▶ token? ─▶ one try ─▶ answer
                     ▲                                │ errors.py
                     └── the next member ◀────────────┤ nothing was written, or the request only reads
                     └── the same, with a new token ◀─┘                              otherwise the caller gets the error

All requests go to one member until it fails; then all go to the next. Before the first request on a connection the member
identifies itself: so a request is only sent over an established connection, and without one it is certain that nothing was
written. A member of another cluster is refused, or two brokers could each be the only one.

Invariants: a request that may have written is sent once. Each try has a time limit and all tries together have one. At most
CALLS_PENDING_MAX requests are under way; the next is throttled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio

from metadata.errors import InvalidArgument, Rejected, Stopping, Throttled, TidelogError, Unavailable
from metadata.store.etcd.errors import Failure, failure
from metadata.store.etcd.member import EtcdMember
from metadata.store.etcd.proto import etcd_pb2
from metadata.store.etcd.settings import EtcdSettings, EtcdStatus, next_status

CALLS_PENDING_MAX = 1024
# Pause between two rounds in which every member failed, and before a broken watch is resumed.
RETRY_PAUSE_S = 0.1
# The first version that splits large answers of a watch.
VERSION_MIN = (3, 4)
# Lower bound of a time limit: gRPC refuses one that has passed.
_TRY_S_MIN = 0.001
# Metadata by which a member that lost its leader refuses at once and ends its watches, instead of not answering.
_REQUIRE_LEADER = ("hasleader", "true")

T = TypeVar("T")

log = logging.getLogger(__name__)


class StreamRefused(Exception):
    """Reports that a request over an open stream was refused, with a status like that of a request."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


@dataclass(frozen=True, slots=True)
class Try:
    """Holds one try of a request: its member, its token and its time limit."""

    member: EtcdMember
    # Empty without a user.
    token: str
    timeout_s: float

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (_REQUIRE_LEADER, ("token", self.token)) if self.token else (_REQUIRE_LEADER,)

    @property
    def options(self) -> dict[str, Any]:
        """Returns the arguments for a gRPC call that ends within the try."""
        return {"metadata": self.metadata, "timeout": self.timeout_s}


class Stream(Protocol):
    """Is a call that outlives the request which opened it."""

    @property
    def member(self) -> EtcdMember: ...

    def cancel(self) -> None: ...


class EtcdClient:
    """Sends requests to one member of etcd at a time, and moves to the next one on failure."""

    def __init__(self, settings: EtcdSettings, *, first_member: int = 0) -> None:
        """`first_member`: the place, in any count, of the member that is asked first. Brokers spread by choosing at random."""
        addresses = settings.addresses
        if not addresses:
            raise InvalidArgument("etcd is not set", hint="Name its members: --etcd http://HOST:2379")
        self._settings = settings
        self._members = [EtcdMember(address, settings) for address in addresses]
        self._member_index = first_member % len(addresses)
        self._token: str | None = None  # None: not asked for yet; empty: etcd requires none
        self._authenticating = asyncio.Lock()
        self._cluster_id = 0  # unknown before the first answer
        self._pending = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.closing = False
        self.status: EtcdStatus | None = None
        # Added by their openers. Cancelled when their member is silent, and when the client closes.
        self.streams: set[Stream] = set()

    async def call(
        self, once: Callable[[Try], Awaitable[T]], *, doing: str, writes: bool = False, timeout_s: float | None = None
    ) -> T:
        """Returns what `once` returns, one try at a member that the client chooses. Failures are retried as errors.py says.

        `doing` is a verb and its object for people; `writes` whether a failed try may have written; `timeout_s` bounds a
        try where it is shorter than etcd_request_timeout_ms. Raises TidelogError, LeaseLost, HistoryGone, AnswerTooLarge.
        """
        self._check_open()
        if self._pending >= CALLS_PENDING_MAX:
            raise Throttled(f"{self._pending} calls wait for etcd", pending=self._pending)
        with self._under_way():
            return await self._until_answered(once, doing, writes, timeout_s or self._settings.etcd_request_timeout_ms / 1000)

    def broken(self, member: EtcdMember, error: grpc.aio.AioRpcError, doing: str) -> Failure:
        """Classifies the error that ended a stream, and moves to another member where that may help."""
        failed = failure(error.code().name, error.details() or "", doing=doing, url=member.url, writes=False)
        self._note(member, failed)
        return failed

    def leave(self, member: EtcdMember, cause: str) -> None:
        """Sends further requests to the next member, unless they go elsewhere already."""
        if self._members[self._member_index] is member:
            self._member_index = (self._member_index + 1) % len(self._members)
        if not member.left:
            log.warning("etcd member failed member=%s: %s", member.url, cause)
        member.met, member.left = False, True

    async def probe(self) -> None:
        """Sends a status request to the members of open streams, and cancels the streams of those that do not answer.

        gRPC's own pings do not suffice: on a connection that sends nothing it holds them back to one a minute.
        """
        for member in {stream.member for stream in self.streams}:
            try:
                with self._under_way():
                    timeout_s = self._settings.etcd_request_timeout_ms / 1000
                    self._note_status(await member.maintenance.Status(etcd_pb2.StatusRequest(), timeout=timeout_s))
            except grpc.aio.AioRpcError as error:
                self.broken(member, error, "ask whether it is alive")

    async def close(self) -> None:
        """Refuses new requests, ends streams, waits for requests under way (no longer than one try), and drops the connections."""
        self.closing = True
        for stream in tuple(self.streams):
            stream.cancel()
        await self._idle.wait()
        for member in self._members:
            await member.close()

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        self._pending += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._pending -= 1
            if not self._pending:
                self._idle.set()

    async def _until_answered(self, once: Callable[[Try], Awaitable[T]], doing: str, writes: bool, timeout_s: float) -> T:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._settings.etcd_deadline_ms / 1000
        failures: dict[str, Failure] = {}  # by address, the last informative one
        new_token = False
        while True:
            member = self._members[self._member_index]
            sent = False
            token = self._token or ""
            try:
                async with asyncio.timeout_at(deadline):
                    await self._meet(member)
                    token = await self._signed_in(member)
                sent = writes
                return await once(Try(member, token, max(_TRY_S_MIN, min(timeout_s, deadline - clock()))))
            except grpc.aio.AioRpcError as error:
                failed = failure(error.code().name, error.details() or "", doing=doing, url=member.url, writes=sent)
            except StreamRefused as error:
                failed = failure(error.code, error.details, doing=doing, url=member.url, writes=sent)
            except TimeoutError:
                failed = failure("DEADLINE_EXCEEDED", "", doing=doing, url=member.url, writes=sent)
            except asyncio.CancelledError:
                if cancelled_by_others():
                    raise
                # Else the call was cancelled: its connection was replaced by one with new certificates.
                failed = failure("CANCELLED", "the connection was closed", doing=doing, url=member.url, writes=sent)
            except _WrongMember as error:
                failed = Failure(error.rejected, "ask another member", leaves=True, cause=error.rejected.message)
            self._note(member, failed)
            if failed.then == "take a new token" and self._settings.etcd_user and not new_token:
                new_token = True
                if self._token == token:  # else another request has noticed before, and has a new one
                    self._token = None
                continue
            if failed.then != "ask another member":
                raise failed.error
            once_more = member.url in failures
            if not (once_more and failed.silent):
                failures[member.url] = failed
            none_will_do = len(failures) == len(self._members) and all(isinstance(f.error, Rejected) for f in failures.values())
            if clock() >= deadline or none_will_do:
                raise _all_failed(doing, failures)
            if once_more:
                await asyncio.sleep(RETRY_PAUSE_S)
            self._check_open()

    async def _meet(self, member: EtcdMember) -> None:
        """Returns when there is a connection to the member, and it belongs to our cluster."""
        if member.met and member.connected:
            return
        await member.renew_certificates()
        try:
            status = await member.maintenance.Status(
                etcd_pb2.StatusRequest(), timeout=self._settings.etcd_connect_timeout_ms / 1000
            )
        except grpc.aio.AioRpcError as error:
            if error.code() not in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}:
                raise
            member.welcome()  # it answers, but identifies itself only to known users
            return
        cluster_id = status.header.cluster_id
        if self._cluster_id not in {0, cluster_id}:
            raise _WrongMember(
                f"etcd {member.url} belongs to cluster {cluster_id:x}, not to {self._cluster_id:x} as the members before",
                "Name members of one etcd cluster; after etcd was restored from a backup, restart the brokers.",
                etcd_cluster_id=f"{cluster_id:x}",
            )
        if parse_version(status.version) < VERSION_MIN:
            raise _WrongMember(f"etcd {member.url} has version {status.version}", "Tidelog needs etcd 3.4 or later.")
        self._cluster_id = cluster_id
        member.welcome()

    async def _signed_in(self, member: EtcdMember) -> str:
        """Returns the token to send; empty without a user, or where etcd requires none. One request for it at a time."""
        user, password = self._settings.etcd_user, self._settings.etcd_password
        if password is None:
            return ""
        if self._token is not None:
            return self._token
        async with self._authenticating:
            if self._token is None:
                request = etcd_pb2.AuthenticateRequest(name=user, password=password.reveal())
                try:
                    answer = await member.auth.Authenticate(request, timeout=self._settings.etcd_request_timeout_ms / 1000)
                    self._token = answer.token
                except grpc.aio.AioRpcError as error:
                    if "authentication is not enabled" not in (error.details() or ""):
                        raise
                    self._token = ""
            return self._token

    def _note(self, member: EtcdMember, failed: Failure) -> None:
        if failed.leaves:
            self.leave(member, failed.cause)
        if failed.silent:  # its streams would be silent as well, and only notice when the pings run out
            for stream in tuple(self.streams):
                if stream.member is member:
                    stream.cancel()

    def _note_status(self, answer: etcd_pb2.StatusResponse) -> None:
        self.status = next_status(self.status, db_size_bytes=answer.dbSize, leader=answer.leader, alarms=answer.errors)

    def _check_open(self) -> None:
        if self.closing:
            raise Stopping("the metadata store is closed")


def cancelled_by_others() -> bool:
    """Returns whether this task is cancelled; gRPC also raises CancelledError where only the call was."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _WrongMember(Exception):
    """Reports a member that answers but belongs to another cluster, or is too old."""

    def __init__(self, message: str, hint: str, **details: str) -> None:
        super().__init__(message)
        self.rejected = Rejected(message, hint=hint, **details)


def _all_failed(doing: str, failures: dict[str, Failure]) -> TidelogError:
    """Combines the errors of all members that were asked, with the hint of the first."""
    first, *_ = (failed.error for failed in failures.values())
    if isinstance(first, TidelogError) and (len(failures) == 1 or all(isinstance(f.error, Rejected) for f in failures.values())):
        return first
    causes = "; ".join(f"{url}: {failed.cause}" for url, failed in failures.items())
    hint = first.hint if isinstance(first, TidelogError) else None
    return Unavailable(f"can't {doing} at etcd: {causes}", hint=hint, endpoints=",".join(failures))


def parse_version(text: str) -> tuple[int, ...]:
    """Returns major and minor; VERSION_MIN where the text is no version."""
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else VERSION_MIN
