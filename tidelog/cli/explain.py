"""`tidelog explain`: where one record lies on the bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.client_command import with_client
from tidelog.cli.contexts import UrlOption
from tidelog.cli.output import Output, OutputOption, show_one

if TYPE_CHECKING:
    from tidelog.client import Client


def explain(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of the record.", show_default=False)],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Its partition, from 0.", show_default=False)],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="Its offset in the partition.", show_default=False)],
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Shows the object, the byte range and the batch, or row group, that hold a record."""

    async def command(log: Client) -> dict[str, Any]:
        import msgspec

        found = await log.explain(topic, partition, offset)
        bucket = (await log.cluster()).bucket
        row: dict[str, Any] = {name: value for name, value in msgspec.to_builtins(found).items() if value is not None}
        row["object_url"] = f"{bucket.rstrip('/')}/{found.object_key}"
        row["batch_crc32c"] = f"0x{found.batch_crc32c:08x}"
        return row

    show_one(with_client(url, command), output)
