"""The outputs of commands about the recorded experiments, and about some more that are written by hand.

    python tests/recorded/printed.py

prints anew the golden files of this folder, ``outputs/EXPERIMENT.txt``. Look at their diff before you commit it. Long outputs are
shortened to their first and last lines and a hash.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from click.testing import CliRunner

HERE: Final = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from book import ASHA, Book  # noqa: E402 - it is beside this folder

from mqtune.cli import group  # noqa: E402
from mqtune.core.codec import REPORTS_PREFIX, pack_metrics, segment_bytes  # noqa: E402
from mqtune.core.trial import AttemptEnd  # noqa: E402
from mqtune.journal import JOURNAL_FILE  # noqa: E402
from mqtune.results.results import Results  # noqa: E402

FOLDER: Final = HERE / "outputs"
#: An hour after the last event of the recorded experiments, in seconds since 1970.
NOW: Final = 1_795_340_000.0
#: The most lines of an output that are kept in full, and the lines at each end of a longer one.
_MOST_LINES: Final = 40
_END_LINES: Final = 4
_WIDTH: Final = 120

#: The commands about each experiment, without the program's name.
COMMANDS: Final = (
    "list",
    "list NAME --json",
    "list NAME --compare",
    "show NAME",
    "show NAME --json",
    "show NAME 1",
    "show NAME best",
    "show NAME 1 --json",
    "show NAME --all --sort trial --reverse",
    "show NAME --status failed --status running --limit 2",
    "show NAME --tag odd",
    "show NAME --notes paper",
    "show NAME --where 'reports>3 and not loss>0.2' --sort loss",
    "why NAME",
    "why NAME 1 --json",
    "logs NAME 1",
    "events NAME",
    "events NAME --json",
    "export NAME",
    "export NAME --rows attempts",
    "export NAME --rows reports --format jsonl",
    "plot NAME history --json",
    "usage --by experiment --since 2023-01-01",
    "usage --json --since 2023-01-01",
    "replay NAME",
    "replay NAME --scheduler 'ASHA(9, grace_period=9)' --scheduler FIFO --slots 2 --json",
)
#: The commands that end by themselves only if the experiment has ended.
FOLLOWING: Final = ("show NAME --follow", "show NAME --follow --json")


def _several_metrics(book: Book) -> None:
    for trial, loss, cost in (("0001", 1.0, 3), ("0002", 3.0, 1), ("0003", 3.0, 3)):
        book.stage(trial)
        book.report(trial, {"loss": loss, "cost": cost})
        book.end(trial)


def _all_failed(book: Book) -> None:
    for trial, error in (("0001", "ValueError: too hot"), ("0002", "KeyError: 'x'")):
        book.stage(trial)
        book.end(
            trial, AttemptEnd.FAILED, error_type=error.partition(":")[0], error=f"Traceback …\n{error}", exit_code=1
        )
    book.finish()


def _best_failed(book: Book) -> None:
    book.run("0001", 3.0, 2.0)
    book.stage("0002", {"lr": 0.5})
    book.report("0002", {"loss": 1.0})
    book.end("0002", AttemptEnd.FAILED, error_type="ValueError", error="ValueError: no", signal=9)
    book.finish()


def _hostile_texts(book: Book) -> None:
    """Text that would steer a terminal, be markup, or be a formula in a spreadsheet."""
    book.run("0001", 0.5, config={"lr": 0.1, "note": "\x1b[2J", "text": "=cmd|' /C calc'!A0", "wide": "数" * 50})
    book.stage("0002", {"lr": float("nan"), "note": "[/bold red]", "net": {"width": 8, "sizes": [64, 32]}})
    book.report("0002", {"loss": 0.125, "a\x9b2Jb": 1.0, "deep": {"er": True}}, {"loss": float("nan")})


def _unreadable_reports(book: Book) -> None:
    book.stage("0001")
    book.report("0001", {"loss": 3.0})
    noise = [pack_metrics(book.now, {"loss": 2.0}), b"\xc1 noise", b"\xc1 noise"]
    book.write(REPORTS_PREFIX + b"\x91" + segment_bytes("0001", 1, 2, noise))
    book.sequences["0001"] = 4
    book.report("0001", {"loss": 1.0})
    book.end("0001")


def _gang(book: Book) -> None:
    """An attempt with three seats, each on a worker of its own."""
    book.stage("0001")
    for seat in (1, 2):
        book.start("0001", task=seat, worker=f"w{seat + 1}@host", devices=[str(seat)])
    book.report("0001", {"loss": 0.5})


def _stopped_early(book: Book) -> None:
    """Stopped with a report after the decision, failed, and lost and run again."""
    book.run("0001", *(9.0 - epoch for epoch in range(9)))
    book.stage("0002")
    book.report("0002", {"loss": 1.5}, {"loss": 1.25})
    book.decide("0002")
    book.report("0002", {"loss": 0.5})
    book.end("0002", AttemptEnd.STOPPED)
    book.stage("0003")
    book.end("0003", AttemptEnd.LOST)
    book.stage("0003")
    book.report("0003", {"loss": 1.0, "epoch": 1})
    book.stage("0004", start=False)


#: The experiments that no run has recorded, and the options of their definitions.
WRITTEN: Final[dict[str, tuple[Callable[[Book], None], dict[str, Any]]]] = {
    "all-failed": (_all_failed, {}),
    "best-failed": (_best_failed, {}),
    "gang": (_gang, {}),
    "hostile-texts": (_hostile_texts, {}),
    "no-trials": (lambda _: None, {}),
    "several-metrics": (_several_metrics, {"metric": ["loss", "cost"], "mode": ["min", "min"]}),
    "stopped-early": (_stopped_early, {"scheduler": ASHA, "max_failures": 1}),
    "unreadable-reports": (_unreadable_reports, {}),
}
EXPERIMENTS: Final = sorted([*WRITTEN, *(path.parent.name for path in HERE.glob(f"*/{JOURNAL_FILE}"))])


def put(name: str, home: Path) -> None:
    """Write an experiment into *home*, as it was recorded or is written by hand."""
    if name in WRITTEN:
        write, options = WRITTEN[name]
        write(book := Book(home / name, **options))
        book.save()
    else:
        shutil.copytree(HERE / name, home / name)
    os.utime(home / name / JOURNAL_FILE, (NOW, NOW))


def printed(name: str, home: Path) -> str:
    """Run each command about an experiment in the empty folder *home*, and return the commands with their outputs."""
    put(name, home)
    with at_a_fixed_time():
        has_ended = Results.load(home / name).outcome != ""
        commands = [*COMMANDS, *(FOLLOWING if has_ended else ())]
        return "\n".join(_printed(command.replace("NAME", name), home) for command in commands)


def _printed(command: str, home: Path) -> str:
    env = {"MQTUNE_HOME": str(home), "MQTUNE_BROKER": "", "COLUMNS": str(_WIDTH)}
    done = CliRunner().invoke(group, shlex.split(command), env=env)
    lines = [f"$ mqtune {command}", *_shortened(done.stdout.replace(str(home), "HOME").splitlines())]
    lines += [f"stderr: {line}" for line in done.stderr.splitlines()]
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        lines.append(f"{type(done.exception).__name__}: {done.exception}")
    if done.exit_code:
        lines.append(f"exit code {done.exit_code}")
    return "\n".join(line.rstrip() for line in lines).replace(str(home), "HOME") + "\n"


def _shortened(lines: list[str]) -> list[str]:
    if len(lines) <= _MOST_LINES:
        return lines
    digest = sha256("\n".join(lines).encode()).hexdigest()[:16]
    return [*lines[:_END_LINES], f"… {len(lines)} lines, {digest} …", *lines[-_END_LINES:]]


@contextmanager
def at_a_fixed_time() -> Iterator[None]:
    """Have it be NOW, in a fixed time zone."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        # Log messages reach standard error only where nothing else, such as pytest, handles them.
        with patch("time.time", lambda: NOW), patch("logging.lastResort", logging.NullHandler()):
            yield
    finally:
        os.environ.pop("TZ")
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for experiment in EXPERIMENTS:
        with tempfile.TemporaryDirectory() as folder:
            (FOLDER / f"{experiment}.txt").write_text(printed(experiment, Path(folder)))
