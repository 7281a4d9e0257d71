"""The prose of the product's code: public classes say their role, and docstrings, comments and messages are plain sentences."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from io import StringIO
from itertools import pairwise
from textwrap import dedent

import pytest

from tests.test_architecture import ROOT, files, parsed, product_modules

BANNED = re.compile(r"\b(?:told|anew|whoever|nobody|for ever|of before|by then|reckon\w*|so long|doors?)\b", re.IGNORECASE)
BANNED_IN_NAMES = re.compile(r"(?:^|_)(?:un)?(?:told|anew|whoever|nobody|strangers?|doors?|looks|placed|places)(?:_|$)")
# What names of tests and their ids say of answers, errors, listeners, queues, retries and earlier states in the terms of the field.
# The name of a test is a sentence with a noun as its subject: no clause that begins with what or who.
BANNED_IN_TESTS = re.compile(
    r"(?:^|_)test_(?:what|who)_|(?:^|_)(?:un)?(?:told|tells?|telling|anew|whoever|nobody|strangers?|doors?|lanes?|for_?ever|of_before|by_then|so_long|reckon\w*)(?=_|$)"
)
# What the product calls polls, lookups, and slots. Models of tests look, and their worlds have lives of their own.
BANNED_IN_THE_PRODUCT = re.compile(r"(?:^|_)(?:looked|turns|lives)(?:_|$)")
# Verbs, which name functions but no values: a value is a partition, a position, an offset, an index, a location or a lookup.
VERBS = re.compile(r"(?:^|_)place(?:_|$)")
VERBS_IN_THE_PRODUCT = re.compile(r"(?:^|_)(?:place|look)(?:_|$)")
CAPITAL_INSIDE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
BETWEEN_WORDS = re.compile(r"[\s-]+")
# Names, and what ids of parameters hold between quotes and commas.
WORDS = re.compile(r"\w+(?:[ -]\w+)*")
# Actors without a name. What acts is a client, a broker, a leader, a caller.
UNNAMED = re.compile(r"\b(?:some|every|any)body\b|(?:^|[.!?:;] )Who (?!may\b)")
# How a function's docstring begins: with a verb in the third person, or with the parameter that it describes.
VERB_FIRST = re.compile(r"[A-Z][a-z-]*s\b|`")
PLURALS = re.compile(
    r"(?:Addresses|Batches|Bytes|Errors|Leaders|Milliseconds|Offsets|Pairs|Partitions that|Producers|Rates|Rows|Seconds|Segments"
    r"|Sessions|This|Times|Topics|Values|Ways)\b"
)
# Of a log line: the event, then its ids as key=value or a time, then what follows the first colon.
PLACEHOLDER = re.compile(r"%[-.\d]*[sdgfr]")
IDENTIFIED = re.compile(r"(?:\w=%[-.\d]*[sdgfr](?:/%s|:%d)?|%[-.\d]*[sdgf] m?s\b)")
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
# Other texts of the product that people read.
READ_BY_PEOPLE = (".proto", ".yaml", ".html", ".tpl", ".txt", ".json")
FRAGMENT = re.compile(r"(?:Of|As|What|Where|The same|That|So|Who|Whether)\b")
SENTENCE = re.compile(r"[A-Z].*?\.(?:\s|$)", re.DOTALL)
# The docstring of a command is its help, which begins as the command line's pages do.
HELP_PAGES = frozenset({"tidelog/cli/app/root.py"})
# What a broker prints for people when it is ready.
WELCOMES = frozenset({"tidelog/cli/broker/serve.py", "tidelog/cli/broker/compact.py"})
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


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
    if not BANNED.search(source):  # parsing takes milliseconds
        return []
    texts = [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    tokens = tokenize.generate_tokens(StringIO(source).readline)
    texts += [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    return [f"{line}: {word}" for line, text in texts for word in BANNED.findall(text)]


def unnamed(source: str, tree: ast.Module) -> list[str]:
    """Sentences of the source whose actor has no name, each with its line."""
    if not UNNAMED.search(source):
        return []
    texts = [(node.lineno, node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    tokens = tokenize.generate_tokens(StringIO(source).readline)
    texts += [(token.start[0], token.string.removeprefix("# ")) for token in tokens if token.type == tokenize.COMMENT]
    return [f"{line}: {found[0].strip()}" for line, text in texts for found in UNNAMED.finditer(text)]


def without_a_verb(tree: ast.Module) -> list[str]:
    """Names of functions, with their docstrings, which begin neither with a verb nor with a parameter."""
    return [
        f"{node.name}: {text.partition('.')[0]}"
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (text := ast.get_docstring(node))
        if not VERB_FIRST.match(text) or PLURALS.match(text)
    ]


def badly_logged(tree: ast.Module) -> list[str]:
    """Log lines whose event names a value that is neither key=value nor a time. A line may be an error's text alone."""
    messages = [
        (node.lineno, node.args[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "log" and node.args
        if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    ]
    return [
        f"{line}: {message}"
        for line, message in messages
        if message != "%s" and PLACEHOLDER.search(IDENTIFIED.sub("", message.partition(": ")[0]))
    ]


def names_in(tree: ast.Module) -> tuple[list[str], list[str]]:
    """Names that the module defines: of its functions; of its classes, parameters, variables and attributes."""
    functions: list[str] = []
    values: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                functions.append(name)
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                values.append(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                values.append(name)
    return functions, values


def ids_in(tree: ast.Module) -> list[str]:
    """Texts that name the parameters of tests, in `ids=` and `id=`."""
    return [
        text.value
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg in ("id", "ids")
        for text in ast.walk(node.value)
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
    ]


def badly_named(tree: ast.Module, banned_in_names: re.Pattern[str] = BANNED_IN_NAMES, verbs: re.Pattern[str] = VERBS) -> list[str]:
    """Names that the module defines, as functions, classes, parameters, variables or attributes, with a banned word in them.

    Only functions may be named by `verbs`. The names of tests are sentences, which `badly_named_tests` checks.
    """
    functions, values = names_in(tree)
    return [name for name in functions if not name.startswith("test_") and banned_in_names.search(words_of(name))] + [
        name for name in values if banned_in_names.search(words_of(name)) or verbs.search(words_of(name))
    ]


def badly_named_tests(tree: ast.Module) -> list[str]:
    """Names that a module of tests defines, and ids of their parameters, with a word in them that is banned in tests."""
    functions, values = names_in(tree)
    return [name for name in (*functions, *values, *ids_in(tree)) if BANNED_IN_TESTS.search(words_of(name))]


def has_banned_word(source: str) -> bool:
    """Whether a word that is banned in names stands anywhere in the source. Parsing all sources would take twenty seconds."""
    return any(
        pattern.search(words)
        for words in map(words_of, {*WORDS.findall(source)})
        for pattern in (BANNED_IN_NAMES, BANNED_IN_TESTS, VERBS)
    )


def words_of(name: str) -> str:
    """Returns the words of a name or an id in lower case, with `_` between them."""
    return BETWEEN_WORDS.sub("_", CAPITAL_INSIDE.sub("_", name)).lower()


def is_generated(tree: ast.Module) -> bool:
    """Whether a generator wrote the module: its classes need no docstrings.

    The messages of Kafka's protocol are such classes. A sentence for each of the 240 structs could only repeat its name in Kafka's
    tables, which the module's docstring names and Kafka's documentation describes.
    """
    return "\nGenerated by " in (ast.get_docstring(tree) or "")


def test_every_public_class_says_its_role_in_a_sentence() -> None:
    trees = ((path, parsed(path)) for path in product_modules())
    assert [f"{path}: {name}" for path, tree in trees if not is_generated(tree) for name in undocumented(tree)] == []


def test_no_docstring_begins_as_a_fragment() -> None:
    found = [
        f"{path}: {name}: {text}"
        for path in product_modules()
        for name, text in docstrings(parsed(path))
        if text and FRAGMENT.match(text)
    ]
    assert found == []


def test_no_attribute_is_described_by_a_string_below_it() -> None:
    assert [f"{path}:{line}" for path in product_modules() for line in described_below(parsed(path))] == []


def test_no_banned_word_stands_in_docstrings_comments_and_messages() -> None:
    found = [f"{path}:{word}" for path in product_modules() for word in banned((ROOT / path).read_text(encoding="utf-8"))]
    assert found == []


def test_every_docstring_of_a_function_begins_with_a_verb_or_a_parameter() -> None:
    trees = ((path, parsed(path)) for path in product_modules())
    found = [f"{path}: {text}" for path, tree in trees if not is_generated(tree) for text in without_a_verb(tree)]
    assert [text for text in found if text.partition(": ")[0] not in HELP_PAGES] == []


def test_every_actor_has_a_name() -> None:
    found = [
        f"{path}:{text}" for path in product_modules() for text in unnamed((ROOT / path).read_text(encoding="utf-8"), parsed(path))
    ]
    assert found == []


def test_every_log_line_is_an_event_then_its_ids_then_the_cause() -> None:
    found = [f"{path}:{line}" for path in product_modules() if path not in WELCOMES for line in badly_logged(parsed(path))]
    assert found == []


def test_no_banned_word_stands_in_other_texts_that_people_read() -> None:
    sources, pages = ("gateway", "metadata", "deploy/helm"), ("docs/design", "docs/decisions", "docs/reference", "docs/glossary.md")
    paths = [
        path
        for path in files()
        if (path.startswith(sources) and path.endswith(READ_BY_PEOPLE)) or (path.startswith(pages) and path.endswith(".md"))
    ]
    found = [f"{path}: {word}" for path in paths for word in BANNED.findall((ROOT / path).read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    ("banned_in_names", "verbs"),
    [(BANNED_IN_NAMES, VERBS), (BANNED_IN_THE_PRODUCT, VERBS_IN_THE_PRODUCT)],
    ids=["everywhere", "product"],
)
def test_no_banned_word_stands_in_names(banned_in_names: re.Pattern[str], verbs: re.Pattern[str]) -> None:
    assert [f"{path}: {name}" for path in product_modules() for name in badly_named(parsed(path), banned_in_names, verbs)] == []


def modules_of_tests_and_benchmarks() -> list[str]:
    """Paths of the modules of tests and benchmarks."""
    return [path for path in files() if path.endswith(".py") and path.split("/")[0] in ("bench", "tests")]


@pytest.mark.slow  # reads every test
def test_no_banned_word_stands_in_docstrings_comments_and_texts_of_tests_and_benchmarks() -> None:
    paths = [path for path in modules_of_tests_and_benchmarks() if path != "tests/test_prose.py"]  # which has all of these words
    assert [f"{path}:{word}" for path in paths for word in banned((ROOT / path).read_text(encoding="utf-8"))] == []


@pytest.mark.slow  # reads every test
def test_no_banned_word_stands_in_names_of_tests_and_benchmarks() -> None:
    suspects = [path for path in modules_of_tests_and_benchmarks() if has_banned_word((ROOT / path).read_text(encoding="utf-8"))]
    found = [f"{path}: {name}" for path in suspects for check in (badly_named, badly_named_tests) for name in check(parsed(path))]
    assert found == []


@pytest.mark.parametrize(
    "body",
    ["pass", '"""of lines"""', '"""No period"""', '"""First\n\nSecond."""'],
    ids=["none", "small", "no period", "no sentence"],
)
def test_a_class_without_a_sentence_is_found(body: str) -> None:
    indented = body.replace("\n", "\n    ")
    assert undocumented(ast.parse(f"class Reader:\n    {indented}\n")) == ["Reader"]


def test_only_a_module_that_names_its_generator_counts_as_generated() -> None:
    assert is_generated(ast.parse('"""Requests.\n\nGenerated by `make messages`. Do not edit.\n"""'))
    assert not is_generated(ast.parse('"""Reads files that are Generated by hand."""'))


@pytest.mark.parametrize(
    "source",
    [
        "def test_nobody() -> None: ...",
        "class NoStranger: ...",
        'ids = ["one that is told", "x"]',
        'ids=["as of before"]',
        "place = 1",
    ],
)
def test_sources_with_a_banned_word_in_a_name_or_an_id_are_found(source: str) -> None:
    assert has_banned_word(source)


def test_a_source_whose_words_only_contain_banned_ones_is_no_suspect() -> None:
    assert not has_banned_word("replace = displaced = floors = 'a foretold indoor plane'")


def test_a_string_below_an_attribute_is_found() -> None:
    assert described_below(ast.parse('a: int = 1\n"""In seconds."""\n')) == [2]


def test_banned_words_are_found_in_comments_docstrings_and_parts_of_texts_but_not_in_names() -> None:
    source = '"""Nobody."""\ntold = 1  # anew\nsaid = f"{told} by then"\n'
    assert banned(source) == ["1: Nobody", "3: by then", "2: anew"]


@pytest.mark.parametrize("text", ["The end of it.", "Rows of a table.", "-1 is null.", "InvalidArgument for others."])
def test_a_docstring_without_a_verb_is_found(text: str) -> None:
    assert without_a_verb(ast.parse(f'def end():\n    """{text}"""\n')) == [f"end: {text[:-1]}"]


def test_a_docstring_may_begin_with_a_verb_or_with_the_parameter_that_it_describes() -> None:
    assert without_a_verb(ast.parse('def a():\n    """Returns it."""\ndef b(x):\n    """`x`: a number."""\n')) == []


def test_sentences_without_a_named_actor_are_found() -> None:
    source = '"""Waits. Who asks is served."""\nsay("Who may do what")  # somebody\n'
    assert unnamed(source, ast.parse(source)) == ["1: . Who", "2: somebody"]


def test_a_log_line_that_begins_with_a_value_or_has_one_in_its_event_is_found() -> None:
    lines = ["%s failed: %s", "topic %s deleted", "seal check failed session=%s: %s; retrying", "no answer for %.0f s: %s", "%s"]
    source = "".join(f"log.info({line!r}, x)\n" for line in lines)
    assert badly_logged(ast.parse(source)) == ["1: %s failed: %s", "2: topic %s deleted"]


def test_banned_words_are_found_in_names_of_all_kinds_and_not_inside_of_words() -> None:
    source = "class ToldGroup:\n    def _told(self, door: int):\n        self.untold = TOLD_MAX = indoor = 1\n"
    assert sorted(badly_named(ast.parse(source))) == ["TOLD_MAX", "ToldGroup", "_told", "door", "untold"]
    assert badly_named(ast.parse("def test_who_is_told(told: int): ...")) == ["told"]


def test_banned_words_are_found_in_names_of_tests_and_in_their_ids() -> None:
    source = """
        @pytest.mark.parametrize("by", [1, 2], ids=["by nobody", "by a broker"])
        @pytest.mark.parametrize("at", [pytest.param(1, id="waits-for-ever")])
        def test_who_is_told(by: int, at: int):
            lead_anew = of_lanes = lead_again = stellar = 1
    """
    found = badly_named_tests(ast.parse(dedent(source)))
    assert sorted(found) == ["by nobody", "lead_anew", "of_lanes", "test_who_is_told", "waits-for-ever"]


def test_a_test_whose_subject_is_a_clause_is_found() -> None:
    source = """
        def test_what_is_late_is_refused(): ...
        def test_who_is_late_waits(): ...
        def test_a_late_record_is_what_the_log_refuses(): ...
    """
    assert has_banned_word(source)
    assert badly_named_tests(ast.parse(dedent(source))) == ["test_what_is_late_is_refused", "test_who_is_late_waits"]


def test_a_verb_is_found_where_it_names_a_value_and_not_where_it_names_a_function() -> None:
    source = (
        "def place(count: int):\n    def place_one(look: int, place: int):\n        replaced = look_at = places = PlaceOf = 1\n"
    )
    assert sorted(badly_named(ast.parse(source))) == ["PlaceOf", "place", "places"]
    assert sorted(badly_named(ast.parse(source), BANNED_IN_THE_PRODUCT, VERBS_IN_THE_PRODUCT)) == [
        "PlaceOf",
        "look",
        "look_at",
        "place",
    ]
