"""The benchmarks run. What they measure is no test's business: it depends on the machine, and on what else runs there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import BENCHMARKS, CLUSTER_BENCHMARKS, chosen
from bench.bucket_reads import bucket_reads
from bench.figures import Figure, Target, lines, median, number, paragraph, percentile

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


def test_what_is_shown_fits_eighty_columns() -> None:
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


def test_an_unknown_benchmark_is_refused_with_those_that_there_are() -> None:
    refused = subprocess.run([sys.executable, "-m", "bench", "produce"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert all(name in refused.stderr for name in (*BENCHMARKS, *CLUSTER_BENCHMARKS, "cluster"))


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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["produce-grpc", "quiet-producer", "produce-http-json", "three-brokers"])
def test_a_tiny_run_ends_with_its_figures(name: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "bench", name, "--seconds", "0.05", "--directory", str(tmp_path), "--json", str(figures)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode in {0, 1}, ran.stderr  # 1: a target was missed, which a tiny run on a busy machine may
    measured = json.loads(figures.read_text(encoding="utf-8"))
    assert measured["machine"]["cores"] > 0
    assert all(figure["value"] > 0 for figure in measured["figures"][name])
    assert list(tmp_path.iterdir()) == [figures]
