"""What names an etcd is checked before anything is sent, and says what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metadata.errors import InvalidArgument
from metadata.secret import Secret
from metadata.store.etcd.settings import EtcdAddress, EtcdSettings


def test_no_etcd_is_named_by_default() -> None:
    assert EtcdSettings().addresses == ()


@pytest.mark.parametrize(
    ("etcd", "addresses"),
    [
        ("http://a:1", [EtcdAddress("a", 1, tls=False)]),
        ("https://etcd-0.etcd.svc", [EtcdAddress("etcd-0.etcd.svc", 2379, tls=True)]),
        (" http://a:1/ , http://[::1]:2 ", [EtcdAddress("a", 1, tls=False), EtcdAddress("::1", 2, tls=False)]),
    ],
)
def test_members_are_named_by_urls_with_commas_between(etcd: str, addresses: list[EtcdAddress]) -> None:
    assert list(EtcdSettings(etcd=etcd).addresses) == addresses


def test_an_address_reads_as_grpc_takes_it_and_as_people_write_it() -> None:
    assert EtcdAddress("::1", 2, tls=True).target == "[::1]:2"
    assert EtcdAddress("::1", 2, tls=True).url == "https://[::1]:2"
    assert EtcdAddress("a", 2379, tls=False).url == "http://a:2379"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"etcd": "localhost:2379"}, "'localhost:2379' in etcd is not the address of a member"),
        ({"etcd": "a"}, "not the address"),
        ({"etcd": "http://"}, "not the address"),
        ({"etcd": "http://a,,http://b"}, "'' in etcd is not the address"),
        ({"etcd": "http://a:1,"}, "'' in etcd is not the address"),
        ({"etcd": "http://a:0"}, "not the address"),
        ({"etcd": "http://a:99999"}, "not the address"),
        ({"etcd": "http://a:x"}, "not the address"),
        ({"etcd": "http://[::1"}, "not the address"),
        ({"etcd": "http://a b:1"}, "not the address"),
        ({"etcd": "http://a:1/v3"}, "not the address"),
        ({"etcd": "http://a:1?x=1"}, "not the address"),
        ({"etcd": "grpc://a:1"}, "not the address"),
        ({"etcd": "http://root:hunter2@a:1"}, "etcd holds credentials"),
        ({"etcd": "http://root:hunter2@[::1"}, "not the address"),
        ({"etcd": "http://a:1,http://a:1"}, "etcd names http://a:1 twice"),
        ({"etcd": "http://a:1,https://b:1"}, "members with TLS and members without"),
        ({"etcd": "http://a:1", "etcd_ca": Path("ca.pem")}, "etcd_ca is set, but etcd is not https"),
        ({"etcd": "http://a:1", "etcd_cert": Path("c"), "etcd_key": Path("k")}, "etcd_cert is set, but etcd is not https"),
        ({"etcd": "https://a:1", "etcd_cert": Path("c")}, "etcd_key is not set"),
        ({"etcd": "https://a:1", "etcd_key": Path("k")}, "etcd_cert is not set"),
        ({"etcd": "http://a:1", "etcd_user": "u"}, "etcd_password is not set"),
        ({"etcd": "http://a:1", "etcd_user": "u", "etcd_password": Secret("")}, "etcd_password is not set"),
        ({"etcd": "http://a:1", "etcd_password": Secret("hunter2")}, "etcd_user is not set"),
        ({"etcd_user": "u", "etcd_password": Secret("hunter2")}, "etcd_user is set, but etcd is not"),
        ({"etcd_request_timeout_ms": 0}, "etcd_request_timeout_ms is 0"),
        ({"etcd_deadline_ms": float("nan")}, "etcd_deadline_ms is nan"),
        ({"etcd_connect_timeout_ms": float("inf")}, "etcd_connect_timeout_ms is inf"),
    ],
)
def test_a_wrong_setting_is_named_and_no_secret_shows(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said.replace("[", r"\[")) as refused:
        EtcdSettings(**wrong)
    assert "hunter2" not in f"{refused.value} {refused.value.hint} {refused.value.details}"


def test_no_secret_shows_in_the_settings() -> None:
    assert "hunter2" not in repr(EtcdSettings(etcd="http://a", etcd_user="u", etcd_password=Secret("hunter2")))
