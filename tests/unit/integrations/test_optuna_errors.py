"""An objective's error as an error of its own types where the study is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mqtune.core.errors import ConfigurationError, TrialFailed
from mqtune.integrations import failure_of, name_of


class Coded(ValueError):
    """A user's own, which can't be made of a text."""

    def __init__(self, code: int, *, more: str) -> None:
        super().__init__(f"{code}: {more}")
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


class Closed(RuntimeError):
    def __init_subclass__(cls) -> None:
        raise TypeError("no type derives from this one")


def objective() -> None: ...


def raised(kind: type[Exception]) -> TrialFailed:
    return failure_of("it has failed", [name_of(each, objective) for each in kind.__mro__], objective)


@pytest.mark.parametrize(
    "kind",
    [ValueError, KeyError, OSError, FileNotFoundError, UnicodeDecodeError, ExceptionGroup, ConfigurationError, Coded],
)
def test_an_error_is_caught_by_its_type_and_as_one_of_a_trial(kind: type[Exception]) -> None:
    error = raised(kind)

    assert isinstance(error, TrialFailed)
    assert isinstance(error, ValueError if kind is ExceptionGroup else kind) or kind is ExceptionGroup
    assert str(error) == "it has failed"
    assert "it has failed" in repr(error)


def test_an_unknown_error_type_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "not_imported_here.py").write_text("class Odd(Exception): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(raised(Closed), RuntimeError)
    unknown = failure_of("text", ["not_imported_here:Odd", "builtins:len", "builtins:ArithmeticError"], objective)
    assert isinstance(unknown, ArithmeticError)
    assert "not_imported_here" not in sys.modules
    for names in (["builtins:Exception", "builtins:BaseException"], [], ["builtins:SystemExit"], [":objective"]):
        assert type(failure_of("text", names, objective)) is TrialFailed
