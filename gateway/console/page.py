"""Declares what a page is given and what it returns. Pure.

View      one request of a reader: the path's names, the query, the form, the reader's session, the API
Rendered  a template with its values ┐
Redirect  another page               ├─ what a page returns; console.py makes an answer of it
Stream    parts of an answer         ┘
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from gateway.console.api_client import ApiClient
from gateway.console.session_cookie import Session

ROOT: Final = "/console"
# Digits of a number of 64 bits; Python refuses to read a number of some thousand.
DIGITS_MAX: Final = 19


@dataclass(frozen=True, slots=True)
class View:
    """Holds one request for a page."""

    api: ApiClient
    session: Session
    # The parts of the path that the route names, for example {"topic": "orders"}.
    names: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, str]
    # Whether htmx asks for a part of the page.
    is_fragment: bool = False
    # Whether the reader has signed in, and may sign out.
    signed_in: bool = False
    # The cookie of a sign-in at the OpenID provider; empty without one.
    flow: str = ""
    # The cookie of a browser in which a reader has signed in at the OpenID provider; empty without one.
    known: str = ""
    # The address of the reader, or of the proxy in front of the broker.
    address: str = ""
    # Whether pages show keys, values and headers of records.
    shows_values: bool = True


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page, or a part of one."""

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    # A block of the template; empty for the whole page.
    block: str = ""
    # Makes further values, in the thread that fills the template: for values that take milliseconds.
    prepare: Callable[[], Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Redirect:
    """Sends the reader to another page. `session` replaces the one in the cookie; `ends_session` removes it.

    `flow` is the cookie of a sign-in at the OpenID provider; empty: it is removed; None: it stays. `known` is the cookie of a
    browser in which a reader has signed in there; None: it stays.
    """

    location: str
    session: Session | None = None
    ends_session: bool = False
    flow: str | None = None
    known: str | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer of unknown length: a download, or events."""

    media_type: str
    # The first part comes at once: until then a refusal can still be shown as a page.
    parts: AsyncGenerator[bytes, None]
    filename: str = ""


Answer = Rendered | Redirect | Stream
Page = Callable[[View], Awaitable[Answer]]


def whole_number(text: str) -> int | None:
    """Returns the number that a reader has entered: 0 or more, within 64 bits; None for anything else."""
    return int(text) if len(text) <= DIGITS_MAX and text.isascii() and text.isdecimal() else None


def link(*path: str, **query: str | int | None) -> str:
    """Returns the address of a page, with its names and query quoted."""
    address = "/".join([ROOT, *(quote(part, safe="") for part in path)])
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{address}?{urlencode(given)}" if given else address


class Routes:
    """Finds the page of a method and a path. A part of a route in braces matches any one part, and names it."""

    def __init__(self) -> None:
        self._pages: dict[str, list[tuple[tuple[str, ...], Page]]] = {"GET": [], "POST": []}

    def add(self, method: str, path: str, page: Page) -> None:
        """Adds a page. `path` is relative to ROOT, as `topics/{topic}`."""
        self._pages[method].append((tuple(path.split("/")) if path else (), page))

    def find(self, method: str, parts: tuple[str, ...]) -> tuple[Page, dict[str, str]] | None:
        for pattern, page in self._pages.get(method, ()):
            names = _matched(pattern, parts)
            if names is not None:
                return page, names
        return None


def _matched(pattern: tuple[str, ...], parts: tuple[str, ...]) -> dict[str, str] | None:
    if len(pattern) != len(parts):
        return None
    names: dict[str, str] = {}
    for expected, part in zip(pattern, parts, strict=True):
        if expected.startswith("{"):
            names[expected[1:-1]] = part
        elif expected != part:
            return None
    return names
