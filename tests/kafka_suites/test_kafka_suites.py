"""What the runner reads: lists, and what other projects' runners print."""

from __future__ import annotations

import dataclasses
import hashlib
import tarfile
from pathlib import Path

import pytest

from tests.kafka_suites import differential, kafka_python, kgo, librdkafka
from tests.kafka_suites.__main__ import main
from tests.kafka_suites.cache import CannotPrepare, cached, check_hash, unpack
from tests.kafka_suites.java import ARTEFACTS, HASHES, VERSION, pom
from tests.kafka_suites.results import Listed, Result, Verdict, parse_list, selected, table, with_missing
from tests.kafka_suites.suites import LISTS, SUITES, listed

LIST = """# a comment
gate    0001
proof   0011
tidelog 0103  asks for three replicas
kafka   0061  uses transactions
omit    0055  measures latency
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


def test_the_pom_and_the_hashes_name_the_same_artefacts() -> None:
    text = pom(ARTEFACTS)
    hashed = HASHES.read_text(encoding="ascii")
    for _, name, version, classifier in ARTEFACTS:
        assert f"<artifactId>{name}</artifactId><version>{version}</version>" in text
        assert f"  {'-'.join(filter(None, (name, version, classifier)))}.jar\n" in hashed
    assert VERSION in hashed


def test_what_is_downloaded_is_checked(tmp_path: Path) -> None:
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
