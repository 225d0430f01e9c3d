"""Write an experiment to one HTML file, for people without mqtune."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mqtune.cli.place import View
from mqtune.cli.ui.app import ASSETS
from mqtune.cli.ui.trials import MOST_ROWS
from mqtune.cli.ui.views import as_figures
from mqtune.core.errors import ConfigurationError, NothingToDraw
from mqtune.core.experiment import Experiment
from mqtune.core.machine import replace_file
from mqtune.core.text import counted, printable
from mqtune.results.display import best_text, columns_of, counts_text, ranked
from mqtune.results.frames import Row
from mqtune.results.plots.by_plotly import script
from mqtune.results.plots.plots import KINDS, Plots
from mqtune.results.progress import deciders_of

#: The sections of a report and their pictures. They are the tabs of the live page.
_SECTIONS: Final = {
    "Overview": ("history", "curves", "pareto"),
    "Parameters": ("importances", "slices", "parallel"),
    "Schedule": ("rungs", "timeline", "lineage"),
}
_TITLES: Final = {
    "history": "Best over time",
    "curves": "Learning curves",
    "pareto": "Pareto front",
    "importances": "Importance",
    "slices": "Parameters",
    "parallel": "Parallel coordinates",
    "rungs": "Rungs",
    "timeline": "Timeline",
    "lineage": "Lineage",
}


def write_report(view: View, file: Path) -> None:
    """Write an experiment to an HTML file, in one step.

    Raises:
        ConfigurationError: the file can't be written.
    """
    try:
        replace_file(file, (part.encode(errors="backslashreplace") for part in _parts(view)))
    except OSError as error:
        raise ConfigurationError(f"{file} can't be written: {error}") from None


def _parts(view: View) -> Iterator[str]:
    experiment = view.results.experiment
    style = (ASSETS / "page.css").read_text(encoding="utf-8")
    # The policy allows only these scripts, by their hashes.
    scripts = [path.read_text(encoding="utf-8") for path in (script(), ASSETS / "pictures.js", ASSETS / "report.js")]
    policy = (
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
        f"script-src {' '.join(map(_hash, scripts))}"
    )
    yield (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    )
    yield (
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
    )
    name = _text(experiment.name)
    yield f'<title>{name} · mqtune</title><style>{style}</style><main class="report"><h1>{name}</h1>'
    lines = [view.state, counts_text(experiment), counted(experiment.reports, "report"), best_text(experiment)]
    started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(experiment.created_at))
    yield f'<p class="note">{_text(" · ".join(filter(None, [f"started {started}", *lines])))}</p>'
    yield f'<p class="note">{_text(str(deciders_of(view.results.definition)))}</p>'
    pictures = dict(_pictures(view))
    sections = {title: [kind for kind in kinds if kind in pictures] for title, kinds in _SECTIONS.items()}
    sections = {title: kinds for title, kinds in sections.items() if kinds}
    links = "".join(f'<a href="#{title}">{title}</a>' for title in [*sections, "Trials"])
    yield f'<nav class="tabs" aria-label="sections">{links}</nav>'
    for title, kinds in sections.items():
        yield f'<h2 id="{title}">{title}</h2>'
        for kind in kinds:
            yield f'<section class="card chart" data-kind="{kind}"><h3>{_TITLES[kind]}</h3>'
            yield f'<p class="note">{_text(str(pictures[kind]["note"]))}</p><div class="plots"></div></section>'
    yield from _table(experiment)
    # A text in a picture could close the script element.
    data = json.dumps(pictures, allow_nan=False).replace("<", "\\u003c")
    yield f'</main><script type="application/json" id="pictures">{data}</script>'
    yield from (f"<script>{text}</script>" for text in scripts)


def _pictures(view: View) -> Iterator[tuple[str, Row]]:
    # Plots itself, unlike results.plot, needs neither Matplotlib nor Plotly.
    plots = Plots(view.results)
    for kind in KINDS:
        # Importances need further packages. Without these the report has no importances.
        with contextlib.suppress(NothingToDraw, ConfigurationError):
            yield kind, as_figures(plots.draw(kind))


def _table(experiment: Experiment) -> Iterator[str]:
    trials, columns = ranked(experiment), columns_of(experiment)
    more = f", the best {MOST_ROWS:,}" if len(trials) > MOST_ROWS else ""
    heads = "".join(f'<th scope="col">{_text(column.head)}</th>' for column in columns)
    yield (
        f'<h2 id="Trials">Trials</h2><section class="card"><h3>{len(trials):,} trials{more}</h3>'
        '<div class="scroll" tabindex="0" role="region" aria-label="trials">'
        f"<table><thead><tr>{heads}</tr></thead>"
    )
    for trial in trials[:MOST_ROWS]:
        yield f"<tr>{''.join(f'<td>{_text(column.cell(experiment, trial))}</td>' for column in columns)}</tr>"
    yield "</table></div></section>"


def _text(text: str) -> str:
    return html.escape(printable(text))


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
