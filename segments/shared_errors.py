"""One error that several wait for: each of them raises a copy of its own; and the one of a group that is told. Pure.

An instance that is raised twice carries the traceback of both, takes the context of whoever raises it, and what one of them notes
on it or changes is seen by all.
"""

from __future__ import annotations

from copy import copy
from typing import TypeVar

from metadata.errors import TidelogError

_Error = TypeVar("_Error", bound=TidelogError)


def copy_of(error: _Error) -> _Error:
    """The same class, message, hint, details and cause; no traceback, no context, no notes."""
    own = copy(error)
    own.details = dict(error.details)
    own.__cause__ = error.__cause__
    vars(own).pop("__notes__", None)
    return own


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Of what a TaskGroup raises: who asked is told one error, not a tree of them."""
    first = group.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first
