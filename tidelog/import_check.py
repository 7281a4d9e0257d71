"""Checks that Tidelog's other packages are imported from the folder in which `tidelog` lies.

`gateway`, `metadata`, `segments`, `compaction` and `spark` are installed beside `tidelog`, so a user's own `spark.py` or
`metadata/` that comes first on Python's search path hides them. What needs one of them checks it before it imports it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from typing import Final

# The packages that the SDK imports.
SDK: Final = ("metadata", "segments", "gateway")
# The packages that commands, brokers and Spark import as well.
ALL: Final = (*SDK, "compaction", "spark")
_HERE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class PackageHidden(ImportError):
    """A foreign module is found in place of a package of Tidelog. `path` is its file, or its folder if it has no `__init__.py`."""


def check_packages(*names: str) -> None:
    """Raises PackageHidden if one of the packages is hidden; a process of the command `tidelog` exits with code 1 instead."""
    for name in names:
        if (path := hidden_by(name)) is None:
            continue
        said = (
            f"{path} hides the package `{name}` of Tidelog: rename it, or remove its folder from the front of Python's search path "
            "(the folder of the script, the current folder, or PYTHONPATH)."
        )
        if _is_command():
            raise SystemExit(f"Error: {said}")
        raise PackageHidden(said, name=name, path=path)


def hidden_by(name: str) -> str | None:
    """Returns the file or folder that `import NAME` finds, if it is another than the one beside `tidelog`.

    Returns None if the package is found nowhere, since its import says so, and if none lies beside `tidelog`, since then the
    packages were distributed to several places. A folder or a zip file may hold them.
    """
    if (loaded := sys.modules.get(name)) is not None:
        file, folders = getattr(loaded, "__file__", None), list(getattr(loaded, "__path__", ()))
    elif (spec := importlib.util.find_spec(name)) is not None:
        file, folders = spec.origin, list(spec.submodule_search_locations or ())
    else:
        return None
    own = os.path.join(_HERE, name)
    if own in folders or os.path.realpath(own) in map(os.path.realpath, folders) or not (file or folders):
        return None
    return (file or folders[0]) if PathFinder.find_spec(name, [_HERE]) is not None else None


def _is_command() -> bool:
    """Returns whether this process is `tidelog …` or `python -m tidelog.…`, which prints only the error."""
    if os.path.basename(sys.argv[0] if sys.argv else "") == "tidelog":
        return True
    asked = sys.orig_argv[1:-1]
    return "-m" in asked and sys.orig_argv[asked.index("-m") + 2].split(".")[0] == "tidelog"
