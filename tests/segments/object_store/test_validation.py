"""Keys are refused by their form alone, the same for every store."""

from __future__ import annotations

import posixpath

from hypothesis import given
from hypothesis import strategies as st

from segments.object_store.validation import is_key

almost_keys = st.text(alphabet="a.=/-_0\0 ä\\\n", max_size=12)


@given(st.one_of(almost_keys, st.text(max_size=12)))
def test_a_key_is_a_path_that_stays_where_it_is(text: str) -> None:
    if is_key(text):
        assert text.isascii()
        assert text.isprintable()
        assert " " not in text
        assert posixpath.normpath(text) == text
        assert not text.startswith((".", "/"))
        assert ".." not in text.split("/")


@given(st.lists(st.from_regex(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]{0,20}", fullmatch=True), min_size=1, max_size=6))
def test_a_path_of_plain_names_is_a_key(names: list[str]) -> None:
    assert is_key("/".join(names))


def test_names_of_dots_only_are_keys_below_the_first_component_unless_they_mean_a_directory() -> None:
    assert is_key("topics/.../topic.json")
    assert is_key("topics/.x/y.")
    assert not is_key("topics/./x")
    assert not is_key("topics/../x")
    assert not is_key("...")


def test_lengths_are_bounded() -> None:
    assert is_key("a" * 255)
    assert not is_key("a" * 256)
    assert is_key("/".join(["a" * 174] * 4))
    assert not is_key("/".join(["a" * 175] * 4))
