"""A simulated broker serves what the handlers of the product ask of a broker."""

from __future__ import annotations

import asyncio
import random

from gateway.cluster.settings import ClusterSettings
from gateway.http.records.event_ids import encode_event_id
from metadata.store.keys import KeyLayout
from metadata.topics.registry import TopicRegistry
from tests.simulation.appointments import Recorder
from tests.simulation.archive_store import ArchiveStore
from tests.simulation.broker_process import Site
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.listener_calls import HttpCall
from tests.simulation.route_cluster import RouteCluster, segment_settings
from tests.simulation.route_streams import EVENTS
from tests.simulation.virtual_loop import run, virtual_loop

ORDERS = "orders"


def test_a_stream_resumes_at_a_broker_that_has_not_heard_of_a_partition_in_its_event_id() -> None:
    async def resume() -> tuple[int, bytes, bytes, list[str]]:
        metadata, chance = EtcdModel(virtual_loop().time), random.Random(1)
        bucket = ArchiveStore(virtual_loop().now_ms, lambda topic, topic_id: True)
        recorder = Recorder(bucket, metadata, KeyLayout())
        failures: list[str] = []
        site = Site(1, bucket, metadata, segment_settings(chance), ClusterSettings(), recorder, [], False, failures)
        cluster = RouteCluster(site, chance, lambda note: None)
        running = [asyncio.ensure_future(work.run()) for work in (metadata, recorder, cluster.partitions, cluster.registered)]
        topics = TopicRegistry(metadata)
        await topics.create(ORDERS, 1)
        cluster.start("b1")
        [broker] = cluster.routed
        async with asyncio.timeout(60):
            while not cluster.all_lead():  # noqa: ASYNC110  # the clock is virtual
                await asyncio.sleep(0.05)
        broker.lag_behind_topics(0.5)
        grown = await topics.alter(ORDERS, partition_count=2)
        event_id = encode_event_id(grown.id, {0: 0, 1: 0}).encode()
        pieces: list[bytes] = []
        call = HttpCall("GET", "wait_ms=0", [EVENTS, (b"last-event-id", event_id)], sink=pieces.append)
        assert broker.view.topics.get(ORDERS).partition_count == 1
        await broker.ask(
            lambda: broker.http_fetch.topic(call.request, ORDERS),
            latency_s=0.002,
            timeout_s=60,
            hang_up=True,
        )
        cluster.kill(broker)
        for task in running:
            task.cancel()
        return call.status, b"".join(pieces), event_id, failures

    status, body, event_id, failures = run(resume(), seed=1, shuffled=False)
    assert failures == []
    assert status == 200
    assert event_id in body
