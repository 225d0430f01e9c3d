"""The counting function as a script, which gets its config as arguments."""

from __future__ import annotations

import argparse
import ast
import contextlib
from typing import Any

import counting


def config_of(words: list[str]) -> dict[str, Any]:
    """Return the config that stands in pairs of ``--name value``."""
    found: dict[str, Any] = {}
    for name, value in zip(words[::2], words[1::2], strict=True):
        found[name.removeprefix("--")] = value
        with contextlib.suppress(ValueError, SyntaxError):
            found[name.removeprefix("--")] = ast.literal_eval(value)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--st_checkpoint_dir")
    counting.counts(config_of(parser.parse_known_args()[1]))
