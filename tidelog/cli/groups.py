"""`tidelog group`: who reads what, how far behind, and where a group goes on.

list · describe                    look
seek · delete-offsets · delete     change a group that has no members; shown and asked first on a terminal, --dry-run only looks
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from metadata.errors import GroupNotEmpty, InvalidArgument, UnknownGroup
from tidelog.cli.app.client_command import YesOption, require_confirmation, shows_credentials, with_client
from tidelog.cli.app.contexts import UrlOption
from tidelog.cli.app.errors import FAILED
from tidelog.cli.app.help_page import CommandPage, GroupPage
from tidelog.cli.app.output import Output, OutputOption, Row, say, show_done, show_one, show_rows

if TYPE_CHECKING:
    from tidelog.admin.group_descriptions import CommittedOffset, MovedOffset
    from tidelog.client import Client

_Answer = TypeVar("_Answer")
_PARTS: Final = re.compile(r"\d{1,10}(-\d{1,10})?(,\d{1,10}(-\d{1,10})?)*", re.ASCII)
PARTITIONS_NAMED_MAX: Final = 100_000
_STYLES: Final = {"Stable": "green", "PreparingRebalance": "bold yellow", "CompletingRebalance": "bold yellow"}

app = typer.Typer(cls=GroupPage, help="Look after consumer groups: members, lag, committed offsets.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the group.", show_default=False)]
PartsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:PARTS]",
        help="This topic, or these partitions of it: orders, orders:0, orders:0,4-7. Repeatable.",
        show_default=False,
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check the request and show its result; change nothing.")]


# ── look ──


@app.command("list", cls=CommandPage)
def list_groups(
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="In this state only: Empty, CompletingRebalance, Stable. Repeatable.",
            show_default=False,
        ),
    ] = None,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Lists the groups, in the states that were stored last."""
    import msgspec

    groups = with_client(url, lambda log: log.groups.list(states=state or ()))
    rows: list[dict[str, Any]] = [msgspec.to_builtins(group) for group in groups]
    show_rows(rows, output, columns=("group", "state", "members", "coordinator"), styles=_STYLES)
    if output is Output.TABLE and not groups:
        hidden = ", or none that these credentials may see" if shows_credentials(url) else " yet"
        none_yet = f"there are no groups{hidden}; be the first member of one: tidelog consume TOPIC --group NAME"
        say(none_yet if not state else f"no group is {' or '.join(state)}")


@app.command(cls=CommandPage)
def describe(
    name: NameArgument,
    members: Annotated[bool, typer.Option("--members", help="Only who its members are, and what each reads.")] = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="Only how far each partition is.")] = False,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Shows who reads what, and how far the group is behind, in records and in seconds.

    The seconds are the age of the first record that is not read yet. Where nothing is committed, the lag counts from the log's
    start.
    """
    import msgspec

    from tidelog.cli.formats.group_tables import lag_rows, member_rows, notes, summary

    if members and offsets:
        raise InvalidArgument("--members and --offsets are both given", hint="Leave both out to see both.")
    group = with_client(url, lambda log: _of(name, log, log.groups.describe(name)))
    if output is not Output.TABLE:
        document: dict[str, Any] = msgspec.to_builtins(group)
        if members or offsets:
            show_rows(document["members" if members else "lags"], output)
        else:
            show_one(document, output)
        return
    tables = [member_rows(group)] if members else [lag_rows(group)] if offsets else [member_rows(group), lag_rows(group)]
    if not members and not offsets:
        show_one(summary(group), output)
    for number, rows in enumerate(table for table in tables if table):
        if number or not (members or offsets):
            sys.stdout.write("\n")
        show_rows(rows, output)
    sys.stdout.flush()
    for note in notes(group):
        say(note)


# ── change ──


@app.command(cls=CommandPage)
def seek(
    name: NameArgument,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="earliest, latest, 1h (ago), 2026-01-31T12:00:00Z, @MILLISECONDS, or an offset.",
            show_default=False,
        ),
    ] = None,
    shift: Annotated[
        int | None,
        typer.Option(
            "--shift",
            metavar="RECORDS",
            help="From what is committed: -100 reads so many again, 100 skips them.",
            show_default=False,
        ),
    ] = None,
    topic: PartsOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> int:
    """Moves the committed offsets of a group that has no members now.

    \b
    tidelog group seek billing --to earliest --dry-run
    tidelog group seek billing --to 1h --topic orders
    tidelog group seek billing --shift -100 --topic orders:0,4-7

    Without --topic, all that the group has committed moves. A topic that is named moves in all its partitions, also where nothing
    is committed yet. What lies outside of a log becomes its nearer end, and
    is an error: say latest for the end.
    """
    from tidelog.cli.formats.group_tables import effect, misses, moves_nothing

    if (to is None) == (shift is None):
        raise InvalidArgument("a seek takes a place or a shift", hint="Give one of them: --to PLACE or --shift RECORDS.")
    target, parts = None if to is None else parse_target(to), parse_parts(topic)

    async def fetch(log: Client) -> tuple[list[MovedOffset], str]:
        seeking = log.groups.seek(name, target, shift=shift, topics=parts, validate_only=True)
        plan = await _of(name, log, seeking)
        return plan, await _note_for_new(name, log) if all(row.before is None for row in plan) else ""

    plan, new = with_client(url, fetch)
    if _show_errors(plan, output, "nothing was moved: a seek moves all partitions or none"):
        return FAILED
    if new:
        say(new)
    if dry_run or moves_nothing(plan):
        _show_moved(plan, output)
        if missed := misses(plan):
            say(missed)
        say(f"{name} would {effect(plan)}; nothing was changed (--dry-run)" if effect(plan) else f"{name} is there already")
        return 0
    if not yes:
        require_confirmation(f"moving {name}")
        if output is Output.TABLE:
            _show_moved(plan, output)
        if missed := misses(plan):
            say(missed)
        if not typer.confirm(f"{name} will {effect(plan)}. Move it?", err=True):
            say("nothing was moved")
            return FAILED
    seeking = _changing(lambda log: log.groups.seek(name, target, shift=shift, topics=parts), name)
    moved = with_client(url, seeking, writes=True)
    if _show_errors(moved, output, "some partitions were moved, and some were not; seek again"):
        return FAILED
    if yes or output is not Output.TABLE or moved != plan:
        _show_moved(moved, output)
        if missed := misses(moved):
            say(missed)
    say(f"{name} is moved: it will {effect(moved)}" if effect(moved) else f"{name} is there already")
    return 0


@app.command("delete-offsets", cls=CommandPage)
def delete_offsets(
    name: NameArgument,
    topic: PartsOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> int:
    """Deletes a group's committed offsets of some topics, and shows them. The group's next reader begins there from scratch."""
    parts = parse_parts(topic)
    if parts is None:
        raise InvalidArgument(
            "no topic is named", hint=f"Add --topic TOPIC; all of the group goes with: tidelog group delete {name}"
        )
    if not yes and not dry_run:
        require_confirmation(f"deleting offsets of {name}")
    if dry_run or not yes:
        found = with_client(url, lambda log: _of(name, log, log.groups.delete_offsets(name, parts, validate_only=True)))
        if dry_run or not found:
            _show_offsets(found, output)
            say(f"{_offsets(found)} of {name} could be deleted; nothing was changed" + (" (--dry-run)" if dry_run else ""))
            return 0
        if output is Output.TABLE:
            _show_offsets(found, output)
        if not typer.confirm(f"Delete {_offsets(found)} of {name}? This can't be undone.", err=True):
            say("nothing was deleted")
            return FAILED
    deleted = with_client(url, _changing(lambda log: log.groups.delete_offsets(name, parts), name), writes=True)
    if yes or output is not Output.TABLE:
        _show_offsets(deleted, output)
    say(f"{_offsets(deleted)} of {name} {'is' if len(deleted) == 1 else 'are'} deleted")
    return 0


@app.command(cls=CommandPage)
def delete(
    name: NameArgument,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> int:
    """Deletes a group that has no members now, with its committed offsets."""
    if not yes and not dry_run:
        require_confirmation(f"deleting {name}")

    async def fetch(log: Client) -> list[CommittedOffset]:
        await _of(name, log, log.groups.delete(name, validate_only=True))
        return await log.groups.offsets(name)

    if dry_run or not yes:
        offsets = _offsets(with_client(url, fetch))
        if dry_run:
            talk = f"{name} could be deleted with {offsets}; nothing was changed (--dry-run)"
            show_done({"group": name, "deleted": False}, output, talk)
            return 0
        if not typer.confirm(f"Delete {name} with {offsets}? A new member will begin from scratch.", err=True):
            say("nothing was deleted")
            return FAILED
    with_client(url, _changing(lambda log: log.groups.delete(name), name), writes=True)
    show_done({"group": name, "deleted": True}, output, f"{name} is deleted")
    return 0


# ── what is asked ──


def parse_target(text: str) -> str:
    """Parses a place for `log.groups.seek`. A time ago becomes an absolute time, so that it does not move until confirmed."""
    import time

    from tidelog.positions import LastRecords, SinceTimestamp, parse_start

    if re.fullmatch(r"\+\d+", text):
        raise InvalidArgument(f"{text} is no place", hint=f"To skip records from what is committed: --shift {text[1:]}")
    match parse_start(text, now_ms=int(time.time() * 1000)):
        case LastRecords(count) if count:
            raise InvalidArgument(f"{text} is no place", hint=f"To go back from what is committed: --shift -{count}")
        case SinceTimestamp(timestamp_ms):
            return f"@{timestamp_ms}"
    return text


def parse_parts(texts: Sequence[str] | None) -> dict[str, list[int] | None] | None:
    """Parses TOPIC or TOPIC:0,4-7 each; None if nothing is named. Raises InvalidArgument."""
    parts: dict[str, list[int] | None] = {}
    for text in texts or ():
        topic, colon, numbers = text.partition(":")
        named = parse_partitions(numbers, of=text) if colon else None
        if topic in parts and (named is None or parts[topic] is None):
            raise InvalidArgument(f"{topic} is named both as a whole and in parts", hint="Name it once.")
        parts[topic] = named if named is None else [*(parts.get(topic) or []), *named]
    return parts or None


def parse_partitions(text: str, *, of: str) -> list[int]:
    found: list[int] = []
    for piece in text.split(",") if _PARTS.fullmatch(text) else ():
        first, _, last = piece.partition("-")
        partitions = range(int(first), int(last or first) + 1)
        if not partitions or len(found) + len(partitions) > PARTITIONS_NAMED_MAX:
            break
        found += partitions
    else:
        if found:
            return found
    raise InvalidArgument(f"{of!r} names no partitions", hint="Write TOPIC:0, TOPIC:0,3 or TOPIC:0,4-7.")


def _changing(
    change: Callable[[Client], Coroutine[Any, Any, _Answer]], name: str
) -> Callable[[Client], Coroutine[Any, Any, _Answer]]:
    async def command(log: Client) -> _Answer:
        return await _of(name, log, change(log))

    return command


async def _of(name: str, log: Client, asking: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Awaits the answer. Adds the nearest name to UnknownGroup, and a remedy to GroupNotEmpty."""
    from metadata.errors import did_you_mean

    try:
        return await asking
    except UnknownGroup as error:
        known = [group.group for group in await log.groups.list()]
        raise UnknownGroup(error.message, hint=did_you_mean(name, known) or error.hint) from error
    except GroupNotEmpty as error:
        raise GroupNotEmpty(
            error.message,
            hint=f"Stop them first: `tidelog group describe {name} --members` says who they are. One that was killed is a member "
            "until its session has ended, 45 s by default.",
        ) from error


async def _note_for_new(name: str, log: Client) -> str:
    """Returns a note that a seek will create the group, since its name may be mistyped; empty if it exists."""
    from metadata.errors import did_you_mean

    known = [group.group for group in await log.groups.list()]
    return "" if name in known else f"{name} is a new group: it has no committed offsets yet. {did_you_mean(name, known)}".rstrip()


# ── output ──


def _show_errors(moved: Sequence[MovedOffset], output: Output, what: str) -> bool:
    from tidelog.cli.formats.group_tables import error_lines

    if not (errors := error_lines(moved)):
        return False
    _show_moved(moved, output)
    say("\n".join([f"{what}:", *errors]))
    return True


def _show_moved(moved: Sequence[MovedOffset], output: Output) -> None:
    import msgspec

    from tidelog.cli.formats.group_tables import moved_rows

    rows = moved_rows(moved) if output is Output.TABLE else [msgspec.to_builtins(row) | {"skipped": row.skipped} for row in moved]
    _show(rows, output)


def _show_offsets(offsets: Sequence[CommittedOffset], output: Output) -> None:
    import msgspec

    from tidelog.cli.formats.group_tables import offset_rows

    _show(offset_rows(offsets) if output is Output.TABLE else [msgspec.to_builtins(offset) for offset in offsets], output)


def _show(rows: Sequence[Row], output: Output) -> None:
    """Prints rows and flushes, since a question may follow."""
    show_rows(rows, output)
    sys.stdout.flush()


def _offsets(offsets: Sequence[CommittedOffset]) -> str:
    return f"{len(offsets):,} committed offset{'s' if len(offsets) != 1 else ''}"
