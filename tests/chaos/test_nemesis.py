"""The nemesis: the same seed plans the same blows, and each blow leaves the cluster whole."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path
from typing import cast

import pytest

from tests.chaos import nemesis
from tests.chaos.cluster import BROKERS, Broker, Cluster
from tests.chaos.history import Blow, History, Unexpected
from tests.chaos.nemesis import KINDS, OF_ALL_BROKERS, Kind, Planned, plan, strike, torment
from tests.kit.etcd_server import EtcdMember
from tests.kit.servers import S3Server
from tests.kit.tcp_proxy import TcpProxy
from tests.simulation.virtual_loop import run


class RecordedProcess:
    """What a nemesis does to a broker's process or to etcd's, written down."""

    def __init__(self, name: str, log: list[str], exit_code: int | None = 0) -> None:
        self.name = name
        self.runs = True
        self.stopped = False
        self._log = log
        self._exit_code = exit_code

    def start(self) -> None:
        assert not self.runs, f"{self.name} runs already"
        self.runs = True
        self._log.append(f"start {self.name}")

    def kill(self) -> None:
        self.runs = False
        self._log.append(f"kill {self.name}")

    def pause(self) -> None:
        self.stopped = True
        self._log.append(f"pause {self.name}")

    def resume(self) -> None:
        self.stopped = False
        self._log.append(f"resume {self.name}")

    def freeze(self) -> None:
        self.pause()

    def thaw(self) -> None:
        self.resume()

    async def drain(self) -> int | None:
        self.runs = False
        self._log.append(f"drain {self.name}")
        return self._exit_code


class RecordedBroker(RecordedProcess):
    def __init__(self, broker_id: str, log: list[str], exit_code: int | None = 0) -> None:
        super().__init__(broker_id, log, exit_code)
        self.broker_id = broker_id
        self.ready = True
        self.drains = False
        self.etcd, self.s3 = TcpProxy(1), TcpProxy(2)

    async def order(self, verb: str) -> bool:
        self.drains = verb == "drain"
        self._log.append(f"{verb} {self.name}")
        return True

    @property
    def process(self) -> object | None:
        return self if self.runs else None


class Recorded:
    """A cluster that only writes down."""

    def __init__(self, path: Path, exit_code: int | None = 0) -> None:
        self.log: list[str] = []
        self.brokers = [RecordedBroker(broker_id, self.log, exit_code) for broker_id in BROKERS]
        self.etcd = RecordedProcess("etcd", self.log)
        self.history = History(path)
        self.cluster = Cluster(
            cast(list[Broker], self.brokers),
            cast(EtcdMember, self.etcd),
            S3Server("none", "http://127.0.0.1:1"),
            "bucket",
            {},
            self.history,
        )

    @property
    def is_whole(self) -> bool:
        links = [link for broker in self.brokers for link in (broker.etcd, broker.s3)]
        return (
            all(process.runs and not process.stopped for process in (*self.brokers, self.etcd))
            and all(link.fault == "none" and link.delay_s == 0 for link in links)
            and not any(broker.drains for broker in self.brokers)
        )


def test_the_same_seed_plans_the_same_blows() -> None:
    assert list(islice(plan(7), 40)) == list(islice(plan(7), 40))
    assert list(islice(plan(7), 40)) != list(islice(plan(8), 40))


def test_every_round_has_every_kind_of_blow_once() -> None:
    assert {blow.kind for blow in islice(plan(3), len(KINDS))} == set(KINDS)


def test_a_fault_of_all_brokers_names_no_broker() -> None:
    assert all((blow.broker == "") == (blow.kind in OF_ALL_BROKERS) for blow in islice(plan(5), 200))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_blow_leaves_the_cluster_whole(kind: Kind, tmp_path: Path) -> None:
    cluster = Recorded(tmp_path / "history")
    with cluster.history:
        blow = Planned(kind, "" if kind in OF_ALL_BROKERS else "b2", 0.01, 0.0)
        asyncio.run(strike(cluster.cluster, blow))
        assert cluster.is_whole
        assert not cluster.history.events


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_blow_that_is_broken_off_leaves_the_cluster_whole(kind: Kind, tmp_path: Path) -> None:
    cluster = Recorded(tmp_path / "history")

    async def broken_off() -> None:
        blow = asyncio.ensure_future(strike(cluster.cluster, Planned(kind, "" if kind in OF_ALL_BROKERS else "b2", 60.0, 0.0)))
        await asyncio.wait((blow,), timeout=0.05)
        assert not blow.done()
        blow.cancel()
        await asyncio.wait((blow,))

    with cluster.history:
        asyncio.run(broken_off())
        assert cluster.is_whole


@pytest.mark.parametrize(
    ("exit_code", "reported"), [(None, "after SIGTERM it had to be killed"), (3, "after SIGTERM it ended with exit code 3")]
)
def test_a_drain_that_does_not_end_cleanly_is_reported(exit_code: int | None, reported: str, tmp_path: Path) -> None:
    cluster = Recorded(tmp_path / "history", exit_code)
    with cluster.history:
        asyncio.run(strike(cluster.cluster, Planned("drain", "b1", 0.0, 0.0)))
        (event,) = cluster.history.events
        assert isinstance(event, Unexpected)
        assert (event.who, event.why) == ("b1", reported)
        assert cluster.is_whole


def test_two_hands_strike_and_never_the_same_broker_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Recorded(tmp_path / "history")
    now, most = dict.fromkeys(BROKERS, 0), 0

    async def struck(held: Cluster, blow: Planned) -> None:
        nonlocal most
        for broker in blow.targets:
            now[broker] += 1
        assert max(now.values()) == 1
        most = max(most, sum(now.values()))
        await asyncio.sleep(blow.lasts_s)
        for broker in blow.targets:
            now[broker] -= 1

    monkeypatch.setattr(nemesis, "strike", struck)
    with cluster.history:
        run(torment(cluster.cluster, 1, for_s=1800.0, say=lambda text: None))
        assert most > 1
        assert {event.what for event in cluster.history.events if isinstance(event, Blow)} == set(KINDS)
