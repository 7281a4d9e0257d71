"""Defines the result of a check of `tidelog doctor`, and of a broker that checks its bucket and metadata store. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from metadata.errors import TidelogError, Unavailable

_UNREACHABLE = "Check the endpoint, the network and its proxies, then run this again."


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check, with its remedy."""

    check: str
    status: Literal["ok", "warning", "failed", "skipped"]
    detail: str
    remedy: str = ""


def failed(check: str, error: TidelogError) -> Diagnosis:
    """Returns a failed diagnosis of the error, with a remedy for people in place of the advice to retry with back-off."""
    hint = _UNREACHABLE if error.hint == Unavailable.default_hint else error.hint
    return Diagnosis(check, "failed", error.message, hint)
