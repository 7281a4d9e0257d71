"""Metrics of consumer groups: correct, from memory, at a bounded cost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.groups import metrics as group_metrics
from gateway.groups.expiry import GroupExpiry
from gateway.groups.maintenance import GroupMaintenance
from gateway.groups.metrics import GroupMetrics, by_partition, by_topic
from gateway.groups.scan import GroupScanner
from gateway.telemetry.registry import MetricsRegistry
from metadata.errors import NoLeader, OutcomeUnknown
from metadata.groups.consumer_protocol import encode_assignment
from metadata.groups.settings import GroupSettings
from metadata.model import Partition, TopicPartition
from metadata.store.interface import Put
from tests.kit.gateway.coordinated_groups import LAYOUT, P0, P1, Cluster, Coordinated, outcome, with_cluster
from tests.kit.gateway.reported_log import TOPIC_ID, ReportedLog, Topics, bounds, topic
from tests.kit.metadata.faulty_store import unavailable
from tests.simulation.virtual_loop import virtual_loop

Samples = dict[tuple[str, tuple[str, ...]], float]
INTERVAL_S: Final = 15.0
HOUR_MS: Final = 3_600_000
DOCS: Final = Path(__file__).parents[3] / "docs"
LABELS: Final = ("group", "consumergroup", "topic", "partition", "state")


class Watched:
    """A coordinator and the metrics of its groups."""

    def __init__(self, at: Coordinated, log: ReportedLog, partitions: int) -> None:
        self.at = at
        self.log = log
        now_ms = virtual_loop().now_ms
        topics = Topics(topic(partition_count=partitions))
        self.expiry = GroupExpiry(at.link, LAYOUT, at.groups, topics, retention_ms=HOUR_MS, now_ms=now_ms)
        self.figures = GroupMetrics(
            at.link,
            LAYOUT,
            at.groups,
            log,
            topics,
            coordinates=lambda _: at.is_mine,
            interval_s=INTERVAL_S,
            now_ms=now_ms,
        )
        self.scan = GroupScanner(
            at.link,
            LAYOUT,
            at.groups.known_offsets,
            (self.figures.visit, self.expiry.visit),
            interval_s=300,
            coordinates=lambda _: at.is_mine,
            now_ms=now_ms,
        )
        self.metrics = MetricsRegistry()
        self.metrics.register(lambda: (by_topic(self.figures.snapshot), at.groups.counts, self.expiry.counts))
        self.metrics.register(lambda: (by_partition(self.figures.snapshot),), detail=True)

    def scrape(self, *, detailed: bool = False) -> Samples:
        """By name and label values, as they stand in the text; in this thread, as a virtual loop has no others."""
        registry = self.metrics._detail if detailed else self.metrics._summary
        text = generate_latest(registry).decode()
        return {
            (sample.name, tuple(sample.labels[name] for name in LABELS if name in sample.labels)): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


def watched(scenario: Callable[[Watched, Cluster], Awaitable[None]], *, partitions: int = 2) -> None:
    async def prepared(cluster: Cluster) -> None:
        await scenario(Watched(await cluster.coordinator(), ReportedLog(), partitions), cluster)

    with_cluster(prepared)


def test_lag_is_exported_by_topic_and_in_detail_by_partition() -> None:
    async def scenario(here: Watched, _: Cluster) -> None:
        now_ms = virtual_loop().now_ms()
        here.log.ends = {P0: bounds(0, 10), P1: bounds(0, 7)}
        here.log.timestamps = {(P0, 4): now_ms - 60_000, (P1, 6): now_ms - 2_000}
        await here.at.commit(4)
        await here.at.commit(6, partition=P1)
        await here.figures.refresh()
        reported = here.scrape()
        assert reported["tidelog_group_lag_records", ("g", "orders")] == 7
        assert reported["tidelog_group_lag_seconds", ("g", "orders")] == pytest.approx(60, abs=1)
        assert reported["tidelog_group_members", ("g",)] == 0
        assert reported["tidelog_groups", ("Empty",)] == 1
        detail = here.scrape(detailed=True)
        for name in ("tidelog_group_partition_lag_records", "kafka_consumergroup_lag"):
            assert [detail[name, ("g", "orders", number)] for number in "01"] == [6, 1]
        assert detail["kafka_consumergroup_current_offset", ("g", "orders", "0")] == 4
        assert detail["kafka_consumergroup_lag_sum", ("g", "orders")] == 7
        assert detail["tidelog_group_partition_lag_seconds", ("g", "orders", "1")] == pytest.approx(2, abs=1)

    watched(scenario)


def test_the_names_for_boards_of_kafka_have_the_labels_that_these_ask_for() -> None:
    async def scenario(here: Watched, _: Cluster) -> None:
        here.log.ends = {P0: bounds(0, 10)}
        await here.at.commit(4)
        await here.figures.refresh()
        families = {each.name: each for each in text_string_to_metric_families(generate_latest(here.metrics._detail).decode())}
        for name in ("kafka_consumergroup_lag", "kafka_consumergroup_current_offset"):
            assert families[name].type == "gauge"
            assert set(families[name].samples[0].labels) == {"consumergroup", "topic", "partition"}
        assert set(families["kafka_consumergroup_members"].samples[0].labels) == {"consumergroup"}

    watched(scenario)


def test_members_generations_rebalances_and_commits_are_counted() -> None:
    async def scenario(here: Watched, _: Cluster) -> None:
        first, second = await here.at.stable()
        await here.at.commit(1, first, 1)
        await here.at.commit(2, first, 1)
        await here.at.leave(second)
        await here.at.join(first)
        await here.figures.refresh()
        reported = here.scrape()
        assert reported["tidelog_group_members", ("g",)] == 1
        assert reported["tidelog_group_generation", ("g",)] == 2
        assert reported["tidelog_group_rebalances_total", ()] == 2
        assert reported["tidelog_group_commits_total", ()] == 2
        assert reported["tidelog_group_offsets_committed_total", ()] == 2
        assert reported["tidelog_group_lag_refreshed_timestamp_seconds", ()] == pytest.approx(virtual_loop().now_ms() / 1000)

    watched(scenario)


def test_a_partition_that_is_owned_and_never_committed_counts_but_not_for_boards_of_kafka() -> None:
    async def scenario(here: Watched, _: Cluster) -> None:
        here.log.ends = {P0: bounds(5, 10)}
        joined = await here.at.join()
        await here.at.sync(joined.member_id, 1, {joined.member_id: encode_assignment({"orders": [0]})})
        await here.figures.refresh()
        assert here.scrape()["tidelog_group_lag_records", ("g", "orders")] == 5
        detail = here.scrape(detailed=True)
        assert detail["tidelog_group_partition_lag_records", ("g", "orders", "0")] == 5
        assert not any(name.startswith("kafka_consumergroup_lag") for name, _ in detail)

    watched(scenario)


def test_a_refresh_asks_the_store_for_nothing_that_this_broker_has_heard() -> None:
    async def scenario(here: Watched, _: Cluster) -> None:
        here.log.ends = {P0: bounds(0, 10), P1: bounds(0, 10)}
        for number in range(20):
            await here.at.commit(4, group=f"g{number}")
        await here.figures.refresh()
        before = here.at.link.requests
        for number in range(20):
            await here.at.commit(5, group=f"g{number}")
        commits = here.at.link.requests - before
        for _refresh in range(5):
            await here.figures.refresh()
        assert here.at.link.requests - before == commits
        assert len(here.log.asked) == 6, "the leaders are asked once in a refresh, for all groups"
        assert here.scrape()["tidelog_group_lag_records", ("g7", "orders")] == 5
        here.scrape(detailed=True)
        assert here.at.link.requests - before == commits

    watched(scenario)


def test_of_a_group_that_begins_here_nothing_is_read_and_of_one_that_was_there_all() -> None:
    async def scenario(here: Watched, cluster: Cluster) -> None:
        here.log.ends = {P0: bounds(0, 10), P1: bounds(0, 10)}
        former = await cluster.coordinator()
        await former.commit(9, group="old")
        former.hand_over()
        await here.at.commit(4, group="new")
        await here.at.commit(4, group="old", partition=P1)
        before = here.at.link.requests
        await here.figures.refresh()
        assert here.at.link.requests - before == 1
        reported = here.scrape()
        assert reported["tidelog_group_lag_records", ("new", "orders")] == 6
        assert reported["tidelog_group_lag_records", ("old", "orders")] == 1 + 6

    watched(scenario)


def test_a_record_is_read_once_for_its_time_however_many_groups_wait_before_it() -> None:
    async def scenario(here: Watched, _: Cluster) -> None:
        here.log.ends, here.log.timestamps = {P0: bounds(0, 10)}, {(P0, 4): 0, (P0, 5): 0}
        for number in range(20):
            await here.at.commit(4, group=f"g{number}")
        for _refresh in range(3):
            await here.figures.refresh()
        assert here.log.fetched == [(P0, 4)]
        await here.at.commit(5, group="g7")
        await here.figures.refresh()
        assert here.log.fetched == [(P0, 4), (P0, 5)]

    watched(scenario)


def test_of_too_many_records_others_are_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_metrics, "READS_MAX", 10)

    async def scenario(here: Watched, _: Cluster) -> None:
        partitions = [TopicPartition(TOPIC_ID, Partition(number)) for number in range(35)]
        here.log.ends = dict.fromkeys(partitions, bounds(0, 10))
        here.log.timestamps = {(partition, 4): 0 for partition in partitions}
        for partition in partitions:
            await here.at.commit(4, partition=partition)
        for count in (10, 20, 30, 35, 35):
            await here.figures.refresh()
            assert len(here.log.fetched) == count
        assert len(set(here.log.fetched)) == 35

    watched(scenario, partitions=35)


def test_the_lag_uses_the_last_known_end_offset_of_a_leader_that_does_not_answer() -> None:
    async def scenario(here: Watched, _: Cluster) -> None:
        here.log.ends = {P0: bounds(0, 10), P1: NoLeader("it has no leader")}
        await here.at.commit(4)
        await here.at.commit(4, partition=P1)
        await here.figures.refresh()
        assert here.scrape()["tidelog_group_lag_records", ("g", "orders")] == 6
        here.log.ends[P0] = NoLeader("it has no leader")
        await here.figures.refresh()
        assert here.scrape()["tidelog_group_lag_records", ("g", "orders")] == 6
        await here.at.commit(9)
        await here.figures.refresh()
        assert here.scrape()["tidelog_group_lag_records", ("g", "orders")] == 1

    watched(scenario)


def test_metrics_of_idle_groups_come_from_the_broker_that_would_coordinate_them() -> None:
    async def scenario(here: Watched, cluster: Cluster) -> None:
        here.log.ends = {P0: bounds(0, 10)}
        await here.at.commit(4)
        heir = Watched(await cluster.coordinator(), here.log, 2)
        heir.at.is_mine = False
        await heir.scan.once()
        await heir.figures.refresh()
        assert ("tidelog_group_lag_records", ("g", "orders")) not in heir.scrape()
        here.at.hand_over()
        heir.at.is_mine = True
        await heir.scan.once()
        for each in (here, heir):
            await each.figures.refresh()
        assert heir.scrape()["tidelog_group_lag_records", ("g", "orders")] == 6
        assert ("tidelog_group_lag_records", ("g", "orders")) not in here.scrape()

    watched(scenario)


def test_a_commit_through_another_coordinator_is_exported_once_the_group_is_back() -> None:
    async def scenario(here: Watched, cluster: Cluster) -> None:
        here.log.ends = {P0: bounds(0, 10)}
        await here.at.commit(4)
        await here.figures.refresh()
        here.at.hand_over()
        other = await cluster.coordinator()
        await other.commit(9)
        other.hand_over()
        here.at.is_mine = True
        await here.at.groups.describe("g")  # before anything noticed that it was gone
        await here.figures.refresh()
        assert here.scrape()["tidelog_group_lag_records", ("g", "orders")] == 1

    watched(scenario)


def test_a_commit_of_unknown_outcome_is_exported_as_it_was_stored() -> None:
    async def scenario(here: Watched, _: Cluster) -> None:
        here.log.ends = {P0: bounds(0, 10)}
        await here.at.commit(4)
        await here.figures.refresh()
        here.at.link.lose_answers = 1
        assert await outcome(here.at.commit(9)) is OutcomeUnknown
        await here.figures.refresh()
        assert here.scrape()["tidelog_group_lag_records", ("g", "orders")] == 1

    watched(scenario)


def test_a_deleted_or_expired_group_is_no_longer_exported() -> None:
    async def scenario(here: Watched, _: Cluster) -> None:
        here.log.ends = {P0: bounds(0, 10)}
        await here.at.commit(4)
        await here.at.commit(4, group="h")
        await here.scan.once()
        await here.figures.refresh()
        assert {labels for name, labels in here.scrape() if name == "tidelog_group_members"} == {("g",), ("h",)}
        await here.at.groups.delete("h")
        await here.figures.refresh()
        assert {labels for name, labels in here.scrape() if name == "tidelog_group_members"} == {("g",)}
        await asyncio.sleep(HOUR_MS / 1000)
        await here.scan.once()
        await here.figures.refresh()
        reported = here.scrape()
        assert not any(name == "tidelog_group_members" for name, _ in reported)
        assert (reported["tidelog_group_offsets_expired_total", ()], reported["tidelog_groups_expired_total", ()]) == (1, 1)

    watched(scenario)


def test_deleted_offsets_are_no_longer_exported_and_moved_ones_are_updated() -> None:
    async def scenario(here: Watched, _: Cluster) -> None:
        here.log.ends = {P0: bounds(0, 10), P1: bounds(0, 10)}
        await here.at.commit(4)
        await here.at.commit(4, partition=P1)
        await here.figures.refresh()
        await here.at.groups.delete_offsets("g", [P1])
        await here.at.commit(0)
        await here.figures.refresh()
        detail = here.scrape(detailed=True)
        assert detail["kafka_consumergroup_lag", ("g", "orders", "0")] == 10
        assert ("kafka_consumergroup_lag", ("g", "orders", "1")) not in detail

    watched(scenario)


def test_a_damaged_offset_hides_nothing_else() -> None:
    async def scenario(here: Watched, cluster: Cluster) -> None:
        here.log.ends = {P0: bounds(0, 10)}
        await here.at.commit(4)
        await here.at.commit(4, group="other")
        await cluster.etcd.transact([], [Put(LAYOUT.offset("other", P1), b"{")])
        await here.figures.refresh()
        assert {labels for name, labels in here.scrape() if name == "tidelog_group_lag_records"} == {
            ("g", "orders"),
            ("other", "orders"),
        }

    watched(scenario)


def test_every_group_metric_that_the_guide_names_is_exported() -> None:
    async def scenario(here: Watched, _: Cluster) -> None:
        here.log.ends, here.log.timestamps = {P0: bounds(0, 10)}, {(P0, 4): 0}
        await here.at.commit(4)
        await here.figures.refresh()
        reported = {name for name, _ in (*here.scrape(), *here.scrape(detailed=True))}
        asked = re.findall(r"(?:tidelog_group|kafka_consumergroup)[a-z_]+", (DOCS / "guides" / "operate.md").read_text())
        assert len(asked) > 5
        assert set(asked) <= reported

    watched(scenario)


def test_names_of_groups_may_hold_anything_that_labels_must_not() -> None:
    async def scenario(here: Watched, _: Cluster) -> None:
        here.log.ends = {P0: bounds(0, 10)}
        name = 'a"b\\c{d}=/é'
        await here.at.commit(4, group=name)
        await here.figures.refresh()
        assert here.scrape()["tidelog_group_lag_records", (name, "orders")] == 6

    watched(scenario)


def test_group_maintenance_exports_metrics_and_expires_groups_periodically() -> None:
    async def scenario(here: Watched, _: Cluster) -> None:
        here.log.ends = {P0: bounds(0, 10)}
        settings = GroupSettings(offsets_retention_ms=3_600_000)
        upkeep = GroupMaintenance(
            here.at.link,
            LAYOUT,
            here.at.groups,
            here.log,
            Topics(topic()),
            settings,
            coordinates=lambda _: here.at.is_mine,
            now_ms=virtual_loop().now_ms,
        )
        metrics = MetricsRegistry()
        upkeep.register(metrics)
        running = asyncio.ensure_future(upkeep.run())
        await here.at.commit(4)
        await asyncio.sleep(settings.group_metrics_interval_ms / 1000 + 1)
        assert 'tidelog_group_lag_records{group="g",topic="orders"} 6.0' in generate_latest(metrics._summary).decode()
        await asyncio.sleep(HOUR_MS / 1000 + settings.group_scan_interval_ms / 1000)
        await asyncio.sleep(settings.group_metrics_interval_ms / 1000 + 1)
        text = generate_latest(metrics._summary).decode()
        assert "tidelog_group_lag_records{" not in text
        assert "tidelog_groups_expired_total 1.0" in text
        running.cancel()

    watched(scenario)


def test_while_the_store_is_away_the_figures_of_known_groups_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(here: Watched, _: Cluster) -> None:
        here.log.ends = {P0: bounds(0, 10)}
        await here.at.commit(4)
        running = asyncio.ensure_future(here.figures.run())
        await asyncio.sleep(INTERVAL_S + 1)
        await here.at.commit(4, group="not read yet")
        here.at.link.down = unavailable()
        here.log.ends = {P0: bounds(0, 20)}
        await asyncio.sleep(INTERVAL_S + 1)
        reported = here.scrape()
        assert reported["tidelog_group_lag_records", ("g", "orders")] == 16
        assert ("tidelog_group_lag_records", ("not read yet", "orders")) not in reported
        running.cancel()

    watched(scenario)
    assert "group reads failed" in caplog.text
