"""Writes docs/reference/errors.md from the tree of errors: `python -m docs.errors_page`. A test compares them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from docs.kafka_page import shown_codes
from docs.page_broker import cell
from gateway.error_codes import WIRE_CODES, BodyTooSlow
from metadata.errors import Corrupt, Fenced, OutcomeUnknown, Rejected, Throttled, TidelogError, Unavailable

PAGE = Path(__file__).parent / "reference" / "errors.md"

_INTRODUCTION = """\
# Errors

After this page you know what each error says about your request: what happened, what was written, and what to do.
`python -m docs.errors_page` generates it from `metadata/errors.py` and `gateway/error_codes.py`.

A code is the same on every listener:

| listener | where the code is |
| --- | --- |
| HTTP | `code` of the problem document (RFC 9457), `application/problem+json`; results of single records have it in `error` |
| gRPC | `reason` of `ErrorInfo` in the status details; `hint`, `retryable` and `nothing_was_written` are in its metadata |
| Kafka | Kafka's own error codes, by the group of APIs: [kafka-apis.md](kafka-apis.md) |
| SDK | the exception class; `code`, `hint` and `details` are attributes |
| command line | the message and the hint on stderr; the exit code is 1 |

A message, a hint and details say more about the one request. Only codes are stable.
"""

_BRANCHES: dict[type[TidelogError], str] = {
    Rejected: "The request is wrong in itself. The same request will be refused again.",
    Unavailable: "The request may succeed later. Retry it with back-off.",
    OutcomeUnknown: "The answer to a write was lost.",
    Fenced: "A newer owner exists. Nothing that this one writes becomes visible.",
    Corrupt: "Stored bytes are wrong or missing.",
    TidelogError: "The broker failed in a way that it does not know. Its log has the traceback.",
}


def page() -> str:
    """Returns the text of docs/reference/errors.md."""
    parts = [_INTRODUCTION]
    left = dict.fromkeys(WIRE_CODES)
    for branch, meaning in _BRANCHES.items():
        parts.append(f"\n## {branch.__name__ if branch is not TidelogError else 'Internal errors'}\n\n{meaning}\n")
        for kind in [each for each in left if issubclass(each, branch)]:
            del left[kind]
            parts.extend(_section(kind))
    return "".join(parts)


def _section(kind: type[TidelogError]) -> Iterator[str]:
    codes = WIRE_CODES[kind]
    yield f"\n### {kind.code}\n\n{_described(kind)}\n\n| | |\n| --- | --- |\n"
    yield f"| what was written | {_written(kind)} |\n"
    yield f"| what to do | {_remedy(kind)} |\n"
    yield f"| HTTP | {codes.http} |\n| gRPC | {codes.grpc.name} |\n| Kafka | {shown_codes(kind)} |\n"
    yield f"| exception | `{kind.__name__}`, a `{kind.__bases__[0].__name__}` |\n"


def _described(kind: type[TidelogError]) -> str:
    return " ".join((inspect.getdoc(kind) or "").split())


def _written(kind: type[TidelogError]) -> str:
    if kind.nothing_was_written:
        return "Nothing."
    return "Not known: the records may be durable." if issubclass(kind, OutcomeUnknown) else "Not known."


def _remedy(kind: type[TidelogError]) -> str:
    """Returns the hint of the class, or what its branch of the tree says."""
    if kind.default_hint:
        return cell(kind.default_hint)
    if issubclass(kind, Throttled):
        return "Retry after `retry_after_s` (HTTP: `Retry-After`, gRPC: `RetryInfo`)."
    if kind.retryable or issubclass(kind, BodyTooSlow):
        return "Retry with back-off."
    return "Read the broker's log." if kind is TidelogError else "Change the request, as the message says."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
