"""The package's docstrings and comments, and the pages, are in plain English by patterns."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pages import ROOT, nodes_of

PACKAGE: Final = ROOT / "mqtune"
#: Sentences that a reader has to read twice. A hit is a hint: some are right, so a folder may have a few.
PATTERNS: Final = {
    "a relative clause without its noun": (
        r"(?:^|[,;:(] ?|\b(?:as|after|at|before|by|for|from|in|is|of|on|than|to|with) )"
        r"(?:what|whatever|who|whoever|those (?:that|who)|ones? that|all that) \w+"
    ),
    "a sentence that begins with such a clause": r"(?:^|\. )(?:What|Whatever|Who|Whoever|Those that|One that|All that) \w+(?! \w+\?)",
    "none as a noun": r"\bthere (?:is|are|was|were) none\b|\bof which (?:there|it|they) \w+",
    "a word that the field does not use": r"\b(?:goes?|went|going) on\b|\bat once\b|\bso many\b|\bof late\b|\bdear\b|\bwhoever\b",
}
#: The pages for users and maintainers.
PAGES: Final = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {ROOT / "CHANGELOG.md"})
#: The most hits in 1,000 words of a folder, or of all pages.
MOST_HITS: Final = 0.5
LONGEST_FIRST_LINE: Final = 100


def comments_in(path: Path) -> Iterator[str]:
    """Yield the comments of a file."""
    source = path.read_text()
    if path.suffix == ".lua":
        yield from (line.strip(" -") for line in source.splitlines() if line.lstrip().startswith("--"))
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# type:", "# pragma")):
            yield token.string.lstrip("#: ")


def docstrings_in(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def hits_in(text: str) -> list[str]:
    """Return the names of the patterns that match, once for each match."""
    return [name for name, pattern in PATTERNS.items() for _ in re.finditer(pattern, text, re.MULTILINE)]


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in PACKAGE.rglob("*.py")}), ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_texts_of_a_folder_are_plain(folder: Path) -> None:
    words, hits, first_lines = 0, Counter[str](), []
    for path in (*folder.glob("*.py"), *folder.glob("*.lua")):
        docstrings = [*docstrings_in(path)] if path.suffix == ".py" else []
        for text in (*docstrings, *comments_in(path)):
            words += len(text.split())
            hits.update(f"{path.name}: {name}: {text[:80]}" for name in hits_in(text))
        # There a docstring is the error's text, by default.
        if path.name != "errors.py":
            first_lines += [text.splitlines()[0] for text in docstrings if text]

    assert hits.total() <= max(1, MOST_HITS * words / 1000), hits
    assert [line for line in first_lines if len(line) > LONGEST_FIRST_LINE] == []


def prose_of(page: Path) -> str:
    """Return the text of a page without its code."""
    without_blocks = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`]*`", "x", without_blocks)


def test_the_pages_are_plain() -> None:
    proses = {page: prose_of(page) for page in PAGES}
    hits = {str(page.relative_to(ROOT)): found for page, prose in proses.items() if (found := hits_in(prose))}

    words = sum(len(prose.split()) for prose in proses.values())
    assert sum(map(len, hits.values())) <= MOST_HITS * words / 1000, hits


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Return what it was asked for.", 0),
        ("The error of what it was asked for.", 1),
        ("What no driver has answered, the next one does.", 1),
        ("A request for a trial; there is none.", 1),
        ("Return the part that the journal lacks.", 0),
        ("Both trials begin at once.", 1),
    ],
)
def test_a_riddle_is_found(text: str, found: int) -> None:
    assert len(hits_in(text)) == found
