"""Opens the store that the URL of a bucket names.

    memory://                              gone with the process
    /var/lib/tidelog   file:///var/lib/…   a directory, which must be there
    s3://bucket/prefix                     a bucket of AWS
    s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1&path_style=true

What a URL says goes before the settings. Invariant: a URL that holds credentials is refused, and messages show none of them.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from metadata.errors import InvalidArgument
from metadata.shown_url import shown_url
from segments.object_store.directory import DirectoryObjectStore
from segments.object_store.interface import ObjectStore
from segments.object_store.memory import MemoryObjectStore
from segments.object_store.s3.settings import S3Settings
from segments.object_store.store_clock import StoreClock
from segments.object_store.timeout import TimeoutObjectStore

_FORMS = "Name one of s3://BUCKET/PREFIX, file:///DIRECTORY, a directory, or memory://"
# `s3:/bucket` would be a directory "s3:" in this one; who has such a directory names it `./s3:`.
_NEARLY_URL = re.compile("(s3|file|memory):", re.IGNORECASE)
# Time limit of one call of a directory: a hanging disk, or a dead NFS server, has none of its own.
DISK_TIMEOUT_S = 60.0
_PATH_STYLE = {"true": True, "false": False}


class S3Location(NamedTuple):
    """Locates a prefix of an S3 bucket."""

    bucket: str
    # Without "/" at its ends; empty for the whole bucket.
    prefix: str
    settings: S3Settings


async def open_store(
    url: str, s3: S3Settings | None = None, *, make_directory: bool = False, clock: StoreClock | None = None
) -> ObjectStore:
    """Opens the store that `url` names; the caller closes it. `clock` hears the times that the store's answers tell.

    `make_directory` makes the directory of a file URL where it is missing, and its parent is not. InvalidArgument for a URL that
    names no store, Denied for a directory that can't be used. An S3 bucket is not asked yet: see `check_conditional_put`.
    """
    match parse_store_url(url, s3):
        case None:
            return MemoryObjectStore()
        case Path() as root:
            directory = await DirectoryObjectStore.open(root, make_root=make_directory, clock=clock)
            return TimeoutObjectStore(directory, timeout_s=DISK_TIMEOUT_S)
        case S3Location(bucket, prefix, settings):
            from segments.object_store.s3.store import (
                S3ObjectStore,
            )  # here, since it takes half a second and 40 MB that a directory can save

            return await S3ObjectStore.open(bucket, prefix, settings, clock=clock)


def parse_store_url(url: str, s3: S3Settings | None = None) -> Path | S3Location | None:
    """Returns a directory, a place on S3, or None for memory. InvalidArgument for a URL that names no store."""
    if not url or not url.isprintable():
        raise InvalidArgument(f"{shown_url(url)[:120]!r} names no bucket", hint=_FORMS)
    scheme, is_url, _ = url.partition("://")
    match scheme.lower():
        case _ if not is_url:
            if _NEARLY_URL.match(url):
                raise InvalidArgument(f"{shown_url(url)!r} is neither a URL nor a directory: it lacks a slash", hint=_FORMS)
            return _path(url)
        case "file":
            return _directory(url)
        case "memory":
            _check_memory(url)
            return None
        case "s3":
            return _s3(url, s3)
        case _:
            raise InvalidArgument(f"{scheme[:40]}:// is no kind of bucket", hint=_FORMS)


def _path(path: str) -> Path:
    return Path(os.path.expanduser(path))


def _directory(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or not parts.path or parts.query or parts.fragment:
        raise InvalidArgument(f"{shown_url(url)!r} is not the URL of a directory", hint="Three slashes: file:///var/lib/tidelog")
    return Path(unquote(parts.path))


def _check_memory(url: str) -> None:
    if url.lower() != "memory://":
        raise InvalidArgument(f"{shown_url(url)!r} names something in memory", hint="memory:// has no name: one process has it.")


def _s3(url: str, settings: S3Settings | None) -> S3Location:
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise InvalidArgument("the bucket URL holds credentials", hint="Pass them in the environment or a profile.")
    if parts.fragment:
        raise InvalidArgument(f"{shown_url(url)!r} has a fragment", hint=_FORMS)
    settings = settings or S3Settings()
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        match name:
            case "endpoint":
                settings = replace(settings, endpoint_url=value)
            case "region":
                settings = replace(settings, region=value)
            case "path_style" if value in _PATH_STYLE:
                settings = replace(settings, path_style=_PATH_STYLE[value])
            case _:
                shown = shown_url(f"s3://?{name}={value}").partition("?")[2]
                raise InvalidArgument(
                    f"{shown} in the bucket URL means nothing", hint="Known: endpoint, region, path_style=true|false"
                )
    return S3Location(parts.netloc, parts.path.removeprefix("/").removesuffix("/"), settings)
