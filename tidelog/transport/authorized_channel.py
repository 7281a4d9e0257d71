"""A gRPC channel whose every call carries who asks. It stands where a channel does, for the generated stubs.

Not by grpc's own call credentials: those need TLS, where a broker on this machine needs none, and ask a thread for each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc.aio

AUTHORIZATION = "authorization"


class AuthorizedChannel:
    def __init__(self, channel: grpc.aio.Channel, authorization: Callable[[], str | None]) -> None:
        """`authorization` is asked for each call."""
        self._channel = channel
        self._authorization = authorization

    def __getattr__(self, name: str) -> Any:
        """Its state, and its end."""
        return getattr(self._channel, name)

    def unary_unary(self, *args: Any, **options: Any) -> Any:
        return self._authorized(self._channel.unary_unary(*args, **options))

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        return self._authorized(self._channel.unary_stream(*args, **options))

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        return self._authorized(self._channel.stream_unary(*args, **options))

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        return self._authorized(self._channel.stream_stream(*args, **options))

    def _authorized(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def begin(*args: Any, metadata: Any = (), **options: Any) -> Any:
            told = self._authorization()
            return call(*args, metadata=(*metadata, (AUTHORIZATION, told)) if told else metadata, **options)

        return begin
