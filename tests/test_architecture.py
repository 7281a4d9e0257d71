"""The shape of the source tree: pure modules, mentions of files, import circles, sizes of folders."""

from __future__ import annotations

import ast
import functools
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("gateway", "metadata", "segments", "compaction", "spark", "pyspark_tidelog", "tidelog")
FOLDERS = (*PRODUCT, "tests", "bench", "docs", "deploy")
# A pure module decides: its caller brings the time, the randomness and the I/O.
IMPURE = frozenset({"asyncio", "grpc", "aiobotocore", "boto3", "botocore", "socket", "sqlite3", "threading", "time", "random"})
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
# About as many names as one reads at a glance.
MODULES_MAX = 18
GATEWAY_ENTRIES_MAX = 24
MENTION = re.compile(r"(?<![\w./\-*{}<>$])((?:\.\./|\./)*(?:[\w\-]+/)*[\w\-]+\.py)\b(?![*\w]|\.\w)")
# Examples in prose that stand for a user's own file, and files of other projects.
NO_FILES_OF_OURS = frozenset({"test_fails.py", "stand_in.py", "job.py", "uvicorn/protocols/http/httptools_impl.py"})


@functools.cache
def files() -> tuple[str, ...]:
    """Paths of the sources, from the top of the repository."""
    loose = [path.name for path in ROOT.iterdir() if path.is_file()]
    below = [
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".so", ".c"}
    ]
    return tuple(sorted(loose + below))


@functools.cache
def parsed(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def product_modules() -> Iterator[str]:
    for path in files():
        if path.endswith(".py") and path.split("/")[0] in PRODUCT and not GENERATED.search(path):
            yield path


def imports(path: str) -> Iterator[tuple[str, str]]:
    """Module and name of each import of the module itself, wherever it stands in the file."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ""
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.module, alias.name


def is_pure(path: str) -> bool:
    """Whether the module's docstring says so, at the end of a sentence: `Pure.`, `Pure: the caller brings the time.`"""
    return re.search(r"(?<![\w(])Pure(?:[.:;]|, (?!but))", ast.get_docstring(parsed(path)) or "") is not None


def test_pure_modules_import_no_clock_no_randomness_and_no_io() -> None:
    found = [
        f"{path} imports {module}"
        for path in product_modules()
        if is_pure(path)
        for module in sorted({module.split(".")[0] for module, _ in imports(path)} & IMPURE)
    ]
    assert found == []


def prose(path: str) -> Iterator[str]:
    """Docstrings and comments of a module that mentions a Python file; the whole text of anything else."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if not path.endswith(".py"):
        yield text
        return
    if not MENTION.search(text):  # parsing takes milliseconds
        return
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    if any("#" in line and MENTION.search(line) for line in text.splitlines()):
        for token in tokenize.generate_tokens(StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.string


def is_there(mention: str, source: str, endings: Mapping[str, list[str]]) -> bool:
    beside = PurePosixPath(source).parent / mention
    if (ROOT / mention).is_file() or (ROOT / beside).is_file():
        return True
    if mention.startswith("."):
        return False
    return any(path == mention or path.endswith("/" + mention) for path in endings[PurePosixPath(mention).name])


def test_every_python_file_that_is_mentioned_exists() -> None:
    endings: dict[str, list[str]] = defaultdict(list)
    for path in files():
        endings[PurePosixPath(path).name].append(path)
    missing = {
        f"{path}: {mention}"
        for path in files()
        if path.endswith((".py", ".md", ".toml", "Makefile", "Dockerfile"))
        and not GENERATED.search(path)
        and path != "CHANGELOG.md"
        for text in prose(path)
        for mention in MENTION.findall(text)
        if mention not in NO_FILES_OF_OURS and not is_there(mention, path, endings)
    }
    assert sorted(missing) == []


def import_graph() -> dict[str, set[str]]:
    """Imports between modules of the product at the top level of a file, those for type checkers included."""
    names = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in product_modules()}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for name, path in names.items():
        for node in top_level(parsed(path).body):
            if isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names} & names.keys()
            elif node.module is not None:
                within = {f"{node.module}.{alias.name}" for alias in node.names} & names.keys()
                graph[name] |= within
                if len(within) < len(node.names) and node.module in names:
                    graph[name].add(node.module)
        graph[name].discard(name)
    return graph


def top_level(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for statement in body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield statement
        elif isinstance(statement, (ast.If, ast.Try)):
            yield from top_level([*statement.body, *statement.orelse])


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(import_graph()) == []


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other: strongly connected components, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in order:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], order[other])
        if lowest[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return found


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


@pytest.mark.parametrize("top", PRODUCT)
def test_no_folder_holds_more_modules_than_one_looks_through(top: str) -> None:
    held = Counter(
        str(PurePosixPath(path).parent)
        for path in product_modules()
        if path.split("/")[0] == top and not path.endswith("__init__.py")
    )
    assert {folder: count for folder, count in held.items() if count > MODULES_MAX} == {}


def test_the_gateway_shows_few_entries() -> None:
    entries = {path.split("/")[1] for path in files() if path.startswith("gateway/")}
    assert len(entries) <= GATEWAY_ENTRIES_MAX, sorted(entries)


def test_every_package_has_a_front_page() -> None:
    bare = [path for path in product_modules() if path.endswith("__init__.py") and not ast.get_docstring(parsed(path))]
    assert bare == []
