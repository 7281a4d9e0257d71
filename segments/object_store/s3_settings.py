"""Settings of a bucket on S3. Pure, and light: who stores in a directory never loads the client."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from metadata.errors import InvalidArgument
from metadata.shown_url import shown_url

CREATE_BYTES_PER_S_MIN: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Credentials come from where every AWS tool takes them: the environment, a profile, the role of the machine or pod."""

    endpoint_url: str | None = None
    """Where the store answers, such as http://127.0.0.1:9000. Default: AWS, or AWS_ENDPOINT_URL_S3."""
    region: str | None = None
    """Default: AWS_DEFAULT_REGION, or the one of the profile."""
    path_style: bool | None = None
    """The bucket in the path of a URL instead of its host name. Default: only where an endpoint is named."""
    s3_connect_timeout_ms: float = 3_000.0
    s3_read_timeout_ms: float = 10_000.0
    """Silence on a connection after which it is given up."""
    s3_request_timeout_ms: float = 30_000.0
    """One try of one request, from its first byte to its last, and a second more for every 8 MiB that it creates; and the wait for
    a free connection before it."""
    creates_in_flight_max: int = 16
    reads_in_flight_max: int = 32
    """Reads, listings and deletes at the same time. Each bound is that many connections."""
    read_tries_max: int = 3
    """How often a read, a listing or a delete is sent before its error is reported."""
    s3_retry_pause_ms: float = 100.0
    """Before the second try; doubles with each further one."""

    def __post_init__(self) -> None:
        for name in ("s3_connect_timeout_ms", "s3_read_timeout_ms", "s3_request_timeout_ms"):
            if not getattr(self, name) > 0:
                raise InvalidArgument(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("creates_in_flight_max", "reads_in_flight_max", "read_tries_max"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if not self.s3_retry_pause_ms >= 0:
            raise InvalidArgument(f"s3_retry_pause_ms is {self.s3_retry_pause_ms}; it must not be below 0")
        if self.region is not None and not re.fullmatch(r"[A-Za-z0-9-]{1,63}", self.region):
            raise InvalidArgument(f"{shown_url(self.region)!r} is not a region", hint="Regions look like eu-central-1.")
        if self.endpoint_url is not None:
            _check_endpoint(self.endpoint_url)

    def create_timeout_s(self, bytes_count: int) -> float:
        """Of one try: a file of history has hundreds of MiB, and must get there over a slow line, too, or it never does."""
        return self.s3_request_timeout_ms / 1000 + bytes_count / CREATE_BYTES_PER_S_MIN


def _check_endpoint(endpoint_url: str) -> None:
    """InvalidArgument unless it is scheme://host[:port], without credentials: they would show in messages and logs."""
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
