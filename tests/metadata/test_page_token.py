"""Tokens of pages: a name in, the same name out, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import InvalidArgument
from metadata.page_token import name_in, token_after


@given(st.text(min_size=1, max_size=249), st.integers(0, 2000), st.characters())
def test_a_token_is_a_name_and_one_wrong_character_spoils_it(name: str, index: int, other: str) -> None:
    token = token_after(name)
    assert name_in(token, of="topics") == name
    index %= len(token)
    spoilt = token[:index] + other + token[index + 1 :]
    if spoilt != token:
        with pytest.raises(InvalidArgument, match="list of groups"):
            name_in(spoilt, of="groups")
