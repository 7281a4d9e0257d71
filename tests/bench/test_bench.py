"""The benchmarks run. What they measure is no test's business: it depends on the machine, and on what else runs there."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from bench import groups_at_scale, groups_commit, groups_rebalance, kafka
from bench.__main__ import BENCHMARKS, CLUSTER_BENCHMARKS, _arguments, chosen
from bench.bucket_reads import bucket_reads
from bench.figures import Figure, Target, lines, median, number, paragraph, percentile
from bench.groups_client import Calls
from bench.groups_joining import LATE_S, Pace, join_all
from bench.http2_calls import CallRefused, UnaryConnection, method
from bench.load import client_process
from bench.run import Run
from tests.simulation import virtual_loop

ROOT = Path(__file__).parent.parent.parent


def test_a_figure_holds_at_its_bounds_and_not_beyond() -> None:
    assert Target(least=0.5).holds(0.5)
    assert not Target(least=0.5).holds(0.499)
    assert Target(most=5).holds(5)
    assert not Target(most=5).holds(5.01)
    assert Target(0.9, 1.1).holds(1.0)
    assert not Target(0.9, 1.1).holds(1.2)
    assert Figure("explains", 1.0, "ms").holds is None


def test_a_target_says_what_it_asks() -> None:
    assert str(Target(least=1_000_000)) == "≥ 1,000,000"
    assert str(Target(most=5)) == "≤ 5"
    assert str(Target(0.9, 1.1)) == "0.9 … 1.1"


def test_a_table_of_figures_fits_eighty_columns() -> None:
    figures = [
        Figure(
            "kill to the first acknowledgement of the last partition that it led", 9.41, "s", Target(most=10), "rounds: 9 s " * 30
        ),
        Figure("records of 100 B", 6_012_345.0, "records/s", Target(least=1_000_000)),
        Figure("PUTs/s, 1,000 partitions against 10", 0.85, "×", Target(0.9, 1.1)),
        Figure("PUTs", 0, "", Target(most=0)),
    ]
    shown = [line.plain for line in (*paragraph("cpu Intel · cores 2 · " * 9), *lines("partitions", figures))]
    assert max(map(len, shown)) <= 80
    assert "  records of 100 B                       6,012,345 records/s  ≥ 1,000,000  pass" in shown
    assert "  PUTs/s, 1,000 partitions against 10                 0.85 ×  0.9 … 1.1    short" in shown
    assert "  PUTs                                                     0  ≤ 0          pass" in shown


def test_percentiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert median(values) == 3.0
    assert percentile(values, 0) == 1.0
    assert percentile(values, 99) == 5.0


def test_numbers_are_as_exact_as_they_deserve() -> None:
    assert [number(value) for value in (1_234_567.0, 42.25, 0.5, -1.25)] == ["1,234,567", "42.2", "0.50", "-1.25"]
    assert [number(count) for count in (0, 7, 12_345)] == ["0", "7", "12,345"]


def test_an_unknown_benchmark_is_refused_with_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "produce"])
    with pytest.raises(SystemExit) as refused:
        _arguments()
    assert refused.value.code == 2
    said = capsys.readouterr().err
    assert all(name in said for name in (*BENCHMARKS, *CLUSTER_BENCHMARKS, "cluster"))


def test_cluster_stands_for_all_benchmarks_of_several_brokers() -> None:
    assert chosen(["idle", "cluster", "drain"]) == ["idle", *CLUSTER_BENCHMARKS]
    assert chosen([]) == [*BENCHMARKS]


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
def test_reads_of_a_bucket_are_counted_and_writes_are_not(tmp_path: Path) -> None:
    session = tmp_path / "wal" / "01"
    session.mkdir(parents=True)
    for name in ("claim", "0000"):
        (session / name).write_bytes(b"before")
    with bucket_reads(tmp_path) as reads:
        (session / "0001").write_bytes(b"written")
        for name in ("0000", "claim", "0000"):
            (session / name).read_bytes()
        os.listdir(session)
        reads.look()
    assert reads.objects == {"wal/01/0000": 2, "wal/01/claim": 1}
    assert reads.gets == 3
    assert reads.listings == 1


def test_calls_count_for_the_time_in_which_they_were_due_however_late_their_answers() -> None:
    failures = ((0.9, "before"), (1.5, "in it"), (2.0, "after"))
    calls = Calls(np.array([0.5, 1.0, 1.9, 2.0]), np.array([0.1, 5.0, 0.2, 0.1]), np.array([0.0, 0.3, 0.1, 0.0]), failures)
    within = calls.due_within(1.0, 2.0)
    assert within.due_s.tolist() == [1.0, 1.9]
    assert within.waited_s.tolist() == [5.0, 0.2]
    assert within.late_s.tolist() == [0.3, 0.1]
    assert within.failures == ((1.5, "in it"),)


WHY = "no, since it’s 100 % full: " + "reasons, " * 40


@pytest.mark.slow
def test_calls_as_bare_frames_are_answered_refused_or_given_up() -> None:
    async def run() -> None:
        asked: list[bytes] = []
        silent = asyncio.Event()

        async def answer(message: bytes, context: Any) -> bytes:
            asked.append(message)
            if message == b"refuse":
                await context.abort(grpc.StatusCode.ABORTED, WHY)
            if message == b"silence":
                await silent.wait()
            return message[::-1]

        class Anything(grpc.GenericRpcHandler):
            def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
                assert handler_call_details.method == "/test.Service/Reverse"
                return grpc.unary_unary_rpc_method_handler(answer)

        server = grpc.aio.server()
        server.add_generic_rpc_handlers([Anything()])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        _, connection = await asyncio.get_running_loop().create_connection(UnaryConnection, "127.0.0.1", port)
        reported: dict[bytes, tuple[bytes | None, str]] = {}
        all_output = asyncio.Event()
        messages = [b"refuse", *(b"%d" % number * 3_000 for number in range(100))]  # more than fits the first window

        def keep(message: bytes, found: bytes | None, instead: str) -> None:
            reported[message] = found, instead
            if len(reported) == len(messages):
                all_output.set()

        try:
            for message in messages:
                connection.call(method("/test.Service/Reverse", timeout_s=30.0), message, partial(keep, message))
            async with asyncio.timeout(60):
                await all_output.wait()
            assert reported.pop(b"refuse") == (None, f"refused: {WHY}")
            assert all(found == message[::-1] for message, (found, _) in reported.items())
            assert sorted(asked) == sorted(messages)
            connection.call(method("/test.Service/Reverse", timeout_s=0.0), b"silence", partial(keep, b"silence"))
            connection.give_up()
            assert reported[b"silence"] == (None, "no answer within 0 s")
        finally:
            connection.close()
            await server.stop(None)

    asyncio.run(run())


def test_more_join_at_once_while_they_are_answered_soon_and_half_as_many_when_they_are_not() -> None:
    pace = Pace()
    first = pace.at_once
    for _ in range(20):
        pace.ended(0.0, 0.5, refused=False)
    assert pace.at_once == first + 20
    for _ in range(first):  # a whole crowd that came at once is refused, for one reason
        pace.ended(0.6, 1.0, refused=True)
    assert pace.at_once == (first + 20) // 2
    pace.ended(1.0, 1.0 + 2 * LATE_S, refused=False)
    assert pace.at_once == (first + 20) // 4
    for at_s in range(100, 120):
        pace.ended(at_s, at_s, refused=True)
    assert pace.at_once == 1


def test_refused_members_join_later_and_repeated_reasons_are_reported_once() -> None:
    async def run() -> None:
        came: Counter[int] = Counter()

        async def join(number: int) -> None:
            came[number] += 1
            if number % 2 and came[number] == 1:
                raise CallRefused(f"refused: no coordinator of group {number}")

        refusals = await join_all(40, join, within_s=60.0)
        assert sorted(came) == list(range(40))
        assert set(came.values()) == {1, 2}
        assert str(refusals) == "20 × refused: no coordinator of group 1"
        with pytest.raises(RuntimeError, match=r"0 of 2 groups have joined after 5 s, 25 at once in the end; 2 × refused: never"):
            await join_all(2, never, within_s=5.0)

    async def never(_: int) -> None:
        await asyncio.sleep(3.0)
        raise CallRefused("refused: never")

    virtual_loop.run(run())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_thirty_groups_commit_and_no_heartbeat_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("SETTLE_S", "REST_S", "CHECK_INTERVAL_S"):  # which ten thousand groups need
        monkeypatch.setattr(groups_at_scale, pause, 1.5)
    with client_process() as client:
        figures = {figure.what: figure for figure in groups_commit.measure(Run(tmp_path, 0.2, client, groups=30))}
    for lost in ("commits failed", "heartbeats lost meanwhile"):
        _, _, reasons = figures[lost].note.partition(": ")
        assert all("no answer within" in reason for reason in reasons.split("; ") if reason), "a busy machine is late, and no more"
    assert 0 < figures["transactions for each commit"].value <= 1.5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_ten_members_that_join_and_leave_do_not_stop_the_other_members(tmp_path: Path) -> None:
    with client_process() as client:
        figures = {figure.what: figure for figure in groups_rebalance.measure(Run(tmp_path, 0.1, client), members=10, rounds=1)}
    assert figures["partitions that stopped and did not move"].value == 0
    assert figures["10 members that start at once: last join to all stable"].value > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("names", ["produce-grpc quiet-producer produce-http-json", "three-brokers", "console"])
def test_a_tiny_run_ends_with_its_figures(names: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [
        sys.executable,
        "-m",
        "bench",
        *names.split(),
        "--seconds",
        "0.05",
        "--directory",
        str(tmp_path),
        "--json",
        str(figures),
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=560, check=False)
    assert ran.returncode in {0, 1}, ran.stderr  # 1: a target was missed, which a tiny run on a busy machine may
    measured = json.loads(figures.read_text(encoding="utf-8"))
    assert measured["machine"]["cores"] > 0
    for name in names.split():
        values = [figure["value"] for figure in measured["figures"][name]]
        assert all(map(math.isfinite, values)), "of a moment in which the machine stood still it may be less than nothing"
        assert max(values) > 0
    assert list(tmp_path.iterdir()) == [figures]


def test_the_rate_of_one_producer_is_that_of_the_last_line() -> None:
    lines = [
        "499000 records sent, 99800.0 records/sec (9.52 MB/sec), 12.0 ms avg latency, 80.0 ms max latency.",
        "1000000 records sent, 81203.418595 records/sec (7.74 MB/sec), 353.86 ms avg latency, 514.00 ms max latency, 402 ms 50th.",
    ]
    assert kafka.records_per_second("\n".join(lines)) == 81203.418595


def test_tidelog_is_compared_with_kafka_where_both_were_measured() -> None:
    case = kafka.Case(16 << 10, "lz4")
    both = {(case, kafka.KAFKA): [100.0, 200.0, 300.0], (case, kafka.TIDELOG): [50.0, 50.0, 60.0]}
    found = list(kafka.figures("produce", [case], both))
    assert [(figure.what, figure.value) for figure in found] == [
        ("produce, batches of 16 KiB, lz4: Apache Kafka", 200),
        ("produce, batches of 16 KiB, lz4: Tidelog", 50),
        ("produce, batches of 16 KiB, lz4: Tidelog to Apache Kafka", 0.25),
    ]
    for name in (kafka.KAFKA, kafka.TIDELOG):
        assert [figure.value for figure in kafka.figures("consume", [case], {(case, name): [100.0]})] == [100]
