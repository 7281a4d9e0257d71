"""The column kernel in its two forms: compiled, and as the Python that it is where no C compiler was found.

A test module that imports the fixture `kernel_form` runs as a whole under each.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from segments import batch_kernel, json_values, partitioner, record_batch, record_columns

SOURCE = Path(record_batch.__file__).with_name("batch_kernel.py")
_USERS = (record_batch, record_columns, partitioner, json_values)


def _load_uncompiled() -> ModuleType:
    spec = importlib.util.spec_from_file_location("uncompiled_batch_kernel", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


UNCOMPILED = _load_uncompiled()


_FORMS = [
    pytest.param("compiled", marks=() if batch_kernel.COMPILED else pytest.mark.skip("the kernel is not compiled here")),
    pytest.param("uncompiled", marks=pytest.mark.slow if batch_kernel.COMPILED else ()),
]


@pytest.fixture(scope="module", params=_FORMS, autouse=True)
def kernel_form(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The kernel under test, put in place of the other wherever the log imports it."""
    if request.param == "compiled":
        yield batch_kernel
        return
    with pytest.MonkeyPatch.context() as patch:
        for user in _USERS:
            for name, value in list(vars(user).items()):
                if vars(batch_kernel).get(name) is value:
                    patch.setattr(user, name, getattr(UNCOMPILED, name))
        yield UNCOMPILED
