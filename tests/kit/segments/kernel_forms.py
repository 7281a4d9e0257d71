"""The kernels in their two forms: compiled, and as the Python that it is where no C compiler was found.

A test module that imports the fixture `kernel_form` runs as a whole under each.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from segments.records import batch as records_batch
from segments.records import batch_kernel, checksum, checksum_kernel, json_values, partitioner
from segments.records import columns as records_columns

SOURCE = Path(records_batch.__file__).with_name("batch_kernel.py")
CHECKSUM_SOURCE = SOURCE.with_name("checksum_kernel.py")
_USERS = (records_batch, records_columns, checksum, partitioner, json_values)


def _load_uncompiled(source: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"uncompiled_{source.stem}", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


UNCOMPILED = _load_uncompiled(SOURCE)
UNCOMPILED_CHECKSUMS = _load_uncompiled(CHECKSUM_SOURCE)


_FORMS = [
    pytest.param("compiled", marks=() if batch_kernel.COMPILED else pytest.mark.skip("the kernel is not compiled here")),
    pytest.param("uncompiled", marks=pytest.mark.slow if batch_kernel.COMPILED else ()),
]


@pytest.fixture(scope="module", params=_FORMS, autouse=True)
def kernel_form(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The kernel under test, put in place of the other wherever the log imports it; that of checksums, too."""
    if request.param == "compiled":
        yield batch_kernel
        return
    with pytest.MonkeyPatch.context() as patch:
        for user in _USERS:
            for name, value in list(vars(user).items()):
                for compiled, uncompiled in ((batch_kernel, UNCOMPILED), (checksum_kernel, UNCOMPILED_CHECKSUMS)):
                    if vars(compiled).get(name) is value:
                        patch.setattr(user, name, getattr(uncompiled, name))
        yield UNCOMPILED
