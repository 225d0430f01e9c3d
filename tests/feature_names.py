"""The modules of mqtune that name a feature outside the feature's own folder.

A module names a feature if an identifier, comment, docstring or text in it has one of the feature's words. Phrases that
only look alike don't count. The lists of services don't count either, because they name each service once. Lua scripts
are counted apart.

To see each line: ``python tests/feature_names.py gangs``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

PACKAGE: Final = Path(__file__).parent.parent / "mqtune"
#: The composition roots. Each service has its line there.
LISTS: Final = frozenset({"services/causes.py", "services/driver.py", "services/settings.py", "services/worker.py"})


class Words(NamedTuple):
    """The words of a feature, and phrases that have these words with another meaning, as regular expressions."""

    own: str
    alike: str = r"(?!)"


#: A word begins where no letter precedes it, or at a capital letter: ``TakesGangs``, ``seat_name``, ``MOST_SEATS``.
FEATURES: Final = {
    "gangs": Words(
        r"(?i:(?<![a-z])(gangs?|seat(s|ed|ing)?|rendezvous)(?![a-z]))|Gangs?(?![a-z])|Seat(s|ed|ing)?(?![a-z])"
    ),
    # "Share" alone is usually a verb, or a fraction of a range, a GPU or a time. So it counts in phrases only.
    "shares": Words(
        r"(?i:quotas?(?![a-z])|(?<![a-z])demands?(?![a-z])|dividing driver|services[./]shares|larger share)"
        r"|(?<![a-z])shares_o[fn]\b|\bShare(s\(|Summary|Keeper)|share_(table|memory|grace|turn)_s|look_at_shares"
        r"|[Ee]xperiments share (a|the) |its share for|\"share\"|share: (float \| None = None|float = option|weight)|share=2"
        r"|\bshares, quotas|experiment_share",
        r"(?i:on demand|no real demand|experiments share a panel)",
    ),
    # An address, a number or a connection is reused, too, and code before a crash.
    "reuse": Words(
        r"(?i:(?<![a-z])reus(e|ed|es|ing)(?![a-z]))",
        r"(?i:reused? (recent|the id|nothing)|reuses (recent|nothing)|may have been reused( before)?|are never reused"
        r"|a reused one)",
    ),
    # A checkpoint, a state and a signal's handler are restored, too.
    "recovery": Words(
        r"(?i:services[./]recovery|journal_lost|on_restored?\b|(tell|take|self\._|keys\.)_?restored\b|\brestore\.lua"
        r"|\brestor\w+\W[^\n]{0,40}\b(journal|entries|experiment|lock|lost)\b"
        r"|\b(journal|entries|experiment|driver|lost)\b[^\n]{0,40}\brestor\w+)|\bRestored\b",
        r"(?i:lost submission[^\n]*|(strategy|sampler|calls|event)[^\n]*restore[^\n]*|done = self._restored"
        r"|experiment\.restore\(|restore the state of an experiment)",
    ),
    "packing": Words(r"(?i:(?<![a-z])(pack[-_]gpus?|strict[-_]gpu[-_]memory)(?![a-z])|services[./]packing)"),
}


def naming_lines(feature: str, package: Path = PACKAGE) -> dict[str, list[tuple[int, str]]]:
    """Return, by module outside the feature's folder, the numbers and texts of the lines that name the feature."""
    own, alike = FEATURES[feature]
    found: dict[str, list[tuple[int, str]]] = {}
    for path in sorted(path for ending in ("py", "lua") for path in package.rglob(f"*.{ending}")):
        name = str(path.relative_to(package))
        if name in LISTS or name.startswith(f"services/{feature}/"):
            continue
        text = re.sub(alike, lambda match: re.sub(r"\S", " ", match[0]), path.read_text())
        lines = zip(path.read_text().splitlines(), text.splitlines(), strict=True)
        if naming := [(number, line) for number, (line, rest) in enumerate(lines, 1) if re.search(own, rest)]:
            found[name] = naming
    return found


def counts(names: Iterable[str]) -> tuple[int, int]:
    """Return the number of modules, and of Lua scripts."""
    endings = [Path(name).suffix for name in names]
    return endings.count(".py"), endings.count(".lua")


def main() -> None:
    """Print the lines of the given features, or the numbers of all."""
    for feature in FEATURES:
        found = naming_lines(feature)
        modules, scripts = counts(found)
        print(f"{feature}: {modules} modules, {scripts} Lua scripts")
        if feature in sys.argv[1:]:
            for name, lines in found.items():
                print(f"  {name}: {len(lines)} lines")
                for number, line in lines:
                    print(f"    {number}: {line.strip()}")


if __name__ == "__main__":
    main()
