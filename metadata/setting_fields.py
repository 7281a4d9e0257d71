"""Declares settings that are constants, and checks numbers in settings. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import Field, field, fields
from math import isfinite
from typing import Any, TypeVar

from metadata.errors import InvalidArgument

T = TypeVar("T")


def fixed(default: T) -> T:
    """Declares a field that no flag, variable or file may set: a constant of the product.

    It is a field because simulations, tests and benchmarks construct the class with other values.
    """
    return field(default=default, metadata={"fixed": True})


def is_fixed(of: Field[Any]) -> bool:
    return bool(of.metadata.get("fixed"))


def check_numbers(settings: Any, *, may_be_zero: Collection[str] = ()) -> None:
    """Raises InvalidArgument for a number that is negative, not finite, or 0 where 0 is not in `may_be_zero`."""
    for each in fields(settings):
        value = getattr(settings, each.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not isfinite(value) or value < 0 or (value == 0 and each.name not in may_be_zero):
            raise InvalidArgument(
                f"{each.name} is {value}; it must be a number above 0",
                hint=f"Leave {each.name} out for its default.",
                field=each.name,
            )
