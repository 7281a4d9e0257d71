"""kill -9 of the whole broker at every await between receive, buffer, PUT, commit and answer.

After the restart nothing that was acknowledged is missing, nothing is doubled where the client was idempotent, and every
acknowledgement had the true offset. The judge is that of the simulation.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from segments.object_store.directory import DirectoryObjectStore
from tests.crash.clients import Client, Diary, Reader, clients, read_partition
from tests.crash.crashing_broker import PARTITIONS, Fault, Ready, serve_and_crash
from tests.simulation.broken_rules import BrokenRule
from tests.simulation.bucket_reader import BucketContents, read_bucket
from tests.simulation.history_checker import History, Invariant, Violation, check

pytestmark = pytest.mark.slow

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.crash.fork_server"])
START_TIMEOUT_S = 60.0
# Tests that the fault points are shared out to, so that they can run at the same time.
SHARES = 6
STAGES = {
    "receive": "begin RequestResponseCycle.run_asgi",
    "buffer": "SegmentWriter._woken",
    "PUT": "SegmentWriter._put_once",
    "the object before it is created": "before create",
    "the object created, and no answer": "after create",
    "commit and answer": "PendingAppend.committed",
}
# Fault points of the recovery proper: claim, seal, footers, leadership.
RECOVERY = (
    "gateway/cluster/session_manager.py",
    "gateway/cluster/takeover.py",
    "segments/wal/session.py",
    "segments/wal/session_reader.py",
    "segments/recovery/recover.py",
    "before create",
    "after create",
)
# At which of its passages of a fault point a broker dies.
PASSAGES = (1, 6)


class Process:
    def __init__(self, data_dir: Path, fault: Fault | None, armed_from_the_start: bool, broken: BrokenRule) -> None:
        self._pipe, theirs = PROCESSES.Pipe()
        arguments = (data_dir, fault, armed_from_the_start, broken, theirs)
        self._process = PROCESSES.Process(target=serve_and_crash, args=arguments)
        self._process.start()
        theirs.close()

    def ready(self) -> Ready | None:
        """None when it died before it served."""
        assert self._pipe.poll(START_TIMEOUT_S), "the broker neither serves nor dies"
        try:
            ready: Ready = self._pipe.recv()
        except EOFError:
            return None
        return ready

    def passed(self) -> dict[str, int]:
        """How often it has passed each fault point."""
        self._pipe.send(None)
        passed: dict[str, int] = self._pipe.recv()
        return passed

    def died(self) -> bool:
        """By itself: one that lives answers."""
        try:
            self.passed()
        except (EOFError, OSError):
            self._process.join()
            return True
        return False

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()
        self._process.close()


@contextmanager
def process(
    data_dir: Path,
    fault: Fault | None = None,
    *,
    armed_from_the_start: bool = False,
    broken: BrokenRule = BrokenRule.NOTHING,
) -> Iterator[Process]:
    broker = Process(data_dir, fault, armed_from_the_start, broken)
    try:
        yield broker
    finally:
        broker.kill()


def run_clients(crew: list[Client], reader: Reader, broker: Ready) -> None:
    """Each in a thread of its own, until it is done or the broker is gone."""
    settled = threading.Event()
    with ThreadPoolExecutor(len(crew) + 1) as threads:
        reading = threads.submit(reader.run, broker, settled)
        for sending in [threads.submit(client.run, broker) for client in crew]:
            sending.result()
        settled.set()
        reading.result()


class Aftermath(NamedTuple):
    # Brokers that died of the fault that was meant for them.
    deaths: int
    violations: list[Violation]
    # Clients that could not settle everything after the last restart.
    unfinished: list[str]


def crash_and_recover(
    data_dir: Path, *faults: Fault, recovering: bool = False, broken: BrokenRule = BrokenRule.NOTHING
) -> Aftermath:
    """One life of the log: a broker for each fault, and a last one without.

    `recovering`: the fault points of all but the first broker are armed before they serve.
    """
    diary = Diary()
    crew, reader = clients(diary), Reader(diary, "reader", 0)
    deaths = 0
    for life, fault in enumerate(faults):
        with process(data_dir, fault, armed_from_the_start=recovering and life > 0, broken=broken) as broker:
            ready = broker.ready()
            if ready is not None:
                run_clients(crew, reader, ready)
            deaths += broker.died()
    with process(data_dir, broken=broken) as broker:
        ready = broker.ready()
        assert ready is not None
        run_clients(crew, reader, ready)
        served = {f"{ready.topic_id}/{partition}": read_partition(ready, partition) for partition in range(PARTITIONS)}
    contents = asyncio.run(read_directory(data_dir / "bucket"))
    untagged = {client.name for client in crew if not client.tags_attempts}
    hidden = {record: where for record, where in contents.hidden.items() if record.producer not in untagged}
    violations = check(History(diary.events, contents.log, served, hidden))
    return Aftermath(deaths, violations, [client.name for client in crew if not client.done])


def deaths_without_damage(data_dir: Path, *faults: Fault, recovering: bool = False) -> int:
    aftermath = crash_and_recover(data_dir, *faults, recovering=recovering)
    assert aftermath.violations == [], faults
    assert aftermath.unfinished == [], faults
    return aftermath.deaths


async def read_directory(bucket: Path) -> BucketContents:
    store = await DirectoryObjectStore.open(bucket)
    try:
        return await read_bucket(store)
    finally:
        await store.close()


def points_of_a_whole_run(data_dir: Path) -> dict[str, int]:
    """Every fault point that a run without a crash passes, and how often."""
    diary = Diary()
    with process(data_dir) as broker:
        ready = broker.ready()
        assert ready is not None
        run_clients(clients(diary), Reader(diary, "reader", 0), ready)
        return broker.passed()


def points_of_a_recovery(data_dir: Path) -> dict[str, int]:
    """Every fault point that a broker passes on its way back from a crash until it serves."""
    diary = Diary()
    with process(data_dir, Fault("after create", 4)) as broker:
        ready = broker.ready()
        assert ready is not None
        run_clients(clients(diary), Reader(diary, "reader", 0), ready)
    with process(data_dir, armed_from_the_start=True) as broker:
        assert broker.ready() is not None
        return broker.passed()


def faults_at(points: dict[str, int], passages: Sequence[int]) -> list[Fault]:
    return [Fault(point, passage) for point, count in sorted(points.items()) for passage in passages if passage <= count]


@pytest.mark.proof
@pytest.mark.parametrize("share", range(SHARES))
def test_a_kill_at_any_await_loses_and_doubles_nothing(share: int, tmp_path: Path) -> None:
    points = points_of_a_whole_run(tmp_path / "whole")
    for stage, mark in STAGES.items():
        assert any(mark in point for point in points), f"no fault point in: {stage}"
    faults = faults_at(points, PASSAGES)[share::SHARES]
    died = [fault for number, fault in enumerate(faults) if deaths_without_damage(tmp_path / str(number), fault)]
    often = [fault for fault in faults if points[fault.point] >= 2 * fault.passage]  # others depend on what meets whom in time
    assert len(set(died) & set(often)) >= len(often) * 2 / 3, "the points of one run are hardly passed in another"
    assert len(died) >= len(faults) / 2


@pytest.mark.proof
@pytest.mark.parametrize("share", range(2))
def test_a_kill_during_the_recovery_from_a_kill_loses_and_doubles_nothing(share: int, tmp_path: Path) -> None:
    points = points_of_a_recovery(tmp_path / "whole")
    points = {point: count for point, count in points.items() if any(mark in point for mark in RECOVERY)}
    faults = faults_at(points, (1, 3))[share::2]
    first = Fault("after create", 4)
    deaths = sum(
        deaths_without_damage(tmp_path / str(number), first, fault, recovering=True) for number, fault in enumerate(faults)
    )
    assert deaths >= len(faults) * 4 / 3, "the points of one recovery are hardly passed in another"


@pytest.mark.parametrize(
    ("rule", "point", "invariant"),
    [
        (BrokenRule.ACKNOWLEDGED_EARLY, "before create", Invariant.DURABLE),
        (BrokenRule.REPEATS_NOT_KNOWN, "after create", Invariant.UNIQUE),
    ],
    ids=["acknowledged early", "repeats not known"],
)
def test_a_broken_rule_is_caught_by_a_kill(rule: BrokenRule, point: str, invariant: Invariant, tmp_path: Path) -> None:
    """Within a few kills: whose batch the fatal segment holds is chance."""
    found = (
        violation.invariant
        for passage in range(2, 10)
        for violation in crash_and_recover(tmp_path / str(passage), Fault(point, passage), broken=rule).violations
    )
    assert invariant in found
