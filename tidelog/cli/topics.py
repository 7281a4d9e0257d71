"""`tidelog topic`: create, list, describe, alter, delete, trim."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metadata.errors import InvalidArgument
from tidelog.cli.app.client_command import shows_credentials, with_client
from tidelog.cli.app.contexts import UrlOption
from tidelog.cli.app.errors import FAILED
from tidelog.cli.app.help_page import CommandPage, GroupPage
from tidelog.cli.app.output import Output, OutputOption, say, show_done, show_one, show_rows

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.transport.descriptions import TopicInfo

app = typer.Typer(cls=GroupPage, help="Create, list, describe, alter, delete and trim topics.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the topic.", show_default=False)]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="NAME=VALUE", help="A setting, such as retention.ms=86400000. Repeatable.", show_default=False
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check the request and show its result; change nothing.")]


@app.command(cls=CommandPage)
def create(
    name: NameArgument,
    partitions: Annotated[int, typer.Option("--partitions", "-p", help="Number of partitions; it can grow later.")] = 6,
    setting: SetOption = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")] = False,
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Creates a topic."""
    from metadata.errors import AlreadyExists

    settings = parse_settings(setting)

    async def command(log: Client) -> TopicInfo:
        try:
            return await log.topics.create(name, partitions=partitions, settings=settings, validate_only=dry_run)
        except AlreadyExists:
            if not if_not_exists:
                raise
            return await log.topics.describe(name)

    row = topic_row(with_client(url, command, writes=True))
    if dry_run:
        del row["id"], row["created_at"]  # those of a topic that will not be
    show_one(row, output)
    if dry_run:
        say("nothing was changed (--dry-run)")


@app.command("list", cls=CommandPage)
def list_topics(url: UrlOption = "", output: OutputOption = Output.TABLE) -> None:
    """Lists the topics."""
    topics = with_client(url, lambda log: log.topics.list())
    show_rows([topic_row(topic) for topic in topics], output, columns=("name", "partition_count", "settings", "created_at"))
    if output is Output.TABLE and not topics:
        if shows_credentials(url):
            say("there are no topics, or none that these credentials may see. Create one: tidelog topic create NAME")
            say("An administrator grants the right to see a topic: tidelog acl add PRINCIPAL describe --topic NAME")
        else:
            say("there are no topics yet; create one: tidelog topic create NAME")


@app.command(cls=CommandPage)
def describe(name: NameArgument, url: UrlOption = "", output: OutputOption = Output.TABLE) -> None:
    """Shows a topic, its settings, and the offsets and leader of each partition."""
    topic = with_client(url, lambda log: log.topics.describe(name))
    row = topic_row(topic)
    led = [partition for partition in topic.partitions if partition.high_watermark >= 0]
    row["records"] = sum(partition.high_watermark - partition.log_start_offset for partition in led) if led else None
    without = sum(not partition.leader for partition in topic.partitions)
    partitions = [
        {
            "partition": partition.partition,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "log_start_offset": partition.log_start_offset if partition.high_watermark >= 0 else None,
            "high_watermark": partition.high_watermark if partition.high_watermark >= 0 else None,
        }
        for partition in topic.partitions
    ]
    if output is Output.TABLE:
        show_one(row | {"kept": kept(topic.settings)}, output)
        sys.stdout.write("\n")
        show_rows(partitions, output)
    else:
        show_one(row | {"partitions": partitions}, output)
    if without:
        say(f"{without} of {len(topic.partitions)} partitions have no leader now: their records are unknown, and not counted")
    if silent := len(topic.partitions) - len(led) - without:
        say(f"{silent} of {len(topic.partitions)} partitions could not be asked: their records are unknown, and not counted")
    for partition in topic.partitions:
        if partition.leader and partition.error:
            say(f"{name}/{partition.partition}, led by {partition.leader}: {partition.error}\n  {partition.hint}")


@app.command(cls=CommandPage)
def alter(
    name: NameArgument,
    setting: SetOption = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="NAME", help="A setting that goes back to its default. Repeatable.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", help="Grow to this number of partitions. Keys may move.", show_default=False)
    ] = None,
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Changes settings of a topic, or adds partitions."""
    settings, gone = parse_settings(setting), set(unset or ())
    changes: dict[str, str | None] = {**settings, **dict.fromkeys(gone)}
    if not changes and partitions is None:
        raise InvalidArgument("nothing is to be changed", hint="Give --set NAME=VALUE, --unset NAME or --partitions N.")
    if both := sorted(gone & settings.keys()):
        raise InvalidArgument(f"{both[0]} is both set and unset", hint="Leave one of them out.")

    topic = with_client(url, lambda log: log.topics.alter(name, changes, partitions=partitions, validate_only=dry_run), writes=True)
    show_one(topic_row(topic), output)
    if dry_run:
        say("nothing was changed (--dry-run)")


@app.command(cls=CommandPage)
def delete(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> int:
    """Deletes a topic with all its records."""
    question = f"Delete {name} with all its records? This can't be undone."
    if not yes and not dry_run and not _is_agreed(f"deleting {name}", question):
        return FAILED
    with_client(url, lambda log: log.topics.delete(name, validate_only=dry_run), writes=True)
    talk = f"{name} could be deleted; nothing was changed (--dry-run)" if dry_run else f"{name} is deleted"
    show_done({"name": name, "deleted": not dry_run}, output, talk)
    return 0


@app.command(cls=CommandPage)
def trim(
    name: NameArgument,
    partition: Annotated[
        int, typer.Option("--partition", "-p", metavar="N", help="Of which records are deleted.", show_default=False)
    ],
    before: Annotated[
        int,
        typer.Option("--before", metavar="OFFSET", help="Where the log is to begin; -1: behind all records.", show_default=False),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> int:
    """Deletes the records of a partition before an offset."""
    which = f"all records of {name}/{partition}" if before < 0 else f"the records of {name}/{partition} before offset {before}"
    if not yes and not dry_run and not _is_agreed(f"deleting {which}", f"Delete {which}? This can't be undone."):
        return FAILED
    log_start = with_client(
        url, lambda log: log.topics.delete_records(name, partition, before=before, validate_only=dry_run), writes=not dry_run
    )
    would = "would begin" if dry_run else "begins"
    talk = f"{name}/{partition} {would} at offset {log_start}" + ("; nothing was changed (--dry-run)" if dry_run else "")
    show_done({"name": name, "partition": partition, "log_start_offset": log_start, "deleted": not dry_run}, output, talk)
    return 0


def _is_agreed(what: str, question: str) -> bool:
    if not sys.stdin.isatty():
        raise InvalidArgument(f"{what} needs a yes, and there is no terminal to ask", hint="Add --yes.")
    if typer.confirm(question, err=True):
        return True
    say("nothing was deleted")
    return False


def parse_settings(texts: list[str] | None) -> dict[str, str]:
    """Parses settings of the form NAME=VALUE. Raises InvalidArgument."""
    settings: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidArgument(f"{text!r} is not a setting", hint="Write NAME=VALUE, such as retention.ms=86400000.")
        settings[name.strip()] = value.strip()
    return settings


def kept(chosen: Mapping[str, str]) -> str:
    """Describes how long a topic keeps its records, by its settings or their defaults."""
    from metadata.topics.settings import TopicSettings

    settings = TopicSettings.parse(chosen, skip_unknown=True)
    newest = "the newest record of each key"
    if not settings.deletes:
        return f"{newest} (cleanup.policy=compact)"
    if settings.retention_ms < 0:
        bounds = ["without limit"] if settings.retention_bytes < 0 else []
    else:
        default = "" if "retention.ms" in chosen else ", by default"
        bounds = [f"{_duration(settings.retention_ms)} from their timestamps (retention.ms{default})"]
    if settings.retention_bytes >= 0:
        bounds.append(f"{settings.retention_bytes:,} bytes a partition at most (retention.bytes)")
    if settings.compacts:
        bounds.append(f"{newest} (cleanup.policy)")
    return ", ".join(bounds)


def _duration(ms: int) -> str:
    for unit, unit_ms in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000)):
        if ms and ms % unit_ms == 0:
            count = ms // unit_ms
            return f"{count} {unit}{'s' if count != 1 else ''}"
    return f"{ms} ms"


def topic_row(topic: TopicInfo) -> dict[str, Any]:
    from datetime import UTC, datetime

    created = datetime.fromtimestamp(topic.created_at_ms / 1000, UTC)
    return {
        "name": topic.name,
        "id": topic.id,
        "partition_count": topic.partition_count,
        "settings": topic.settings,
        "created_at": created.isoformat(timespec="seconds").replace("+00:00", "Z"),
    }
