"""A broker stops, and others go on: what its clients still send is forwarded until they have left, and nothing of it is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from gateway.broker import broker as broker_module
from gateway.proto import log_pb2
from tests.gateway.cluster.test_session_manager import partition_of
from tests.gateway.routing.test_cluster_log import channel_to, made, ready
from tests.kit.gateway.broker_cluster import Cluster, with_cluster
from tests.kit.gateway.stubs import log_stub
from tests.kit.segments.batches import sequenced_batch

pytestmark = pytest.mark.slow


def test_a_stop_cuts_no_stream_of_a_producer_that_is_about_to_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took a producer that had been silent for a moment for one that had left; what was under way to it came back as unknown."""
    monkeypatch.setattr(broker_module, "QUIET_S", 0.0)
    monkeypatch.setattr(broker_module, "IN_USE_S", 60.0)

    async def scenario(cluster: Cluster) -> None:
        topic, number, _ = await made(cluster)
        leader = cluster.leader(partition_of(topic, number))
        async with channel_to(leader) as channel:
            call = log_stub(channel).ProduceStream()

            async def produce(at: int) -> log_pb2.Placement:
                await call.write(log_pb2.ProduceRequest(correlation_id=at, appends=[ready(sequenced_batch(5, at), number)]))
                answer: log_pb2.ProduceResponse = await call.read()
                [placement] = answer.results[0].placements
                assert placement.base_offset == at
                return placement

            before = await produce(0)
            quiet, until_quiet = asyncio.Event(), leader._forwarding.wait_until_quiet

            async def output_when_quiet(*, quiet_s: float, timeout_s: float) -> None:
                await until_quiet(quiet_s=quiet_s, timeout_s=timeout_s)
                quiet.set()

            leader._forwarding.wait_until_quiet = output_when_quiet  # type: ignore[method-assign]  # a double
            leader.stop()
            await quiet.wait()  # others lead, the session is sealed, and nothing is on its way for the moment
            after = await produce(1)
            assert after.leader_epoch > before.leader_epoch, "so it learns who leads"
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK

    with_cluster(tmp_path, scenario)
