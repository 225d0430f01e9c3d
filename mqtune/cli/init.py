"""``mqtune init``: writes a starter project."""

from __future__ import annotations

import getpass
import json
import re
import secrets
import shlex
import shutil
import sys
from importlib.resources import files
from pathlib import Path
from typing import Final

import click

from mqtune.cli.output import writing
from mqtune.core.errors import ConfigurationError
from mqtune.core.version import requirement, source

#: The files that are made from templates, and the templates' names.
_FILES: Final = {
    "tune.py": "tune.py.txt",
    "mqtune-worker.service": "mqtune-worker.service",
    "compose.yml": "compose.yml",
}
#: Files that projects often have already. The user adds lines to them by hand.
_SHARED: Final = frozenset({"requirements.txt", ".gitignore"})
#: Characters that are invalid in names of experiments and Compose projects.
_NOT_ALLOWED: Final = re.compile(r"[^a-z0-9-]+")
_NAME_CHARS: Final = 60


@click.command("init")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
def command(folder: Path) -> None:
    """Write a starter project into FOLDER: a script, a systemd unit, and a Compose file.

    The script runs unchanged. Existing files are not replaced.
    """
    contents = _contents(folder.resolve())
    existing = [name for name in contents if (folder / name).exists()]
    for name in _SHARED & {*existing}:
        existing.remove(name)
        click.echo(f"not changed: {folder / name}; add to it: {' '.join(contents.pop(name).split())}")
    if existing:
        raise ConfigurationError(f"{folder} has {', '.join(existing)} already; give another folder: mqtune init FOLDER")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            # Nobody else may read the file with the password, not even before it is written.
            (folder / name).touch(mode=0o600 if name == ".env" else 0o666)
            (folder / name).write_text(text, encoding="utf-8")
            click.echo(f"wrote {folder / name}")
    click.echo(f"try it: cd {shlex.quote(str(folder))} && python tune.py")


def _install(checkout: str) -> str:
    """Return a Dockerfile line that installs requirements.txt with mqtune."""
    pip = "pip install --no-cache-dir -r /requirements.txt"
    if checkout:
        # pip builds a checkout in place.
        return f"RUN --mount=type=bind,from=mqtune,target={checkout},rw {pip}"
    install_git = "apt-get update && apt-get install -y --no-install-recommends git && "
    return f"RUN {install_git if source().url.startswith('git+') else ''}{pip}"


def _contents(folder: Path) -> dict[str, str]:
    """Return the contents of the project's files by their names."""
    checkout = source().path
    if Path(checkout).is_file():
        checkout = str(Path(checkout).parent)
    words = {
        "@NAME@": _NOT_ALLOWED.sub("-", folder.name.lower())[:_NAME_CHARS].strip("-") or "tuning",
        # systemd reads %% as a percent sign.
        "@FOLDER@": str(folder).replace("%", "%%"),
        "@USER@": getpass.getuser(),
        # Docker needs a further context for a checkout of mqtune, as it is outside the project.
        "@CONTEXTS@": f"\n    additional_contexts:\n      mqtune: {json.dumps(checkout)}" if checkout else "",
        "@INSTALL@": _install(checkout),
        "@MQTUNE@": shutil.which("mqtune", path=str(Path(sys.executable).parent)) or "mqtune",
    }
    rendered = {}
    for name, template in _FILES.items():
        text = (files("mqtune.cli") / "starter" / template).read_text(encoding="utf-8")
        for mark, word in words.items():
            text = text.replace(mark, word)
        rendered[name] = text
    password = secrets.token_hex(16)
    return {
        **rendered,
        "requirements.txt": f"{requirement()}\n",
        ".env": f"REDIS_PASSWORD={password}\nMQTUNE_BROKER=redis://:{password}@127.0.0.1:6379/0\n",
        ".gitignore": ".env\n__pycache__/\n",
    }
