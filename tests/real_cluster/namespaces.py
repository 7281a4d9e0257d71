"""A machine within the machine: a command runs as if it were alone, and all that it starts ends with it.

Processes, mounts and the network are of namespaces of their own, so iptables chains, veths and mounts need no removal: they end
with the last process. What is not in a namespace are cgroups, below one of a name of ours, which are removed by hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CGROUP = "tidelog-real-cluster"
CGROUPS = Path("/sys/fs/cgroup")
# Settings of the kernel that it finds in place of the machine's own.
AS_THE_KUBELET_WANTS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
_BEGIN = """
set -e
mount --make-rshared /                                       # ours alone by now: kubelet and containerd have to see the same
for each in /run /var/log /var/lib/kubelet /var/lib/cni; do mkdir -p $each; mount -t tmpfs tmpfs $each; done
mount -t tmpfs -o mode=1777 tmpfs /var/tmp
for each in {as_the_kubelet_wants}; do                       # else it would set them, for the whole machine
    found=/run/$(basename "${{each%=*}}")
    echo "${{each#*=}}" > "$found"
    mount --bind "$found" "/proc/sys/${{each%=*}}"
done
ip link set lo up
ip link add node type veth peer name beyond                  # nothing lies beyond: a network without a way out
ip link set beyond up
ip link set node up
for each in {addresses}; do ip address add $each/24 dev node; done
ip route add default via {gateway}
echo 1 > /proc/sys/net/ipv4/ip_forward
set +e
exec 3<&0                                                    # else what runs in the background has no input: --shell
"$@" <&3 &
wait $!                                                      # not exec: as the first process it takes in orphans
"""


def run_alone(command: Sequence[str], *, addresses: Sequence[str], gateway: str) -> int:
    """The command's exit code. It has the addresses, and can reach nothing else."""
    settings = " ".join(f"{name}={value}" for name, value in AS_THE_KUBELET_WANTS.items())
    script = _BEGIN.format(addresses=" ".join(addresses), gateway=gateway, as_the_kubelet_wants=settings)
    unshared = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        "--mount",
        "--net",
        "--pid",
        "--ipc",
        "--uts",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    try:
        return subprocess.run([*unshared, "bash", "-c", script, "bash", *command]).returncode
    finally:
        remove_cgroups()


def hierarchies() -> list[Path]:
    """Where cgroups are made: one place with cgroups v2, with v1 one for each controller."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return sorted(each for each in CGROUPS.iterdir() if each.is_dir() and not each.is_symlink() and each.name != "unified")


def make_cgroup(name: str) -> str:
    """The name of a new cgroup below ours, in each hierarchy."""
    for each in hierarchies():
        made = each / CGROUP / name
        made.mkdir(parents=True, exist_ok=True)
        for parent in (each, each / CGROUP):
            control = parent / "cgroup.subtree_control"
            if control.exists():
                control.write_text(" ".join(f"+{one}" for one in (parent / "cgroup.controllers").read_text().split()))
        for setting in ("cpuset.cpus", "cpuset.mems"):  # v1 leaves these empty
            if (each / setting).exists() and not (each / "cgroup.controllers").exists():
                for inner in (each / CGROUP, made):
                    (inner / setting).write_text((each / setting).read_text())
    return f"/{CGROUP}/{name}"


def remove_cgroups() -> None:
    """Those that are left, from the innermost: their processes have ended."""
    for each in [*hierarchies(), CGROUPS / "unified"]:  # where v1 and v2 are both there, runc makes them in both
        for directory, _, _ in os.walk(each / CGROUP, topdown=False):
            try:
                os.rmdir(directory)
            except OSError as error:
                print(f"{directory} is left: {error}", file=sys.stderr)
