"""What a suite runs against, and how it times and reports one test."""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from tests.kafka_suites.results import Result, Verdict

REASON_LENGTH_MAX = 400


@dataclass(frozen=True, slots=True)
class Target:
    # HOST:PORT of a plaintext listener; several are separated by commas.
    bootstrap: str
    # Whether it is Apache Kafka, of which a few tests are known to fail.
    on_kafka: bool
    brokers: int
    # An empty folder of this run of the suite.
    directory: Path
    # Whether a suite may start further brokers of this kind. With `--bootstrap` it may not.
    startable: bool = True
    # URL of Tidelog's bucket, and the environment that opens it. Empty where the runner does not know them.
    bucket: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


class Runner(Protocol):
    """Runs the named tests one after the other, and yields a result for each."""

    def __call__(self, target: Target, tests: Sequence[str]) -> Iterator[Result]: ...


@dataclass(frozen=True, slots=True)
class Suite:
    # Downloads and builds; free of charge the second time.
    prepare: Callable[[], object]
    run: Runner


class Skipped(Exception):
    """This test cannot run here; the message says why."""


def timed(test: str, run: Callable[[], object]) -> Result:
    """Runs one test written in Python: an exception is its failure."""
    begun = time.monotonic()
    verdict, reason = Verdict.PASSED, ""
    try:
        run()
    except Skipped as why:
        verdict, reason = Verdict.SKIPPED, str(why)
    except Exception as error:  # noqa: BLE001  # whatever a client raises is the finding
        verdict, reason = Verdict.FAILED, summary(error)
    return Result(test, verdict, time.monotonic() - begun, reason)


def runner(tests_by_name: Mapping[str, Callable[[Target], object]]) -> Runner:
    """Returns a runner of tests that are functions of the target. Each has a folder of its own."""

    def run(target: Target, tests: Sequence[str]) -> Iterator[Result]:
        for test in tests:
            scratch = target.directory / test.replace("/", "-")
            scratch.mkdir()
            yield timed(test, functools.partial(tests_by_name[test], replace(target, directory=scratch)))

    return run


def summary(error: Exception) -> str:
    """Returns the error on one line, with the place that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{said[-REASON_LENGTH_MAX:]} ({Path(frame.filename).name}:{frame.lineno})"
