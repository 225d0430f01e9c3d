"""``mqtune plot``: draws a picture of an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from mqtune.cli.output import broker_option, say, writing
from mqtune.cli.place import complete_experiment, find_place, newest_place, opened
from mqtune.core.text import printable
from mqtune.results.results import json_text

#: The same as ``plots.KINDS``, which is slow to import.
KINDS: Final = ("history", "curves", "parallel", "slices", "importances", "timeline", "rungs", "lineage", "pareto")


@click.command("plot")
@click.argument("name", required=False, shell_complete=complete_experiment)
@click.argument("kind", required=False, type=click.Choice(KINDS))
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file: .png, .svg, .pdf, or .html for an interactive plot; by default KIND.png.",
)
@broker_option("Read from this Redis server. $MQTUNE_BROKER is used only for experiments that are not on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Write the points as JSON, by default to standard output.")
def command(name: str | None, kind: str | None, path: Path | None, broker: str | None, *, as_json: bool) -> None:
    """Plot a running or ended experiment, by default the newest.

    NAME is its name or folder. KIND is history, curves, parallel, slices, importances, timeline, rungs, lineage or
    pareto. By default it is taken from the file's name, such as curves.png, or else it is history. Without --json, the
    command needs mqtune's extra plot.
    """
    from mqtune.results.plots.picture import drawn_by, require  # noqa: PLC0415

    kind = kind or (path.stem if path is not None and path.stem in KINDS else "history")
    file = path or Path(f"{kind}.png")
    if not as_json:
        # Fail before a long journal is read.
        require(drawn_by(file))
    with opened(newest_place(broker) if name is None else find_place(name, broker)) as view:
        picture = view.results.plot.draw(kind)
        if as_json:
            head = {"experiment": view.results.name, "kind": kind, "title": picture.title, "note": picture.note}
            text = json_text({**head, "points": [*picture.rows()]}, indent=2)
            if path is None:
                say(text)
                return
            with writing(path):
                path.write_text(f"{text}\n", encoding="utf-8")
        else:
            picture.save(file)
    click.echo(f"{file}: {printable(picture.title)} · {picture.note}")
