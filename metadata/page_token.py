"""Encodes page tokens, which hold the last name of a page. Pure.

    base64url( version 1 · CRC-32 of the name, big-endian · name )

A token names a place in the order, not a moment, so it never expires.
"""

from __future__ import annotations

import base64
import zlib

from metadata.errors import InvalidArgument

PAGE_SIZE = 100
PAGE_SIZE_MAX = 1000


def token_after(name: str) -> str:
    body = name.encode()
    return base64.urlsafe_b64encode(b"\x01" + zlib.crc32(body).to_bytes(4, "big") + body).rstrip(b"=").decode()


def name_in(token: str, *, of: str) -> str:
    """Returns the name in a token that a list of `of` gave. Raises InvalidArgument for any other text."""
    try:
        name = base64.urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4))[5:].decode()
        if token == token_after(name):
            return name
    except ValueError:
        pass
    raise InvalidArgument(f"page_token is not one that a list of {of} gave", hint="Begin again without a page_token.")


def checked_page_size(page_size: int) -> int:
    """Returns the size of a page; 0 is PAGE_SIZE. Raises InvalidArgument below 0 and above PAGE_SIZE_MAX."""
    if not 0 <= page_size <= PAGE_SIZE_MAX:
        raise InvalidArgument(f"page_size {page_size} is not between 0 and {PAGE_SIZE_MAX}", page_size=page_size)
    return page_size or PAGE_SIZE
