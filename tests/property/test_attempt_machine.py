"""An attempt on a worker has one end, all its reports before that, and leaves nothing, under any order of events."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from losing import set_back, snapshot
from one_worker import Attempt, Machine
from waiting import DEADLINE_S, eventually, is_gone

from mqtune.checkpoints import decode_dict
from mqtune.core.errors import BrokerFull
from mqtune.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, Reports
from mqtune.core.timing import Timing
from mqtune.core.trial import UNDRIVEN, AttemptEnd, CheckpointId, Intent, TrialId
from mqtune.journal import Claim, Grant, MemoryJournal, MemoryServer
from mqtune.worker import revoke

#: A trainable that carries out orders from a socket, and answers after each.
CODE: Final = """
import os, signal, socket, sys, time
import mqtune

def idles(config):
    while True:
        time.sleep(0.01)

def obeys(config):
    try:
        (mqtune.get_context().folder / "file").touch()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as orders:
            orders.connect("\\0" + config["address"])
            while True:
                order = orders.recv(100).decode()
                what, _, number = order.partition(" ")
                state = {"number": int(number)}
                match what:
                    case "report":
                        mqtune.report(state)
                    case "report-state":
                        mqtune.report(state, checkpoint=state)
                    case "save":
                        mqtune.save_checkpoint(state)
                    case "print":
                        print("line", number, flush=True)
                    case "return":
                        return
                    case "raise":
                        raise ValueError("no luck")
                    case "exit":
                        os._exit(3)
                    case _:
                        os.kill(os.getpid(), int(what))
                orders.send(b"done")
    except mqtune.StopTrial:
        if config["saves"]:
            mqtune.save_checkpoint({"number": -1})
            return
        raise
"""

#: The ends of an attempt that obeys an order, and the orders that replace others.
TOLD: Final = {
    Intent.PAUSE: AttemptEnd.PAUSED,
    Intent.HAND_BACK: AttemptEnd.HANDED_BACK,
    Intent.GIVE_WAY: AttemptEnd.HANDED_BACK,
    Intent.STOP: AttemptEnd.STOPPED,
    Intent.COMPLETE: AttemptEnd.COMPLETED,
    Intent.ABANDON: AttemptEnd.STOPPED,
}
FINAL: Final = frozenset({Intent.STOP, Intent.COMPLETE, Intent.ABANDON})
#: How a trainable ends by itself, and the ends, exit codes and signals that come of it.
OWN: Final = {
    "return": (AttemptEnd.COMPLETED, 0, None),
    "raise": (AttemptEnd.FAILED, 1, None),
    "exit": (AttemptEnd.FAILED, 3, None),
    "9": (AttemptEnd.FAILED, None, 9),
    # A real-time signal, which has no name.
    "40": (AttemptEnd.FAILED, None, 40),
}
#: By how much a lease runs down, of the 60 s that each heartbeat gives it.
PASSES_S: Final = (35.0, 70.0)


class Weather:
    """The state of the journals' server: it may be away, or full."""

    def __init__(self) -> None:
        self.is_here = threading.Event()
        self.is_here.set()
        self.is_full = False
        #: The journals of the attempt, which notice outages.
        self.journals: list[Exposed] = []


class Exposed(MemoryJournal):
    """A worker's journal whose calls wait while the server is away, and fail to write while it is full."""

    def __init__(self, server: MemoryServer, experiment: str, weather: Weather) -> None:
        super().__init__(server, experiment)
        self._weather = weather
        weather.journals.append(self)

    def wait_for_server(self, *, writes: bool) -> None:
        if not self._weather.is_here.is_set():
            assert self._weather.is_here.wait(DEADLINE_S)
            self.outages += 1
        if writes and self._weather.is_full:
            raise BrokerFull("Redis is full")


def exposed(name: str, *, writes: bool) -> Callable[..., Any]:
    def call(self: Exposed, *args: Any, **options: Any) -> Any:
        self.wait_for_server(writes=writes)
        return getattr(MemoryJournal, name)(self, *args, **options)

    return call


for name, writes in {"claim": False, "report": True, "put_checkpoint": True, "saved": True, "end": False}.items():
    setattr(Exposed, name, exposed(name, writes=writes))


class Trial:
    """A trial that obeys, and notes of its acts and of the orders to it."""

    def __init__(self, machine: Machine, trial: str, *, saves: bool, reuse: bool) -> None:
        address = f"mqtune-{os.getpid()}-{id(self)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind("\0" + address)
            listening.listen()
            listening.settimeout(DEADLINE_S)
            config = {"address": address, "saves": saves}
            self.one = machine.start("obeys", config, trial=trial, reuse=reuse)
            self._orders = listening.accept()[0]
        self._orders.settimeout(DEADLINE_S)
        self.saves, self.reuse = saves, reuse
        #: Reports and checkpoints that it has made for certain, the report that it has perhaps made, and its lines.
        self.reports: list[int] = []
        self.states: list[int] = []
        self.saved: list[int] = []
        self.maybe: list[int] = []
        self.lines = ""
        self.own: str = ""
        self.told: list[Intent] = []
        self.unheard: list[Intent] = []
        #: All decisions of its driver.
        self.decided: list[Intent] = []
        self.is_killed = self.is_lost = self.is_set_back = self.was_full = self.is_undriven = False

    @property
    def is_obeying(self) -> bool:
        """Whether no event that is known here has ended it."""
        return not (self.own or self.told or self.is_killed or self.is_lost)

    def order(self, what: str, number: int = 0) -> bool:
        """Have it do something; False if it ends meanwhile."""
        with contextlib.suppress(ConnectionError):
            self._orders.send(f"{what} {number}".encode())
            return self._orders.recv(100) == b"done"
        return False

    def effective(self, told: Sequence[Intent]) -> Intent | None:
        """The order that counts: the first final one, or else the first."""
        return next((each for each in told if each in FINAL), told[0] if told else None)

    def drops(self) -> bool:
        """Whether it may lose reports that a full server did not take."""
        return self.was_full and any(each in FINAL - {Intent.COMPLETE} for each in [*self.told, *self.unheard])

    def ends(self) -> set[AttemptEnd]:
        """Return the possible ends on its worker."""
        # It may have ended by an order before the next one came, and any answer may have brought a decision.
        whole = [self.told, [*self.unheard, *self.told], [*self.told, *self.unheard]]
        orders = [told[:number] for told in whole for number in range(1, len(told) + 1)]
        found = {TOLD[intent] for told in orders if (intent := self.effective(told)) is not None}
        if self.own:
            found.add(OWN[self.own][0])
        return found | ({AttemptEnd.LOST} if self.is_set_back else set())

    def close(self) -> None:
        self._orders.close()


#: Each trial of each example has an output of its own.
_numbers = itertools.count(1)


def next_trial() -> str:
    return f"{next(_numbers):04}"


class AttemptMachine(RuleBasedStateMachine):
    """One slot of a worker, and its trials one after the other, under all events of the journal and its server."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.weather = Weather()
        self.now = 1_000.0
        machine.begin(MemoryServer(lambda: self.now), lambda server, name: Exposed(server, name, self.weather))
        self.trial: Trial | None = None

    @property
    def running(self) -> Trial:
        assert self.trial is not None
        return self.trial

    def is_idle(self) -> bool:
        return self.trial is None

    def is_here(self) -> bool:
        return self.trial is not None and self.weather.is_here.is_set()

    def obeys(self) -> bool:
        return self.trial is not None and self.trial.is_obeying

    # Starts.

    @precondition(is_idle)
    @rule(saves=st.booleans(), reuse=st.booleans())
    def start(self, saves: bool, reuse: bool) -> None:
        self.trial = Trial(self.machine, next_trial(), saves=saves, reuse=reuse)

    @precondition(is_idle)
    @rule(how=st.sampled_from(["drain", "terminate", "kill"]))
    def start_is_told_to_end(self, how: str) -> None:
        """It is not run, or ends by the order, without being forced."""
        one = self.machine.start("idles", trial=next_trial())
        if how == "drain":
            one.run.requeue("drained")
        else:
            one.run.terminate(kill=how == "kill")
        end = one.finished().end
        assert end in (None, AttemptEnd.HANDED_BACK if how == "drain" else AttemptEnd.STOPPED)
        assert end is None or one.ended().signal != signal.SIGTERM

    @precondition(is_idle)
    @rule(why=st.sampled_from(["unknown", "superseded", "ended", "revoked", "taken"]))
    def is_refused(self, why: str) -> None:
        """A worker leaves alone an attempt that is over, or that another worker has."""
        trial = next_trial()
        number = 1 if why == "unknown" else self.machine.stage(trial=trial)
        other = Claim(TrialId(trial), number, "another")
        if why in ("ended", "taken"):
            event = AttemptStarted(trial=other.trial, attempt=number, worker="w2", host="h", devices=[], at=1.0)
            assert isinstance(self.machine.driver.claim(other, "w2", 60, event.encode()), Grant)
        if why in ("ended", "superseded"):
            ended = AttemptEnded(trial=other.trial, attempt=number, end=AttemptEnd.COMPLETED, at=1.0)
            assert self.machine.driver.end(other, ended.encode()) == (why == "ended")
        if why == "superseded":
            self.machine.stage(trial=trial)
        if why == "revoked":
            revoke(self.machine.parts.name, self.machine.parts.clock, self.machine.driver, TrialId(trial), number)
        entries = len(self.machine.events())

        assert self.machine.attempt(number, "obeys", trial=trial).ended_unclaimed() == f"not run: {why}"

        assert len(self.machine.events()) == entries
        if why != "taken":
            assert not (self.machine.log_root / "e" / trial).exists(), "files of output are left"

    # Acts of the trial.

    @precondition(obeys)
    @rule(
        orders=st.lists(st.sampled_from(["report", "report-state", "save", "print"]), min_size=1, max_size=5),
        befalls=st.sampled_from(["nothing", "away", "full", "set back"]),
    )
    def works(self, orders: list[str], befalls: str) -> None:
        """The trial works, while the server may be away or full; or the server loses all of it afterwards."""
        self.weather.is_full |= befalls == "full"
        self.running.was_full |= self.weather.is_full
        if befalls == "away":
            self.weather.is_here.clear()
        is_lost = befalls == "set back" and self.weather.is_here.is_set() and not self.weather.is_full
        before = snapshot(self.machine.server) if is_lost else None
        self._work(orders)
        if before is not None and not self.running.unheard:
            one = self.running
            eventually(lambda: len(one.one.reports) == len(one.reports) or one.maybe or one.is_set_back)
            set_back(self.machine.server, before)
            one.is_set_back = True
            for journal in self.weather.journals:
                journal.outages += 1

    def _work(self, orders: list[str]) -> None:
        one = self.running
        for what in orders:
            if what == "print":
                number = one.lines.count("\n")
            else:
                number = 1_000 + len(one.saved) if what == "save" else len(one.reports) + 1
            is_done = one.order(what, number)
            if what == "print":
                one.lines += f"line {number}\n" if is_done else ""
            elif what == "save":
                one.saved += [number] if is_done else []
            elif is_done:
                one.reports.append(number)
                one.states += [number] if what == "report-state" else []
            else:
                one.maybe = [number]
            if not is_done:
                break

    @precondition(obeys)
    @rule(how=st.sampled_from(sorted(OWN)))
    def ends_itself(self, how: str) -> None:
        self.running.own = how
        assert not self.running.order(how)

    # Acts of its driver and its worker.

    @precondition(is_here)
    @rule(intent=st.sampled_from(sorted(TOLD, key=str)), is_heard=st.booleans())
    def decide(self, intent: Intent, is_heard: bool) -> None:
        """The driver decides; its hint arrives, or is lost."""
        one = self.running
        # A decision is replaced only by a final one.
        if one.one.outcome is None and not (one.decided and (intent not in FINAL or FINAL & {*one.decided})):
            one.decided.append(intent)
            if one.one.decide(intent) != "running":
                return
            if is_heard:
                one.told.append(intent)
                one.one.run.on_answer(intent.value)
            else:
                one.unheard.append(intent)

    @precondition(lambda self: self.trial is not None)
    @rule(how=st.sampled_from(["drain", "undriven", "terminate", "kill"]))
    def end_by_worker(self, how: str) -> None:
        one = self.running
        run = one.one.run
        if how == "drain":
            one.told.append(Intent.HAND_BACK)
            run.requeue("drained")
        elif how == "undriven":
            one.told.append(Intent.HAND_BACK)
            one.is_undriven = True
            run.on_answer(UNDRIVEN)
        else:
            one.told.append(Intent.STOP)
            one.is_killed |= how == "kill"
            run.terminate(kill=how == "kill")

    @precondition(is_here)
    @rule()
    def heartbeat(self) -> None:
        one = self.running
        if one.one.outcome is None:
            heard, one.unheard = one.unheard, []
            one.told += heard
            one.one.beat()

    @precondition(is_here)
    @rule(seconds=st.sampled_from(PASSES_S))
    def time_passes(self, seconds: float) -> None:
        """The driver takes attempts from a worker that has not renewed its lease."""
        self.now += seconds
        self.machine.driver.lock("driver", "a test", 600)
        for trial in self.machine.driver.expired():
            one = self.running
            event = AttemptEnded(trial=trial, attempt=1, end=AttemptEnd.LOST, at=1.0)
            last = self.machine.driver.read("0-0", count=100_000)[-1].id
            one.is_lost |= self.machine.driver.lose(trial, 1, "expired", event.encode(), read=last)

    @precondition(lambda self: self.trial is not None)
    @rule()
    def all_is_well_again(self) -> None:
        self.weather.is_here.set()
        self.weather.is_full = False

    # The end.

    @precondition(lambda self: self.trial is not None and not self.trial.is_obeying)
    @rule()
    def finish(self) -> None:
        one, attempt = self.running, self.running.one
        self.weather.is_here.set()
        if not one.drops():
            self.weather.is_full = False
        if one.is_lost:
            attempt.beat()
        elif attempt.outcome is None:
            attempt.run.write_again_if_in_doubt()
        outcome = attempt.finished()
        self.weather.is_full = False
        one.close()
        self.trial = None
        # Late answers have no effect.
        attempt.beat()
        attempt.run.on_answer(Intent.STOP.value)
        check(one, self.machine)

        if one.is_lost:
            assert outcome.end is None
        else:
            assert outcome.end in one.ends()

    @invariant()
    def is_in_order(self) -> None:
        """The journal has a beginning of the sent reports, in order, each once."""
        if self.trial is not None:
            numbers = [report.metrics["number"] for report in self.trial.one.reports]
            assert numbers == [*self.trial.reports, *self.trial.maybe][: len(numbers)]

    def teardown(self) -> None:
        self.weather.is_here.set()
        self.weather.is_full = False
        if self.trial is not None:
            if self.trial.is_obeying:
                self.trial.told.append(Intent.STOP)
                self.trial.one.run.terminate(kill=False)
            try:
                self.finish()
            finally:
                # An attempt that does not end as it should must not disturb the next example.
                self.machine.end_all()


def check(one: Trial, machine: Machine) -> None:
    """Compare an attempt that is over with its entries in the journal, its files and its processes."""
    attempt = one.one
    outcome = attempt.finished()
    mine = [each for each in machine.events() if _is_of(each, attempt)]
    ends = [each for each in mine if isinstance(each, AttemptEnded)]
    numbers = [report.metrics["number"] for report in attempt.reports]
    sent = [*one.reports, *one.maybe]
    assert numbers == sent[: len(numbers)]
    assert not [*machine.log_root.glob(".scratch/*/*")], "an attempt's folder is left"
    pid = attempt.run.pid
    if pid is not None and (not one.reuse or outcome.end is None or (ends and ends[0].retired)):
        eventually(lambda: is_gone(pid))
    assert len(ends) == (outcome.end is not None or one.is_lost)
    if not ends:
        return
    (ended,) = ends
    assert mine[-1] is ended, "nothing comes after the end"
    if one.is_lost:
        return
    assert ended.end is outcome.end
    if ended.end is not AttemptEnd.LOST:
        missing = len(one.reports) - len(numbers)
        assert missing <= 0 or (one.drops() and f"{missing:,} report" in ended.error.replace("report was", "1 report"))
    for report in attempt.reports:
        number = report.metrics["number"]
        assert bool(report.checkpoint) == (number in one.states or (number in one.maybe and bool(report.checkpoint)))
        if report.checkpoint:
            assert state_of(machine, report.checkpoint, iteration=number) == number
    assert one.lines in ended.stdout_tail
    if one.own and not (one.told or one.unheard or one.is_set_back):
        assert (ended.end, ended.exit_code, ended.signal) == OWN[one.own]
    if not (one.is_set_back or one.was_full or one.own or one.is_killed):
        saved = [state_of(machine, each.checkpoint) for each in attempt.of(CheckpointSaved)]
        assert saved == [*one.saved, *([-1] if one.saves else [])]
        assert ended.signal is None


def _is_of(event: object, attempt: Attempt) -> bool:
    if isinstance(event, Reports):
        return any((each.trial, each.attempt) == attempt.claim[:2] for each in event)
    is_mine = (getattr(event, "trial", ""), getattr(event, "attempt", 0)) == attempt.claim[:2]
    return is_mine and isinstance(event, (AttemptStarted, AttemptEnded, CheckpointSaved))


def state_of(machine: Machine, checkpoint: CheckpointId, iteration: int | None = None) -> int:
    data = machine.driver.checkpoint(checkpoint)
    assert data is not None, f"{checkpoint} is named and is not there"
    state, counters = decode_dict(data)
    assert iteration in (None, counters["training_iteration"])
    return int(state["number"])


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with contextlib.closing(Machine(tmp_path, CODE, Timing(lease_s=60.0))) as machine:
        yield machine


@pytest.mark.hypothesis
def test_an_attempt_has_one_end_and_all_its_reports_whatever_happens_to_it(machine: Machine) -> None:
    few = settings(
        max_examples=max(1, settings.default.max_examples // 3),
        stateful_step_count=20,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(lambda: AttemptMachine(machine), settings=few)
