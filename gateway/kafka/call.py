"""Defines a request as its handler sees it, and the shape of a handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from gateway.access.authorization import AuthorizedCall
from gateway.access.permissions import RequiredAccess
from gateway.kafka.connection import KafkaConnection


class KafkaCall:
    """The request that a handler answers: its version, and the connection that it came through."""

    __slots__ = ("authorized", "client_id", "connection", "is_last", "release", "version")

    def __init__(self, connection: KafkaConnection, version: int, client_id: str, authorized: AuthorizedCall | None) -> None:
        self.connection = connection
        self.version = version
        self.client_id = client_id
        # The rights of the caller; None if authentication is off.
        self.authorized = authorized
        # Releases the memory of the answer once the client has received it. The handler sets it.
        self.release: Callable[[], None] | None = None
        # Whether the connection is closed once the answer is sent. The handler sets it.
        self.is_last = False


class Handler(NamedTuple):
    """An API that a broker serves: its versions, and the function that answers it."""

    # The versions that this broker advertises.
    version_min: int
    version_max: int
    needs: RequiredAccess
    # Returns the response, which is encoded in the version of the request.
    handle: Callable[[KafkaCall, Any], Awaitable[Any]]
    # Returns the response without a wait; None, without any effect, if `handle` has to answer. A task costs more than a heartbeat.
    handle_at_once: Callable[[KafkaCall, Any], Any] | None = None
