"""kafka-python's integration tests, from its source distribution on PyPI, which carries them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from tests.kafka_suites.cache import cached, python_source
from tests.kafka_suites.results import Result, Verdict
from tests.kafka_suites.secured import secured_broker
from tests.kafka_suites.target import Skipped, Suite, Target

VERSION = "3.0.12"
SHA256 = "4ccda3616b9aa5c353d74a97f2770d6cd1b950890d77ab0e8890e09a48eeed65"
# What the tests expect of a broker.
KAFKA_VERSION = "4.2.0"
TEST_TIMEOUT_S = 90
ACL_TESTS = "_acls"
# What the fixtures import of it: a broker that runs already is neither started nor stopped.
SERVICE = """class SpawnedService:
    pass


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def stop(self):
        pass
"""


def source() -> Path:
    return cached(f"kafka-python-{VERSION}", _unpack) / f"kafka_python-{VERSION}"


def _unpack(folder: Path) -> None:
    python_source("kafka-python", VERSION, SHA256, folder)
    root = folder / f"kafka_python-{VERSION}"
    # The fixtures look for Kafka's files here, even where a broker runs already.
    (root / "servers" / KAFKA_VERSION / "kafka-bin").mkdir(parents=True)
    # Both files are missing in the archive. Without the first, Python's own package `test` would be imported.
    (root / "test" / "__init__.py").touch()
    (root / "test" / "service.py").write_text(SERVICE, encoding="utf-8")


def run_tests(target: Target, tests: Sequence[str]) -> Iterator[Result]:
    """A test is named `FILE::FUNCTION`; its parameters count as one test. Those of ACLs run at a broker with credentials."""
    acls = [test for test in tests if test.endswith(ACL_TESTS)]
    if others := [test for test in tests if test not in acls]:
        yield from _run(target, target.bootstrap, others, "pytest")
    if acls:
        try:
            with secured_broker(target) as secured:
                yield from _run(target, secured.addresses["admin"], acls, "acls")
        except Skipped as why:
            yield from (Result(test, Verdict.SKIPPED, reason=str(why)) for test in acls)


def _run(target: Target, bootstrap: str, tests: Sequence[str], name: str) -> list[Result]:
    report = target.directory / f"{name}.xml"
    environment = {**os.environ, "KAFKA_URI": f"kafka://{bootstrap.partition(',')[0]}", "KAFKA_VERSION": KAFKA_VERSION}
    # pytest of this environment, without the settings and the plugin of this repository.
    options = ["-q", "-p", "no:tidelog", "-p", "no:cacheprovider", f"--timeout={TEST_TIMEOUT_S}", f"--junitxml={report}"]
    with (target.directory / f"{name}.log").open("wb") as log:
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, *(f"test/integration/{test}" for test in tests)],
            cwd=source(),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    return outcomes(report.read_text(encoding="utf-8")) if report.exists() else []


def outcomes(report: str) -> list[Result]:
    """Reads a JUnit report: of the parameters of a test the worst counts. Pure."""
    found: dict[str, list[Result]] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        name = f"{case.attrib['classname'].rpartition('.')[2]}.py::{case.attrib['name'].partition('[')[0]}"
        bad = [child for child in case if child.tag in ("failure", "error")]
        skipped = [child for child in case if child.tag == "skipped"]
        verdict = Verdict.FAILED if bad else Verdict.SKIPPED if skipped else Verdict.PASSED
        reason = " ".join((bad or skipped)[0].attrib.get("message", "").split())[:300] if bad or skipped else ""
        found.setdefault(name, []).append(Result(name, verdict, float(case.attrib["time"]), reason))
    order = (Verdict.FAILED, Verdict.PASSED, Verdict.SKIPPED)
    worst = {name: min(results, key=lambda result: order.index(result.verdict)) for name, results in found.items()}
    return [Result(name, each.verdict, sum(result.seconds for result in found[name]), each.reason) for name, each in worst.items()]


SUITE = Suite(source, run_tests)
