"""What every benchmark is given, and how two things are measured side by side."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from bench.figures import Figure
from bench.load import ClientProcess

_Result = TypeVar("_Result")

ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Run:
    # Where buckets and the floor's files are made: on the disk that is measured.
    directory: Path
    # Of one measurement; a figure is the median of several.
    seconds: float
    client: ClientProcess
    # Consumer groups with a live member each, of the benchmarks that have many.
    groups: int = 10_000
    # Of each of these members; an SDK's default.
    heartbeat_every_s: float = 3.0
    # That Spark reads.
    rows: int = 20_000_000
    # That fifty readers catch up on: by default, three times what the cold pool holds.
    history_megabytes: int = 200
    # That each broker of the benchmark `kafka` takes before it is measured.
    kafka_warm_up: int = 15_000_000
    # Of each of its measurements.
    kafka_records: int = 2_000_000

    @contextmanager
    def new_directory(self, name: str) -> Iterator[Path]:
        """An empty one, removed in the end: some benchmarks write gigabytes."""
        path = self.directory / name
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path)


class Benchmark(Protocol):
    def __call__(self, run: Run) -> list[Figure]: ...


def alternate(
    first: Callable[[], _Result], second: Callable[[], _Result], *, rounds: int = ROUNDS
) -> tuple[list[_Result], list[_Result]]:
    """A B A B …: what the machine does meanwhile meets both alike. The first pair warms up and is thrown away."""
    firsts, seconds = [], []
    for _ in range(1 + rounds):
        firsts.append(first())
        seconds.append(second())
    return firsts[1:], seconds[1:]
