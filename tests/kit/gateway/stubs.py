"""gRPC stubs for tests: the generated ones have no types."""

from __future__ import annotations

from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from gateway.proto import admin_pb2_grpc, groups_pb2_grpc, log_pb2_grpc


def log_stub(channel: grpc.aio.Channel) -> Any:
    return log_pb2_grpc.LogStub(channel)  # type: ignore[no-untyped-call]


def topics_stub(channel: grpc.aio.Channel) -> Any:
    return admin_pb2_grpc.TopicsStub(channel)  # type: ignore[no-untyped-call]


def cluster_stub(channel: grpc.aio.Channel) -> Any:
    return admin_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]


def groups_stub(channel: grpc.aio.Channel) -> Any:
    return groups_pb2_grpc.GroupsStub(channel)  # type: ignore[no-untyped-call]


def health_stub(channel: grpc.aio.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel)


def reflection_stub(channel: grpc.aio.Channel) -> Any:
    return reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]  # its stubs know blocking channels only
