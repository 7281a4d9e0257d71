"""The benchmarks run. What they measure is no test's business: it depends on the machine, and on what else runs there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import BENCHMARKS
from bench.figures import Figure, Target, median, number, percentile

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
    assert Target(least=1_000_000).shown("records/s") == "≥ 1,000,000 records/s"
    assert Target(most=5).shown("ms") == "≤ 5 ms"
    assert Target(0.9, 1.1).shown("×") == "0.9 … 1.1 ×"


def test_percentiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert median(values) == 3.0
    assert percentile(values, 0) == 1.0
    assert percentile(values, 99) == 5.0


def test_numbers_are_as_exact_as_they_deserve() -> None:
    assert [number(value) for value in (1_234_567.0, 42.25, 0.5, -1.25)] == ["1,234,567", "42.2", "0.50", "-1.25"]


def test_an_unknown_benchmark_is_refused_with_those_that_there_are() -> None:
    refused = subprocess.run([sys.executable, "-m", "bench", "produce"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert all(name in refused.stderr for name in BENCHMARKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["produce-grpc", "quiet-producer", "produce-http-json"])
def test_a_tiny_run_ends_with_its_figures(name: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "bench", name, "--seconds", "0.05", "--directory", str(tmp_path), "--json", str(figures)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode in {0, 1}, ran.stderr  # 1: a target was missed, which a tiny run on a busy machine may
    measured = json.loads(figures.read_text(encoding="utf-8"))
    assert measured["machine"]["cores"] > 0
    assert all(figure["value"] > 0 for figure in measured["figures"][name])
    assert list(tmp_path.iterdir()) == [figures]
