"""Compiles the kernels ahead of time where a C compiler is found; without one the same files run as Python.

Everything else about the distribution stands in pyproject.toml.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNELS = [
    Extension(
        f"segments.records.{name}",
        [f"segments/records/{name}.py"],
        extra_compile_args=["-O3"],
        optional=True,  # no compiler: slower, not broken; `tidelog doctor` says which one runs
    )
    for name in ("batch_kernel", "checksum_kernel", "key_hash_kernel")
] + [
    Extension(
        f"gateway.kafka.protocol.{name}",
        [f"gateway/kafka/protocol/{name}.py"],
        extra_compile_args=["-Os", "-g0"],  # as fast here as -O3, in half the time of compiling
        optional=True,
    )
    for name in ("primitives", "hot_messages")
]

setup(ext_modules=cythonize(KERNELS, language_level=3, build_dir="build"))
