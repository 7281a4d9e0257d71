"""Which broker a name belongs to, without asking anybody."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from metadata.rendezvous import highest

BROKERS = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6, unique=True)


@given(name=st.text(max_size=20), brokers=BROKERS)
def test_the_chosen_broker_does_not_depend_on_the_order_of_the_brokers(name: str, brokers: list[str]) -> None:
    assert highest(name, brokers) == highest(name, brokers[::-1])


@given(name=st.text(max_size=20), brokers=BROKERS, gone=st.integers(0, 5))
def test_a_broker_that_goes_moves_only_its_own_names(name: str, brokers: list[str], gone: int) -> None:
    leaving = brokers[gone % len(brokers)]
    before = highest(name, brokers)
    now = highest(name, [broker for broker in brokers if broker != leaving])
    assert now == before or before == leaving


def test_the_names_spread_evenly() -> None:
    shares = Counter(highest(f"group-{at}", ["b1", "b2", "b3"]) for at in range(3_000))
    assert all(900 < share < 1_100 for share in shares.values())


def test_the_choice_stays_the_same_over_versions() -> None:
    assert [highest(f"group-{at}", ["b1", "b2", "b3"]) for at in range(6)] == ["b3", "b3", "b1", "b2", "b2", "b2"]


def test_without_brokers_no_broker_is_chosen() -> None:
    assert highest("billing", []) is None
