"""What operators read of a cluster, and how a drain is followed to its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from metadata.errors import TidelogError, Unavailable
from tests.tidelog.cli.test_against_a_broker import CommandLine, tidelog
from tidelog.cli import cluster
from tidelog.cli.cluster_health import BrokerHealth, ClusterHealth, check_cluster
from tidelog.cli.main import run
from tidelog.client import Client
from tidelog.transport.descriptions import BrokerDrain, ClusterInfo, PartitionInfo, TopicInfo

__all__ = ["tidelog"]  # the fixture


class Draining:
    """Stands for a client, in a cluster where what is left to hand over is as scripted."""

    def __init__(self, *left: int | TidelogError) -> None:
        self.left = list(left)
        self.asked: list[tuple[str, bool]] = []

    async def drain_broker(self, broker_id: str, *, validate_only: bool = False) -> BrokerDrain:
        self.asked.append((broker_id, validate_only))
        found = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(found, TidelogError):
            raise found
        return BrokerDrain(broker_id=broker_id, draining=True, partitions_led=found)


def with_answers(monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    import asyncio

    monkeypatch.setattr(cluster, "with_client", lambda url, command, **_: asyncio.run(command(client)))
    monkeypatch.setattr(cluster, "DRAIN_POLL_S", 0.0)


def drain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], client: Draining, *flags: str) -> tuple[int, str]:
    with_answers(monkeypatch, client)
    code = run(["cluster", "drain", "b1", *flags])
    return code, capsys.readouterr().err


def test_a_drain_reports_its_progress_until_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Draining(1200, 1200, Unavailable("10.0.0.7:9090: no answer"), 1, 0)
    code, said = drain(monkeypatch, capsys, client)
    assert code == 0
    assert said.splitlines() == [
        "b1 hands over 1,200 partitions",
        "not known at the moment: 10.0.0.7:9090: no answer",
        "b1 hands over 1 partition",
        "b1 leads nothing any more; it may be stopped",
    ]


def test_a_drain_that_takes_too_long_has_failed_and_says_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = drain(monkeypatch, capsys, Draining(7), "--timeout", "0.01")
    assert code == 1
    assert said.splitlines()[-1] == "after 0.01 s, b1 still leads 7 partitions; it goes on handing over"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--no-wait"], "b1 hands over 7 partitions; `tidelog cluster drain b1` waits for the end"),
        (["--dry-run"], "b1 leads 7 partitions; nothing was changed (--dry-run)"),
    ],
)
def test_a_drain_without_waiting_reports_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: Sequence[str], said: str
) -> None:
    client = Draining(7)
    assert drain(monkeypatch, capsys, client, *flags) == (0, f"{said}\n")
    assert client.asked == [("b1", "--dry-run" in flags)]


def test_an_unhealthy_cluster_is_described_in_sentences_and_exits_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ClusterHealth(
        cluster_id="abc",
        bucket="s3://b/p",
        brokers=[BrokerHealth(broker_id="b1", grpc_address="h:1", status="unreachable", detail="h:1: can't connect")],
        topics=1,
        partitions=6,
        without_leader=2,
        unserved=[],
        faults=["b1 is unreachable: h:1: can't connect", "2 partitions of orders have no leader"],
    )
    monkeypatch.setattr(cluster, "with_client", lambda url, command, **_: found)
    assert run(["cluster", "health"]) == 3
    assert capsys.readouterr().err.splitlines() == found.faults


def test_a_cluster_of_which_no_broker_answers_is_unhealthy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(url: str, command: object) -> ClusterHealth:
        raise Unavailable("no address answered: http://h:1: can't connect")

    monkeypatch.setattr(cluster, "with_client", unreachable)
    assert run(["cluster", "health"]) == 3
    assert "no address answered" in capsys.readouterr().err


def partition(number: int, leader: str, error: str = "", code: str = "", hint: str = "") -> PartitionInfo:
    offset = -1 if error else 0
    return PartitionInfo(
        partition=number,
        leader=leader,
        leader_epoch=3,
        log_start_offset=offset,
        high_watermark=offset,
        error=error,
        error_code=code,
        hint=hint,
    )


class Troubled:
    """Stands for a client of a cluster where `orders` has these partitions."""

    def __init__(self, *partitions: PartitionInfo, metadata_age_ms: int = 0) -> None:
        self._cluster = ClusterInfo(cluster_id="abc", version="1", bucket="s3://b/p", brokers=(), metadata_age_ms=metadata_age_ms)
        self._topic = TopicInfo(
            name="orders", id="1", partition_count=len(partitions), settings={}, created_at_ms=0, partitions=partitions
        )
        self.topics = self

    async def cluster(self) -> ClusterInfo:
        return self._cluster

    async def list(self) -> list[TopicInfo]:
        return [self._topic]

    async def describe(self, _: str) -> TopicInfo:
        return self._topic


def test_refused_and_silent_partitions_are_reported_with_their_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    damage = ("wal/1/2 does not match its CRC-32C", "CORRUPT", "Restore it.")
    client = Troubled(
        partition(0, "b1"),
        partition(1, "b1", *damage),
        partition(2, "b2", "b2 does not answer", "UNAVAILABLE"),
        partition(3, "b2", "b2 does not answer", "UNAVAILABLE"),
        partition(4, "", "it has no leader", "NO_LEADER"),
    )
    found = asyncio.run(check_cluster(cast(Client, client)))
    assert found.faults == [
        "1 partition of orders has no leader",
        "b1 refuses orders/1, which is damaged: wal/1/2 does not match its CRC-32C. Restore it.",
        "b2 does not answer for 2 partitions of orders",
    ]
    assert (found.without_leader, [unserved.partition for unserved in found.unserved]) == (1, [1, 2, 3])


def test_a_metadata_store_that_is_away_is_a_fault() -> None:
    found = asyncio.run(check_cluster(cast(Client, Troubled(partition(0, "b1"), metadata_age_ms=34_000))))
    [fault] = found.faults
    assert fault == (
        "the broker that was asked has heard nothing from the metadata store for 34 s: topics and leaders can't change, "
        "and this answer may be old. Look at each member of etcd (tidelog doctor --etcd URL), or, without etcd, at the broker's "
        "log and the disk of its data directory"
    )


@pytest.mark.slow
def test_one_broker_is_healthy_and_can_not_be_drained(tidelog: CommandLine) -> None:
    tidelog("topic", "create", "cli-health", "-p", "3", "--if-not-exists")
    found = json.loads(tidelog("cluster", "health", "-o", "json").stdout)
    assert (found["healthy"], found["without_leader"], len(found["brokers"])) == (True, 0, 1)
    [broker] = found["brokers"]
    assert broker["status"] == "serving"
    assert tidelog("cluster", "brokers", "-o", "ndjson").documents[0]["broker_id"] == broker["broker"]
    refused = tidelog("cluster", "drain", broker["broker"], code=1).stderr
    assert b"no other broker could take over" in refused
    assert b"Nothing was written." in refused
    assert b"no broker unknown is registered" in tidelog("cluster", "undrain", "unknown", code=1).stderr
    undrained = tidelog("cluster", "undrain", broker["broker"], "-o", "json")
    assert json.loads(undrained.stdout)["draining"] is False
