"""``mqtune plot``: draws an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from mqtune.cli.output import broker_option, json_option, print_json
from mqtune.cli.place import complete_experiment, find_place, newest_place, opened
from mqtune.core.text import printable

#: As ``plots.KINDS``, whose import is slow.
KINDS: Final = ("history", "curves", "parallel", "slices", "importances", "timeline", "rungs", "lineage", "pareto")


@click.command("plot")
@click.argument("name", required=False, shell_complete=complete_experiment)
@click.argument("kind", required=False, type=click.Choice(KINDS))
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file: .png, .svg, .pdf, or .html for a page to zoom in; by default KIND.png.",
)
@broker_option("Read from this Redis server. That of $MQTUNE_BROKER is used only for what is not on this machine.")
@json_option
def command(name: str | None, kind: str | None, path: Path | None, broker: str | None, *, as_json: bool) -> None:
    """Draw an experiment, running or ended: NAME, or its folder; by default the newest.

    Without KIND, the file's name decides, such as curves.png, or else it is history. Needs mqtune's extra plot. --json
    prints the points instead.
    """
    if as_json and path is not None:
        raise click.UsageError("--json draws no file; leave out --output")
    from mqtune.results.plots.picture import drawn_by, require  # noqa: PLC0415

    kind = kind or (path.stem if path is not None and path.stem in KINDS else "history")
    path = path or Path(f"{kind}.png")
    if not as_json:
        # Fail before a long journal is read.
        require(drawn_by(path))
    with opened(newest_place(broker) if name is None else find_place(name, broker)) as view:
        picture = view.results.plot.draw(kind)
        if as_json:
            head = {"experiment": view.results.name, "kind": kind, "title": picture.title, "note": picture.note}
            print_json({**head, "points": [*picture.rows()]})
            return
        picture.save(path)
    click.echo(f"{path}: {printable(picture.title)} · {picture.note}")
