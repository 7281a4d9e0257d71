"""What decides in the cluster: etcd, the API server, controllers, scheduler, names and Services; all at one address."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from tests.kit.certificates import Authority
from tests.kit.etcd_server import WHEEL
from tests.real_cluster.processes import Processes

ADDRESS = "10.250.0.10"
SERVICES, FIRST_SERVICE = "10.96.0.0/16", "10.96.0.1"
PODS = "10.244.0.0/16"
API = f"https://{ADDRESS}:6443"
# Name and group, by the name of the file that lets them in.
USERS = {
    "admin": ("admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
}
NAMES_FILE = """.:53 {{
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
        ttl 5
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class ControlPlane:
    directory: Path
    programs: Path
    processes: Processes

    def kubeconfig(self, user: str) -> Path:
        return self.directory / f"{user}.kubeconfig"

    def prepare(self, nodes: list[str]) -> None:
        """Certificates, and who may come in."""
        authority = Authority("cluster")
        cert, key = authority.sign("kube-apiserver", hosts=(ADDRESS, FIRST_SERVICE, "kubernetes.default.svc"))
        signing, signing_key = authority.sign("service-accounts")
        for name, content in (
            ("ca.pem", authority.pem),
            ("api.pem", cert),
            ("api-key.pem", key),
            ("accounts.pem", signing),
            ("accounts-key.pem", signing_key),
        ):
            (self.directory / name).write_bytes(content)
        users = USERS | {node: (f"system:node:{node}", "system:nodes") for node in nodes}
        rows = []
        for name, (user, group) in users.items():
            token = secrets.token_hex(16)
            rows.append(f'{token},{user},{name},"{group}"' if group else f"{token},{user},{name}")
            self.kubeconfig(name).write_text(json.dumps(self._config(token)), encoding="utf-8")
        (self.directory / "tokens.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")

    def _config(self, token: str) -> object:
        cluster = {"server": API, "certificate-authority": str(self.directory / "ca.pem")}
        context = {"cluster": "here", "user": "here"}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "here", "user": {"token": token}}],
            "contexts": [{"name": "here", "context": context}],
            "current-context": "here",
        }

    def start(self) -> None:
        """Each of them tries until it reaches what it needs."""
        here = self.directory
        self.processes.start(
            "etcd",
            [
                WHEEL / "etcd",
                f"--data-dir={here / 'etcd'}",
                "--unsafe-no-fsync",
                "--listen-client-urls=http://127.0.0.1:2379",
                "--advertise-client-urls=http://127.0.0.1:2379",
                "--log-level=error",
            ],
        )
        self.processes.start(
            "kube-apiserver",
            [
                self.programs / "kube-apiserver",
                "--etcd-servers=http://127.0.0.1:2379",
                f"--bind-address={ADDRESS}",
                f"--advertise-address={ADDRESS}",
                "--secure-port=6443",
                f"--service-cluster-ip-range={SERVICES}",
                f"--tls-cert-file={here / 'api.pem'}",
                f"--tls-private-key-file={here / 'api-key.pem'}",
                f"--token-auth-file={here / 'tokens.csv'}",
                "--authorization-mode=Node,RBAC",
                "--kubelet-preferred-address-types=InternalIP",
                "--enable-admission-plugins=NodeRestriction",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={here / 'accounts.pem'}",
                f"--service-account-signing-key-file={here / 'accounts-key.pem'}",
                "--feature-gates=PodTopologyLabelsAdmission=true",
            ],
        )
        self.processes.start(
            "kube-controller-manager",
            [
                self.programs / "kube-controller-manager",
                f"--kubeconfig={self.kubeconfig('controllers')}",
                "--bind-address=127.0.0.1",
                "--leader-elect=false",
                "--use-service-account-credentials",
                f"--service-account-private-key-file={here / 'accounts-key.pem'}",
                f"--root-ca-file={here / 'ca.pem'}",
            ],
        )
        self.processes.start(
            "kube-scheduler",
            [
                self.programs / "kube-scheduler",
                f"--kubeconfig={self.kubeconfig('scheduler')}",
                "--bind-address=127.0.0.1",
                "--leader-elect=false",
            ],
        )
        (here / "Corefile").write_text(NAMES_FILE.format(kubeconfig=self.kubeconfig("admin")), encoding="utf-8")
        self.processes.start("coredns", [self.programs / "coredns", "-conf", here / "Corefile"])
        self.processes.start(
            "kube-proxy",
            [
                self.programs / "kube-proxy",
                f"--kubeconfig={self.kubeconfig('proxy')}",
                "--proxy-mode=iptables",
                f"--cluster-cidr={PODS}",
                "--hostname-override=node-0",
                "--conntrack-max-per-core=0",  # of the whole machine
                "--conntrack-tcp-timeout-established=0",
                "--conntrack-tcp-timeout-close-wait=0",
            ],
        )
