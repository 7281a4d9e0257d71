"""Selects a command's cluster and credentials: contexts are named addresses in a file of the user.

    $TIDELOG_CONFIG, or $XDG_CONFIG_HOME/tidelog/contexts.toml, or ~/.config/tidelog/contexts.toml

        current = "prod"
        [contexts.prod]
        url = "https://tidelog.example:8080"
        ca_file = "/home/me/ca.pem"              # and api_key_file, cert_file, key_file, tls_server_name, where they are needed

The first that is given counts: --url, TIDELOG_URL, --context or TIDELOG_CONTEXT, the current context, http://localhost:8080. So it
is with credentials: --ca-file, TIDELOG_CA_FILE, that of the context where the address is the context's. A key itself never stands
here.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metadata.errors import InvalidArgument, NotFound, Rejected, did_you_mean
from tidelog.cli.app.credential_options import NAMES, given_credentials
from tidelog.cli.app.help_page import CommandPage, GroupPage
from tidelog.cli.app.output import Output, OutputOption, say, show_done, show_rows

if TYPE_CHECKING:
    from tidelog.settings import SettingChanges

DEFAULT_URL = "http://localhost:8080"

UrlOption = Annotated[
    str,
    typer.Option(
        "--url",
        help="Address of the cluster: http://HOST:8080 or grpc://HOST:9090, several behind commas. "
        "[default: TIDELOG_URL, the current context, or http://localhost:8080]",
        show_default=False,
    ),
]

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A name from `tidelog context list`.", show_default=False)]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Contexts:
    """The content of the contexts file."""

    current: str = ""
    urls: dict[str, str] = field(default_factory=dict)
    # Client settings by name, for the contexts that have any.
    credentials: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address, and what goes with it."""

    url: str
    credentials: SettingChanges


def contexts_path(environ: Mapping[str, str]) -> Path:
    if path := environ.get("TIDELOG_CONFIG"):
        return Path(path)
    base = environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    return Path(base) / "tidelog" / "contexts.toml"


def parse_contexts(text: str) -> Contexts:
    """Raises ValueError for what is not the form above."""
    table = tomllib.loads(text)
    entries, current = table.get("contexts", {}), table.get("current", "")
    if not isinstance(entries, dict) or not isinstance(current, str):
        raise ValueError("it has no table of contexts")
    urls: dict[str, str] = {}
    credentials: dict[str, dict[str, str]] = {}
    for name, entry in entries.items():
        url = entry.get("url") if isinstance(entry, dict) else None
        if not isinstance(url, str):
            raise ValueError(f"the context {name} has no url")
        urls[name] = url
        found = {setting: entry[setting] for setting in NAMES if setting in entry}
        if not all(isinstance(value, str) for value in found.values()):
            raise ValueError(f"the context {name} has credentials that are no text")
        if found:
            credentials[name] = found
    return Contexts(current, urls, credentials)


def render_contexts(contexts: Contexts) -> str:
    lines = [f"current = {_quoted(contexts.current)}"] if contexts.current else []
    for name, url in sorted(contexts.urls.items()):
        lines += ["", f"[contexts.{_quoted(name)}]", f"url = {_quoted(url)}"]
        lines += [f"{setting} = {_quoted(value)}" for setting, value in contexts.credentials.get(name, {}).items()]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Quotes a TOML string; the quoting is that of JSON, save for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def cluster_access(given: str, environ: Mapping[str, str], flags: Mapping[str, str] | None = None) -> Endpoint:
    """Returns the address and its credentials; `flags`: those of the command line. Raises NotFound for an unknown context."""
    if given or (given := environ.get("TIDELOG_URL", "")):
        return Endpoint(given, _credentials(flags or {}, environ, {}, given))
    asked = environ.get("TIDELOG_CONTEXT", "")
    contexts = _read(contexts_path(environ))
    name = asked or contexts.current
    if name and name not in contexts.urls:
        raise _no_context(name, contexts)
    url = contexts.urls[name] if name else DEFAULT_URL
    return Endpoint(url, _credentials(flags or {}, environ, contexts.credentials.get(name, {}), url))


def _credentials(flags: Mapping[str, str], environ: Mapping[str, str], of_context: Mapping[str, str], url: str) -> SettingChanges:
    from tidelog.settings import credentials_from
    from tidelog.transport.addresses import with_tls

    chosen: Any = dict(flags)
    chosen |= credentials_from(environ, chosen, tls=with_tls([url]))
    as_variables = {f"TIDELOG_{setting.upper()}": value for setting, value in of_context.items()}
    found: SettingChanges = {**credentials_from(as_variables, chosen, tls=with_tls([url])), **chosen}
    return found


def _read(path: Path) -> Contexts:
    try:
        return parse_contexts(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise Rejected(f"the contexts in {path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise Rejected(f"the contexts in {path} can't be understood: {error}", hint="Correct the file, or delete it.") from error


def _write(path: Path, contexts: Contexts) -> None:
    """Replaces the file atomically: a reader sees the old or the new one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(render_contexts(contexts), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Rejected(f"the contexts can't be written to {path}: {error.strerror}") from error


def _no_context(name: str, contexts: Contexts) -> NotFound:
    known = ", ".join(sorted(contexts.urls)) or "none"
    hint = did_you_mean(name, contexts.urls) or f"There are: {known}. Add one: tidelog context add {name} --url http://HOST:8080"
    return NotFound(f"there is no context {name!r}", hint=hint)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


# ── commands ──

app = typer.Typer(cls=GroupPage, help="Named clusters: add, use, list, remove.")


@app.command(cls=CommandPage)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A short name, such as prod.", show_default=False)],
    url: Annotated[str, typer.Option("--url", help="http://HOST:8080 or grpc://HOST:9090, several behind commas.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Remembers a cluster by a name. The first one is used from then on."""
    from tidelog.transport.addresses import parse_addresses

    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"{name!r} is not a name for a context", hint="Use up to 64 of the characters a-z A-Z 0-9 . _ -")
    parse_addresses([url])
    path = contexts_path(os.environ)
    contexts = _read(path)
    credentials = {known: found for known, found in contexts.credentials.items() if known != name}
    if files := given_credentials():
        credentials[name] = {what: value if what == "tls_server_name" else _absolute(value) for what, value in files.items()}
    _write(path, Contexts(contexts.current or name, contexts.urls | {name: url}, credentials))
    talk = f"{name} is {url}" + ("" if contexts.current else ", and used from now on")
    show_done({"name": name, "url": url, "current": not contexts.current or contexts.current == name}, output, talk)


@app.command(cls=CommandPage)
def use(name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """Makes a context the current one."""
    path = contexts_path(os.environ)
    contexts = _read(path)
    if name not in contexts.urls:
        raise _no_context(name, contexts)
    _write(path, Contexts(name, contexts.urls, contexts.credentials))
    url = contexts.urls[name]
    show_done({"name": name, "url": url, "current": True}, output, f"commands talk to {name} ({url}) from now on")


@app.command("list", cls=CommandPage)
def list_contexts(output: OutputOption = Output.TABLE) -> None:
    """Shows the contexts."""
    contexts = _read(contexts_path(os.environ))
    rows = [{"name": name, "url": url, "current": name == contexts.current} for name, url in sorted(contexts.urls.items())]
    show_rows(rows, output, columns=("name", "url", "current"))
    if output is Output.TABLE and not rows:
        say(
            f"there are no contexts yet, so commands talk to {DEFAULT_URL}; add one: tidelog context add NAME --url http://HOST:8080"
        )


@app.command(cls=CommandPage)
def remove(name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """Forgets a context."""
    path = contexts_path(os.environ)
    contexts = _read(path)
    if name not in contexts.urls:
        raise _no_context(name, contexts)
    urls = {known: url for known, url in contexts.urls.items() if known != name}
    credentials = {known: found for known, found in contexts.credentials.items() if known != name}
    _write(path, Contexts("" if contexts.current == name else contexts.current, urls, credentials))
    show_done({"name": name, "removed": True}, output, f"{name} is forgotten")
