"""Which cluster a command talks to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import NotFound, Rejected
from tidelog.cli.app.contexts import Contexts, cluster_access, contexts_path, parse_contexts, render_contexts
from tidelog.cli.app.credential_options import given_credentials
from tidelog.cli.main import run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TIDELOG_URL", "TIDELOG_CONTEXT", "TIDELOG_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_contexts_are_added_used_listed_and_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["context", "add", "prod", "--url", "http://a:8080,http://b:8080"]) == 0
    assert run(["context", "add", "test", "--url", "grpc://t"]) == 0
    assert run(["context", "use", "test"]) == 0
    capsys.readouterr()
    assert run(["context", "list", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": "prod", "url": "http://a:8080,http://b:8080", "current": False},
        {"name": "test", "url": "grpc://t", "current": True},
    ]
    environ = {"XDG_CONFIG_HOME": str(home)}
    assert cluster_access("", environ).url == "grpc://t"
    assert run(["context", "remove", "test", "-o", "ndjson"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "test", "removed": True}
    assert cluster_access("", environ).url == "http://localhost:8080"
    assert cluster_access("", environ | {"TIDELOG_CONTEXT": "prod"}).url == "http://a:8080,http://b:8080"


def test_a_list_without_contexts_names_the_next_step(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["context", "list"]) == 0
    assert "commands talk to http://localhost:8080; add one: tidelog context add NAME" in capsys.readouterr().err


def test_the_first_address_that_is_given_counts(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(render_contexts(Contexts("one", {"one": "http://one", "two": "http://two"})))
    environ = {"TIDELOG_CONFIG": str(config)}
    assert cluster_access("http://flag", environ | {"TIDELOG_URL": "http://env"}).url == "http://flag"
    assert cluster_access("", environ | {"TIDELOG_URL": "http://env", "TIDELOG_CONTEXT": "two"}).url == "http://env"
    assert cluster_access("", environ | {"TIDELOG_CONTEXT": "two"}).url == "http://two"
    assert cluster_access("", environ).url == "http://one"
    assert cluster_access("", {"TIDELOG_CONFIG": str(tmp_path / "none.toml")}).url == "http://localhost:8080"


def test_an_unknown_context_is_refused_with_the_nearest_name(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["context", "add", "prod", "--url", "http://a"])
    assert run(["context", "use", "prdo"]) == 1
    assert "Did you mean 'prod'?" in capsys.readouterr().err
    with pytest.raises(NotFound):
        cluster_access("", {"XDG_CONFIG_HOME": str(home), "TIDELOG_CONTEXT": "staging"})


def test_a_context_that_can_not_be_one_is_refused_before_it_is_written(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["context", "add", "a b", "--url", "http://a"]) == 2
    assert run(["context", "add", "a", "--url", "ftp://a"]) == 2
    assert not (home / "tidelog").exists()


@pytest.mark.parametrize("text", ["current = 1", "contexts = 5", "[contexts.a]\nx = 1", "[[", "[contexts.a]\nurl = 5"])
def test_an_invalid_contexts_file_is_refused_by_its_name(home: Path, text: str) -> None:
    path = home / "tidelog" / "contexts.toml"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(Rejected, match=r"contexts\.toml can't be understood"):
        cluster_access("", {"XDG_CONFIG_HOME": str(home)})


def test_the_file_lies_where_users_expect_it() -> None:
    assert contexts_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/tidelog/contexts.toml")
    assert contexts_path({"TIDELOG_CONFIG": "/y.toml", "XDG_CONFIG_HOME": "/x"}) == Path("/y.toml")
    assert contexts_path({}) == Path("~/.config/tidelog/contexts.toml").expanduser()


names = st.text(st.sampled_from("abcXYZ019._-"), min_size=1, max_size=10)
urls = st.text(st.characters(codec="utf-8"), max_size=20)


@given(st.dictionaries(names, urls, max_size=4), names)
def test_contexts_that_are_written_are_read_back(contexts: dict[str, str], current: str) -> None:
    assert parse_contexts(render_contexts(Contexts(current, contexts))) == Contexts(current, contexts)


# ── credentials ──


def test_a_context_keeps_the_files_of_its_credentials(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    assert run(["context", "add", "prod", "--url", "https://a", "--ca-file", "ca.pem", "--api-key-file", "/run/key"]) == 0
    assert run(["context", "add", "open", "--url", "http://b"]) == 0
    access = cluster_access("", {"XDG_CONFIG_HOME": str(home)})
    assert access.url == "https://a"
    assert access.credentials == {"ca_file": str(home / "ca.pem"), "api_key_file": "/run/key"}
    assert run(["context", "use", "open"]) == 0
    assert cluster_access("", {"XDG_CONFIG_HOME": str(home)}).credentials == {}
    assert run(["context", "add", "prod", "--url", "https://a"]) == 0
    assert run(["context", "use", "prod"]) == 0
    assert cluster_access("", {"XDG_CONFIG_HOME": str(home)}).credentials == {}, "it was recreated"


def test_credentials_come_from_the_command_line_then_the_environment_then_the_context(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    kept = {"ca_file": "of-context", "api_key_file": "of-context", "cert_file": "of-context", "key_file": "of-context"}
    config.write_text(render_contexts(Contexts("one", {"one": "https://one"}, {"one": kept})))
    environ = {"TIDELOG_CONFIG": str(config), "TIDELOG_API_KEY": "tlk_of_environment", "TIDELOG_CA_FILE": "of-environment"}
    access = cluster_access("", environ, {"ca_file": "of-flag"})
    assert access.credentials == {
        "ca_file": "of-flag",
        "api_key": "tlk_of_environment",
        "cert_file": "of-context",
        "key_file": "of-context",
    }
    elsewhere = cluster_access("https://two", {"TIDELOG_CONFIG": str(config)})
    assert elsewhere.credentials == {}, "what is for one cluster is not shown to another"


@pytest.mark.slow
def test_the_options_of_credentials_stand_wherever_url_does(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["topic", "list"], ["produce"], ["consume"], ["cluster", "health"], ["doctor"], ["context", "add"]):
        assert run([*command, "--help"]) == 0
        page = capsys.readouterr().out
        assert all(option in page for option in ("--api-key-file", "--ca-file", "--cert-file", "--key-file")), command
        assert "--api-key " not in page, "it would show in the list of processes"
    assert run(["topic", "list", "--url", "https://localhost:1", "--ca-file", str(home / "none.pem")]) == 2
    assert f"ca_file: {home / 'none.pem'} can't be read" in capsys.readouterr().err
    assert given_credentials() == {"ca_file": str(home / "none.pem")}
    run(["context", "list"])
    run(["doctor", "-o", "json"])
    assert given_credentials() == {}, "of this command line alone"
