"""How the command line answers: exit codes, stdout and stderr, forms of output. Without a broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from metadata.errors import InvalidArgument, OutcomeUnknown, UnknownTopic
from tidelog.cli import failure, topics
from tidelog.cli.main import run
from tidelog.cli.output import Output, cell, show_one, show_rows
from tidelog.cli.serve import extra_flags, setting_rows
from tidelog.descriptions import PartitionInfo, TopicInfo

NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize("arguments", [["--help"], ["topic", "--help"], ["produce", "-h"], ["bench", "end-to-end", "--help"]])
def test_help_names_the_exit_codes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    shown = capsys.readouterr()
    assert "Exit codes: 0 done, 1 failed, 2 bad usage, 3 unhealthy" in " ".join(shown.out.split())
    assert shown.err == ""


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tidelog ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topc", "list"], "Did you mean 'topic'"),
        (["topic", "crate", "x"], "Did you mean 'create'"),
        (["topic", "create"], "Missing argument"),
        (["topic", "create", "x", "--partitions", "many"], "should be a valid integer"),
        (["topic", "create", "x", "--set", "retention.ms"], "'retention.ms' is not a setting"),
        (["topic", "alter", "x"], "nothing is to be changed"),
        (["topic", "alter", "x", "--set", "a=1", "--unset", "a"], "a is both set and unset"),
        (["topic", "list", "-o", "xml"], "'xml' is not one of"),
        (["consume", "x", "--from", "yesterday", "--url", NOBODY], "no place to begin"),
        (["consume", "x", "-F", "%x"], "'%x' in the format means nothing"),
        (["consume", "x", "-F", "%s", "-o", "raw"], "--format and --output are both given"),
        (["consume", "x", "-n", "0"], "Invalid value for '--count'"),
        (["produce", "x", "--as", "xml"], "'xml' is not one of"),
        (["produce", "x", "-H", "nothing"], "'nothing' is not a header"),
        (["produce", "x", "-k", "id"], "--key names a field"),
        (["topic", "list", "--url", "ftp://x"], "'ftp://x' is not an address"),
        (["dev", "--lingerms", "5"], "Did you mean '--linger-ms'?"),
        (["dev", "linger"], "'linger' is not a flag"),
        (["serve"], "data_dir is not set"),
        (["bucket", "verify"], "no bucket is named"),
        (["explain", "x", "-1", "0"], "No such option"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else "",
)
def test_bad_usage_is_told_in_one_message_and_exits_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == failure.BAD_USAGE
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.err.startswith("Error: ")
    assert "Traceback" not in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    "arguments",
    [["topic", "list"], ["topic", "create", "x"], ["consume", "x"], ["explain", "x", "0", "0"], ["bench", "consume"]],
    ids=" ".join,
)
def test_a_cluster_that_is_not_there_is_told_with_a_remedy_and_exits_1(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--url", NOBODY]) == failure.FAILED
    shown = capsys.readouterr()
    assert f"{NOBODY}: can't connect" in shown.err
    assert "tidelog dev" in shown.err
    assert ("Nothing was written." in shown.err) == (arguments[:2] == ["topic", "create"])
    assert shown.out == ""


def test_a_file_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["produce", "x", "--file", "/does/not/exist"]) == failure.FAILED
    assert "/does/not/exist can't be read: No such file" in capsys.readouterr().err


def test_deleting_without_a_terminal_needs_a_yes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "delete", "x", "--url", NOBODY]) == failure.BAD_USAGE
    assert "Add --yes" in capsys.readouterr().err


# ── failures ──


def raising(error: BaseException) -> Callable[[], object]:
    def command() -> object:
        raise error

    return command


def test_each_kind_of_failure_has_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert failure.guarded(lambda: None) == 0
    assert failure.guarded(lambda: failure.UNHEALTHY) == 3
    assert failure.guarded(raising(UnknownTopic("there is no topic x"))) == 1
    assert failure.guarded(raising(InvalidArgument("x is not a number"))) == 2
    assert failure.guarded(raising(OSError("the disk is on fire"))) == 1
    shown = capsys.readouterr().err
    assert "Error: there is no topic x\n  Create it first: tidelog topic create NAME" in shown
    assert "the disk is on fire" in shown


def test_an_interrupt_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert failure.guarded(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == ""


def test_an_interrupt_while_everything_is_loaded_is_quiet() -> None:
    program = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from tidelog.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")


def test_partitions_without_a_leader_are_left_out_of_the_sum(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = (
        PartitionInfo(partition=0, leader="b", leader_epoch=1, log_start_offset=2, high_watermark=9),
        PartitionInfo(partition=1, leader="", leader_epoch=-1, log_start_offset=0, high_watermark=-1),
    )
    topic = TopicInfo(name="x", id="0", partition_count=2, settings={}, created_at_ms=0, partitions=partitions)
    monkeypatch.setattr(topics, "with_client", lambda url, command: topic)
    assert run(["topic", "describe", "x", "-o", "json"]) == 0
    shown = capsys.readouterr()
    described = json.loads(shown.out)
    assert (described["records"], described["partitions"][1]["high_watermark"]) == (7, None)
    assert "1 of 2 partitions have no leader now: their records are unknown, and not counted" in shown.err


def test_what_was_written_stands_between_what_happened_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    error = OutcomeUnknown("the connection was lost")
    error.add_note("The 7 records before it were written.")
    failure.guarded(raising(error))
    happened, written, remedy = capsys.readouterr().err.splitlines()
    assert (happened, written) == ("Error: the connection was lost", "  The 7 records before it were written.")
    assert remedy.strip() == OutcomeUnknown.default_hint


def test_a_bug_of_ours_shows_a_traceback_only_when_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDELOG_DEBUG", raising=False)
    assert failure.guarded(raising(ZeroDivisionError("by zero"))) == 1
    shown = capsys.readouterr().err
    assert "this is a bug in Tidelog: ZeroDivisionError: by zero" in shown
    assert "Traceback" not in shown
    monkeypatch.setenv("TIDELOG_DEBUG", "1")
    failure.guarded(raising(ZeroDivisionError("by zero")))
    assert "Traceback" in capsys.readouterr().err


# ── output ──

ROWS = [{"name": "a", "count": 5, "more": {"x": "1"}}, {"name": "long name", "count": 1200, "more": {}}]


def test_rows_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(ROWS, Output.TABLE, columns=("name", "count", "more"))
    assert capsys.readouterr().out == "NAME       COUNT  MORE\na              5  x=1\nlong name   1200  -\n"
    show_rows(ROWS, Output.JSON)
    assert json.loads(capsys.readouterr().out) == ROWS
    show_rows(ROWS, Output.YAML)
    assert yaml.safe_load(capsys.readouterr().out) == ROWS
    show_rows(ROWS, Output.NDJSON)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS


def test_nothing_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([], Output.TABLE, columns=("name",))
    assert capsys.readouterr().out == "NAME\n"
    show_rows([], Output.JSON)
    assert json.loads(capsys.readouterr().out) == []
    show_rows([], Output.NDJSON)
    assert capsys.readouterr().out == ""


def test_one_thing_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    show_one(ROWS[0], Output.TABLE)
    assert capsys.readouterr().out == "name   a\ncount  5\nmore   x=1\n"
    show_one(ROWS[0], Output.NDJSON)
    assert capsys.readouterr().out == '{"name":"a","count":5,"more":{"x":"1"}}\n'


def test_cells_are_for_people() -> None:
    assert [cell(value) for value in (None, True, False, 1234.5, [], ["a", 1], "", 0)] == [
        "-",
        "yes",
        "no",
        "1,234.50",
        "-",
        "a, 1",
        "-",
        "0",
    ]


# ── dev and serve ──


def test_every_setting_is_a_flag() -> None:
    assert extra_flags(["--linger-ms", "250", "--segment-bytes-max=4MiB", "--x=a=b"]) == {
        "linger_ms": "250",
        "segment_bytes_max": "4MiB",
        "x": "a=b",
    }
    for wrong in (["--linger-ms"], ["250"], ["-x", "1"], ["--"]):
        with pytest.raises(InvalidArgument):
            extra_flags(wrong)


def test_the_settings_are_listed_from_the_settings_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    names = [row["setting"] for row in setting_rows()]
    assert {"data_dir", "bucket", "linger_ms", "request_bytes_max", "endpoint_url"} <= set(names)
    assert run(["serve", "--list-settings", "-o", "ndjson"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(names)


# ── start-up ──


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from tidelog.cli.main import run; run(['--help']); "
        "print(sorted({'grpc', 'pyarrow', 'numpy', 'asyncio', 'fastapi', 'boto3', 'yaml'} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_TIDELOG_COMPLETE" in capsys.readouterr().out
