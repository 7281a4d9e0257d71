"""What the RUN lines of the Dockerfile make of a clean directory, each of them run, without a daemon. What they install is small,
and runs as a pod of the chart, on a read-only root."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.chart import NAME, render
from tests.deploy.dockerfile import image_stages
from tests.deploy.rendered_pod import RenderedPod, mounts_are_permitted, on_free_ports
from tests.kit.etcd_server import running_etcd
from tests.kit.servers import ROOT, S3Server

pytestmark = [pytest.mark.slow, pytest.mark.image, pytest.mark.timeout(1_500)]
BUILD_TIMEOUT_S = 1_000
# What is installed, without Python itself.
MIB_MAX = 420
FOLDERS = ("/src", "/wheels", "/opt/build", "/opt/tidelog")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which every COPY and every RUN line of the first stage was done, its absolute paths being below it."""
    top = tmp_path_factory.mktemp("image")
    for folder in FOLDERS:
        (top / folder[1:]).parent.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TIDELOG_", "PYTHON", "VIRTUAL_ENV"))}
    environment["PATH"] = f"{Path(sys.base_prefix) / 'bin'}:{os.environ['PATH']}"
    here = Path("/")
    for each in image_stages()[0]:
        if each.name == "COPY":
            *sources, target = each.text.split()
            for source in sources:
                _copy(ROOT / source, top / target[1:] / source if target.endswith("/") else top / target[1:])
        elif each.name == "WORKDIR":
            here = top / each.text[1:]
        elif each.name == "RUN":
            done = subprocess.run(
                ["sh", "-ec", _below(top, each.text)],
                cwd=here,
                env=environment,
                capture_output=True,
                text=True,
                timeout=BUILD_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
            )
            assert done.returncode == 0, f"{each.text}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return top


def _copy(source: Path, target: Path) -> None:
    """As Docker copies, without what deploy/Dockerfile.dockerignore leaves out."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def _below(top: Path, command: str) -> str:
    return re.sub(rf"(?<![\w./])({'|'.join(FOLDERS)})(?=[/\s]|$)", lambda found: f"{top}{found[1]}", command)


def test_the_wheel_holds_the_compiled_kernels(built: Path) -> None:
    (wheel,) = (built / "wheels").iterdir()
    assert "linux" in wheel.name or "macosx" in wheel.name, "of this platform, since it was compiled"
    packages = next((built / "opt/tidelog/lib").iterdir()) / "site-packages"
    kernels = {path.name.partition(".")[0] for path in (packages / "segments" / "records").glob("*.so")}
    assert kernels == {"_memoryviews", "batch_kernel", "checksum_kernel", "key_hash_kernel"}


def test_the_image_is_small_and_holds_nothing_that_only_developers_need(built: Path) -> None:
    packages = next((built / "opt/tidelog/lib").iterdir()) / "site-packages"
    there = {path.name for path in packages.iterdir()}
    assert not there & {
        "pyspark",
        "pytest",
        "moto",
        "mypy",
        "hypothesis",
        "pip",
        "setuptools",
        "helm_python",
        "matplotlib",
        "tests",
    }
    size = sum(path.lstat().st_size for path in (built / "opt/tidelog").rglob("*"))
    assert size < MIB_MAX << 20, f"{size / 2**20:.0f} MiB"
    print(f"{size / 2**20:.0f} MiB are installed")


def test_modules_are_compiled_ahead(built: Path) -> None:
    packages = next((built / "opt/tidelog/lib").iterdir()) / "site-packages"
    for name in ("gateway/broker/broker", "segments/log/session_log", "aiobotocore/client", "pyarrow/parquet/core"):
        path = packages / f"{name}.py"
        assert list((path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")), name


@pytest.mark.parametrize("arguments", [["--version"], ["serve", "--help"], ["compact", "--help"], ["cluster", "drain", "--help"]])
def test_commands_run_with_nothing_in_their_surroundings(built: Path, arguments: list[str]) -> None:
    """No HOME, no writable directory, and none of this checkout's own modules."""
    command = [str(built / "opt/tidelog/bin/tidelog"), *arguments]
    if mounts_are_permitted():
        script = f"mount --bind {built} {built}; mount -o remount,bind,ro {built}; cd {built}; exec env -i {' '.join(command)}"
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", script]
    done = subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=120, cwd=built)
    assert done.returncode == 0, done.stderr
    assert "tidelog" in done.stdout.lower()


def test_a_broker_of_the_image_runs_as_a_pod_of_the_chart(built: Path, moto: S3Server, tmp_path: Path) -> None:
    secrets = {"s3-keys": {"access-key-id": moto.access_key, "secret-access-key": moto.secret_key}}
    with running_etcd(tmp_path) as etcd:
        values = {
            "bucket": f"s3://{moto.make_bucket()}/image",
            "etcd": {"endpoints": [etcd.url]},
            "s3": {"endpoint": moto.endpoint_url, "region": "us-east-1", "existingSecret": "s3-keys"},
            **on_free_ports(),
        }
        made = render(values)
        with RenderedPod(made, NAME, tmp_path, name="logs-0", secrets=secrets, programs=built / "opt/tidelog") as pod:
            pod.start()
            pod.await_ready()
            script = "tidelog topic create greetings && echo hello | tidelog produce greetings && tidelog consume greetings -o raw"
            done = pod.run(["sh", "-ec", script], timeout_s=120)
            assert done.stdout.splitlines()[-1] == "hello", done.stderr
            assert pod.stop() == 0
