"""What the runner reads: lists, and what other projects' runners print."""

from __future__ import annotations

import dataclasses
import hashlib
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.chaos.history import GroupEnd, Served
from tests.chaos.history_checker import check
from tests.kafka_suites import differential, kafka_python, kgo, librdkafka, spark_kafka, verifiable_kills
from tests.kafka_suites.__main__ import main
from tests.kafka_suites.cache import CannotPrepare, cached, check_hash, unpack
from tests.kafka_suites.java import ARTEFACTS, HASHES, pom
from tests.kafka_suites.results import Listed, Result, Verdict, parse_list, second_attempt, selected, table, with_missing
from tests.kafka_suites.suites import LISTS, SUITES, listed

LIST = """# a comment
gate    0001
proof   0011
tidelog 0103  asks for three replicas
kafka   0061  uses transactions
omit    0055  measures latency
"""
RDKAFKA_PART = """\x1b[35m[ do_test_consume_batch_with_seek:127 ]
\x1b[32m[ do_test_consume_batch_with_seek:127: PASS (2.51s) ]
|\x1b[32m 0137_barrier_batch_consume              |     PASSED |   2.600s \x1b[0m|
"""
RDKAFKA = """[0011_produce_batch          /  1.000s] ================= Test 0011_produce_batch PASSED =================
| <MAIN>                                   |     PASSED |   5.200s |
|\x1b[32m 0011_produce_batch                       |     PASSED |   5.001s \x1b[0m|
|\x1b[31m 0045_subscribe_update                    |     FAILED |   1.000s \x1b[0m|\x1b[31m test.c:1: no topic\x1b[0m
|\x1b[32m 0045_resubscribe_with_regex              |     PASSED |   1.000s \x1b[0m|
|\x1b[36m 0053_stats                               |    SKIPPED |   0.000s \x1b[0m|\x1b[36m no RapidJSON\x1b[0m
|\x1b[32m 0018_cgrp_term                           |     PASSED |   0.000s \x1b[0m|
"""
KGO = """=== RUN   TestPing
--- PASS: TestPing (0.09s)
=== RUN   TestGroupETL
    group_test.go:12: lost 3 records
--- FAIL: TestGroupETL (41.73s)
    group_test.go:80: saw 4, wanted 7
    --- FAIL: TestGroupETL/range (1.00s)
--- SKIP: TestShareGroup (0.00s)
    share_test.go:9: no share groups
"""
JUNIT = """<testsuites><testsuite>
<testcase classname="test.integration.test_producer_integration" name="test_end_to_end[gzip]" time="1.5" />
<testcase classname="test.integration.test_producer_integration" name="test_end_to_end[lz4]" time="0.5">
<failure message="no&#10;answer" /></testcase>
<testcase classname="test.integration.test_consumer_integration" name="test_group" time="2"><skipped message="too old" /></testcase>
</testsuite></testsuites>"""


def test_a_list_names_tests_with_when_they_run_and_why_not() -> None:
    assert parse_list(LIST) == [
        Listed("0001", "gate"),
        Listed("0011", "proof"),
        Listed("0103", "tidelog", "asks for three replicas"),
        Listed("0061", "kafka", "uses transactions"),
        Listed("0055", "omit", "measures latency"),
    ]


@pytest.mark.parametrize("line", ["omit 0055", "tidelog 0103", "kafka 0061", "often 0001", "gate", "gate 0001\nproof 0001"])
def test_a_list_without_a_reason_or_with_an_unknown_word_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="line"):
        parse_list(line)


def test_the_gate_runs_a_part_of_the_proof_and_each_target_has_tests_of_its_own() -> None:
    every = parse_list(LIST)
    assert selected(every, gate=True, on_kafka=False) == (["0001"], [])
    runs, skipped = selected(every, gate=False, on_kafka=True)
    assert (runs, [(each.test, each.reason) for each in skipped]) == (
        ["0001", "0011", "0061"],
        [("0103", "asks for three replicas"), ("0055", "measures latency")],
    )
    runs, skipped = selected(every, gate=False, on_kafka=False)
    assert (runs, [each.test for each in skipped]) == (["0001", "0011", "0103"], ["0061", "0055"])


def test_a_listed_test_without_a_result_is_a_failure() -> None:
    results = with_missing(["a", "b"], [Result("a", Verdict.PASSED)])
    assert [(each.test, each.verdict) for each in results] == [("a", Verdict.PASSED), ("b", Verdict.FAILED)]


def test_a_suite_that_failed_once_counts_by_its_second_attempt_and_keeps_the_reason() -> None:
    ended = Result("run", Verdict.FAILED, reason="the broker is gone")
    first = [Result("a", Verdict.PASSED), Result("b", Verdict.FAILED, reason="too slow"), Result("c", Verdict.FAILED), ended]
    second = [Result("b", Verdict.PASSED), Result("c", Verdict.FAILED, reason="wrong")]
    results = second_attempt(first, second)
    assert results == [
        Result("a", Verdict.PASSED),
        Result("b", Verdict.PASSED, reason="failed at first: too slow"),
        Result("c", Verdict.FAILED, reason="wrong"),
    ]
    assert "passed: suite b: failed at first: too slow" in table([("suite", results)])
    assert second_attempt(
        [Result("a", Verdict.FAILED), ended], [Result("a", Verdict.FAILED, reason="it gave no result"), ended]
    ) == [
        Result("a", Verdict.FAILED, reason="it gave no result"),
        ended,
    ]


def test_the_report_counts_each_suite_and_names_what_failed() -> None:
    lines = table([("kgo", [Result("a", Verdict.PASSED, 1.25), Result("b", Verdict.FAILED, 2.0, "lost 3 records")])])
    assert lines[1].split() == ["kgo", "1", "1", "0", "3.2"]
    assert lines[2:] == ["failed: kgo b: lost 3 records"]


@pytest.mark.parametrize("suite", list(SUITES))
def test_every_suite_has_a_list_that_can_be_read(suite: str) -> None:
    assert [each.test for each in listed(suite) if each.when != "omit"]


def test_every_list_has_a_suite() -> None:
    assert {path.stem for path in LISTS.glob("*.txt")} == set(SUITES)


@pytest.mark.parametrize(
    ("test", "exit_code", "verdict", "reason"),
    [
        ("0011", 0, Verdict.PASSED, ""),
        ("0011", 1, Verdict.FAILED, "exit code 1"),
        ("0045", 1, Verdict.FAILED, "FAILED: test.c:1: no topic"),
        ("0053", 0, Verdict.SKIPPED, "no RapidJSON"),
        ("0018", 0, Verdict.SKIPPED, "it ran nothing"),
        ("0099", 0, Verdict.FAILED, "exit code 0"),
    ],
)
def test_the_summary_of_librdkafka_is_read(test: str, exit_code: int, verdict: Verdict, reason: str) -> None:
    found = librdkafka.outcome(test, RDKAFKA, exit_code, 1.0)
    assert found.verdict is verdict
    assert found.reason.startswith(reason)


@pytest.mark.parametrize(("part", "verdict"), [("with_seek", Verdict.PASSED), ("control msgs", Verdict.SKIPPED)])
def test_a_part_of_a_librdkafka_test_passes_only_where_a_subtest_of_that_name_ran(part: str, verdict: Verdict) -> None:
    found = librdkafka.outcome("0137", RDKAFKA_PART, 0, 1.0, part=part, test="0137/a-part")
    assert (found.test, found.verdict) == ("0137/a-part", verdict)


def test_every_environment_of_a_librdkafka_test_can_be_made() -> None:
    assert all(hasattr(librdkafka.Environments, f"_{name}") for name in librdkafka.ENVIRONMENTS.values())
    assert {each.test.partition("/")[0] for each in listed("librdkafka")} >= librdkafka.ENVIRONMENTS.keys()


def test_the_closing_lines_of_go_are_read() -> None:
    passed, failed, skipped = kgo.outcomes(KGO)
    assert passed == Result("TestPing", Verdict.PASSED, 0.09)
    assert (failed.test, failed.verdict, failed.seconds) == ("TestGroupETL", Verdict.FAILED, 41.73)
    assert failed.reason.startswith("group_test.go:80: saw 4, wanted 7")
    assert (skipped.verdict, skipped.reason) == (Verdict.SKIPPED, "share_test.go:9: no share groups")


def test_a_junit_report_is_read_and_of_parameters_the_worst_counts() -> None:
    produced, grouped = kafka_python.outcomes(JUNIT)
    assert produced == Result("test_producer_integration.py::test_end_to_end", Verdict.FAILED, 2.0, "no answer")
    assert dataclasses.replace(grouped, seconds=0.0) == Result(
        "test_consumer_integration.py::test_group", Verdict.SKIPPED, reason="too old"
    )


@pytest.mark.parametrize("artefacts_and_hashes", [(ARTEFACTS, HASHES), (spark_kafka.ARTEFACTS, spark_kafka.HASHES)])
def test_the_pom_and_the_hashes_name_the_same_artefacts(artefacts_and_hashes: tuple[Any, Path]) -> None:
    artefacts, hashes = artefacts_and_hashes
    text = pom(artefacts)
    hashed = hashes.read_text(encoding="ascii")
    for _, name, version, classifier in artefacts:
        assert f"<artifactId>{name}</artifactId><version>{version}</version>" in text
        assert f"  {'-'.join(filter(None, (name, version, classifier)))}.jar\n" in hashed


VERIFIABLE_PRODUCER: list[dict[str, Any]] = [
    {"timestamp": 1_000, "name": "startup_complete"},
    {"timestamp": 2_000, "name": "producer_send_success", "value": "1.0", "partition": 0, "offset": 0},
    {"timestamp": 2_001, "name": "producer_send_success", "value": "1.1", "partition": 0, "offset": 1},
    {"timestamp": 2_002, "name": "producer_send_error", "value": "1.2", "message": "timed out"},
]
VERIFIABLE_CONSUMER: list[dict[str, Any]] = [
    {"timestamp": 1_500, "name": "partitions_assigned", "partitions": [{"topic": "t", "partition": 0}]},
    {"timestamp": 2_100, "name": "record_data", "partition": 0, "offset": 0, "value": "1.0"},
    {"timestamp": 2_100, "name": "record_data", "partition": 0, "offset": 1, "value": "1.1"},
    {"timestamp": 2_100, "name": "records_consumed", "partitions": [{"partition": 0, "minOffset": 0, "maxOffset": 1}]},
    {"timestamp": 2_101, "name": "offsets_committed", "success": True, "offsets": [{"partition": 0, "offset": 2}]},
    {"timestamp": 2_200, "name": "partitions_revoked", "partitions": [{"topic": "t", "partition": 0}]},
]


def verdicts(stored: tuple[tuple[int, str], ...], consumed: list[dict[str, Any]]) -> set[str]:
    events = [
        *verifiable_kills.producer_events(VERIFIABLE_PRODUCER),
        *verifiable_kills.group_events("g", {0: consumed}),
        Served(3.0, 0, stored),
        GroupEnd(3.0, "g", 0, ((0, len(stored)),)),
    ]
    return {found.anomaly for found in check(events)}


def test_lines_of_javas_verifiable_clients_are_judged_as_a_history() -> None:
    stored = ((0, "1#0"), (1, "1#1"))
    assert verdicts(stored, VERIFIABLE_CONSUMER) == set()
    assert verdicts(stored[:1], VERIFIABLE_CONSUMER) == {"unseen"}
    assert verdicts(((0, "1#1"), (1, "1#0")), VERIFIABLE_CONSUMER) == {"inconsistent-offsets", "duplicate", "reordered"}
    assert verdicts((*stored, (2, "1#1")), VERIFIABLE_CONSUMER) >= {"duplicate", "reordered"}
    assert verdicts(stored, [line for line in VERIFIABLE_CONSUMER if line.get("offset") != 0]) == {"group-skip"}
    assert verdicts(stored, [{"timestamp": 1, "name": "tool_data"}, *VERIFIABLE_CONSUMER]) == {"unexpected"}


def test_rows_that_differ_are_named_by_column_and_row() -> None:
    wanted = pa.table({"partition": [0, 0], "offset": [0, 1], "value": [b"a", b"b"]})
    spark_kafka.expect_rows(wanted, wanted, "the copy")
    with pytest.raises(AssertionError, match="the copy: value of row 1"):
        spark_kafka.expect_rows(pa.table({"partition": [0, 0], "offset": [0, 1], "value": [b"a", b"c"]}), wanted, "the copy")
    with pytest.raises(AssertionError, match="found 1, not 2"):
        spark_kafka.expect_rows(wanted.slice(1), wanted, "the copy")
    nulls = pa.table({"partition": [0, 0], "offset": [0, 1], "value": [b"a", None]})
    with pytest.raises(AssertionError, match="value of row 1"):
        spark_kafka.expect_rows(nulls, wanted, "the copy")


def test_a_download_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "archive"
    file.write_bytes(b"as published")
    check_hash(file, hashlib.sha256(b"as published").hexdigest())
    with pytest.raises(CannotPrepare, match="not"):
        check_hash(file, hashlib.sha256(b"something else").hexdigest())


def test_a_folder_of_the_cache_is_made_once_and_never_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[Path] = []

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise CannotPrepare("no network")

    with pytest.raises(CannotPrepare):
        cached("suite", fail)
    for _ in range(2):
        folder = cached("suite", made.append)
        assert list(folder.iterdir()) == []
    assert len(made) == 1


def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    (inside / "unpacked").mkdir(parents=True)
    with tarfile.open(tmp_path / "bad.tar", "w") as packed:
        packed.addfile(tarfile.TarInfo("../escaped"))
    with pytest.raises(tarfile.OutsideDestinationError):
        unpack(tmp_path / "bad.tar", inside / "unpacked")


def test_answers_differ_where_a_field_does_and_not_by_what_no_two_clusters_share() -> None:
    kafka = {"cluster_id": "a", "topics": [{"name": "t", "error_code": 0}, {"name": "u", "error_code": 3}]}
    ours = {"cluster_id": "b", "topics": [{"name": "u", "error_code": 3}, {"name": "t", "error_code": 17}]}
    assert differential.unexplained("Metadata", kafka, ours, []) == ["Metadata topics[0].error_code: 17, and 0 on Kafka"]
    known = differential.parse_differences("# why\nMetadata topics*.error_code names are checked first\n")
    assert differential.unexplained("Metadata", kafka, ours, known) == []
    assert differential.unexplained("Fetch", kafka, ours, known) != []


def test_an_answer_of_another_length_differs() -> None:
    assert differential.unexplained("Fetch", {"topics": []}, {"topics": [{"name": "t"}]}, []) != []


def test_every_difference_has_a_reason() -> None:
    assert differential.parse_differences(differential.DIFFERENCES.read_text(encoding="utf-8"))
    with pytest.raises(ValueError, match="reason"):
        differential.parse_differences("Metadata topics*")


@pytest.mark.parametrize(("options", "code", "verdict"), [([], 1, "failed"), (["--skip-unprepared"], 0, "skipped")])
def test_a_suite_that_cannot_be_downloaded_fails_unless_it_may_be_skipped(
    options: list[str], code: int, verdict: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise CannotPrepare("the registry does not answer")

    monkeypatch.setitem(SUITES, "kgo", dataclasses.replace(SUITES["kgo"], prepare=refuse))
    monkeypatch.setattr("sys.argv", ["kafka_suites", "--gate", "--only", "kgo", *options])
    assert main() == code
    assert f"{verdict}: kgo prepare: the registry does not answer" in capsys.readouterr().out
