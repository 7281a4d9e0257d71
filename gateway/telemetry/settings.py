"""Settings of telemetry: logs, traces, and the prices from which metrics estimate the cost of the bucket. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from urllib.parse import urlsplit

from metadata.errors import InvalidArgument

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
# What the default prices are.
PRICES_NOTE = "S3 Standard in us-east-1, as listed in 2026. Transfer, tax and tiers are not in them."


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """The settings of logs, traces and metrics. Prices are in dollars."""

    # `debug`, `info`, `warning` or `error`. Empty: `info`, and `warning` for `tidelog dev`.
    log_level: str = ""
    # `text` for people, or `json`: one object a line, with request id, topic, partition and trace id where they are known.
    log_format: str = "text"
    # URL of a collector that takes OTLP over HTTP, such as http://HOST:4318. Traces are sent there. Empty: no traces. Needs the
    # extra `tracing`: `pip install 'tidelog[tracing]'`.
    otlp_endpoint: str = ""
    # Share of the requests without a trace for which the broker begins one, from 0 to 1. Requests with a trace keep their own flag.
    otlp_sample: float = 1.0
    # Price of 1,000 PUTs or LISTs in dollars, by which /metrics, /v1/costs and the console estimate costs. Default: S3 Standard,
    # us-east-1, 2026.
    price_1000_writes: float = 0.005
    # Price of 1,000 GETs in dollars.
    price_1000_reads: float = 0.0004
    # Price of a GiB for a month in dollars.
    price_gib_month: float = 0.023

    def __post_init__(self) -> None:
        if self.log_format not in LOG_FORMATS:
            raise InvalidArgument(f"log_format is {self.log_format!r}", hint=f"Choose one of {', '.join(LOG_FORMATS)}.")
        if self.log_level and self.log_level not in LOG_LEVELS:
            raise InvalidArgument(f"log_level is {self.log_level!r}", hint=f"Choose one of {', '.join(LOG_LEVELS)}.")
        if self.otlp_endpoint and not _is_url(self.otlp_endpoint):
            raise InvalidArgument(
                f"otlp_endpoint is {self.otlp_endpoint!r}, not a URL",
                hint="Name one such as http://collector:4318; a port is a number from 0 to 65535.",
            )
        if not 0 <= self.otlp_sample <= 1:
            raise InvalidArgument(f"otlp_sample is {self.otlp_sample}; it is a share from 0 to 1")
        for name in ("price_1000_writes", "price_1000_reads", "price_gib_month"):
            price = getattr(self, name)
            if not isfinite(price) or price < 0:
                raise InvalidArgument(f"{name} is {price}; it is a number of dollars")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)
