"""``python -m benchmarks``: measure, write the results as JSON lines, and print the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from benchmarks.processes import become_subreaper
from benchmarks.runner import plan, run_job
from benchmarks.systems import SYSTEMS
from benchmarks.table import render
from benchmarks.work import WORKLOADS


def _names(known: dict[str, Any], text: str | None, what: str) -> list[Any]:
    if text is None:
        return list(known.values())
    chosen: list[Any] = []
    for asked in (name.strip().lower() for name in text.split(",")):
        named = [entry for name, entry in known.items() if name == asked or name.startswith(f"{asked}/")]
        if not named:
            raise click.BadParameter(f"no {what} named {asked}; there are {', '.join(known)}")
        chosen += named
    return chosen


def _pythons(pairs: tuple[str, ...]) -> dict[str, str]:
    pythons = dict.fromkeys(SYSTEMS, sys.executable)
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals or name not in SYSTEMS:
            raise click.BadParameter(f"--python-for {pair}: give SYSTEM=PATH, SYSTEM one of {', '.join(SYSTEMS)}")
        pythons[name] = path
    return pythons


@click.command()
@click.option("--only", metavar="WORK,…", help=f"Workloads: {', '.join(WORKLOADS)}; default: all.")
@click.option("--systems", metavar="SYSTEM,…", help=f"Systems: {', '.join(SYSTEMS)}; default: all.")
@click.option("--repeats", default=3, show_default=True, help="Runs of each measurement.")
@click.option("--slow-repeats", default=1, show_default=True, help="Runs of slow measurements.")
@click.option("--quick", is_flag=True, help="Small sizes: to see that everything runs, not to measure.")
@click.option("--out", type=click.Path(path_type=Path), help="Append the results to this file, as JSON lines.")
@click.option(
    "--python-for",
    "pythons",
    metavar="SYSTEM=PATH",
    multiple=True,
    help="Interpreter that has the system installed; default: this one.",
)
@click.option("--table", "table_of", type=click.Path(path_type=Path, exists=True), help="Only print a file's table.")
def main(
    only: str | None,
    systems: str | None,
    repeats: int,
    slow_repeats: int,
    quick: bool,
    out: Path | None,
    pythons: tuple[str, ...],
    table_of: Path | None,
) -> None:
    """Measure tuners on the same work, each measurement in a fresh process, one at a time."""
    if table_of is not None:
        click.echo(render([json.loads(line) for line in table_of.read_text().splitlines()]))
        return
    python_of = _pythons(pythons)
    jobs = plan(
        _names(WORKLOADS, only, "workload"),
        _names(SYSTEMS, systems, "system"),
        repeats=repeats,
        slow_repeats=slow_repeats,
        quick=quick,
    )
    become_subreaper()
    lines: list[dict[str, Any]] = []
    for job in jobs:
        click.echo(f"{job} …", err=True)
        found = run_job(job, python_of[job.system.name])
        lines += found
        _show(found)
        if out is not None:
            with out.open("a") as file:
                file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in found)
    click.echo(render(lines))


def _show(lines: list[dict[str, Any]]) -> None:
    for line in lines:
        text = f"{line['figure']} {line['value']:.4g} {line['unit']}" if line["status"] == "ok" else line["reason"]
        click.echo(f"  {'' if line['status'] == 'ok' else line['status'] + ': '}{text}", err=True)


if __name__ == "__main__":
    main()
