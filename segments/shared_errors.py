"""Copies an error that several callers wait for, and picks one error of a group. Pure.

An instance that is raised twice carries the traceback of both and takes the context of each raise, and all callers see what one of
them notes on it or changes.
"""

from __future__ import annotations

from copy import copy
from typing import TypeVar

from metadata.errors import TidelogError

_Error = TypeVar("_Error", bound=TidelogError)


def copy_of(error: _Error) -> _Error:
    """Returns an error with the same class, message, hint, details and cause; no traceback, no context, no notes."""
    own = copy(error)
    own.details = dict(error.details)
    own.__cause__ = error.__cause__
    vars(own).pop("__notes__", None)
    return own


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the first error of a TaskGroup, so that callers get one error, not a tree."""
    first = group.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first
