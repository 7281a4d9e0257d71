"""Patterns of topics: what they match, as Python's own engine says, what is refused, and that none is slow."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import InvalidRegularExpression
from metadata.groups.reconciliation.topic_pattern import TopicPattern

_atoms = st.sampled_from(
    [
        "a",
        "b",
        ".",
        "-",
        r"\.",
        r"\d",
        r"\D",
        r"\w",
        r"\W",
        r"\s",
        "[ab]",
        "[^a]",
        "[a-c0]",
        "[]a]",
        "[a-]",
        r"[\d_]",
        "^",
        "$",
        r"\Aa",
        r"b\Z",
    ]
)
_repeats = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "{0}", "*?"])


def _join(parts: list[tuple[str, str]]) -> str:
    return "".join(f"(?:{atom}){repeat}" for atom, repeat in parts)


_patterns = st.recursive(
    st.lists(st.tuples(_atoms, _repeats), max_size=4).map(_join),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("|".join), st.tuples(inner, _repeats).map(lambda two: f"({two[0]}){two[1]}")
    ),
    max_leaves=4,
)


@given(pattern=_patterns, names=st.lists(st.text("abc0-.", max_size=5), max_size=6))
def test_a_pattern_matches_what_pythons_engine_matches(pattern: str, names: list[str]) -> None:
    ours = TopicPattern(pattern.replace(r"\Z", r"\z"))
    assert ours.matching(names) == {name for name in names if re.fullmatch(pattern, name, re.ASCII)}


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("orders-.*", "orders-eu", True),
        ("orders-.*", "my-orders-eu", False),
        ("^orders$", "orders", True),
        ("orders|users", "users", True),
        ("orders|users", "usersx", False),
        ("(?:eu|us)-[a-z]{2,3}", "eu-abc", True),
        ("(?:eu|us)-[a-z]{2,3}", "eu-abcd", False),
        ("", "", True),
        (r"a\.b", "a.b", True),
        (r"a\.b", "axb", False),
    ],
)
def test_the_whole_name_must_match(pattern: str, name: str, *, matches: bool) -> None:
    assert TopicPattern(pattern).matches(name) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        *[
            "(",
            ")",
            "a)",
            "[",
            "[a",
            "[b-a]",
            "*",
            "a**",
            "a{2,1}",
            "a{",
            "a{x}",
            "{2}",
            "a{1001}",
            "\\",
            "(?i)a",
            "(?=a)",
            "(?P<x>a)",
        ],
        *[r"\1", r"\b", r"\pL", "[[:alpha:]]", "(" * 60 + ")" * 60, "((a{100}){100}){100}", "a" * 1001, r"[\d-a", r"[a-\d]"],
    ],
)
def test_a_pattern_that_is_malformed_or_not_supported_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression):
        TopicPattern(pattern)


@given(st.text("()[]{}|*+?\\^$.-,:ab012dwszA", max_size=20))
def test_any_text_is_a_pattern_or_refused(text: str) -> None:
    with suppress(InvalidRegularExpression):
        TopicPattern(text).matches("ab-0")


def test_a_pattern_that_makes_backtracking_engines_slow_is_matched_at_once() -> None:
    assert not TopicPattern("(a*)*(a|aa)+(.*.*)*b").matches("a" * 249)
