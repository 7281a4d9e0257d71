"""From the declaration of a metric to the families that Prometheus reads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from gateway.telemetry.registry import families
from metadata.measurements import ByLabel, Histogram, counter, gauge, histogram, histograms

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


@dataclass(slots=True)
class Counts:
    reads: int = counter("reads", "Reads.", pool="hot")
    cold_reads: int = counter("reads", pool="cold")
    errors: Counter[str] = counter("errors", "Errors.", labels=("code",), known=("INTERNAL",))
    not_a_metric: int = 7
    seconds: Histogram = histogram("seconds", "Durations.", bounds=(1.0, 2.0))
    by_operation: dict[str, Histogram] = histograms("operation_seconds", "Durations.", "operation", ("get", "put"))


@dataclass(frozen=True, slots=True)
class Status:
    ends_s: float | None = gauge("ends_timestamp_seconds", "When it ends.")
    lags: Mapping[tuple[str, str], int] = gauge("lag_records", "Lag.", labels=("group", "topic"))


def samples(found: list[Metric]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(one.name, tuple(one.labels.items())): one.value for family in found for one in family.samples}


def test_a_field_is_counted_like_any_other_and_exposed_with_its_labels() -> None:
    counts = Counts()
    counts.reads += 3
    counts.errors["CORRUPT"] += 1
    reported = samples(families([counts]))
    assert reported["reads_total", (("pool", "hot"),)] == 3
    assert reported["reads_total", (("pool", "cold"),)] == 0
    assert reported["errors_total", (("code", "CORRUPT"),)] == 1


def test_a_known_series_exists_before_its_first_event() -> None:
    assert samples(families([Counts()]))["errors_total", (("code", "INTERNAL"),)] == 0


def test_fields_of_one_metric_are_one_family_with_the_first_help_text() -> None:
    found = families([Counts()])
    assert [family.name for family in found] == ["reads", "errors", "seconds", "operation_seconds"]
    assert found[0].documentation == "Reads."


def test_a_histogram_has_cumulative_buckets_and_a_sum() -> None:
    counts = Counts()
    for seconds in (0.5, 1.5, 9.0):
        counts.seconds.observe(seconds)
    counts.by_operation["get"].observe(1.0)
    reported = samples(families([counts]))
    assert [reported["seconds_bucket", (("le", bound),)] for bound in ("1.0", "2.0", "+Inf")] == [1, 2, 3]
    assert (reported["seconds_count", ()], reported["seconds_sum", ()]) == (3, 11)
    assert reported["operation_seconds_count", (("operation", "get"),)] == 1
    assert reported["operation_seconds_count", (("operation", "put"),)] == 0


def test_a_label_separates_several_of_one_type() -> None:
    http, grpc = Counts(), Counts()
    http.reads, grpc.reads = 1, 2
    reported = samples(families([ByLabel("listener", {"http": http, "grpc": grpc})]))
    assert reported["reads_total", (("listener", "http"), ("pool", "hot"))] == 1
    assert reported["reads_total", (("listener", "grpc"), ("pool", "hot"))] == 2


def test_a_gauge_that_is_none_has_a_family_and_no_series() -> None:
    found = families([Status(None, {("g", "t"): 5})])
    assert [family.name for family in found] == ["ends_timestamp_seconds", "lag_records"]
    assert samples(found) == {("lag_records", (("group", "g"), ("topic", "t"))): 5}


def rows() -> list[tuple[str, str, str]]:
    """Name, kind and help text of each metric of Tidelog on the page, which a broker's metrics are tested to be."""
    found = re.findall(r"^\| `(tidelog_\w+)` \| [^|]* \| (\w+) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) > 90
    return [(name, kind, text) for name, kind, text in found]


@pytest.mark.parametrize(("name", "kind", "text"), rows())
def test_names_follow_the_rules_of_prometheus(name: str, kind: str, text: str) -> None:
    assert re.fullmatch(r"tidelog(_[a-z0-9]+)+", name)
    assert name.endswith("_total") == (kind == "counter"), "counters end in _total, and nothing else does"
    assert not name.endswith(("_count", "_sum", "_bucket")), "these are the series of a histogram"
    assert kind != "histogram" or name.endswith(("_seconds", "_bytes")), "a histogram ends in its unit"
    assert not re.search(r"_(ms|s|millis|milliseconds|kb|mb|gib|byte|second)(_|$)", name), "units are seconds and bytes"
    assert text.endswith("."), "the help text is a sentence"
