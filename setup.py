"""Compiles the column kernel ahead of time where a C compiler is found; without one the same file runs as Python.

Everything else about the distribution stands in pyproject.toml.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNEL = Extension(
    "segments.batch_kernel",
    ["segments/batch_kernel.py"],
    extra_compile_args=["-O3"],
    optional=True,  # no compiler: slower, not broken; `tidelog doctor` says which one runs
)

setup(ext_modules=cythonize([KERNEL], language_level=3, build_dir="build"))
