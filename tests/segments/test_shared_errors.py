"""An error that several wait for is raised by each as an instance of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metadata.errors import Corrupt, NotFound, Throttled, TidelogError
from segments.shared_errors import copy_of


def tree(kind: type[TidelogError] = TidelogError) -> Iterator[type[TidelogError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == kind.__module__:
            yield from tree(child)


@pytest.mark.parametrize("kind", list(tree()))
def test_a_copy_of_any_error_says_the_same(kind: type[TidelogError]) -> None:
    error = kind("it broke", hint="mend it", key="k", start=7)
    error.message = "it broke, in other words"  # a listener puts names in place of ids
    own = copy_of(error)
    assert type(own) is kind
    assert own is not error
    assert vars(own) == vars(error)
    assert own.args == error.args


def test_a_copy_keeps_the_cause_and_what_is_special_to_its_class() -> None:
    error = Throttled("slow down", retry_after_s=7.5)
    error.__cause__ = NotFound("no object")
    own = copy_of(error)
    assert own.retry_after_s == 7.5
    assert own.__cause__ is error.__cause__


def test_a_change_of_one_copy_is_not_seen_by_others() -> None:
    error = Corrupt("damaged", key="k")
    for reader in range(3):
        own = raised_amid(f"what reader {reader} was doing", error)
        own.details["reader"] = reader
        own.add_note(f"raised to reader {reader}")
        assert str(own.__context__) == f"what reader {reader} was doing"
        assert own.__notes__ == [f"raised to reader {reader}"]
    assert (error.details, error.__context__, error.__traceback__) == ({"key": "k"}, None, None)
    assert not hasattr(error, "__notes__")


def raised_amid(doing: str, error: Corrupt) -> Corrupt:
    try:
        try:
            raise ValueError(doing)
        except ValueError:
            raise copy_of(error)  # noqa: B904  # the context is what is looked at
    except Corrupt as raised:
        return raised
