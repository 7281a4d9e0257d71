"""What a suite answers, and the lists that say which of its tests run. Pure.

A list is `lists/SUITE.txt`, one test a line:

    gate    0001                                  runs in the gate and in the proof
    proof   0011                                  runs in the proof
    tidelog 0103  asks for three replicas         runs in the proof, but not against Apache Kafka, where it fails for this reason
    kafka   0061  uses transactions               runs against Apache Kafka alone: Tidelog fails it for this reason
    omit    0055  measures latency                never runs, for this reason

A list only grows: a test moves from omit or kafka to proof to gate, and no test leaves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

WHEN = ("gate", "proof", "tidelog", "kafka", "omit")
NEEDS_REASON = ("tidelog", "kafka", "omit")


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    test: str
    verdict: Verdict
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Listed:
    test: str
    when: str
    reason: str = ""


def parse_list(text: str) -> list[Listed]:
    """Reads a list. Raises ValueError for an unknown first word, a missing reason, or a test that stands there twice."""
    listed: list[Listed] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split(maxsplit=2)
        if not words or line.startswith("#"):
            continue
        when, test, reason = (*words, "", "")[:3]
        if when not in WHEN or not test:
            raise ValueError(f"line {number}: not one of {', '.join(WHEN)} and a test: {line!r}")
        if when in NEEDS_REASON and not reason:
            raise ValueError(f"line {number}: {when} needs a reason: {line!r}")
        if any(test == other.test for other in listed):
            raise ValueError(f"line {number}: {test} is listed twice")
        listed.append(Listed(test, when, reason))
    return listed


def selected(listed: Iterable[Listed], *, gate: bool, on_kafka: bool) -> tuple[list[str], list[Result]]:
    """Returns the tests to run, and a skipped result for each listed test that does not run. The gate is silent about the rest."""
    runs: list[str] = []
    skipped: list[Result] = []
    for each in listed:
        if each.when == "omit" or each.when == ("tidelog" if on_kafka else "kafka"):
            if not gate:
                skipped.append(Result(each.test, Verdict.SKIPPED, reason=each.reason))
        elif each.when == "gate" or not gate:
            runs.append(each.test)
    return runs, skipped


def with_missing(tests: Sequence[str], results: Sequence[Result]) -> list[Result]:
    """Returns the results, and a failure for each test that gave none: a suite that ends early must not pass."""
    answered = {result.test for result in results}
    return [*results, *(Result(test, Verdict.FAILED, reason="it gave no result") for test in tests if test not in answered)]


def second_attempt(first: Sequence[Result], second: Sequence[Result]) -> list[Result]:
    """Returns the results of both attempts: a test that failed and then passed has passed, and keeps the reason of its failure.

    Suites of other projects have time limits of their own, which a busy machine does not always meet.
    """
    later = {result.test: result for result in second}
    results: list[Result] = []
    for result in first:
        if result.verdict is Verdict.FAILED and result.test in later:
            reason = f"failed at first: {result.reason or 'no reason given'}"
            again = later[result.test]
            results.append(replace(again, reason=reason) if again.verdict is Verdict.PASSED else again)
        elif result.test != "run" or "run" in later:  # where the suite itself ended, its tests count one by one
            results.append(result)
    return results


def table(results: Iterable[tuple[str, Sequence[Result]]]) -> list[str]:
    """Returns the lines of the report: a line for each suite, then every failure and every skip with its reason."""
    by_suite = list(results)
    lines = [f"{'suite':<18}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}"]
    for suite, found in by_suite:
        counts = [sum(result.verdict is verdict for result in found) for verdict in Verdict]
        seconds = sum(result.seconds for result in found)
        lines.append(f"{suite:<18}{counts[0]:>8}{counts[1]:>8}{counts[2]:>9}{seconds:>9.1f}")
    for verdict in (Verdict.SKIPPED, Verdict.FAILED):
        reported = [(suite, result) for suite, found in by_suite for result in found if result.verdict is verdict]
        lines += [f"{verdict}: {suite} {result.test}: {result.reason or 'no reason given'}" for suite, result in reported]
    passed = [(suite, result) for suite, found in by_suite for result in found if result.verdict is Verdict.PASSED]
    return lines + [f"{Verdict.PASSED}: {suite} {result.test}: {result.reason}" for suite, result in passed if result.reason]
