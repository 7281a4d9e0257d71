"""Measures how much ten readers of the console slow a producer down, and how long the broker takes for each page.

One broker takes a steady load over gRPC, without readers and while ten people look at pages, in turn (console_readers.py): pages,
what they load, the refreshes of open pages, and live tails of the topic that is written. Each request of the load is due at a time,
and its latency counts from then, so that a broker that stalls does not hide the requests which would have come meanwhile.

Then nothing is produced, and each page is asked for several times: over the flights of `tidelog demo`, and over a topic, and a
group, with 10,000 partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import msgspec
import psutil

from bench.batches import produce_request, record_batch
from bench.broker import Served, broker
from bench.console_readers import READERS, PageTime, Seen, look_around, page_times, wide_page_times
from bench.figures import Figure, Target, median, number, percentile
from bench.grpc_client import Paced, produce_on_time
from bench.http_client import post_all
from bench.load import ClientProcess, client_process
from bench.run import ROUNDS, Run, alternate
from tidelog.demo.flights import load_flights

FLIGHTS, WIDE, STEADY = "flights", "wide", "steady"
# A group that has read half of the flights, and one that reads all of the wide topic.
HALF_WAY, WIDE_READER = "half-way", "wide-reader"
PARTITIONS, WIDE_PARTITIONS = 6, 10_000
# At the default of --seconds all of the flights and of the partitions.
ROWS_PER_SECOND, PARTITIONS_PER_SECOND = 225_000, 6_700
ROWS_MIN, PARTITIONS_MIN = 2_000, 300
ROWS_MAX = 336_776
ROWS_PER_REQUEST = 500
OFFSETS_PER_REQUEST = 1_000
# The steady load: 20,000 records and 2 MB a second.
REQUESTS_PER_SECOND, RECORDS_PER_REQUEST = 200.0, 100
# Of one round, for each second of a measurement.
SECONDS_PER_SECOND = 2.0
P99_MAX = 1.1
PAGE_MS_MAX, WIDE_PAGE_MS_MAX = 100.0, 500.0
TIMES = 15


@dataclass(frozen=True, slots=True)
class Round:
    paced: Paced
    broker_cores: float
    # Of all cores, what was busy, by any process.
    machine: float
    seen: Seen | None


def measure(run: Run) -> list[Figure]:
    rows = min(ROWS_MAX, max(ROWS_MIN, round(ROWS_PER_SECOND * run.seconds)))
    partitions = min(WIDE_PARTITIONS, max(PARTITIONS_MIN, round(PARTITIONS_PER_SECOND * run.seconds)))
    with broker(run, "console") as served, client_process() as readers:
        _fill(served, rows, partitions)
        alone, visited = alternate(lambda: _round(run, served, None), lambda: _round(run, served, readers))
        pages = readers.run(page_times, served.http_url, FLIGHTS, HALF_WAY, times=TIMES)
        wide = readers.run(wide_page_times, served.http_url, WIDE, WIDE_READER, times=TIMES)
    return [
        *_latencies(alone, visited),
        *(_page(page, PAGE_MS_MAX) for page in pages),
        *(_page(page, WIDE_PAGE_MS_MAX, note=f"{partitions:,} partitions") for page in wide),
    ]


# ── the load, with readers and without ──────────────────────────────────────────────────────────────────────────────────


def _round(run: Run, served: Served, readers: ClientProcess | None) -> Round:
    seconds = run.seconds * SECONDS_PER_SECOND
    batch = record_batch(RECORDS_PER_REQUEST)
    requests = [produce_request(STEADY, batch, range(partition, partition + 1)) for partition in range(PARTITIONS)]
    looking = (
        readers.start(look_around, served.http_url, [FLIGHTS, STEADY], HALF_WAY, tailed=STEADY, seconds=seconds)
        if readers is not None
        else None
    )
    psutil.cpu_percent()
    cpu_s, began_s = served.cpu_seconds(), perf_counter()
    paced = run.client.run(produce_on_time, served.grpc_address, requests, seconds=seconds, requests_per_second=REQUESTS_PER_SECOND)
    cores = (served.cpu_seconds() - cpu_s) / (perf_counter() - began_s)
    machine = psutil.cpu_percent() / 100
    return Round(paced, cores, machine, looking.result() if looking is not None else None)


def _latencies(alone: list[Round], visited: list[Round]) -> Iterator[Figure]:
    before, meanwhile = ([_p99_ms(round_) for round_ in rounds] for rounds in (alone, visited))
    yield Figure(
        f"produce p99 while {READERS} people look, against without",
        median(meanwhile) / median(before),
        "×",
        Target(most=P99_MAX),
        f"p99 {_listed(meanwhile)} and {_listed(before)} ms; p50 {_p50s(visited)} and {_p50s(alone)} ms; "
        f"{REQUESTS_PER_SECOND:.0f} requests/s of {RECORDS_PER_REQUEST} records; {ROUNDS} rounds each, in turn",
    )
    rates = [median([round_.paced.requests_per_second for round_ in rounds]) for rounds in (visited, alone)]
    cores = [median([round_.broker_cores for round_ in rounds]) for rounds in (visited, alone)]
    busy = [100 * max(round_.machine for round_ in rounds) for rounds in (visited, alone)]
    yield Figure(
        "throughput of the load, likewise",
        rates[0] / rates[1],
        "×",
        note=f"{number(rates[0])} and {number(rates[1])} requests/s; the broker {number(cores[0])} and {number(cores[1])} cores, "
        f"the machine {busy[0]:.0f} and {busy[1]:.0f} % busy",
    )
    seen = [round_.seen for round_ in visited if round_.seen is not None]
    yield Figure(
        "pages and refreshes that they asked for",
        median([each.requests / each.seconds for each in seen]),
        "a second",
        note=f"p50 {number(median([median(each.page_ms) for each in seen]))} ms, slowest "
        f"{number(max(max(each.page_ms) for each in seen))} ms; {sum(each.tail_events for each in seen)} events of live tails",
    )


def _p99_ms(round_: Round) -> float:
    return percentile(round_.paced.waited_s, 99) * 1000


def _p50s(rounds: list[Round]) -> str:
    return _listed([median(round_.paced.waited_s) * 1000 for round_ in rounds])


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def _page(page: PageTime, most: float, *, note: str = "") -> Figure:
    facts = f"slowest {number(max(page.took_ms))} ms, {page.size_bytes:,} B"
    target = Target(most=most) if page.is_bounded else None
    return Figure(f"page {page.what}", median(page.took_ms), "ms", target, f"{note}; {facts}" if note else facts)


# ── what the broker holds ───────────────────────────────────────────────────────────────────────────────────────────────


def _fill(served: Served, rows: int, partitions: int) -> None:
    flights = load_flights(rows)
    for topic, count in ((FLIGHTS, PARTITIONS), (STEADY, PARTITIONS), (WIDE, partitions)):
        served.create_topic(topic, count)
    records = [{"key": key, "value": value.decode()} for key, value in zip(flights.carriers, flights.values, strict=True)]
    bodies = [{"records": records[start : start + ROWS_PER_REQUEST]} for start in range(0, len(records), ROWS_PER_REQUEST)]
    post_all(served.http_url, f"/v1/topics/{FLIGHTS}/records", map(msgspec.json.encode, bodies))
    if served.records_in(FLIGHTS) != rows:
        raise RuntimeError(f"{rows} flights were sent, and {served.records_in(FLIGHTS)} are in the log")
    half = rows // (2 * PARTITIONS)
    _commit(served, HALF_WAY, [{"topic": FLIGHTS, "partition": partition, "offset": half} for partition in range(PARTITIONS)])
    _commit(served, WIDE_READER, [{"topic": WIDE, "partition": partition, "offset": 0} for partition in range(partitions)])


def _commit(served: Served, group: str, offsets: list[dict[str, object]]) -> None:
    parts = [offsets[start : start + OFFSETS_PER_REQUEST] for start in range(0, len(offsets), OFFSETS_PER_REQUEST)]
    post_all(served.http_url, f"/v1/groups/{group}/offsets", (msgspec.json.encode({"offsets": part}) for part in parts))
