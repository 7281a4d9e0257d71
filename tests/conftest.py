"""The fixtures that every folder of tests may use."""

from tests.servers import moto, moto_bucket

__all__ = ["moto", "moto_bucket"]
