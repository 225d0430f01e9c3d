"""Read files of sweeps of Weights & Biases (W&B), in YAML or JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mqtune.cli.tune.domains import hint_for
from mqtune.cli.tune.parameters import Parameters, number_of
from mqtune.cli.tune.words import Item
from mqtune.core import checks
from mqtune.core.errors import ConfigurationError
from mqtune.core.text import names_in_words
from mqtune.core.version import install_command
from mqtune.search.kinds import Choice, Domain

_KEYS: Final = (
    "program", "command", "method", "metric", "parameters", "early_terminate", "run_cap", "name", "description",
)  # fmt: skip
#: Keys for W&B's own service, which have no effect here.
_WITHOUT_EFFECT: Final = (
    "project", "entity", "controller", "apiVersion", "kind", "image_uri", "imageuri", "settings",
)  # fmt: skip
#: Keys that are not supported, with replacements.
_REFUSED: Final = {
    "job": "give program, or command",
    "launch": "give program, or command",
    "scheduler": "give method, and early_terminate",
    "metrics": "give mqtune tune --minimize and --maximize, each as often as there are metrics",
}
#: The searcher of each method. A grid needs none.
_SEARCHERS: Final = {"random": "random", "bayes": "tpe", "grid": None}
_GOALS: Final = {"minimize": "min", "maximize": "max"}
_DEFAULT_COMMAND: Final = ("${env}", "${interpreter}", "${program}", "${args}")
#: The macros that become the program.
_OF_PROGRAM: Final = ("${env}", "${interpreter}", "${program}")
_MACRO: Final = re.compile(r"\$\{([^}]*)\}")
_ENDINGS: Final = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class EarlyTermination:
    """The key ``early_terminate``: after certain numbers of reports, bad trials are stopped.

    Attributes:
        first: the first such number of reports.
        last: the number of reports of a whole trial, or None if unknown.
        eta: each time, one trial of this many continues.
    """

    first: float
    last: float | None
    eta: float


@dataclass(frozen=True)
class Sweep:
    """A sweep from a file.

    Attributes:
        space: the search space.
        command: the words of the command, with macros.
        program: the path of the program, or empty.
        searcher: the searcher's name; None for a grid, or if the file has no method.
        metric: the name of the metric, or empty.
        mode: "min" or "max".
        target: the metric's value that ends the sweep, or None.
        stops_early: how trials are stopped early, or None.
        run_cap: the number of trials, or None.
        name: the sweep's name, for people.
        notes: the sweep's description.
        warnings: lines for the user about keys that have no effect or another effect than in W&B.
    """

    space: dict[str, object]
    command: tuple[str, ...] = _DEFAULT_COMMAND
    program: str = ""
    searcher: str | None = None
    metric: str = ""
    mode: str = "min"
    target: float | None = None
    stops_early: EarlyTermination | None = None
    run_cap: int | None = None
    name: str = ""
    notes: str = ""
    warnings: list[str] = field(default_factory=list)

    def words(self) -> list[str]:
        """Return the words of the command, with the macros of the program replaced.

        Macros for arguments stay.

        Raises:
            ConfigurationError: the program is missing, or a macro is not supported.
        """
        return [self._word(word) for word in self.command]

    def _word(self, word: str) -> str:
        match = _MACRO.fullmatch(word)
        if match is None:
            # Other words with braces are the program's own, such as Hydra's.
            within = next((macro for macro in _MACRO.findall(word) if _is_known(macro)), None)
            if within is not None:
                raise ConfigurationError(f"command: {word!r} has a macro within a word; {_way_out(within)}")
            return word
        return word if word in _ARGUMENTS else self._replaced(match[1])

    def _replaced(self, macro: str) -> str:
        if macro == "env":
            return "env"
        if macro == "interpreter":
            return sys.executable
        if macro == "program":
            if not self.program:
                raise ConfigurationError("program is missing; give the path of the script, or a command without it")
            return self.program
        raise ConfigurationError(f"command: ${{{macro}}} can't be given to trials; {_way_out(macro)}")

    def macro(self, word: str) -> Iterable[Item] | None:
        """Return the items of a ``Script`` for a macro of arguments, or None for other words.

        Raises:
            ConfigurationError: a parameter has booleans and other values, where booleans are flags.
        """
        make = _ARGUMENTS.get(word)
        return None if make is None else make(self.space)


def _way_out(macro: str) -> str:
    if macro == "args_json_file":
        return "use ${args_json}, the same as one argument, or ${args}"
    if macro.startswith("envvar:"):
        name = macro.removeprefix("envvar:")
        return f"have the program read the variable {name}, which its worker or --env {name}=VALUE sets"
    return f"macros are {', '.join([*_OF_PROGRAM, *_ARGUMENTS])}, each as a word of its own"


def _is_known(macro: str) -> bool:
    return f"${{{macro}}}" in (*_OF_PROGRAM, *_ARGUMENTS) or macro.startswith(("envvar:", "args"))


def _flags(space: Mapping[str, object]) -> list[Item]:
    """Return an option for each parameter. Parameters with booleans become flags.

    Raises:
        ConfigurationError: a parameter has booleans and other values.
    """
    items: list[Item] = []
    for name, definition in space.items():
        kinds = {isinstance(value, bool) for value in _values_of(definition)}
        if len(kinds) > 1:
            raise ConfigurationError(
                f"command: ${{args_no_boolean_flags}} can't pass the parameter {name}, which has booleans and other "
                "values; use ${args}"
            )
        items.append(f"{{{name}:--{name}}}" if kinds == {True} else f"--{name}={{{name}}}")
    return items


def _values_of(definition: object) -> Iterable[object]:
    """Return the values of a choice or a constant. Return a number for any other domain."""
    if isinstance(definition, Choice):
        return definition.options
    if isinstance(definition, Domain):
        return [0.0]
    return [definition]


def _json(space: Mapping[str, object]) -> list[Item]:
    pairs = ", ".join(f"{json.dumps(name)}: {{{name}!json}}" for name in space)
    return [f"{{{{{pairs}}}}}"]


#: The items of a ``Script`` for each macro of arguments.
_ARGUMENTS: Final[dict[str, Callable[[Mapping[str, object]], list[Item]]]] = {
    "${args}": lambda _: ["--{name}={value}"],
    "${args_no_equals}": lambda _: ["--{name}", "{value}"],
    "${args_no_hyphens}": lambda _: ["{name}={value}"],
    "${args_no_boolean_flags}": _flags,
    "${args_json}": _json,
}


def is_sweep_file(word: str) -> bool:
    """Return whether a word of a command line is the path of a sweep's file."""
    return word.endswith(_ENDINGS)


def read_sweep(path: Path) -> Sweep:
    """Read a sweep from a file.

    Raises:
        ConfigurationError: the file can't be read, or has a key or value that is not supported.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} can't be read: {error}") from None
    described = _parsed(path, text)
    try:
        return _sweep_of(described)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _parsed(path: Path, text: str) -> object:
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"{path} is not JSON: {error}") from None
    try:
        import yaml  # noqa: PLC0415 - it is an extra
    except ImportError:
        raise ConfigurationError(f"YAML needs PyYAML: {install_command('yaml')}; {path.stem}.json needs none") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not YAML: {' '.join(str(error).split())}") from None


def _sweep_of(described: object) -> Sweep:
    if not isinstance(described, Mapping):
        raise ConfigurationError("the file has no keys; a sweep has method, metric, parameters and program")
    for key in described:
        _check_key(str(key))
    warnings = []
    if unused := [key for key in described if key in _WITHOUT_EFFECT]:
        warnings.append(f"{', '.join(unused)}: without effect, as W&B's service is not used")
    method = described.get("method")
    if method is not None and method not in [*_SEARCHERS]:
        raise ConfigurationError(f"method: {method!r} is not one of {names_in_words(_SEARCHERS)}")
    if "parameters" not in described:
        raise ConfigurationError("parameters is missing; write each parameter of the search below it")
    parameters = Parameters(described["parameters"], is_grid=method == "grid")
    run_cap = described.get("run_cap")
    metric, mode, target = _metric(described.get("metric"), warnings)
    return Sweep(
        parameters.space,
        command=_command(described.get("command")),
        program=_text(described, "program"),
        searcher=None if method is None else _SEARCHERS[method],
        metric=metric,
        mode=mode,
        target=target,
        stops_early=_early(described.get("early_terminate"), warnings),
        run_cap=None if run_cap is None else checks.whole_number("", "run_cap", run_cap, 1),
        name=_text(described, "name"),
        notes=_text(described, "description"),
        warnings=[*warnings, *parameters.notes],
    )


def _check_key(key: str) -> None:
    if key in _REFUSED:
        raise ConfigurationError(f"{key} is not supported; {_REFUSED[key]}")
    if key not in _KEYS and key not in _WITHOUT_EFFECT:
        hint = hint_for(key, _KEYS, f"a sweep has {names_in_words(_KEYS)}")
        raise ConfigurationError(f"there is no key {key!r}; {hint}")


def _text(described: Mapping[str, object], key: str) -> str:
    value = described.get(key)
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"{key}: {value!r} is not a text")
    return value or ""


def _keys_of(described: object, key: str, known: Iterable[str]) -> Mapping[str, object]:
    """Check that a part of the file is a mapping with known keys, and return it."""
    known = [*known]
    if not isinstance(described, Mapping):
        raise ConfigurationError(f"{key}: {described!r} is not a mapping; its keys are {names_in_words(known)}")
    for name in described:
        if name not in known:
            raise ConfigurationError(f"{key}: there is no key {name!r}; keys are {names_in_words(known)}")
    return described


def _metric(described: object, warnings: list[str]) -> tuple[str, str, float | None]:
    """Return the metric's name, its mode and its target."""
    if described is None:
        return "", "min", None
    imputed = ("impute", "impute_while_running")
    given = _keys_of(described, "metric", ("name", "goal", "target", *imputed))
    name = _text(given, "name")
    if not name:
        raise ConfigurationError("metric: name is missing")
    goal = given.get("goal", "minimize")
    if goal not in [*_GOALS]:
        raise ConfigurationError(f"metric: goal: {goal!r} is neither minimize nor maximize")
    if unused := [key for key in imputed if key in given]:
        warnings.append(f"metric: {', '.join(unused)}: without effect, as failed trials are left out of the model")
    target = given.get("target")
    return name, _GOALS[str(goal)], None if target is None else number_of("metric", "target", target)


def _early(described: object, warnings: list[str]) -> EarlyTermination | None:
    if described is None:
        return None
    place = "early_terminate"
    given = _keys_of(described, place, ("type", "min_iter", "max_iter", "s", "eta", "strict"))
    if given.get("type") != "hyperband":
        raise ConfigurationError(
            f"{place}: type: {given.get('type')!r} is not hyperband; leave {place} out, and give mqtune tune "
            "--scheduler 'MedianStopping()', for example"
        )
    eta = number_of(place, "eta", given.get("eta", 3))
    if eta <= 1:
        raise ConfigurationError(f"{place}: eta={eta!r} must be above 1")
    if "strict" in given:
        warnings.append(f"{place}: strict: without effect, as ASHA has one rule: the best 1 in eta continue")
    if "max_iter" in given:
        last = number_of(place, "max_iter", given["max_iter"])
        if "min_iter" in given:
            warnings.append(f"{place}: min_iter: without effect beside max_iter and s")
        if "s" not in given:
            raise ConfigurationError(f"{place}: s is missing; give it beside max_iter, or give min_iter instead")
        times = checks.whole_number(place, "s", given["s"], 0)
        try:
            first = max(1.0, last / float(eta) ** times)
        except OverflowError:
            first = 1.0
        return EarlyTermination(first, last, eta)
    if "s" in given:
        warnings.append(f"{place}: s: without effect beside min_iter")
    if "min_iter" not in given:
        raise ConfigurationError(f"{place}: min_iter is missing; give it, or max_iter and s")
    return EarlyTermination(number_of(place, "min_iter", given["min_iter"]), None, eta)


def _command(described: object) -> tuple[str, ...]:
    if described is None:
        return _DEFAULT_COMMAND
    if isinstance(described, str):
        raise ConfigurationError(f"command: {described!r} is a text; give a list with an item for each word")
    if not isinstance(described, list) or not described:
        raise ConfigurationError(f"command: {described!r} is not a list of words")
    for word in described:
        if isinstance(word, bool) or not isinstance(word, str | int | float):
            raise ConfigurationError(f"command: {word!r} is neither a text nor a number; put it in quotes")
    return tuple(map(str, described))
