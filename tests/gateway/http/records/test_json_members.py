"""Members are counted without decoding, never fewer than a decoder would make."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.records import json_body
from gateway.http.records.json_body import members_at_most

marks = st.text(st.sampled_from('",\\[]{}: ab\n💥'), max_size=6)
json_values = st.recursive(
    st.none() | st.integers() | marks,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(marks, inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(json_values, max_size=6), st.booleans())
def test_the_members_of_one_list_are_counted_exactly(values: list[Any], ascii_only: bool) -> None:
    text = json.dumps(values, ensure_ascii=ascii_only).encode()
    assert members_at_most(text, level=1) == max(1, len(values))
    body = json.dumps({"records": values}, ensure_ascii=ascii_only, indent=1).encode()
    assert members_at_most(body, level=2) == max(1, len(values))


@given(st.lists(json_values, min_size=1, max_size=5), st.integers(0, 200))
def test_of_a_text_that_breaks_off_no_whole_member_is_missed(values: list[Any], cut: int) -> None:
    text = json.dumps(values).encode()[:-1]
    begun = text[:cut]
    whole = 0
    for count in range(1, len(values) + 1):
        if len(json.dumps(values[:count])) - 1 <= len(begun):
            whole = count
    assert members_at_most(begun, level=1) >= whole


@given(st.lists(st.lists(st.integers(), min_size=1, max_size=3), min_size=1, max_size=5))
def test_lists_in_lists_are_counted_together(lists: list[list[int]]) -> None:
    assert members_at_most(json.dumps(lists).encode(), level=2) == 1 + sum(len(held) - 1 for held in lists)


@pytest.mark.parametrize("chunk_bytes", [1, 2, 7])
def test_the_count_of_members_does_not_depend_on_the_chunks(chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({"records": [{"value": 'a",[{'}, {"value": ["\\", {}, []]}, {}]}).encode()
    assert members_at_most(text, level=2) == 3
    monkeypatch.setattr(json_body, "_CHUNK_BYTES", chunk_bytes)
    assert members_at_most(text, level=2) == 3


@given(st.binary(max_size=60))
def test_any_bytes_are_counted(text: bytes) -> None:
    assert members_at_most(text, level=1) >= 1
