"""The port of a driver's services: hooks in order, and an error in one is a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from bench import SPACE, Bench, Clock, settings_of, trainable
from losing import set_back

from mqtune.core.errors import ConfigurationError, JournalGone
from mqtune.core.events import Event
from mqtune.core.timing import Timing
from mqtune.driver import PAUSE_S, DriverAction, DriverHooks, ProgramFiles, Restored
from mqtune.driver.ports import DriverService, no_services

EVENT = cast("Event", object())
KEEP_LOCK_S = Timing().keep_lock_s


class Told(DriverService):
    """Notes its calls, wants an action in each, and fails in the hooks that are broken."""

    def __init__(self, name: str, calls: list[str], broken: str = "", due: float = 5.0) -> None:
        self.name, self.calls, self.broken, self.due = name, calls, broken, due

    def note(self, hook: str) -> DriverAction:
        self.calls.append(f"{self.name} {hook}")
        if hook == self.broken:
            raise RuntimeError(f"no {hook}")
        return cast("DriverAction", f"{self.name} {hook}")

    def hear(self, event: Event) -> Sequence[DriverAction]:
        return (self.note("hear"),)

    def tick(self) -> Iterator[DriverAction]:
        self.due = math.inf
        yield self.note("tick")

    def close(self) -> None:
        self.note("close")


def test_hooks_are_called_in_order_when_they_are_due_and_close_in_the_other() -> None:
    calls: list[str] = []
    clock = Clock()
    clock.now = 0.0
    hooks = DriverHooks([Told("first", calls), DriverService(), Told("second", calls, due=9.0)], clock)

    assert hooks.hear(EVENT) == ["first hear", "second hear"]
    assert (hooks.due, [*hooks.tick()]) == (5.0, [])
    clock.now = 5.0
    assert [*hooks.tick()] == ["first tick"]
    assert hooks.due == 9.0
    clock.now = 9.0
    assert [*hooks.tick()] == ["second tick"]
    hooks.close()

    assert calls[-2:] == ["second close", "first close"]
    assert (hooks.due, hooks.reason()) == (math.inf, "")


@pytest.mark.parametrize("broken", ["hear", "tick", "close"])
def test_a_failing_service_is_a_reason_and_is_called_again_later(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []
    clock = Clock()
    clock.now = 5.0
    first = Told("first", calls, broken)
    hooks = DriverHooks([first, Told("second", calls)], clock)

    wanted = [*hooks.hear(EVENT), *hooks.tick()]
    hooks.close()

    of_first = [f"first {hook}" for hook in ("hear", "tick") if hook != broken]
    assert sorted(wanted) == [*of_first, "second hear", "second tick"]
    assert hooks.reason() == f"service Told failed: no {broken}"
    assert [each.getMessage() for each in caplog.records] == [
        "service Told of this driver failed; the driver continues"
    ]
    first.broken, first.due = "", 5.0
    assert hooks.due == 5.0 + PAUSE_S * (broken == "tick")
    clock.now += PAUSE_S
    assert [*hooks.tick()] == ["first tick"]
    assert hooks.reason() == ""


def service(**hooks: Callable[..., Any]) -> DriverService:
    """Return a service with these hooks."""
    named = {name: staticmethod(hook) for name, hook in hooks.items()}
    made: DriverService = type("Answering", (DriverService,), named)()
    return made


def failing(text: str) -> Mock:
    return Mock(side_effect=RuntimeError(text))


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (lambda: "no trial begins on Sundays", "no trial begins on Sundays"),
        (failing("no reason"), "service Answering failed: no reason"),
    ],
)
def test_a_services_reason_or_its_error_is_a_reason_for_people(reason: Callable[[], str], text: str) -> None:
    assert DriverHooks([DriverService(), service(reason=reason)]).reason() == text


def test_as_many_attempts_may_be_under_way_as_each_service_lets() -> None:
    assert DriverHooks([]).capacity() == DriverHooks([DriverService()]).capacity() == math.inf
    assert DriverHooks([service(capacity=lambda: 3), DriverService(), service(capacity=lambda: 2)]).capacity() == 2


def test_a_service_that_cannot_say_how_many_sets_no_limit_and_is_asked_again_later() -> None:
    clock, capacity = Clock(), failing("no capacity")
    hooks = DriverHooks([service(capacity=capacity)], clock)

    assert (hooks.capacity(), hooks.capacity(), capacity.call_count) == (math.inf, math.inf, 1)
    assert hooks.reason() == "service Answering failed: no capacity"
    clock.now += PAUSE_S
    assert (hooks.capacity(), capacity.call_count) == (math.inf, 2)


def test_settings_ask_for_a_project_where_files_travel_and_are_refused_without_one(tmp_path: Path) -> None:
    asked: list[tuple[Any, ...]] = []

    def project(*given: Any) -> ProgramFiles:
        asked.append(given)
        return cast("ProgramFiles", given)

    backend = SimpleNamespace(local_slots=None)
    usual: dict[str, Any] = {
        "trainable": trainable,
        "space": SPACE,
        "metric": "loss",
        "mode": "min",
        "backend": backend,
    }
    assert settings_of(**usual, make_project=project).project is None
    assert asked == []

    settings = settings_of(**usual, bundle=tmp_path, make_project=project)

    assert (settings.project, asked[0][:3]) == (asked[0], (tmp_path, settings.spec, settings.code_root))
    with pytest.raises(ConfigurationError, match="can't be sent to workers"):
        settings_of(**usual, bundle=tmp_path)


def test_a_service_whose_tick_fails_keeps_its_limit() -> None:
    held = service(tick=failing("no server"), capacity=lambda: 2)
    held.due = 0.0
    hooks = DriverHooks([held], Clock())

    assert [*hooks.tick()] == []
    assert hooks.reason() == "service Answering failed: no server"
    assert hooks.capacity() == 2


def test_an_error_is_a_reason_for_a_while_also_where_no_tick_follows() -> None:
    calls: list[str] = []
    clock = Clock()
    hooks = DriverHooks([Told("first", calls, "hear", due=math.inf)], clock)

    hooks.hear(EVENT)
    assert hooks.reason() == "service Told failed: no hear"
    clock.now += PAUSE_S

    assert hooks.reason() == ""


def test_the_first_service_that_can_restore_a_lost_journal_does_so(caplog: pytest.LogCaptureFixture) -> None:
    restores = [Mock(return_value=None), failing("no disk"), *(Mock(return_value=Restored(n, 0, [])) for n in (3, 4))]
    hooks = DriverHooks([DriverService(), *(service(journal_lost=restore) for restore in restores)])

    assert hooks.journal_lost() == Restored(3, 0, [])
    assert [restore.call_count for restore in restores] == [1, 1, 1, 0]
    assert hooks.reason() == "service Answering failed: no disk"
    assert len(caplog.records) == 1
    assert DriverHooks([DriverService()]).journal_lost() is None


def test_a_journal_that_can_not_be_restored_ends_its_driver() -> None:
    lost = service(journal_lost=Mock(side_effect=JournalGone("no copy")))

    with pytest.raises(JournalGone, match="no copy"):
        DriverHooks([lost, service(journal_lost=lambda: Restored(3, 0, []))]).journal_lost()


def test_a_driver_without_recovery_ends_when_its_journal_is_lost(tmp_path: Path) -> None:
    bench = Bench(tmp_path, services=no_services).step().start("0001")
    set_back(bench.server)
    bench.clock.now += KEEP_LOCK_S

    with pytest.raises(JournalGone, match="has no service that can restore them"):
        bench.step()
