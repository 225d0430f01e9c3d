"""mqtune works in any locale: files name an encoding, streams print what they can."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from book import Book
from pages import nodes_of

import mqtune
from mqtune.core.text import replace_unencodable

PACKAGE = Path(mqtune.__file__).parent
#: Methods that read or write text, with the number of arguments before the encoding.
READS_TEXT = {"read_text": 0, "write_text": 1}
#: A locale of which Python makes ASCII.
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def calls_without_encoding(path: Path) -> list[int]:
    """The lines of calls that read or write text by the locale's encoding."""
    found = []
    for node in nodes_of(path):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        names = {keyword.arg: keyword.value for keyword in node.keywords}
        if name in READS_TEXT:
            is_text = len(node.args) <= READS_TEXT[name]
        elif name in ("open", "fdopen"):
            # A path's own has no path before the mode. Much else has a method of that name.
            is_own = name == "open" and isinstance(node.func, ast.Attribute)
            mode = names.get("mode", [*node.args, None, None][0 if is_own else 1])
            is_text = (mode is None and not is_own) or (
                isinstance(mode, ast.Constant) and set(str(mode.value)) <= {*"rwaxt+"}
            )
        else:
            # subprocess's
            is_text = any(isinstance(names.get(each), ast.Constant) for each in ("text", "universal_newlines"))
        if is_text and "encoding" not in names:
            found.append(node.lineno)
    return found


def test_every_text_file_is_read_and_written_in_an_encoding_that_is_named() -> None:
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := calls_without_encoding(path))
    }

    assert found == {}


@pytest.mark.slow
@pytest.mark.parametrize("command", [["show", "groesse"], ["show", "groesse", "0001"], ["list"], ["worker", "--help"]])
def test_commands_print_in_a_locale_without_umlauts(command: list[str], tmp_path: Path) -> None:
    book = Book(tmp_path / "home" / "groesse")
    book.run("0001", 0.5, config={"text": "größe …"})
    book.finish()
    book.save()
    environment = {**os.environ, **ASCII, "MQTUNE_HOME": str(tmp_path / "home")}

    done = subprocess.run([sys.executable, "-m", "mqtune", *command], env=environment, capture_output=True)

    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stdout


def test_a_character_that_a_stream_lacks_is_shown_as_a_question_mark() -> None:
    bytes_ = io.BytesIO()
    stream = io.TextIOWrapper(bytes_, encoding="ascii")

    replace_unencodable(stream)
    stream.write("a · b")
    stream.flush()

    assert bytes_.getvalue() == b"a ? b"
    # One with a rule of its own keeps that.
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    replace_unencodable(stream)
    assert stream.errors == "backslashreplace"
