"""A broker that asks for credentials, for the tests that need a principal, beside the brokers that serve everybody.

    client ──TLS, SASL or a certificate────────────────▶ tls     ┐
    client ──SASL──────▶ sidecar ──TLS─────────────────▶ sasl    │  listeners of one broker, which has a certificate
    client ──nothing───▶ sidecar ──TLS, as `admin`─────▶ admin   │  and `authentication`
    client ──nothing───▶ sidecar ──TLS, as `client`────▶ client  ┘

`admin` may do everything. `client` may do what ACLs allow: everything, until a test denies it something. `client` is also a SCRAM
user, and `admin` has an API key. Each listener is advertised at the address that its clients use.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its __init__ re-exports them without saying so
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from tests.kafka_suites.reference_broker import reference_broker
from tests.kafka_suites.sidecar import Route, sidecars
from tests.kafka_suites.target import Skipped, Target
from tests.kafka_suites.tidelog_cluster import start_tidelog
from tests.kit.certificates import Authority
from tests.kit.servers import free_port

ADMIN, CLIENT = "admin", "client"
PASSWORD = "a-password-of-the-suites"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
SCRAM_ITERATIONS = 4096
PATIENCE_S = 30.0
# Which certificate the sidecar of a listener shows. The listener `tls` has none: its clients speak TLS.
SHOWN = {"sasl": None, "admin": ADMIN, "client": CLIENT}
LISTENERS = ("tls", *SHOWN)
# A client authenticates again this often; librdkafka's test of it waits for as long a few times.
SESSION_MS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Secured:
    # HOST:PORT of each listener, by the names of `LISTENERS`.
    addresses: dict[str, str]
    certificates: Path
    # Of `admin`, for PLAIN.
    api_key: str

    @property
    def ca_file(self) -> Path:
        return self.certificates / "ca.pem"

    def login(self, mechanism: str = MECHANISMS[0]) -> dict[str, str]:
        """Settings of librdkafka for the listener `sasl`: PLAIN is `admin`, SCRAM is `client`."""
        user, password = (ADMIN, self.api_key) if mechanism == "PLAIN" else (CLIENT, PASSWORD)
        return {
            "bootstrap.servers": self.addresses["sasl"],
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def read_error(self, topic: str) -> str | None:
        """Returns the name of the error that `client` gets when it reads an empty topic, or None."""
        settings = {**self.login(), "group.id": f"reader-{topic}", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
        consumer = Consumer(settings)
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            message = consumer.poll(PATIENCE_S)
        finally:
            consumer.close()
        error = None if message is None else message.error()
        if error is None:
            raise AssertionError(f"neither the end of {topic} nor an error within {PATIENCE_S:g} s")
        return None if error.code() == KafkaError._PARTITION_EOF else error.name()


@contextmanager
def secured_broker(target: Target, *, permit: bool = True) -> Iterator[Secured]:
    """Starts the broker for a block of tests: Apache Kafka or Tidelog, as the target is. Raises Skipped with `--bootstrap`.

    `permit`: allow `client` everything. Without it the broker has no ACLs, and only `admin` may do anything.
    """
    if not target.startable:
        raise Skipped("the runner starts the broker with credentials; it does not with --bootstrap")
    directory = target.directory / ("secured" if permit else "without-acls")
    directory.mkdir()
    certificates = _certificates(directory / "certificates")
    api_key = f"tlk_{secrets.token_hex(8)}_{secrets.token_hex(32)}"
    with (_kafka if target.on_kafka else _tidelog)(directory, certificates, api_key) as addresses:
        secured = Secured(addresses, certificates, api_key)
        # Apache Kafka allows everything where it has no ACLs; with the first one it would shut its own brokers out.
        _prepare_client(secured, permit=permit and not target.on_kafka)
        yield secured


@contextmanager
def _tidelog(directory: Path, certificates: Path, api_key: str) -> Iterator[dict[str, str]]:
    key_file = directory / "admin-key"
    key_file.touch(mode=0o600)
    key_file.write_text(api_key, encoding="ascii")
    inner = {name: free_port() for name in LISTENERS}
    outer = {name: free_port() if name in SHOWN else port for name, port in inner.items()}
    settings = {
        "kafka": ",".join(f"{name}=127.0.0.1:{port}" for name, port in inner.items()),
        "advertise-kafka": ",".join(f"{name}=127.0.0.1:{port}" for name, port in outer.items()),
        "authentication": "true",
        "admin-key-file": str(key_file),
        "admin-principals": ADMIN,
        "audit-log": "off",
        "kafka-session-ms-max": str(SESSION_MS_MAX),
        "tls-cert-file": str(certificates / "server.pem"),
        "tls-key-file": str(certificates / "server-key.pem"),
        "tls-client-ca-file": str(certificates / "ca.pem"),
        "tls-client-auth": "optional",
    }
    routes = [Route(outer[name], inner[name], _context(certificates, shown)) for name, shown in SHOWN.items()]
    with start_tidelog(directory, brokers=1, settings=settings), sidecars(routes):
        yield {name: f"127.0.0.1:{port}" for name, port in outer.items()}


@contextmanager
def _kafka(directory: Path, certificates: Path, api_key: str) -> Iterator[dict[str, str]]:
    """Apache Kafka lets clients without credentials in and still checks ACLs, so it needs no sidecars."""
    ports = {"SSL": free_port(), "SASL_PLAINTEXT": free_port()}
    keystore = certificates / "keystore.pem"
    keystore.write_bytes((certificates / "server-key.pem").read_bytes() + (certificates / "server.pem").read_bytes())
    modules = {"plain": f'plain.PlainLoginModule required user_{ADMIN}="{api_key}"'}
    modules |= {mechanism.lower(): "scram.ScramLoginModule required" for mechanism in MECHANISMS}
    properties = {
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *MECHANISMS)),
        "connections.max.reauth.ms": str(SESSION_MS_MAX),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates / "ca.pem"),
        "ssl.client.auth": "required",
        **{
            f"listener.name.sasl_plaintext.{mechanism}.sasl.jaas.config": f"org.apache.kafka.common.security.{module};"
            for mechanism, module in modules.items()
        },
    }
    with reference_broker(directory, properties, listeners=ports) as broker:
        plain = broker.bootstrap
        yield {
            "tls": f"127.0.0.1:{ports['SSL']}",
            "sasl": f"127.0.0.1:{ports['SASL_PLAINTEXT']}",
            "admin": plain,
            "client": plain,
        }


def _certificates(folder: Path) -> Path:
    """Makes `ca.pem`, and for the server and each principal `NAME.pem` and `NAME-key.pem`. Returns their folder."""
    folder.mkdir()
    authority = Authority()
    (folder / "ca.pem").write_bytes(authority.pem)
    for name in ("server", ADMIN, CLIENT):
        certificate, key = authority.sign(name)
        (folder / f"{name}.pem").write_bytes(certificate)
        (folder / f"{name}-key.pem").touch(mode=0o600)
        (folder / f"{name}-key.pem").write_bytes(key)
    return folder


def _context(certificates: Path, principal: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    if principal is not None:
        context.load_cert_chain(certificates / f"{principal}.pem", certificates / f"{principal}-key.pem")
    return context


def _prepare_client(secured: Secured, *, permit: bool) -> None:
    """Makes the SCRAM user; `permit`: allows it everything by ACLs."""
    admin = AdminClient({"bootstrap.servers": secured.addresses["admin"]})
    rules = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{CLIENT}", "*", AclOperation.ALL, AclPermissionType.ALLOW)
        for kind, name in ((ResourceType.TOPIC, "*"), (ResourceType.GROUP, "*"), (ResourceType.BROKER, "kafka-cluster"))
    ]
    credentials: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(
            CLIENT, ScramCredentialInfo(getattr(ScramMechanism, mechanism.replace("-", "_")), SCRAM_ITERATIONS), PASSWORD.encode()
        )
        for mechanism in MECHANISMS
    ]
    asked = list(admin.create_acls(rules).values()) if permit else []
    # One request each: Apache Kafka refuses two credentials of one user in one request.
    for each in credentials:
        asked += admin.alter_user_scram_credentials([each]).values()
    for answer in asked:
        answer.result(PATIENCE_S)
