"""The files of a broker's certificate: what is taken from them, what is refused, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from unittest import mock

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.net.tls import credentials
from gateway.net.tls.credentials import load_key_pair
from gateway.net.tls.identity import TlsReloader
from gateway.net.tls.settings import TlsSettings
from metadata.errors import InvalidArgument
from tests.kit.certificates import Authority, Certificates, make_certificates


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def made(tmp_path: Path, authority: Authority) -> Certificates:
    return make_certificates(tmp_path, authority)


def settings_of(made: Certificates, client_auth: str = "required") -> TlsSettings:
    return TlsSettings(tls_cert_file=made.cert, tls_key_file=made.key, tls_client_ca_file=made.ca, tls_client_auth=client_auth)


def reload(files: TlsReloader) -> bool:
    return asyncio.run(files.reload())


def test_a_certificate_that_has_not_changed_is_not_taken_again(made: Certificates) -> None:
    files = TlsReloader(settings_of(made))
    before = files.identity
    assert not reload(files)
    made.cert.touch()
    assert not reload(files)
    assert files.identity is before


def test_a_new_key_pair_is_loaded_and_subscribers_are_notified(made: Certificates, authority: Authority) -> None:
    files = TlsReloader(settings_of(made))
    reported: list[bytes] = []

    async def changed() -> None:
        reported.append(files.identity.cert)

    files.subscribe(changed)
    cert, key = authority.sign("server")
    made.cert.write_bytes(cert)
    made.key.write_bytes(key)
    context = files.context
    assert reload(files)
    assert files.context is not context, "a handshake that is under way goes on with the old one"
    assert reported == [cert]


def test_a_certificate_whose_key_has_not_come_yet_waits_for_it(
    made: Certificates, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files = TlsReloader(settings_of(made))
    before = files.identity
    cert, key = authority.sign("server")
    made.cert.write_bytes(cert)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert not reload(files)
    assert files.identity is before
    assert [record.message for record in caplog.records] == [
        (
            f"certificate reload refused: tls_key_file: {made.key} is not the key of the certificate in {made.cert}, or has a "
            "password (KEY_VALUES_MISMATCH); the earlier one stays in use"
        )
    ], "reported once"
    assert files.refused_count == 3
    made.key.write_bytes(key)
    assert reload(files)
    assert files.identity.cert == cert


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cert", "key", "ca"])
@pytest.mark.parametrize("harm", ["half", "empty", "gone", "garbage", "directory"])
def test_a_file_that_is_not_whole_is_refused_and_the_old_one_goes_on(made: Certificates, name: str, harm: str) -> None:
    files = TlsReloader(settings_of(made))
    before = files.identity
    path: Path = getattr(made, name)
    whole = path.read_bytes()
    path.unlink()
    if harm == "directory":
        path.mkdir()
    elif harm != "gone":
        path.write_bytes({"half": whole[: len(whole) // 2], "empty": b"", "garbage": b"-----BEGIN CERTIFICATE-----\nx\n"}[harm])
    assert not reload(files)
    assert files.identity is before
    with pytest.raises(InvalidArgument, match=str(path)):
        TlsReloader(settings_of(made))
    if harm == "directory":
        path.rmdir()
    path.write_bytes(whole)
    assert not reload(files), "what was there before is nothing new"


def test_a_bundle_whose_last_authority_is_cut_off_is_refused(made: Certificates) -> None:
    files = TlsReloader(settings_of(made))
    other = Authority().pem
    made.ca.write_bytes(made.ca.read_bytes() + other[:-40])
    assert not reload(files)
    made.ca.write_bytes(made.ca.read_bytes() + other[-40:])
    assert reload(files)


def test_a_key_with_a_password_is_refused_without_a_prompt(made: Certificates) -> None:
    key = serialization.load_pem_private_key(made.key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    made.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    with pytest.raises(InvalidArgument, match="has a password"):
        TlsReloader(settings_of(made))


def test_the_end_is_that_of_the_first_certificate_to_end(made: Certificates, authority: Authority) -> None:
    longer = TlsReloader(settings_of(made)).not_after_s
    cert, key = authority.sign("server", ended=True)
    made.key.write_bytes(key)
    made.cert.write_bytes(cert + authority.pem)
    assert TlsReloader(settings_of(made)).not_after_s < longer


def test_nothing_that_is_shown_holds_the_key(made: Certificates) -> None:
    files = TlsReloader(settings_of(made))
    secret = made.key.read_text().splitlines()[1]
    assert secret not in repr(files.identity)
    assert secret not in repr(files)


def test_authorities_may_have_comments_in_any_language(made: Certificates) -> None:
    made.ca.write_bytes("# Főtanúsítvány\n".encode() + made.ca.read_bytes())
    files = TlsReloader(settings_of(made))
    assert len(files.context.get_ca_certs()) == 1


def test_a_world_readable_key_is_logged(made: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    made.key.chmod(0o640)
    TlsReloader(settings_of(made))
    assert not caplog.records
    made.key.chmod(0o644)
    TlsReloader(settings_of(made))
    assert [str(made.key) in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("found_by_openssl", [True, False])
def test_without_an_authority_brokers_check_each_other_by_those_of_the_system(
    made: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found_by_openssl: bool
) -> None:
    bundle = tmp_path / "bundle.crt"
    bundle.write_bytes(b"the system's")
    if found_by_openssl:
        monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    else:
        monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: mock.Mock(cafile=None))
        monkeypatch.setattr(credentials, "BUNDLES", (str(tmp_path / "elsewhere"), str(bundle)))
    given: dict[str, bytes] = {}
    monkeypatch.setattr(grpc, "ssl_channel_credentials", lambda **files: given.update(files))
    TlsReloader(TlsSettings(tls_cert_file=made.cert, tls_key_file=made.key)).channel_credentials()
    assert given["root_certificates"] == b"the system's"


def test_a_certificate_that_the_other_brokers_would_refuse_is_refused_at_the_start(made: Certificates) -> None:
    """Each of them asks its clients for one, other brokers among them."""
    made.ca.write_bytes(Authority("another").pem)
    with pytest.raises(
        InvalidArgument, match=f"would refuse {made.cert} by the authorities in {made.ca}: unable to get"
    ) as refused:
        TlsReloader(settings_of(made), has_peers=True)
    assert "Brokers are clients of each other" in refused.value.hint
    TlsReloader(settings_of(made))  # where there are no others, clients may have an authority of their own
    TlsReloader(settings_of(made, "optional"), has_peers=True)


def test_a_certificate_for_servers_alone_is_none_that_other_brokers_take(made: Certificates, authority: Authority) -> None:
    files = TlsReloader(settings_of(made), has_peers=True)
    before = files.identity
    cert, key = authority.sign("server", for_clients=False)
    made.cert.write_bytes(cert)
    made.key.write_bytes(key)
    assert not reload(files)
    assert files.identity is before
    with pytest.raises(InvalidArgument, match=r"unsuitable certificate purpose|unsupported certificate purpose"):
        TlsReloader(settings_of(made), has_peers=True)


@pytest.mark.parametrize("curve", [ec.SECP256K1, ec.SECP224R1, ec.BrainpoolP256R1])
def test_a_key_of_a_kind_that_makes_no_handshake_is_refused_with_the_reason(
    made: Certificates, authority: Authority, caplog: pytest.LogCaptureFixture, curve: type[ec.EllipticCurve]
) -> None:
    files = TlsReloader(settings_of(made), has_peers=True)
    before = files.identity
    cert, key = authority.sign("server", curve=curve)
    made.cert.write_bytes(cert)
    made.key.write_bytes(key)
    assert not reload(files)
    assert files.identity is before
    assert files.refused_count == 1
    assert "no handshake can be made with its key, where RSA or P-256 would do" in caplog.text
    with pytest.raises(InvalidArgument, match=f"would refuse {made.cert} by the authorities in .*: no handshake"):
        TlsReloader(settings_of(made), has_peers=True)
    cert, key = authority.sign("server")
    made.cert.write_bytes(cert)
    made.key.write_bytes(key)
    assert reload(files)


def test_whatever_new_files_do_to_those_who_read_them_the_old_ones_go_on(
    made: Certificates, authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = TlsReloader(settings_of(made))
    before = files.identity
    cert, key = authority.sign("server")
    made.cert.write_bytes(cert)
    made.key.write_bytes(key)

    def failing(*_: object, **__: object) -> None:
        raise MemoryError("too many")

    with monkeypatch.context() as patch:
        patch.setattr("gateway.net.tls.identity.read_identity", failing)
        for _ in range(2):
            assert not reload(files)
    assert files.identity is before
    assert files.refused_count == 2
    assert [record.message for record in caplog.records] == [
        "certificate reload refused: it can't be read: MemoryError: too many; the earlier one stays in use"
    ], "reported once"
    assert caplog.records[0].exc_info is not None
    assert reload(files)


@pytest.mark.parametrize("gone", ["cert", "key"])
def test_a_missing_file_is_reported_as_missing_and_not_as_a_wrong_key(made: Certificates, gone: str) -> None:
    getattr(made, gone).unlink()
    with pytest.raises(InvalidArgument, match="No such file or directory") as refused:
        load_key_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), made.cert, made.key, setting="key_file")
    assert "is not the key" not in refused.value.message
    assert str(getattr(made, gone)) in refused.value.message


def test_a_certificate_that_has_ended_keeps_no_broker_from_starting(made: Certificates, authority: Authority) -> None:
    """Clients and the alert report that; an operator who replaces it needs a running broker."""
    cert, key = authority.sign("server", ended=True)
    made.cert.write_bytes(cert)
    made.key.write_bytes(key)
    assert TlsReloader(settings_of(made), has_peers=True).identity.cert == cert
