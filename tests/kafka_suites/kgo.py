"""The tests of franz-go's client, package kgo, from the Go module proxy. Its group tests verify that each record comes once."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.kafka_suites.cache import CannotPrepare, cached, run
from tests.kafka_suites.results import Result, Verdict
from tests.kafka_suites.secured import CLIENT, PASSWORD, secured_broker
from tests.kafka_suites.target import Skipped, Suite, Target

MODULE = "github.com/twmb/franz-go@v1.21.3"
# Go's own hash of the module: the SHA-256 of the hashes of its files. The module's go.sum pins what it needs.
SUM = "h1:q9Mo8ri+OwBQBjKqrerNCqNWJlJnUDe2qnYsj2V3hdI="
# The default of half a million records takes many minutes.
RECORDS = 10_000
TESTS_TIMEOUT_S = 900
SCRAM_PREFIX = "TestSCRAM"
_OUTCOME = re.compile(r"^--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)$", re.MULTILINE)
_VERDICTS = {"PASS": Verdict.PASSED, "FAIL": Verdict.FAILED, "SKIP": Verdict.SKIPPED}


def program() -> Path:
    return cached(f"kgo-{MODULE.rpartition('@')[2]}", _build) / "kgo.test"


def _build(folder: Path) -> None:
    (folder / "go.mod").write_text("module suites\n", encoding="utf-8")
    module = json.loads(run(["go", "mod", "download", "-json", MODULE], cwd=folder))
    if module["Sum"] != SUM:
        raise CannotPrepare(f"{MODULE} has the hash {module['Sum']}, not {SUM}")
    run(["go", "test", "-c", "-o", str(folder / "kgo.test"), "./pkg/kgo"], cwd=Path(module["Dir"]))


def run_tests(target: Target, tests: Sequence[str]) -> Iterator[Result]:
    """Runs the tests in one process; those of SCRAM in another, which needs a broker with credentials."""
    scram = [test for test in tests if test.startswith(SCRAM_PREFIX)]
    if others := [test for test in tests if test not in scram]:
        yield from _run(target, others, {}, "kgo.log")
    if scram:
        try:
            with secured_broker(target) as secured:
                yield from _run(
                    target,
                    scram,
                    {"KGO_TEST_SCRAM": f"{CLIENT}:{PASSWORD}:256", "KGO_TEST_SCRAM_SEEDS": secured.addresses["sasl"]},
                    "kgo-scram.log",
                )
        except Skipped as why:
            yield from (Result(test, Verdict.SKIPPED, reason=str(why)) for test in scram)


def _run(target: Target, tests: Sequence[str], more: Mapping[str, str], log: str) -> list[Result]:
    environment = {
        **os.environ,
        "KGO_SEEDS": target.bootstrap,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(RECORDS),
        "KGO_LOG_LEVEL": "none",
        **more,
    }
    pattern = f"^({'|'.join(tests)})$"
    # -test.parallel 1: two cores run a broker as well, and tests that starve prove nothing.
    command = [str(program()), "-test.v", "-test.parallel", "1", "-test.timeout", f"{TESTS_TIMEOUT_S}s", "-test.run", pattern]
    done = subprocess.run(
        command,
        cwd=target.directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    (target.directory / log).write_text(done.stdout, encoding="utf-8")
    return outcomes(done.stdout)


def outcomes(said: str) -> list[Result]:
    """Reads the closing line of each test; the lines below it are the reason. Pure."""
    found = list(_OUTCOME.finditer(said))
    ends = [*(each.start() for each in found[1:]), len(said)]
    results = []
    for each, end in zip(found, ends, strict=True):
        verdict = _VERDICTS[each[1]]
        below = " ".join(line.strip() for line in said[each.end() : end].splitlines() if line.startswith("    "))
        results.append(Result(each[2], verdict, float(each[3]), "" if verdict is Verdict.PASSED else below[:300]))
    return results


SUITE = Suite(program, run_tests)
