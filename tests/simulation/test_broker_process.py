"""A bug in a handler of a simulated broker makes the world fail by name, and its client does not wait for an answer."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable

import pytest

from gateway.cluster.settings import ClusterSettings
from metadata.errors import OutcomeUnknown
from metadata.store.keys import KeyLayout
from segments.settings import SegmentSettings
from tests.kit.faulty_store import CALM
from tests.simulation.appointments import Recorder
from tests.simulation.archive_store import ArchiveStore
from tests.simulation.broker_process import BrokerProcess, Site
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.virtual_loop import run, virtual_loop


def failures_of(ask: Callable[[BrokerProcess], Awaitable[None]]) -> list[str]:
    """Returns by what a world fails in which a broker is asked this."""

    async def world() -> list[str]:
        metadata = EtcdModel(virtual_loop().time)
        bucket = ArchiveStore(virtual_loop().now_ms, lambda topic, topic_id: True)
        recorder, failures = Recorder(bucket, metadata, KeyLayout()), list[str]()
        site = Site(1, bucket, metadata, SegmentSettings(), ClusterSettings(), recorder, [], False, failures)
        broker = BrokerProcess("b1.1", site, broker_id="b1", rack="r1", faults=CALM)
        try:
            await ask(broker)
        finally:
            broker.kill()
        return failures

    return run(world())


async def _breaks() -> None:
    raise KeyError("no such field")


async def _breaks_among_tasks() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_breaks())


async def _is_cancelled_from_within() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("handler", "named"),
    [
        (_breaks, "KeyError('no such field')"),
        (_breaks_among_tasks, "KeyError('no such field')"),
        (_is_cancelled_from_within, "Cancelled"),
    ],
)
def test_a_bug_in_a_handler_fails_the_world_by_name_and_answers_the_client_at_once(
    handler: Callable[[], Awaitable[None]], named: str
) -> None:
    async def ask(broker: BrokerProcess) -> None:
        began_s = virtual_loop().time()
        with pytest.raises(OutcomeUnknown, match="met a bug"):
            await broker.ask(handler, latency_s=0.001, timeout_s=100, hang_up=True)
        assert virtual_loop().time() - began_s < 1

    [failure] = failures_of(ask)
    assert failure.startswith("b1.1 failed to answer: ")
    assert named in failure
    assert "test_broker_process.py:" in failure


def test_a_client_that_hangs_up_is_no_bug() -> None:
    async def ask(broker: BrokerProcess) -> None:
        with pytest.raises(OutcomeUnknown, match="did not answer"):
            await broker.ask(lambda: asyncio.sleep(1_000), latency_s=0.001, timeout_s=0.5, hang_up=True)
        await asyncio.sleep(1)

    assert failures_of(ask) == []


def test_each_call_has_a_context_of_its_own() -> None:
    seen: list[int] = []
    mark: contextvars.ContextVar[int] = contextvars.ContextVar("mark", default=0)

    async def handler() -> None:
        seen.append(mark.get())
        mark.set(1)

    async def ask(broker: BrokerProcess) -> None:
        for _ in range(2):
            await broker.ask(handler, latency_s=0.001, timeout_s=1, hang_up=True)

    assert failures_of(ask) == []
    assert seen == [0, 0]
