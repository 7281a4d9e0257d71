"""Defines the options for credentials and for trusted brokers, for every command that talks to a cluster.

They stand beside --url wherever that is (help_page.py adds them), so that no command names them itself. A key has no option of its
own: what stands on a command line shows in the list of processes.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import cache
from typing import Annotated, Any, Final

import typer
from typer.main import get_command

# Settings of the client; so they are called in contexts as well.
NAMES: Final = ("api_key_file", "ca_file", "cert_file", "key_file", "tls_server_name")

_given: ContextVar[dict[str, str]] = ContextVar("credentials on the command line")


def given_credentials() -> dict[str, str]:
    """Returns the credentials that this command line names."""
    return {name: value for name, value in _given.get({}).items() if value}


def _note(parameter: typer.CallbackParam, value: str) -> str:
    _given.set({**_given.get({}), str(parameter.name): value})
    return value


def _option(flag: str, metavar: str, text: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=text, callback=_note, expose_value=False, show_default=False)


def _options(
    api_key_file: Annotated[str, _option("--api-key-file", "FILE", "Holds the API key [default: TIDELOG_API_KEY].")] = "",
    ca_file: Annotated[str, _option("--ca-file", "FILE", "Authorities of the brokers' certificates (PEM).")] = "",
    cert_file: Annotated[str, _option("--cert-file", "FILE", "Certificate of this client (PEM).")] = "",
    key_file: Annotated[str, _option("--key-file", "FILE", "Its private key (PEM).")] = "",
    tls_server_name: Annotated[
        str, _option("--tls-server-name", "NAME", "Name in the brokers' certificates, if it is not their host.")
    ] = "",
) -> None: ...


@cache
def credential_options() -> list[Any]:
    """Returns the credential options as parameters, the same for every command."""
    app = typer.Typer(add_completion=False)
    app.command()(_options)
    return [parameter for parameter in get_command(app).params if parameter.name in NAMES]
