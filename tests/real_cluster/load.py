"""Producers and a reader, through the SDK, while something is done to the cluster; and whether they saw an error."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.chaos.history import Acknowledged, Healed, History, Refused, Sent, Unknown
from tests.chaos.history_checker import check
from tests.chaos.run import caught_up
from tests.chaos.workload import PARTITIONS, TOPIC, SdkProducer, SdkReader
from tests.cluster.three_brokers import connected
from tests.real_cluster.processes import PATIENCE_S, POLL_S, Failed

PER_SECOND = 30


class Load(AbstractContextManager["Load"]):
    """Entered once it runs, left once all that was sent has its answer and was read. Raises Failed where anything was broken."""

    def __init__(self, url: str, directory: Path, name: str) -> None:
        self._url = url
        self._name = name
        self._history = History(directory / f"{name}.ndjson")
        self._enough = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outcome: Future[None] = Future()
        self.longest_wait_s = 0.0
        """For an acknowledgement."""
        self.acknowledged = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, daemon=True).start()
        self.await_more()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._enough.set)
        if kind is None:
            self._outcome.result(PATIENCE_S)
            self._judge()

    def await_more(self) -> None:
        """Until every partition has acknowledged what is sent from now on."""
        start, deadline = len(self._history.events), time.monotonic() + PATIENCE_S
        while len(self._acknowledging(start)) < PARTITIONS:
            if self._outcome.done():
                self._outcome.result()
            if time.monotonic() > deadline:
                raise Failed(f"{self._name}: partitions take nothing")
            time.sleep(POLL_S)

    def _acknowledging(self, start: int) -> set[int]:
        """Partitions, by the events from there on."""
        acknowledged = [event for event in self._history.events[start:] if isinstance(event, Acknowledged)]
        return {position[0] for event in acknowledged for position in event.positions}

    def _judge(self) -> None:
        events = self._history.events
        reported = [event for event in events if isinstance(event, Refused | Unknown)]
        if found := [*check(events), *reported]:
            raise Failed(f"{self._name}: {len(found)} found: {found[:5]}")
        sent = {event.operation: event.time_s for event in events if isinstance(event, Sent)}
        waits = [event.time_s - sent[event.operation] for event in events if isinstance(event, Acknowledged)]
        self.acknowledged, self.longest_wait_s = len(waits), max(waits)

    def _run(self) -> None:
        try:
            with self._history:
                asyncio.run(self._produce_and_read())
        except BaseException as error:  # noqa: BLE001  # it is raised where the outcome is asked for
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(None)

    async def _produce_and_read(self) -> None:
        self._loop = asyncio.get_running_loop()
        addresses = (self._url,)
        async with connected(*addresses) as log:
            await log.topics.create(TOPIC, partitions=PARTITIONS)
        try:
            await self._until_enough(addresses)
        finally:
            async with connected(*addresses) as log:
                await log.topics.delete(TOPIC)

    async def _until_enough(self, addresses: tuple[str, ...]) -> None:
        history = self._history
        reader = SdkReader("reader", addresses, history)
        kinds = (("keyed", True), ("spread", False))
        producers = [SdkProducer(name, addresses, history, keyed=keyed, per_second=PER_SECOND) for name, keyed in kinds]
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(reader.run())
            await asyncio.gather(*(producer.run(self._enough) for producer in producers))
            history.add(Healed(history.now_s))
            async with asyncio.timeout(PATIENCE_S):
                await caught_up([reader], history)
            reading.cancel()
