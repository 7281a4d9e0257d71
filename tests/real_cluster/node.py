"""A node: containerd and a kubelet with mounts, cgroups and addresses of pods of their own. Several are on one machine."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.real_cluster.control_plane import ADDRESS, ControlPlane
from tests.real_cluster.images import PAUSE
from tests.real_cluster.namespaces import make_cgroup

# What a kubelet finds below /var/lib/kubelet, whatever its own directory is, is each one's own.
_ALONE = """
mount --make-rshared /
mount -t tmpfs tmpfs /var/lib/kubelet
containerd --config "$1" >> "$2" 2>&1 &
shift 2
exec "$@"
"""
_CONTAINERD = """
version = 2
root = "{directory}/containerd"
state = "{run}/state"
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{directory}/cni"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"
"""


@dataclass(frozen=True, slots=True)
class Node:
    number: int
    # Its own: of images, volumes and logs.
    directory: Path
    control: ControlPlane

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def address(self) -> str:
        return address(self.number)

    @property
    def _run(self) -> Path:
        return Path(f"/run/{self.name}")

    @property
    def socket(self) -> Path:
        return self._run / "containerd.sock"  # paths of sockets are short

    def start(self) -> None:
        self.directory.mkdir(exist_ok=True)
        (self.directory / "cni").mkdir(exist_ok=True)
        self._run.mkdir(exist_ok=True)
        containerd = _CONTAINERD.format(directory=self.directory, run=self._run, socket=self.socket, pause=PAUSE)
        (self.directory / "containerd.toml").write_text(containerd, encoding="utf-8")
        (self.directory / "cni" / "10-pods.conflist").write_text(json.dumps(self._network()), encoding="utf-8")
        (self.directory / "kubelet.json").write_text(json.dumps(self._kubelet()), encoding="utf-8")
        (self.directory / "resolv.conf").write_text("", encoding="utf-8")
        log = self.control.processes.directory / f"{self.name}-containerd.log"
        alone = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", _ALONE, "sh"]
        kubelet: list[str | Path] = [
            self.control.programs / "kubelet",
            f"--kubeconfig={self.control.kubeconfig(self.name)}",
            f"--config={self.directory / 'kubelet.json'}",
            f"--root-dir={self.directory / 'kubelet'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--node-labels=topology.kubernetes.io/zone=zone-{self.number}",
        ]
        self.control.processes.start(f"{self.name}-kubelet", [*alone, self.directory / "containerd.toml", log, *kubelet])

    def _network(self) -> object:
        addresses = {
            "type": "host-local",
            "dataDir": str(self.directory / "addresses"),
            "ranges": [[{"subnet": f"10.244.{self.number}.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        return {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [{"type": "ptp", "ipam": addresses}, {"type": "portmap", "capabilities": {"portMappings": True}}],
        }

    def _kubelet(self) -> object:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "healthzPort": 0,
            # No other process can reach it.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": make_cgroup(self.name),
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self.directory / "resolv.conf"),
            "podLogsDir": str(self.directory / "logs"),
            "evictionHard": {
                "memory.available": "0%",
                "nodefs.available": "0%",
                "nodefs.inodesFree": "0%",
                "imagefs.available": "0%",
            },
            "imageGCHighThresholdPercent": 100,
        }

    def take(self, archives: list[Path]) -> None:
        """Images, as if they had been pulled."""
        self.control.processes.until(self.socket.exists, f"containerd of {self.name}")
        for archive in archives:
            self._ctr("--timeout=0s", "images", "import", str(archive))

    def _ctr(self, *arguments: str) -> None:
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def address(number: int) -> str:
    """The control plane has that of the first node."""
    return f"10.250.0.{10 + number}"
