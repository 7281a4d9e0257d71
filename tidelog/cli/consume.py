"""`tidelog consume`: records of topics to stdout, as a table, JSON, raw values, or in a format of your own.

With --group it is a member of a consumer group, and commits what it has printed, however it ends. Printed is what standard output
took: `| head -1` leaves more in the pipe than it shows; `-n 1` prints one record, and commits behind it.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from metadata.errors import InvalidArgument, NotAuthorized, StaleMember, TidelogError
from metadata.groups.model import check_group_name
from tidelog.cli.app.client_command import with_client
from tidelog.cli.app.contexts import UrlOption
from tidelog.cli.app.output import say
from tidelog.cli.formats.record_writer import RecordOutput, RecordWriter
from tidelog.settings import ResetPolicy

if TYPE_CHECKING:
    from metadata.groups.assignors import TopicPartitionName
    from tidelog.client import Client
    from tidelog.consumer.consumer import Consumer, TopicsConsumer
    from tidelog.group.consumer import GroupConsumer

READER_CHECK_S = 0.25
# The exit code that a shell tells of a process which SIGTERM has ended.
TERMINATED = 128 + signal.SIGTERM
WAIT_SHOWN_S = 2.0


def consume(
    topic: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Topics to read.", show_default=False)],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="earliest, latest, -10 (the last ten of each partition), 1h (ago), 2026-01-31T12:00:00Z, or an offset. "
            "[default: earliest]",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="NAME",
            help="Share the partitions with other members of this group, continue at its committed offsets, and commit what was "
            "printed. --from earliest or latest then applies only to partitions without a committed offset.",
            show_default=False,
        ),
    ] = None,
    instance_id: Annotated[
        str,
        typer.Option(
            "--instance-id",
            metavar="ID",
            help="With --group: a member that restarts under this id within its session (45 s) keeps its partitions, without a "
            "rebalance. Kafka's group.instance.id.",
            show_default=False,
        ),
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on, and wait for new records.")] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="COUNT", min=1, help="Stop after so many records.", show_default=False)
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition", "-p", metavar="PARTITION", min=0, help="Read this partition only. Repeatable.", show_default=False
        ),
    ] = None,
    template: Annotated[
        str,
        typer.Option(
            "--format",
            "-F",
            metavar="FORMAT",
            help="In kcat's manner: %t %p %o %T %k %s %h %K %S, \\n and \\t.",
            show_default=False,
        ),
    ] = "",
    reset: Annotated[
        ResetPolicy | None,
        typer.Option(
            "--auto-offset-reset",
            help="Where to go on when an offset is gone. [default: error; of a group as --from]",
            show_default=False,
        ),
    ] = None,
    refuse_outdated: Annotated[
        bool,
        typer.Option(
            "--refuse-outdated",
            help="Fail rather than leave out partitions and topics that were added a moment ago, as may happen while the "
            "metadata store is away.",
        ),
    ] = False,
    client_rack: Annotated[
        str,
        typer.Option(
            "--client-rack",
            metavar="RACK",
            help="Your rack, as brokers name theirs. Reads through a broker of this rack, so that records cross no zone.",
            show_default=False,
        ),
    ] = "",
    url: UrlOption = "",
    output: Annotated[
        RecordOutput | None,
        typer.Option("--output", "-o", metavar="FORM", help="Default: table on a terminal, else ndjson.", show_default=False),
    ] = None,
) -> None:
    """Reads records: up to the present end, or without end with --follow.

    \b
    tidelog consume orders --from -10
    tidelog consume orders -f --from latest -o raw
    tidelog consume orders --from 1h --format '%p %o %k %s\\n'
    tidelog consume orders payments --group billing -f
    """
    from tidelog.cli.formats.record_format import parse_format
    from tidelog.positions import SinceTimestamp, parse_start
    from tidelog.tasks import ClientTasks

    now_ms = int(time.time() * 1000)
    begins = parse_start(start or "earliest", now_ms=now_ms)
    if group is not None:
        reset = group_reset(group, start, reset, has_partitions=bool(partition))
    elif instance_id:
        raise InvalidArgument(
            "--instance-id is given without --group", hint="It names a member of a group: add --group NAME, or leave it out."
        )
    if refuse_outdated and (follow or group is not None):
        raise InvalidArgument(
            "--refuse-outdated is given with --follow or --group", hint="It is for reading up to the present end, without a group."
        )
    if template and output is not None:
        raise InvalidArgument("--format and --output are both given", hint="Leave one of them out.")
    if output is None:
        output = RecordOutput.TABLE if sys.stdout.isatty() else RecordOutput.NDJSON
    writer = RecordWriter(output, parse_format(template) if template else None, topics=topic)
    what = ", ".join(topic) + (f" for group {group}" if group is not None else "")
    if isinstance(begins, SinceTimestamp) and begins.timestamp_ms > now_ms and follow:
        say(f"{start} is in the future: where no record is as new, reading begins with what comes")

    def reader(log: Client) -> Consumer | TopicsConsumer | GroupConsumer:
        if group is not None:
            on_assigned = _assignment_printer(group) if sys.stderr.isatty() else None
            return log.consume(
                topic, group=group, follow=follow, auto_offset_reset=reset, on_assigned=on_assigned, instance_id=instance_id
            )
        if len(topic) == 1:
            return log.consume(
                topic[0],
                from_=start or "earliest",
                partitions=partition or None,
                follow=follow,
                auto_offset_reset=reset,
                refuse_outdated=refuse_outdated,
            )
        if partition:
            raise InvalidArgument("--partition and several topics are given", hint="Read the partitions of one topic at a time.")
        return log.consume(
            topic, from_=start or "earliest", follow=follow, auto_offset_reset=reset, refuse_outdated=refuse_outdated
        )

    are_deleted = False

    async def command(log: Client) -> None:
        if group is not None and start is not None:
            await _warn_of_unused_from(log, group, topic, start)
        with _ended_by_sigterm():
            async with reader(log) as consumer, ClientTasks() as tasks:
                if follow:
                    tasks.start(_until_reader_leaves(), name="watch standard output")
                    if sys.stderr.isatty():
                        tasks.start(_show_waiting(what, writer, consumer), name="waiting messages")
                await _write_records(consumer, writer, count)
            if not writer.records:
                await _check_may_read(log, topic, partition[0] if partition else 0)
                if group is None:
                    nonlocal are_deleted
                    are_deleted = await _are_deleted(log, topic)

    try:
        with_client(url, command, client_rack=client_rack)
    except (KeyboardInterrupt, SystemExit):
        writer.end()
        raise
    except TidelogError:
        if writer.records:
            writer.end()
        raise
    writer.begin()
    writer.end()
    if not writer.records:
        say(f"no new records in {what}" if group is not None else f"no records in {what} from {start or 'earliest'} on")
    if are_deleted:
        say("all that were there are deleted, by retention or a trim: `tidelog topic describe` says how long records are kept")


def group_reset(group: str, start: str | None, reset: ResetPolicy | None, *, has_partitions: bool) -> ResetPolicy:
    """Returns where a member begins partitions without a committed offset. Raises InvalidArgument, InvalidName."""
    check_group_name(group)
    if has_partitions:
        raise InvalidArgument("--partition and --group are both given", hint="A group shares its partitions out by itself.")
    match (start or "").strip().lower():
        case "":
            return reset or "earliest"
        case "earliest" | "beginning":
            begins: ResetPolicy = "earliest"
        case "latest" | "end":
            begins = "latest"
        case _:
            raise InvalidArgument(
                f"--from {start} does not go with --group: a group goes on where it is",
                hint=f"Move it first: tidelog group seek {group} --to PLACE. --from earliest or latest says where to begin what it "
                "has not committed.",
            )
    if reset not in {None, begins}:
        raise InvalidArgument(
            f"--from {start} and --auto-offset-reset {reset} contradict each other", hint="Leave one of them out."
        )
    return begins


async def _warn_of_unused_from(log: Client, group: str, topics: list[str], start: str) -> None:
    committed = await log.groups.offsets(group, topics)
    if committed:
        partitions = f"{len(committed):,} partition{'s' if len(committed) > 1 else ''}"
        say(
            f"{group} goes on where it is in {partitions}; --from {start} counts only where nothing is committed\n"
            f"  To move it: tidelog group seek {group} --to {start}"
        )


def _assignment_printer(group: str) -> Callable[[list[TopicPartitionName]], None]:
    from tidelog.cli.formats.group_tables import ranges

    def show(partitions: list[TopicPartitionName]) -> None:
        topics = dict.fromkeys(topic for topic, _ in partitions)
        shares = [f"{topic}: {ranges(number for name, number in partitions if name == topic)}" for topic in topics]
        if shares:
            say(f"as a member of {group}, reads {'; '.join(shares)}")

    return show


async def _write_records(consumer: Consumer | TopicsConsumer | GroupConsumer, writer: RecordWriter, count: int | None) -> None:
    """Writes records until the end, or until `count` are written. A member has processed exactly what was written."""
    from tidelog.group.consumer import GroupConsumer

    while chunk := await consumer.chunk():
        records = chunk.copy()  # a member's is emptied when its partition goes to another one
        before = writer.records
        try:
            await writer.write(records if count is None else records[: count - before])
        finally:
            rest = records[writer.records - before :]
            if rest and isinstance(consumer, GroupConsumer):
                with suppress(StaleMember):  # it is another's by now
                    consumer.seek((rest[0].topic, rest[0].partition), rest[0].offset)
        if writer.records == count:
            return
        del chunk, records, rest  # they may be large: no two of them at once


async def _check_may_read(log: Client, topics: list[str], partition: int) -> None:
    """Raises NotAuthorized for a topic that may not be read: where it has no records, only its offsets were asked for, which takes
    a lesser right. Where a record lies takes that of reading."""
    for topic in topics:
        try:
            await log.explain(topic, partition, 0)
        except NotAuthorized:
            raise
        except TidelogError:  # there is no such record, or it is unknown: the command has already printed its answer
            continue


async def _are_deleted(log: Client, topics: list[str]) -> bool:
    """Returns whether these topics held records once and hold none now."""
    try:
        held = [offsets for topic in topics for offsets in (await log.offsets(topic)).values()]
    except TidelogError:  # what was asked for has been answered
        return False
    return any(offsets.high_watermark for offsets in held) and all(
        offsets.log_start_offset == offsets.high_watermark for offsets in held
    )


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Handles SIGTERM like Ctrl-C: a stopped service leaves its group, with what it printed committed."""
    import asyncio

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    is_terminated = False

    def terminate() -> None:
        nonlocal is_terminated
        is_terminated = True
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        yield
    except asyncio.CancelledError:
        if is_terminated:
            raise SystemExit(TERMINATED) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def _until_reader_leaves() -> None:
    """Raises BrokenPipeError, as a write would: with `-f orders | head -1` there may be nothing to write for long."""
    import asyncio

    output = sys.stdout.fileno()
    if not stat.S_ISFIFO(os.fstat(output).st_mode):
        return
    pipe = select.poll()
    pipe.register(output, 0)  # errors and hang-ups are always reported
    while True:
        if pipe.poll(0):
            raise BrokenPipeError
        await asyncio.sleep(READER_CHECK_S)


async def _show_waiting(what: str, writer: RecordWriter, consumer: Consumer | TopicsConsumer | GroupConsumer) -> None:
    import asyncio

    from tidelog.group.consumer import GroupConsumer

    await asyncio.sleep(WAIT_SHOWN_S)
    if writer.records:
        return
    if isinstance(consumer, GroupConsumer) and not consumer.assignment():
        say(f"no partition for this member yet: {consumer.group} is sharing them out, or has more members; Ctrl-C ends it")
    else:
        say(f"waiting for records of {what}; Ctrl-C ends it")
