"""Settings of a bucket on S3. Pure, and light: who stores in a directory never loads the client."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from metadata.errors import InvalidArgument
from metadata.setting_fields import check_numbers, fixed
from metadata.shown_url import shown_url

CREATE_BYTES_PER_S_MIN: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Holds the settings of an S3 client. Credentials come from the environment, a profile, or the role of the machine or pod."""

    # URL of the store, such as http://127.0.0.1:9000. Default: AWS, or AWS_ENDPOINT_URL_S3.
    endpoint_url: str | None = None
    # Region of the bucket. Default: AWS_DEFAULT_REGION, or the one of the profile.
    region: str | None = None
    # Puts the bucket into the path of URLs instead of the host name. Default: only where endpoint_url is set.
    path_style: bool | None = None
    # Time limit of one try of one request, and of the wait for a free connection before it. A PUT has one second more for each
    # 8 MiB.
    s3_request_timeout_ms: float = 30_000.0
    # Time limit of opening a connection.
    s3_connect_timeout_ms: float = fixed(3_000.0)
    # A connection that is silent this long is given up.
    s3_read_timeout_ms: float = fixed(10_000.0)
    # Creates at the same time, each on a connection of its own.
    creates_in_flight_max: int = fixed(16)
    # Reads, listings and deletes at the same time, each on a connection of its own.
    reads_in_flight_max: int = fixed(32)
    # How often a read, a listing or a delete is sent before its error is reported.
    read_tries_max: int = fixed(3)
    # Pause before the second try. It doubles with each further one.
    s3_retry_pause_ms: float = fixed(100.0)

    def __post_init__(self) -> None:
        check_numbers(self, may_be_zero={"s3_retry_pause_ms"})
        if self.region is not None and not re.fullmatch(r"[A-Za-z0-9-]{1,63}", self.region):
            raise InvalidArgument(f"{shown_url(self.region)!r} is not a region", hint="Regions look like eu-central-1.")
        if self.endpoint_url is not None:
            _check_endpoint(self.endpoint_url)

    def create_timeout_s(self, bytes_count: int) -> float:
        """Returns the time limit of one create, which grows with its size: hundreds of MiB must also pass a slow line."""
        return self.s3_request_timeout_ms / 1000 + bytes_count / CREATE_BYTES_PER_S_MIN


def _check_endpoint(endpoint_url: str) -> None:
    """Raises InvalidArgument unless the endpoint is scheme://host[:port], without credentials: they would show in messages and
    logs."""
    try:
        parts = urlsplit(endpoint_url)
        port_is_wrong = parts.port == 0
    except ValueError:
        port_is_wrong = True
        parts = urlsplit("")
    if "@" in parts.netloc:
        raise InvalidArgument("the endpoint URL holds credentials", hint="Pass them in the environment or a profile.")
    rest = parts.path.strip("/") or parts.query or parts.fragment
    if port_is_wrong or parts.scheme not in {"http", "https"} or not parts.hostname or rest:
        raise InvalidArgument(
            f"{shown_url(endpoint_url)!r} is not an endpoint", hint="Name scheme, host and port: https://host:9000"
        )
