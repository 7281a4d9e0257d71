"""What the chart says of how a broker is replaced: the commands and times of its Deployment, as Helm renders it.

next broker starts ─▶ its readiness, and minReadySeconds ─▶ preStop of an old one, beside its deletion ─▶ SIGTERM ─▶ its end
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from tidelog.testing.broker_process import BrokerProcess, surroundings

CHART = Path(__file__).parent.parent / "deploy" / "helm"
LEAST = {"bucket": "s3://bucket", "etcd": {"endpoints": ["http://etcd:2379"]}}


@dataclass(frozen=True, slots=True)
class Roll:
    # The command, in the broker's surroundings.
    pre_stop: tuple[str, ...]
    min_ready_s: float
    grace_s: float

    def run_pre_stop(self, broker: BrokerProcess, broker_id: str) -> None:
        """Raises where it fails, or takes longer than the grace."""
        own = {"TIDELOG_BROKER_ID": broker_id, "TIDELOG_URL": broker.http_url}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        surrounding = {**surroundings(), **own, "PATH": path}
        subprocess.run(self.pre_stop, env=surrounding, check=True, timeout=self.grace_s, capture_output=True)


def roll_of_the_chart() -> Roll:
    import helm_python as helm  # a library of 250 MB, which the other benchmarks need not load

    with helm.Chart.load(CHART) as chart:
        manifests = chart.render(LEAST, name="bench")
    deployment = yaml.safe_load(manifests["tidelog/templates/broker-workload.yaml"])["spec"]
    pod = deployment["template"]["spec"]
    (broker,) = pod["containers"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}, "one after the other, the new one first"
    return Roll(
        tuple(broker["lifecycle"]["preStop"]["exec"]["command"]),
        float(deployment["minReadySeconds"]),
        float(pod["terminationGracePeriodSeconds"]),
    )
