"""`python -m tests.real_cluster`: Kubernetes itself on this machine, the image by a builder, and the chart as an operator uses it.

    outside, with a network    programs by Go, images by debootstrap and buildah: kept in the user's cache
    inside, without one        two nodes, a bucket and an etcd; then the steps of proof.py, one after the other

It needs Debian, root and Go; what is missing it says in one line. All that it starts ends with it. Exit code 1 where a step fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.real_cluster.missing import lacks
from tests.real_cluster.namespaces import run_alone


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.real_cluster", description="The chart on a real Kubernetes, on this machine."
    )
    parser.add_argument("--shell", action="store_true", help="no proof, but a shell beside the cluster, with kubectl and helm")
    parser.add_argument("--inside", nargs="+", metavar="PATH", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        directory, programs, versity, *archives = chosen.inside
        return _inside(Path(directory), Path(programs), versity, [Path(each) for each in archives], chosen)
    if wanting := lacks(shutil.which, platform=sys.platform, is_root=os.geteuid() == 0):
        print(wanting, file=sys.stderr)
        return 2
    return _outside(sys.argv[1:])


def _outside(arguments: list[str]) -> int:
    from tests.kit.servers import built_versity
    from tests.real_cluster.cluster import ADDRESSES, GATEWAY
    from tests.real_cluster.images import Builder, etcd_image
    from tests.real_cluster.programs import built_programs

    programs, versity = built_programs(), built_versity()
    if versity is None:
        print("there is no S3 server: versitygw can't be built", file=sys.stderr)
        return 2
    images = programs.with_name("images-of-real-cluster")
    images.mkdir(exist_ok=True)
    builder = Builder(images)
    began = time.monotonic()
    archives = [builder.build(), builder.pack_etcd(etcd_image()), builder.pack_pause(programs / "pause.c")]
    print(f"the image was built in {time.monotonic() - began:.0f} s", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="tidelog-real-cluster-"))
    (directory / "logs").mkdir()
    command = [sys.executable, "-m", "tests.real_cluster", *arguments, "--inside"]
    code = run_alone([*command, *map(str, [directory, programs, versity, *archives])], addresses=ADDRESSES, gateway=GATEWAY)
    if code == 0:
        shutil.rmtree(directory)
    else:
        print(f"logs are kept: {directory}", file=sys.stderr)
    return code


def _inside(directory: Path, programs: Path, versity: str, archives: list[Path], chosen: argparse.Namespace) -> int:
    from tests.real_cluster.cluster import Cluster
    from tests.real_cluster.processes import Failed, Processes
    from tests.real_cluster.proof import steps

    processes = Processes(directory / "logs")
    cluster = Cluster(directory, programs, versity, processes)
    try:
        cluster.start(archives)
        if chosen.shell:
            return subprocess.run(["bash"], env=cluster.environment).returncode
        for step in steps():
            began = time.monotonic()
            reported = step(cluster)
            print(f"{step.__name__.replace('_', ' ')} ({time.monotonic() - began:.0f} s){reported and ': '}{reported}", flush=True)
    except Failed as failure:
        print(f"failed: {failure}", file=sys.stderr)
        return 1
    finally:
        processes.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
