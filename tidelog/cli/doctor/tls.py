"""Checks TLS at each address of `tidelog doctor --url`: the version, the certificate, its expiry."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import Mapping
from typing import Any, Final

from metadata.diagnosis import Diagnosis, failed
from metadata.errors import TidelogError
from tidelog.settings import SettingChanges, settings_from
from tidelog.transport.addresses import Address, parse_addresses
from tidelog.transport.credentials import Credentials, is_this_machine
from tidelog.transport.tls_diagnosis import connected, diagnose_tls

TIMEOUT_S: Final = 5.0
# A certificate that ends so soon should have been replaced.
SOON: Final = datetime.timedelta(days=14)


async def check_tls(url: str, credentials: SettingChanges) -> list[Diagnosis]:
    """Returns a diagnosis for each address. Reports a missing TLS only for addresses beyond this machine."""
    try:
        addresses = parse_addresses([url])
        shown = Credentials(settings_from(credentials), tls=addresses[0].tls)
    except TidelogError as error:
        return [failed("TLS", error)]
    if not shown.tls:
        beyond = [str(address) for address in addresses if not is_this_machine(address.host)]
        if not beyond:
            return []
        remedy = "Set tls_cert_file and tls_key_file at the brokers (docs/guides/security.md), and write https:// here."
        return [Diagnosis("TLS", "warning", f"{', '.join(beyond)}: every host on the way can read the traffic", remedy)]
    return await asyncio.gather(*(asyncio.to_thread(_check, address, shown) for address in addresses))


def _check(address: Address, credentials: Credentials) -> Diagnosis:
    protocol = "h2" if address.is_grpc else "http/1.1"
    trouble = diagnose_tls(address.host, address.port, credentials, protocol=protocol, timeout_s=TIMEOUT_S)
    if trouble is not None:
        return Diagnosis("TLS", "failed", f"{address}: {trouble.cause}", trouble.remedy)
    try:
        with connected(credentials.ssl_context(), address.host, address.port, timeout_s=TIMEOUT_S) as connection:
            version, certificate = connection.version(), connection.getpeercert() or {}
    except OSError as error:
        return Diagnosis("TLS", "skipped", f"{address}: there is no connection ({error})")
    return judge_certificate(f"{address}: {version}", certificate, now=datetime.datetime.now(datetime.UTC))


def judge_certificate(where: str, certificate: Mapping[str, Any], *, now: datetime.datetime) -> Diagnosis:
    """`certificate` as `ssl` tells it. Pure."""
    ends = datetime.datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), datetime.UTC)
    names = ", ".join(name for _, name in certificate.get("subjectAltName", ()))
    detail = f"{where}, a certificate for {names}, until {ends:%Y-%m-%d %H:%M} UTC"
    if ends - now < SOON:
        days = max(0, (ends - now).days)
        return Diagnosis("TLS", "warning", f"{detail}, in {days} days", "Replace it: brokers take a new one without a restart.")
    return Diagnosis("TLS", "ok", detail)
