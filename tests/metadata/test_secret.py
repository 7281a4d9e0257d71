"""A secret shows nowhere."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass

import pytest

from metadata.secret import Secret


@dataclass(frozen=True)
class Login:
    user: str
    password: Secret


def test_a_secret_shows_as_stars_wherever_it_is_printed() -> None:
    secret = Secret("hunter2")
    for shown in (str(secret), repr(secret), f"{secret}", f"{secret!r:>10}", "%s" % secret, str([secret]), str(Login("a", secret))):  # noqa: UP031
        assert "hunter2" not in shown
        assert "***" in shown


def test_reveal_returns_the_text_of_a_secret() -> None:
    assert Secret("hunter2").reveal() == "hunter2"


def test_a_secret_is_not_written_down() -> None:
    for write in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError):
            write(Secret("hunter2"))


def test_secrets_compare_by_their_text_and_with_nothing_else() -> None:
    assert Secret("é") == Secret("é")
    assert hash(Secret("a")) == hash(Secret("a"))
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert not Secret("")
