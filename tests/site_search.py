"""The search of the documentation's site: scores as lunr's, and hits grouped by pages as Material's."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

__all__ = ["SiteSearch"]

#: lunr's defaults of BM25.
_K1: Final = 1.2
_B: Final = 0.75
#: What lunr leaves out of the index.
_LEFT_OUT: Final = (
    "a able about across after all almost also am among an and any are as at be because been but by can cannot "
    "could dear did do does either else ever every for from get got had has have he her hers him his how however "
    "i if in into is it its just least let like likely may me might most must my neither no nor not of off often "
    "on only or other our own rather said say says she should since so some than that the their them then there "
    "these they this tis to too twas us wants was we were what when where which while who whom why will with "
    "would yet you your "
)
_STOP_WORDS: Final = frozenset(_LEFT_OUT.split())
_TAG: Final = re.compile(r"<[^>]+>")


class SiteSearch:
    """Finds words in the index that MkDocs has built.

    Args:
        site: the folder of the site.
    """

    def __init__(self, site: Path) -> None:
        index: dict[str, Any] = json.loads((site / "search" / "search_index.json").read_text())
        split = re.compile(index["config"]["separator"])
        self._places: list[str] = [entry["location"] for entry in index["docs"]]
        self._fields: list[tuple[float, list[Counter[str]], list[float]]] = []
        self._weights: dict[str, float] = {}
        for field in ("title", "text"):
            texts = [_TAG.sub(" ", entry[field]).lower() for entry in index["docs"]]
            words = [[word.strip(".,:;()[]“”\"'`?!") for word in split.split(text)] for text in texts]
            counts = [Counter(word for word in each if word and word not in _STOP_WORDS) for each in words]
            mean = sum(map(Counter.total, counts)) / len(counts) or 1.0
            norms = [_K1 * (1 - _B + _B * each.total() / mean) for each in counts]
            self._fields.append((index["config"]["fields"][field]["boost"], counts, norms))
        known = Counter(word for _, counts, _ in self._fields for each in counts for word in each)
        number = len(self._places)
        for word, found in known.items():
            self._weights[word] = math.log(1 + abs((number - found + 0.5) / (found + 0.5)))

    def hits(self, query: str) -> list[list[str]]:
        """Return the places of each page with one of the words, or one that begins so; the best first."""
        asked = [[word for word in self._weights if word.startswith(each)] for each in query.lower().split()]
        pages: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
        for number, place in enumerate(self._places):
            scores = [sum(self._score(number, word) for word in words) for words in asked]
            if any(scores):
                # Material prefers pages to their sections, and what has all of the words most of all.
                boost = ("#" not in place) + all(scores)
                pages[place.partition("#")[0]].append((sum(scores) * (1 + boost**2), place))
        ranked = sorted((sorted(found, reverse=True) for found in pages.values()), reverse=True)
        return [[place for _, place in found] for found in ranked]

    def _score(self, number: int, word: str) -> float:
        found = 0.0
        for boost, counts, norms in self._fields:
            if times := counts[number][word]:
                found += boost * self._weights[word] * (_K1 + 1) * times / (norms[number] + times)
        return found
