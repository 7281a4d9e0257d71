"""Lists the objects below a directory in the order of their keys, reading no directory that can't hold a wanted key.

The order of a key is that of all its bytes. A walk that sorts the names in each directory gets it wrong, because "-" and "."
sort before "/"; sorting directories as their name with the "/" behind it makes every walk of the tree a walk in key order:

    names  a  a-b  a.d       keys  a-b    a.d/z    a/y
                                   "-" 2d  "." 2e   "/" 2f
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from segments.object_store.validation import is_key


def objects_in_order(root: str, prefix: str, start_after: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """The keys that begin with `prefix` and come after `start_after`, each with its entry, which was not stat'ed yet.

    What lies there under a name that is no key (temporaries, a lost+found) is passed over. Raises OSError, except for a
    directory that isn't there.
    """
    folder = prefix[: prefix.rfind("/") + 1]
    return _walk(os.path.join(root, folder), folder, prefix, start_after)


def _walk(path: str, folder: str, prefix: str, start_after: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    wanted: list[tuple[str, os.DirEntry[str]]] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                key = folder + entry.name
                if entry.is_dir(follow_symlinks=False):
                    key += "/"
                    begins = key.startswith(prefix) or prefix.startswith(key)
                    if begins and (key > start_after or start_after.startswith(key)):
                        wanted.append((key, entry))
                elif key > start_after and key.startswith(prefix) and entry.is_file(follow_symlinks=False):
                    wanted.append((key, entry))
    except (FileNotFoundError, NotADirectoryError):
        return
    wanted.sort(key=lambda found: found[0])
    for key, entry in wanted:
        if not is_key(key.removesuffix("/")):
            continue
        if key.endswith("/"):
            yield from _walk(entry.path, key, prefix, start_after)
        else:
            yield key, entry
