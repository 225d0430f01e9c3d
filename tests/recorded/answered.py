"""What the page answers about recorded experiments, and about some that are written by hand.

    python tests/recorded/answered.py

asks anew and writes ``answers/EXPERIMENT.txt``. Floats are rounded, and of a long answer a hash stands for the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from printed import at_a_fixed_time, put

from mqtune.cli import Access, Page, Place, Places

FOLDER: Final = Path(__file__).parent / "answers"
EXPERIMENTS: Final = ("asha", "by-hand", "hostile-texts", "pbt", "several-metrics", "stopped-early")
#: The characters of an answer that are shown, enough to see what it is about.
_LONGEST: Final = 600
#: Sums of floats differ in the last digits between machines.
_DIGITS: Final = 10
#: What differs from run to run.
_CHANGING: Final = {"pause_s"}
PATHS: Final = (
    "trials?name=NAME",
    "trials?name=NAME&begin=1&count=2",
    "trials?name=NAME&where=loss%3C1.1&sort=loss&reverse",
    "trials?name=NAME&where=completed&ids",
    "trials?name=NAME&where=depth%3E1",
    "trials?name=NAME&trial=0002&trial=0001&trial=9",
    "trial?name=NAME&trial=0001",
    "trial?name=NAME&trial=0002",
    "picture?name=NAME&kind=history&x=trial",
    "picture?name=NAME&kind=history&x=time&where=loss%3C1.1",
    "picture?name=NAME&kind=curves",
    "picture?name=NAME&kind=curves&x=time&of=0001&of=0002",
    "picture?name=NAME&kind=parallel&of=0001&of=0002",
    "picture?name=NAME&kind=slices",
    "picture?name=NAME&kind=slices&at=best",
    "picture?name=NAME&kind=ranges",
    "picture?name=NAME&kind=timeline",
    "picture?name=NAME&kind=rungs",
    "picture?name=NAME&kind=trial&trial=0002",
    "picture?name=NAME&kind=what",
    "compared?of=NAME&of=asha&kind=runs",
    "compared?of=NAME&of=asha&kind=bests",
    "compared?of=NAME&of=asha&kind=parameters",
    "summaries?of=NAME&of=asha",
    "code?name=NAME&trial=0001&attempt=1",
    "log?name=NAME&trial=0001",
    "log?name=NAME&trial=0001&attempt=7",
    "facts?name=NAME",
    "history?name=NAME",
    "why?name=NAME",
    "why?name=NAME&trial=0001",
    "experiments",
    "trials?name=yours",
)


def answered(name: str, home: Path) -> str:
    """Ask the page about an experiment in the empty folder *home*, and return what was asked with the answers."""
    names = sorted({name, "asha"})
    for each in names:
        put(each, home)
    folders = [Place(each, home / each, None) for each in names]
    access = Access("127.0.0.1", 80)
    page = Page(Places(folders, None, broker_alone=False), access)
    with at_a_fixed_time(), contextlib.closing(page.feeds):
        return "\n".join(_answer(page, access, f"/api/{path.replace('NAME', name)}", home) for path in PATHS) + "\n"


def _answer(page: Page, access: Access, address: str, home: Path) -> str:
    path, _, query = address.partition("?")
    headers = [(b"host", b"localhost"), (b"cookie", f"mqtune_80={access.token}".encode())]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": headers}
    sent: list[dict[str, Any]] = []

    requests = [{"type": "http.request", "body": b""}]

    async def receive() -> dict[str, Any]:
        # Nobody goes away before the answer's end.
        return requests.pop() if requests else await asyncio.Future()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(page.app()({**scope, "http_version": "1.1", "scheme": "http", "root_path": ""}, receive, send))  # type: ignore[arg-type]
    text = b"".join(each.get("body", b"") for each in sent).decode()
    with contextlib.suppress(ValueError):
        text = json.dumps(_rounded(json.loads(text)), sort_keys=True)
    text = text.replace(str(home), "HOME")
    digest = f" … {sha256(text.encode()).hexdigest()[:16]}" if len(text) > _LONGEST else ""
    return f"{address}\n{sent[0]['status']} {text[:_LONGEST]}{digest}"


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items() if key not in _CHANGING}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for experiment in EXPERIMENTS:
        with tempfile.TemporaryDirectory() as folder:
            (FOLDER / f"{experiment}.txt").write_text(answered(experiment, Path(folder)))
