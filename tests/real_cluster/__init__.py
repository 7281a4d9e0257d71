"""The image, and the chart on a Kubernetes of this machine: built, installed, upgraded and broken as an operator does it.

- `namespaces.py`: a machine within the machine: its own processes, mounts and network
- `programs.py`, `programs/main.go`: Kubernetes as one program, built once into the user's cache: 8 minutes of a core
- `images.py`: images, and substitutes for those of registries
- `control_plane.py`, `node.py`: the control plane, and two nodes with their own mounts and cgroups
- `proof.py`: the steps, and what must hold after each
- `load.py`, `pod_watch.py`: producers and a reader, judged as in chaos; exit states of containers

Not shown: enforced NetworkPolicies, a load balancer, an ingress controller, IAM roles, autoscaling (no metrics server), cgroups
v2 (tried with v1 alone).
"""
