"""Every broker of a release is replaced under load, as Kubernetes does it with this chart: the next pod starts and is ready; then
an old one gets its preStop and its SIGTERM. Clients know the addresses of the first pods alone, and see no error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.chaos.history import Acknowledged, Healed, History, Refused, Unknown
from tests.chaos.history_checker import check
from tests.chaos.run import caught_up
from tests.chaos.workload import PARTITIONS, TOPIC, SdkProducer, SdkReader
from tests.cluster.three_brokers import connected
from tests.deploy.chart import NAME, render
from tests.deploy.rendered_pod import PATIENCE_S, RenderedPod, on_free_ports
from tests.kit.etcd_server import running_etcd
from tests.kit.servers import chosen_s3_server

pytestmark = pytest.mark.slow
BROKERS = 3


@contextmanager
def pods(directory: Path) -> Iterator[list[RenderedPod]]:
    """Twice as many as brokers: those that are there first, and those that take their places. None is started."""
    with ExitStack() as parts:
        s3 = parts.enter_context(chosen_s3_server(directory, build=False))
        etcd = parts.enter_context(running_etcd(directory))
        bucket = f"s3://{s3.make_bucket()}/rolling"
        secrets = {"s3-keys": {"access-key-id": s3.access_key, "secret-access-key": s3.secret_key}}
        made = []
        for number in range(2 * BROKERS):
            values = {
                "bucket": bucket,
                "etcd": {"endpoints": [etcd.url]},
                "s3": {"endpoint": s3.endpoint_url, "region": "us-east-1", "existingSecret": "s3-keys"},
                **on_free_ports(),
            }
            pod = RenderedPod(render(values), NAME, directory, name=f"{NAME}-{number}", secrets=secrets)
            made.append(parts.enter_context(pod))
        yield made


def test_clients_see_no_error_while_all_brokers_are_replaced(tmp_path: Path) -> None:
    with pods(tmp_path) as made, History(tmp_path / "history.ndjson") as history:
        asyncio.run(_replace_all(made[:BROKERS], made[BROKERS:], history))
        assert check(history.events) == []
        assert [event for event in history.events if isinstance(event, Refused | Unknown)] == []


async def _replace_all(first: list[RenderedPod], later: list[RenderedPod], history: History) -> None:
    for pod in first:
        pod.start()
    for pod in first:
        await asyncio.to_thread(pod.await_ready)
    addresses = tuple(f"http://127.0.0.1:{pod.port('http')}" for pod in first)
    async with connected(*addresses) as log:
        await log.topics.create(TOPIC, partitions=PARTITIONS)
    reader = SdkReader("reader", addresses, history)
    producers = [
        SdkProducer(f"producer-{keyed}", addresses, history, keyed=keyed, per_second=50, delivery_timeout_s=PATIENCE_S)
        for keyed in (True, False)
    ]
    enough = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(reader.run())
        producing = [tasks.create_task(producer.run(enough)) for producer in producers]
        for old, new in zip(first, later, strict=True):
            new.start()
            await asyncio.to_thread(new.await_ready)
            await _more_is_acknowledged(history)
            assert await asyncio.to_thread(old.stop) == 0, old.log
        await _more_is_acknowledged(history)
        history.add(Healed(history.now_s))
        enough.set()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*producing)
            await caught_up([reader], history)
        reading.cancel()


async def _more_is_acknowledged(history: History) -> None:
    """In every partition, of what is sent from now on."""
    start = len(history.events)

    def partitions() -> set[int]:
        return {position[0] for event in history.events[start:] if isinstance(event, Acknowledged) for position in event.positions}

    async with asyncio.timeout(PATIENCE_S):
        while len(partitions()) < PARTITIONS:  # noqa: ASYNC110  # other processes set no events
            await asyncio.sleep(0.05)
