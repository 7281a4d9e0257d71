"""`python -m tests.kafka_suites`: runs the suites, prints a table, and ends with 1 where a test failed.

python -m tests.kafka_suites --gate                            two to three minutes, against three Tidelog brokers
python -m tests.kafka_suites                                   everything
python -m tests.kafka_suites --reference                       against Apache Kafka, started for this run
python -m tests.kafka_suites --bootstrap 127.0.0.1:9092        against a broker that runs
python -m tests.kafka_suites --only librdkafka,kgo --test 0011 these suites alone, this test alone
python -m tests.kafka_suites --gate --again                    as CI does: what fails runs once more, and is named
python -m tests.kafka_suites --prepare                         downloads and builds, and runs nothing
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.kafka_suites.cache import CannotPrepare
from tests.kafka_suites.reference_broker import reference_broker
from tests.kafka_suites.results import Result, Verdict, second_attempt, selected, table, with_missing
from tests.kafka_suites.suites import SUITES, listed
from tests.kafka_suites.target import Target, summary
from tests.kafka_suites.tidelog_cluster import start_tidelog


def main() -> int:
    chosen = _arguments()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    plan = _plan(chosen)
    results: list[tuple[str, list[Result]]] = []
    for suite in plan:
        try:
            SUITES[suite].prepare()
        except CannotPrepare as why:
            verdict = Verdict.SKIPPED if chosen.skip_unprepared else Verdict.FAILED
            results.append((suite, [Result("prepare", verdict, reason=str(why))]))
    if chosen.prepare:
        return _report(results)
    unprepared = {suite for suite, _ in results}
    if unprepared >= plan.keys():
        return _report(results)
    directory = Path(tempfile.mkdtemp(prefix="tidelog-kafka-suites-"))
    with _served(chosen, directory) as served:
        for suite, tests in plan.items():
            if suite not in unprepared:
                results.append((suite, _run(suite, tests, served, directory, gate=chosen.gate, again=chosen.again)))
    code = _report(results)
    if code == 0 and not chosen.keep:
        shutil.rmtree(directory)
    else:
        print(f"logs: {directory}")
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.kafka_suites", description="Runs other projects' tests of Kafka clients."
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--bootstrap", metavar="HOST:PORT", help="of a broker that runs; three Tidelog brokers are started by default"
    )
    where.add_argument("--reference", action="store_true", help="start Apache Kafka, and run against it")
    parser.add_argument("--brokers", type=int, help="how many to start (3), or how many are behind --bootstrap (1)")
    parser.add_argument("--gate", action="store_true", help="a selection of two to three minutes")
    parser.add_argument("--only", metavar="SUITES", help=f"separated by commas: {', '.join(SUITES)}")
    parser.add_argument("--test", action="append", metavar="TEST", help="of the chosen suites this test alone; may be repeated")
    parser.add_argument("--prepare", action="store_true", help="download and build what the suites need, and run nothing")
    parser.add_argument(
        "--skip-unprepared", action="store_true", help="skip what cannot be downloaded or built here, and say so; else it fails"
    )
    parser.add_argument(
        "--again", action="store_true", help="run what failed once more, and name what passed then: for machines that are busy"
    )
    parser.add_argument("--keep", action="store_true", help="keep the logs in any case")
    chosen = parser.parse_args()
    chosen.only = chosen.only.split(",") if chosen.only else list(SUITES)
    unknown = [suite for suite in chosen.only if suite not in SUITES]
    if unknown:
        parser.error(f"there is no suite {unknown[0]!r}; there are: {', '.join(SUITES)}")
    return chosen


def _plan(chosen: argparse.Namespace) -> dict[str, list[str] | None]:
    """Returns the suites that run, each with the tests that `--test` names, or None for those of its list."""
    if chosen.test:
        return dict.fromkeys(chosen.only, chosen.test)
    return {suite: None for suite in chosen.only if not chosen.gate or any(each.when == "gate" for each in listed(suite))}


@contextmanager
def _served(chosen: argparse.Namespace, directory: Path) -> Iterator[Target]:
    """The brokers that the arguments name or ask for."""
    if chosen.bootstrap:
        yield Target(chosen.bootstrap, False, chosen.brokers or 1, directory, startable=False)
    elif chosen.reference:
        with reference_broker(directory) as broker:
            yield Target(broker.bootstrap, True, 1, directory)
    else:
        brokers = chosen.brokers or 3
        with start_tidelog(directory, brokers=brokers) as cluster:
            yield Target(cluster.bootstrap, False, brokers, directory, bucket=cluster.bucket, environment=cluster.environment)


def _run(suite: str, named: list[str] | None, served: Target, directory: Path, *, gate: bool, again: bool) -> list[Result]:
    tests, skipped = (named, []) if named else selected(listed(suite), gate=gate, on_kafka=served.on_kafka)
    results = _attempt(suite, tests, served, directory / suite)
    if again and (failed := [result.test for result in results if result.verdict is Verdict.FAILED and result.test in tests]):
        print(f"{suite}: again, what failed")
        results = second_attempt(results, _attempt(suite, failed, served, directory / f"{suite}-again"))
    return results + skipped


def _attempt(suite: str, tests: list[str], served: Target, scratch: Path) -> list[Result]:
    scratch.mkdir()
    results: list[Result] = []
    try:
        for result in SUITES[suite].run(replace(served, directory=scratch), tests):
            results.append(result)
            why = f": {result.reason}" if result.verdict is Verdict.FAILED else ""
            print(f"{suite:<18}{result.verdict:<8}{result.seconds:>7.1f} s  {result.test}{why}", flush=True)
    except Exception as error:  # noqa: BLE001  # the other suites still run, and the report names this one
        results.append(Result("run", Verdict.FAILED, reason=summary(error)))
    return with_missing(tests, results)


def _report(results: Sequence[tuple[str, Sequence[Result]]]) -> int:
    print()
    for line in table(results):
        print(line)
    counts = [sum(result.verdict is verdict for _, found in results for result in found) for verdict in Verdict]
    print(f"\n{counts[0]} passed, {counts[1]} failed, {counts[2]} skipped")
    prepared = [suite for suite, found in results if [result.test for result in found] != ["prepare"]]
    return 1 if counts[1] or (prepared and not counts[0]) else 0


if __name__ == "__main__":
    sys.exit(main())
