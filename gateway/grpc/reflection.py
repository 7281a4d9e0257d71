"""Serves grpc.reflection.v1alpha: lists the services and messages to every client, by the library's own answers.

Each stream takes a place that anonymous_streams.py bounds; the library's own service would not.
Source: https://github.com/grpc/grpc/blob/master/doc/server-reflection.md
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.grpc.anonymous_streams import AnonymousStreamLimiter
from gateway.grpc.calls import Context, MethodHandler, parse_message, stream, write_wholly

SERVICE: Final[str] = reflection.SERVICE_NAME


class ReflectionService:
    """Answers reflection queries from the descriptors of the broker's services."""

    def __init__(self, services: Iterable[str], waits: InterruptibleWaits, watches: AnonymousStreamLimiter) -> None:
        self._library = reflection.ReflectionServicer((*services, SERVICE))
        self._waits = waits
        self._watches = watches

    def handlers(self) -> dict[str, MethodHandler]:
        return {"ServerReflectionInfo": stream(self.info)}

    async def info(self, context: Context) -> None:
        """Answers each query of the stream until the client ends it."""
        async with self._waits.until_stop(), self._watches.slot(context):
            while isinstance(message := await context.read(), bytes):
                question = parse_message(ServerReflectionRequest, message)
                for answer in self._library.ServerReflectionInfo(iter((question,)), context):
                    await write_wholly(context, answer.SerializeToString())
