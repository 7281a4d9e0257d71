"""Compiles the kernels ahead of time where a C compiler is found; without one the same files run as Python.

Everything else about the distribution stands in pyproject.toml.
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

# The code behind typed memoryviews. Cython repeats it in each module without a shared one, and the C compiler spends most of its
# time on it. The modules import this one.
MEMORYVIEWS = "segments.records._memoryviews"
# The fastest code that the C compiler makes of each in the least time: only the record loops gain from -O3.
OPTIMIZATIONS = {
    MEMORYVIEWS: "-O1",
    "segments.records.batch_kernel": "-O3",
    "segments.records.checksum_kernel": "-O2",
    "segments.records.key_hash_kernel": "-O2",
    "gateway.kafka.protocol.primitives": "-Os",
    "gateway.kafka.protocol.hot_messages": "-Os",
}


def kernel(name: str) -> Extension:
    path = name.replace(".", "/") + (".c" if name == MEMORYVIEWS else ".py")
    # Without a C compiler a kernel runs as Python: slower, not broken. `tidelog doctor` says which form runs.
    return Extension(name, [path], extra_compile_args=[OPTIMIZATIONS[name], "-g0"], optional=True)


setup(
    ext_modules=cythonize(
        [kernel(name) for name in OPTIMIZATIONS], language_level=3, build_dir="build", shared_utility_qualified_name=MEMORYVIEWS
    ),
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
)
