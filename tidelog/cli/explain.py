"""`tidelog explain`: where one record lies on the bucket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metadata.errors import InvalidArgument
from tidelog.cli.app.client_command import with_client
from tidelog.cli.app.contexts import UrlOption
from tidelog.cli.app.output import Output, OutputOption, show_one

if TYPE_CHECKING:
    from tidelog.client import Client


def explain(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of the record.", show_default=False)],
    partition: Annotated[
        int | None, typer.Argument(metavar="PARTITION", min=0, help="Its partition, from 0.", show_default=False)
    ] = None,
    offset: Annotated[
        int | None, typer.Argument(metavar="OFFSET", min=0, help="Its offset in the partition.", show_default=False)
    ] = None,
    named_partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="PARTITION", min=0, help="The same, as for consume.", show_default=False),
    ] = None,
    named_offset: Annotated[
        int | None, typer.Option("--offset", metavar="OFFSET", min=0, help="The same, by its name.", show_default=False)
    ] = None,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Shows the object, the byte range and the batch, or row group, that hold a record.

    \b
    tidelog explain orders 0 4711
    tidelog explain orders --partition 0 --offset 4711
    """
    at, of = chosen_record([partition, offset], named_partition, named_offset)

    async def command(log: Client) -> dict[str, Any]:
        import msgspec

        found = await log.explain(topic, at, of)
        bucket = (await log.cluster()).bucket
        row: dict[str, Any] = {name: value for name, value in msgspec.to_builtins(found).items() if value is not None}
        row["object_url"] = f"{bucket.rstrip('/')}/{found.object_key}"
        row["batch_crc32c"] = f"0x{found.batch_crc32c:08x}"
        return row

    show_one(with_client(url, command), output)


def chosen_record(given: Sequence[int | None], partition: int | None, offset: int | None) -> tuple[int, int]:
    """Returns partition and offset; arguments stand in this order. Raises InvalidArgument for a missing or repeated one."""
    rest = [number for number in given if number is not None]
    found = [number if number is not None else rest.pop(0) if rest else None for number in (partition, offset)]
    at, of = found
    if at is None or of is None or rest:
        raise InvalidArgument(
            "a place is one partition and one offset in it",
            hint="Write TOPIC PARTITION OFFSET, as in `tidelog explain orders 0 4711`, or --partition 0 --offset 4711.",
        )
    return at, of
