"""The tests for callbacks of your own: subclass ``CallbackContract``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest

from mqtune.core.callback import Callback
from mqtune.core.experiment import Experiment
from mqtune.core.trial import CONTINUE, Attempt, Decision, Report, Trial
from mqtune.schedulers.asha import PromotionASHA
from mqtune.testing.worlds import WORLDS, InVirtualTime, happened

#: Takes a folder for the callback's files, and returns a new callback.
NewCallback = Callable[[Path], Callback]

_Fact = tuple[str | int, ...]


class CallbackContract(InVirtualTime):
    """The tests that a callback must pass. They run experiments in virtual time.

    A subclass overrides one fixture::

        class TestMine(CallbackContract):
            @pytest.fixture
            def new_callback(self) -> NewCallback:
                return lambda folder: Mine(folder / "mine.txt")
    """

    @pytest.fixture
    def new_callback(self) -> NewCallback:
        """Return a function that makes a callback. A subclass must override this fixture."""
        raise NotImplementedError("override the fixture new_callback: it returns a function that makes a callback")

    @pytest.mark.parametrize("world", WORLDS)
    def test_no_event_makes_it_fail_or_change_a_trial(
        self, new_callback: NewCallback, world: str, tmp_path: Path
    ) -> None:
        heard = _Heard(new_callback(tmp_path))
        _run(world, heard)

        assert heard.problems == []
        assert heard.facts[("on_start",)] == heard.facts[("on_end",)] == 1

    @pytest.mark.parametrize("world", ["failures", "slow"])
    def test_each_event_is_heard_once_also_after_a_resume(
        self, new_callback: NewCallback, world: str, tmp_path: Path
    ) -> None:
        whole = _Heard(new_callback(tmp_path))
        _run(world, whole)

        first, second = _Heard(new_callback(tmp_path)), _Heard(new_callback(tmp_path))
        _run(world, first, second)

        both = first.facts + second.facts
        assert first.problems + second.problems == []
        assert both.pop(("on_start",)) == both.pop(("on_end",)) == 2
        assert both == {fact: 1 for fact in whole.facts if fact not in (("on_start",), ("on_end",))}

    def test_an_experiment_goes_as_it_would_without_it(self, new_callback: NewCallback, tmp_path: Path) -> None:
        assert _run("failures", new_callback(tmp_path)) == _run("failures", _Heard(Callback()))

    def test_an_experiment_may_end_before_its_first_trial(self, new_callback: NewCallback, tmp_path: Path) -> None:
        callback = new_callback(tmp_path)

        callback.on_start(Experiment("empty", metric="loss", mode="min"))
        callback.on_step("no worker is connected")
        callback.on_end()

    def test_the_wait_between_its_steps_is_a_time(self, new_callback: NewCallback, tmp_path: Path) -> None:
        interval_s = new_callback(tmp_path).interval_s

        assert interval_s is None or interval_s > 0


def _run(world: str, *callbacks: Callback) -> list[str]:
    """Run an experiment with one driver after the other, and return its events.

    Each driver has one of the callbacks. All drivers except the last make 20 steps.
    """
    left = iter(callbacks)
    results = WORLDS[world].run(
        lambda: {"scheduler": PromotionASHA(9, grace_period=3), "callbacks": [next(left)]},
        cut_after=[20] * (len(callbacks) - 1),
    )
    return happened(results)


class _Heard(Callback):
    """Wraps a callback: forwards and counts calls, and records errors and changed trials."""

    def __init__(self, inner: Callback) -> None:
        self.in_loop = inner.in_loop
        self.interval_s = inner.interval_s
        self.facts: Counter[_Fact] = Counter()
        self.problems: list[str] = []
        self._inner = inner

    def setup(self, folder: Path) -> None:
        self._inner.setup(folder)

    def hear(self, method: str, arguments: tuple[object, ...]) -> None:
        # The number of steps depends on the driver's timing.
        if method != "on_step":
            self.facts[(method, *(fact for argument in arguments for fact in _facts(argument)))] += 1
        before = deepcopy([argument for argument in arguments if isinstance(argument, Trial)])
        try:
            getattr(self._inner, method)(*arguments)
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self.problems.append(f"{method}: {type(error).__name__}: {error}")
        # Compare texts, because NaN is not equal to itself.
        if repr([argument for argument in arguments if isinstance(argument, Trial)]) != repr(before):
            self.problems.append(f"{method}: it changed trial {before[0].id}")


def _facts(argument: object) -> _Fact:
    match argument:
        case Trial():
            return argument.id, len(argument.attempts)
        case Attempt():
            return (argument.number,)
        case Report():
            return argument.attempt, argument.sequence
        case Decision():
            assert argument != CONTINUE, "on_decision tells what ends an attempt"
            return (argument.action.value,)
        case str():
            return (argument,)
        case _:
            return ()


def _hearing(method: str) -> Callable[..., None]:
    return lambda heard, *arguments: heard.hear(method, arguments)


for _method in vars(Callback):
    if _method.startswith("on_"):
        setattr(_Heard, _method, _hearing(_method))
