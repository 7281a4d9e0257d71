"""The prose of the product's code: public classes say their role, and docstrings, comments and messages are plain sentences."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from io import StringIO
from itertools import pairwise

import pytest

from tests.test_architecture import ROOT, parsed, product_modules

# Paths that do not keep these rules yet. The list only shrinks: remove an entry when its code is rewritten.
NOT_YET = (
    "gateway/http/",
    "gateway/kafka/",
)
BANNED = re.compile(r"\b(?:told|anew|whoever|nobody|for ever|of before|by then|reckon\w*|so long|doors?)\b", re.IGNORECASE)
FRAGMENT = re.compile(r"(?:Of|As|What|Where|The same|That|So|Who|Whether)\b")
SENTENCE = re.compile(r"[A-Z].*?\.(?:\s|$)", re.DOTALL)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def modules() -> Iterator[str]:
    return (path for path in product_modules() if not path.startswith(NOT_YET))


def docstrings(tree: ast.Module) -> Iterator[tuple[str, str | None]]:
    """Names with docstrings of the module, its classes and its functions; None without one."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            yield getattr(node, "name", "the module"), ast.get_docstring(node)


def undocumented(tree: ast.Module) -> list[str]:
    """Public classes without a docstring whose first paragraph begins with a complete sentence."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        if not SENTENCE.match((ast.get_docstring(node) or "").partition("\n\n")[0])
    ]


def described_below(tree: ast.Module) -> list[int]:
    """Lines of strings that stand below an assignment to describe it."""
    return [
        after.lineno
        for node in ast.walk(tree)
        for body in [getattr(node, "body", None)]
        if isinstance(body, list)
        for before, after in pairwise(body)
        if isinstance(before, (ast.Assign, ast.AnnAssign)) and isinstance(after, ast.Expr)
        if isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
    ]


def banned(source: str) -> list[str]:
    """Banned words in docstrings, comments and texts, each with its line; names in code are free."""
    texts = [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    tokens = tokenize.generate_tokens(StringIO(source).readline)
    texts += [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    return [f"{line}: {word}" for line, text in texts for word in BANNED.findall(text)]


def test_every_public_class_says_its_role_in_a_sentence() -> None:
    assert [f"{path}: {name}" for path in modules() for name in undocumented(parsed(path))] == []


def test_no_docstring_begins_as_a_fragment() -> None:
    found = [
        f"{path}: {name}: {text}" for path in modules() for name, text in docstrings(parsed(path)) if text and FRAGMENT.match(text)
    ]
    assert found == []


def test_no_attribute_is_described_by_a_string_below_it() -> None:
    assert [f"{path}:{line}" for path in modules() for line in described_below(parsed(path))] == []


def test_no_banned_word_stands_in_docstrings_comments_and_messages() -> None:
    found = [f"{path}:{word}" for path in modules() for word in banned((ROOT / path).read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    "body",
    ["pass", '"""of lines"""', '"""No period"""', '"""First\n\nSecond."""'],
    ids=["none", "small", "no period", "no sentence"],
)
def test_a_class_without_a_sentence_is_found(body: str) -> None:
    indented = body.replace("\n", "\n    ")
    assert undocumented(ast.parse(f"class Reader:\n    {indented}\n")) == ["Reader"]


def test_a_string_below_an_attribute_is_found() -> None:
    assert described_below(ast.parse('a: int = 1\n"""In seconds."""\n')) == [2]


def test_banned_words_are_found_in_comments_docstrings_and_parts_of_texts_but_not_in_names() -> None:
    source = '"""Nobody."""\ntold = 1  # anew\nsaid = f"{told} by then"\n'
    assert banned(source) == ["1: Nobody", "3: by then", "2: anew"]
