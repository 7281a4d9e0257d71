"""Where a broker or a reader is, such as an availability zone: any text that brokers and readers agree on. Pure."""

from __future__ import annotations

from typing import Final

from metadata.errors import InvalidArgument
from metadata.plain_names import why_not_plain

RACK_CHARACTERS_MAX: Final = 255


def check_client_rack(client_rack: str, *, field: str = "client_rack") -> str:
    """The rack that a reader names, else InvalidArgument. One that no broker is in is no error."""
    if len(client_rack) > RACK_CHARACTERS_MAX:
        raise InvalidArgument(
            f"{field} has {len(client_rack)} characters; a rack has at most {RACK_CHARACTERS_MAX}",
            hint="Name it as the brokers do: `tidelog cluster brokers` shows their racks.",
            field=field,
        )
    if (why := why_not_plain(client_rack)) is not None:
        raise InvalidArgument(
            f"{field} is {client_rack[:60]!a}: {why}",
            hint="Name it as the brokers do: `tidelog cluster brokers` shows their racks.",
            field=field,
        )
    return client_rack
