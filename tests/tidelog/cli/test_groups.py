"""`tidelog group` as operators use it: what it asks, what it refuses, and what it prints where."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import typer

from metadata.errors import GroupNotEmpty, InvalidArgument, TidelogError, UnknownGroup
from tidelog.admin.group_descriptions import CommittedOffset, GroupInfo, ListedGroup, MovedOffset
from tidelog.cli import groups
from tidelog.cli.app.output import say
from tidelog.cli.groups import parse_parts, parse_target
from tidelog.cli.main import run


def a_move(partition: int, before: int | None, after: int | None, error: str = "") -> MovedOffset:
    return MovedOffset(topic="orders", topic_id="id", partition=partition, before=before, after=after, error=error)


def an_offset(partition: int, offset: int) -> CommittedOffset:
    return CommittedOffset(
        topic="orders", topic_id="id", partition=partition, offset=offset, leader_epoch=-1, metadata="", committed_at_ms=0
    )


class Answers:
    """Stands for a client, and for its `groups`. It keeps what would have changed something."""

    def __init__(self, *, known: tuple[str, ...] = ("billing", "audit"), error: TidelogError | None = None) -> None:
        self.groups = self
        self.known = known
        self.error = error
        self.plan = [a_move(0, 10, 4), a_move(1, None, 7)]
        self.moved: list[MovedOffset] | None = None
        self.asked: list[dict[str, Any]] = []
        self.changed: list[Any] = []

    def _refuse(self) -> None:
        if self.error is not None:
            raise self.error

    async def describe(self, name: str) -> GroupInfo:
        self._refuse()
        return GroupInfo(
            group=name,
            state="Empty",
            generation=3,
            protocol_type="",
            protocol="",
            leader="",
            coordinator="b1",
            lag_records=0,
            lag_seconds=0,
            members=(),
            lags=(),
        )

    async def offsets(self, name: str) -> list[CommittedOffset]:
        return [an_offset(0, 4), an_offset(1, 5)]

    async def seek(self, name: str, to: Any = None, *, validate_only: bool = False, **how: Any) -> list[MovedOffset]:
        self._refuse()
        self.asked.append({"name": name, "to": to, **how})
        if not validate_only:
            self.changed.append(self.asked[-1])
        return self.plan if validate_only or self.moved is None else self.moved

    async def delete(self, name: str, *, validate_only: bool = False) -> None:
        self._refuse()
        if not validate_only:
            self.changed.append(name)

    async def delete_offsets(self, name: str, topics: Any, *, validate_only: bool = False) -> list[CommittedOffset]:
        self._refuse()
        if not validate_only:
            self.changed.append((name, topics))
        return [an_offset(0, 4)]

    async def list(self, *, states: Any = ()) -> list[ListedGroup]:
        return [
            ListedGroup(group=name, state="Stable", protocol_type="consumer", members=2, coordinator="b1") for name in self.known
        ]


Commands = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tidelog(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Runs `tidelog group …` against answers; `yes` is what is said to its question, None where there is no terminal."""

    def command(answers: Answers, *arguments: str, yes: bool | None = None) -> tuple[int, str, str]:
        def confirm(question: str, **_: Any) -> bool:
            say(f"? {question}")
            assert yes is not None, "asked without a terminal"
            return yes

        monkeypatch.setattr(groups, "with_client", lambda url, ask, **_: asyncio.run(ask(answers)))
        monkeypatch.setattr(sys.stdin, "isatty", lambda: yes is not None)
        monkeypatch.setattr(typer, "confirm", confirm)
        code = run(["group", *arguments])
        return code, *capsys.readouterr()

    return command


# ── look ──


def test_groups_are_listed(tidelog: Commands) -> None:
    code, shown, _ = tidelog(Answers(), "list")
    assert (code, shown.splitlines()[0].split()) == (0, ["GROUP", "STATE", "MEMBERS", "COORDINATOR"])
    assert json.loads(tidelog(Answers(), "list", "-o", "json")[1])[1] == {
        "group": "audit",
        "state": "Stable",
        "protocol_type": "consumer",
        "members": 2,
        "coordinator": "b1",
    }


def test_where_there_is_no_group_it_says_how_there_comes_to_be_one(tidelog: Commands) -> None:
    assert "tidelog consume TOPIC --group NAME" in tidelog(Answers(known=()), "list")[2]
    assert tidelog(Answers(known=()), "list", "--state", "Empty")[2] == "no group is Empty\n"


def test_a_mistyped_group_gets_a_hint_with_the_nearest_name(tidelog: Commands) -> None:
    unknown = Answers(error=UnknownGroup("there is no group biling"))
    for arguments in (["describe", "biling"], ["delete", "biling", "-y"], ["seek", "biling", "--to", "latest", "-y"]):
        code, _, said = tidelog(unknown, *arguments)
        assert (code, said) == (1, "Error: there is no group biling\n  Did you mean 'billing'?\n")


def test_one_of_both_tables_can_be_asked_for_and_not_none(tidelog: Commands) -> None:
    assert json.loads(tidelog(Answers(), "describe", "billing", "--members", "-o", "json")[1]) == []
    code, _, said = tidelog(Answers(), "describe", "billing", "--members", "--offsets")
    assert (code, said.splitlines()[0]) == (2, "Error: --members and --offsets are both given")


# ── seek ──


def test_a_seek_shows_what_moves_asks_and_moves(tidelog: Commands) -> None:
    answers = Answers()
    code, shown, said = tidelog(answers, "seek", "billing", "--to", "earliest", "-t", "orders", yes=True)
    assert code == 0
    assert shown.splitlines() == [
        "TOPIC   PART  BEFORE  AFTER  CHANGE",
        "orders     0      10      4  reads 6 again",
        "orders     1       -      7  begins here",
    ]
    assert said.splitlines() == [
        "? billing will read 6 records again and have its first offset in 1 partition. Move it?",
        "billing is moved: it will read 6 records again and have its first offset in 1 partition",
    ]
    assert answers.changed == [{"name": "billing", "to": "earliest", "shift": None, "topics": {"orders": None}}]


def test_a_user_who_says_no_moves_nothing(tidelog: Commands) -> None:
    answers = Answers()
    code, _, said = tidelog(answers, "seek", "billing", "--shift", "-6", yes=False)
    assert (code, said.splitlines()[-1], answers.changed) == (1, "nothing was moved", [])
    assert [asked["shift"] for asked in answers.asked] == [-6]


def test_a_dry_run_shows_the_same_and_asks_nothing(tidelog: Commands) -> None:
    answers = Answers()
    code, shown, said = tidelog(answers, "seek", "billing", "--to", "earliest", "--dry-run")
    assert (code, len(shown.splitlines()), answers.changed) == (0, 3, [])
    assert said == "billing would read 6 records again and have its first offset in 1 partition; nothing was changed (--dry-run)\n"


@pytest.mark.parametrize(
    "arguments",
    [["seek", "billing", "--to", "earliest"], ["delete", "billing"], ["delete-offsets", "billing", "-t", "orders"]],
)
def test_without_a_terminal_a_change_needs_yes(tidelog: Commands, arguments: list[str]) -> None:
    answers = Answers()
    code, _, said = tidelog(answers, *arguments)
    assert (code, answers.changed) == (2, [])
    assert "needs a yes, and there is no terminal to ask\n  Add --yes; --dry-run shows what it would do." in said
    assert tidelog(answers, *arguments, "--yes")[0] == 0
    assert len(answers.changed) == 1


def test_a_seek_with_partitions_that_cannot_be_moved_changes_nothing(tidelog: Commands) -> None:
    answers = Answers()
    answers.plan = [a_move(0, 10, 4), a_move(1, 3, None, "orders/1 has no leader")]
    code, shown, said = tidelog(answers, "seek", "billing", "--to", "earliest", "--yes")
    assert (code, answers.changed) == (1, [])
    assert "can't be moved" in shown
    assert said.splitlines() == ["nothing was moved: a seek moves all partitions or none:", "orders/1: orders/1 has no leader"]


def test_a_seek_that_breaks_off_half_way_says_so(tidelog: Commands) -> None:
    answers = Answers()
    answers.moved = [a_move(0, 10, 4), a_move(1, 3, None, "no answer")]
    code, shown, said = tidelog(answers, "seek", "billing", "--to", "earliest", "--yes")
    assert (code, len(shown.splitlines())) == (1, 3)
    assert said.splitlines() == ["some partitions were moved, and some were not; seek again:", "orders/1: no answer"]


def test_a_move_that_differs_from_the_one_shown_is_shown_again(tidelog: Commands) -> None:
    answers = Answers()
    answers.moved = [a_move(0, 10, 12), a_move(1, None, 7)]
    _, shown, said = tidelog(answers, "seek", "billing", "--to", "latest", yes=True)
    assert shown.splitlines()[-2:] == ["orders     0      10     12  skips 2", "orders     1       -      7  begins here"]
    assert said.splitlines()[-1] == "billing is moved: it will skip 2 records and have its first offset in 1 partition"


def test_a_seek_to_where_the_group_is_asks_nothing_and_writes_nothing(tidelog: Commands) -> None:
    answers = Answers()
    answers.plan = [a_move(0, 4, 4)]
    code, _, said = tidelog(answers, "seek", "billing", "--to", "earliest", "--yes")
    assert (code, said, answers.changed) == (0, "billing is there already\n", [])


def test_a_seek_that_makes_a_group_says_so_first(tidelog: Commands) -> None:
    answers = Answers()
    answers.plan = [a_move(0, None, 7)]
    said = tidelog(answers, "seek", "biling", "--to", "earliest", "-t", "orders", yes=False)[2]
    assert said.splitlines()[0] == "biling is a new group: it has no committed offsets yet. Did you mean 'billing'?"
    assert "new group" not in tidelog(answers, "seek", "billing", "--to", "earliest", "-t", "orders", yes=False)[2]


@pytest.mark.parametrize(("flags", "yes"), [(["--dry-run"], None), (["--yes"], None), ([], True)])
def test_an_offset_beyond_the_end_is_reported_before_and_after_the_seek(
    tidelog: Commands, flags: list[str], yes: bool | None
) -> None:
    answers = Answers()
    answers.plan = [msgspec.structs.replace(a_move(0, 4, 10), reason="BEYOND_END", asked=9999), a_move(1, 4, 9999)]
    code, shown, said = tidelog(answers, "seek", "billing", "--to", "9999", *flags, yes=yes)
    assert code == 0
    assert "skips 6; 9999 is beyond the end" in " ".join(shown.split())
    assert said.count("what was asked for lies outside of 1 of 2 partitions, and the nearer end is taken there") == 1


def test_programs_get_one_document_of_what_was_moved(tidelog: Commands) -> None:
    _, shown, _ = tidelog(Answers(), "seek", "billing", "--to", "earliest", "-o", "json", yes=True)
    rows = json.loads(shown)
    assert [(row["before"], row["after"], row["skipped"]) for row in rows] == [(10, 4, -6), (None, 7, None)]


def test_a_group_that_is_read_is_refused_with_what_to_do(tidelog: Commands) -> None:
    busy = Answers(error=GroupNotEmpty("group billing has 3 members"))
    for arguments in (["seek", "billing", "--to", "latest"], ["delete", "billing"], ["delete-offsets", "billing", "-t", "orders"]):
        code, _, said = tidelog(busy, *arguments, yes=True)
        assert code == 1
        assert said.startswith("Error: group billing has 3 members\n  Stop them first: `tidelog group describe billing --members`")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "a seek takes a place or a shift"),
        (["--to", "latest", "--shift", "1"], "a seek takes a place or a shift"),
        (["--to", "-10"], "-10 is no place\n  To go back from what is committed: --shift -10"),
        (["--to", "+10"], "+10 is no place\n  To skip records from what is committed: --shift 10"),
        (["--to", "noon"], "'noon' is no place to begin"),
        (["--to", "latest", "-t", "orders:"], "'orders:' names no partitions"),
        (["--to", "latest", "-t", "orders", "-t", "orders:1"], "orders is named both as a whole and in parts"),
    ],
)
def test_a_seek_to_nowhere_is_bad_usage(tidelog: Commands, arguments: list[str], said: str) -> None:
    code, _, reported = tidelog(Answers(), "seek", "billing", *arguments)
    assert code == 2
    assert said in reported


def test_a_time_ago_does_not_move_while_people_think() -> None:
    assert parse_target("1h").startswith("@")
    assert parse_target("1970-01-01T00:00:01Z") == "@1000"
    assert [parse_target(text) for text in ("earliest", "latest", "4711")] == ["earliest", "latest", "4711"]


@pytest.mark.parametrize(
    ("texts", "parts"),
    [
        (None, None),
        ([], None),
        (["orders"], {"orders": None}),
        (["orders:0"], {"orders": [0]}),
        (["orders:0,4-6", "orders:9", "audit"], {"orders": [0, 4, 5, 6, 9], "audit": None}),
    ],
)
def test_parts_of_topics(texts: list[str] | None, parts: dict[str, list[int] | None] | None) -> None:
    assert parse_parts(texts) == parts


@pytest.mark.parametrize("text", ["o:", "o:a", "o:1-", "o:-1", "o:4-1", "o:1,", "o:0-99999999", "o:1 2", "o:1:2"])
def test_a_text_that_names_no_partitions_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="names no partitions"):
        parse_parts([text])


# ── delete ──


def test_a_group_is_deleted_once_it_was_said_what_goes_with_it(tidelog: Commands) -> None:
    answers = Answers()
    assert tidelog(answers, "delete", "billing", "--dry-run") == (
        0,
        "",
        "billing could be deleted with 2 committed offsets; nothing was changed (--dry-run)\n",
    )
    assert tidelog(answers, "delete", "billing", yes=False)[0] == 1
    assert answers.changed == []
    code, _, said = tidelog(answers, "delete", "billing", yes=True)
    assert (code, said.splitlines()) == (
        0,
        ["? Delete billing with 2 committed offsets? A new member will begin from scratch.", "billing is deleted"],
    )
    assert answers.changed == ["billing"]


def test_offsets_of_named_topics_are_deleted_and_shown(tidelog: Commands) -> None:
    answers = Answers()
    code, _, said = tidelog(answers, "delete-offsets", "billing", "--yes")
    assert (code, "no topic is named" in said) == (2, True)
    code, shown, said = tidelog(answers, "delete-offsets", "billing", "-t", "orders:0", yes=True)
    assert (code, shown.splitlines()[1].split()) == (0, ["orders", "0", "4"])
    assert said.splitlines() == [
        "? Delete 1 committed offset of billing? This can't be undone.",
        "1 committed offset of billing is deleted",
    ]
    assert answers.changed == [("billing", {"orders": [0]})]
    assert json.loads(tidelog(answers, "delete-offsets", "billing", "-t", "orders", "-o", "json", "--yes")[1])[0]["offset"] == 4
