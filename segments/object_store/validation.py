"""Refuses keys, ranges and limits that can't be right, before any object store is called. Pure.

    key        component ( "/" component )*       at most 700 characters, so that a prefix of the bucket fits before it
    component  1 to 255 of A-Z a-z 0-9 . _ = -    neither "." nor ".."; the first of a key does not begin with "."

Invariant: a key that passes is a legal S3 key, a legal relative path that stays below its root, and ASCII, so that the order
of its characters is the order of its bytes. What begins with "." at the root belongs to the stores themselves.
"""

from __future__ import annotations

import re

from metadata.errors import InvalidArgument

KEY_LENGTH_MAX = 700
_HINT = "Keys are paths of A-Z a-z 0-9 . _ = - without '..'."

_COMPONENT = r"(?!\.\.?(?:/|\Z))[A-Za-z0-9._=-]{1,255}"
_KEY = re.compile(rf"(?!\.){_COMPONENT}(?:/{_COMPONENT})*", re.ASCII)
_FOLDERS = re.compile(rf"(?:(?!\.){_COMPONENT}/(?:{_COMPONENT}/)*)?", re.ASCII)
_ANY_TEXT = re.compile(r"[A-Za-z0-9._=/-]*", re.ASCII)


def is_key(text: str) -> bool:
    """Returns whether an object may have this key; Tidelog did not write objects with other names."""
    return len(text) <= KEY_LENGTH_MAX and _KEY.fullmatch(text) is not None


def check_key(key: str) -> str:
    """Returns the key itself. Raises InvalidArgument for one that is not allowed."""
    if not is_key(key):
        raise InvalidArgument(
            f"{_shown(key)} is not a key of an object", hint="Keys are paths of A-Z a-z 0-9 . _ = - without '..'."
        )
    return key


def check_list(prefix: str, start_after: str, limit: int) -> None:
    """Raises InvalidArgument unless keys can begin with `prefix`, which may end in the middle of a component, and limit is above
    0."""
    folders = prefix[: prefix.rfind("/") + 1]
    if not (_FOLDERS.fullmatch(folders) and _ANY_TEXT.fullmatch(prefix) and len(prefix) <= KEY_LENGTH_MAX):
        raise InvalidArgument(f"{_shown(prefix)} is not the beginning of any key", hint=_HINT)
    if not _ANY_TEXT.fullmatch(start_after):
        raise InvalidArgument(f"{_shown(start_after)} can't stand before or after a key", hint="Pass a key that was listed.")
    if limit < 1:
        raise InvalidArgument(f"a listing of {limit} keys was asked for", hint="Ask for one key or more.")


def check_range(key: str, start: int, end: int | None) -> None:
    """Raises InvalidArgument unless [start, end) is at least one byte long, whatever the object's size."""
    if start < 0 or (end is not None and end <= start):
        raise InvalidArgument(f"[{start}, {end}) of {key} is not a range of bytes", key=key)


def check_tail(key: str, bytes_max: int) -> None:
    if bytes_max < 1:
        raise InvalidArgument(f"the last {bytes_max} bytes of {key} were asked for", key=key)


def past_the_end(url: str, key: str, start: int, size: int | None) -> InvalidArgument:
    """Returns the error for a range that begins at or past the end. Only [0, …) of an empty object begins there and is well."""
    ends = "" if size is None else f", which has {size} bytes"
    return InvalidArgument(f"byte {start} lies past the end of {key}{ends}, in {url}", key=key, start=start)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 120 else text[:117] + "…")
