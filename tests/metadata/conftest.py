"""The fixtures that all tests of the metadata use."""

from tests.kit.etcd_server import end_shared_etcd

__all__ = ["end_shared_etcd"]
