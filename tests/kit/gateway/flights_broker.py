"""A broker that holds the flights of `tidelog demo`, part of them in Parquet, and a group that has read half of them."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.forked_tidelog import ForkedBroker
from tidelog.demo.flights import load_flights
from tidelog.demo.producers import Half, produce_over_http
from tidelog.testing.broker_process import BrokerProcess

TOPIC, GROUP, PARTITIONS = "flights", "departures", 6
# Those of the first three weeks of 2013, of all sixteen airlines.
ROWS = 18_000
# The flights become Parquet, smaller topics stay in segments.
COMPACTION = ("--compaction-due-bytes", "250000", "--compaction-due-age-ms", "3600000")
PATIENCE_S = 120.0


@dataclass(frozen=True)
class HeldFlights:
    """Names a broker and the flights that it holds."""

    process: BrokerProcess
    # By partition and offset.
    values: dict[tuple[int, int], bytes]
    # Partitions with records in Parquet.
    compacted: list[int]

    @property
    def url(self) -> str:
        return self.process.http_url

    def ends(self) -> dict[int, int]:
        """Returns the end of each partition as it was filled."""
        found: dict[int, int] = {}
        for partition, offset in self.values:
            found[partition] = max(found.get(partition, 0), offset + 1)
        return found

    def of_carrier(self, carrier: str) -> list[bytes]:
        return [value for value in self.values.values() if json.loads(value)["carrier"] == carrier]


def ask(url: str, body: Any = None) -> Any:
    """Returns the JSON of an answer to a GET, or to a POST of a body."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"content-type": "application/json"} if content else {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


@contextmanager
def flights_broker(directory: Path) -> Iterator[HeldFlights]:
    with ForkedBroker(directory, flags=COMPACTION) as process:
        process.start()
        url = process.http_url
        ask(f"{url}/v1/topics", {"name": TOPIC, "partition_count": PARTITIONS})
        flights = load_flights(ROWS)
        half = Half("HTTP", list(zip(flights.carriers, flights.values, strict=True)))
        asyncio.run(produce_over_http(half, url, TOPIC))
        held = HeldFlights(process, half.values, _compacted(url, half))
        offsets = [{"topic": TOPIC, "partition": partition, "offset": end // 2} for partition, end in held.ends().items()]
        ask(f"{url}/v1/groups/{GROUP}/offsets", {"offsets": offsets})
        yield held


def _compacted(url: str, half: Half) -> list[int]:
    """Waits until a partition is in Parquet, and returns those that are."""
    gives_up_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < gives_up_s:
        partitions = sorted({partition for partition, _ in half.values})
        tiers = {each: ask(f"{url}/v1/topics/{TOPIC}/partitions/{each}/offsets/0/explain")["tier"] for each in partitions}
        if found := [partition for partition, tier in tiers.items() if tier == "parquet"]:
            return found
        time.sleep(0.1)
    raise AssertionError("no partition became Parquet")
