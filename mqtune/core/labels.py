"""Labels: the tags and notes by which people find trials and experiments again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from mqtune.core.errors import ConfigurationError

__all__ = ["NO_LABELS", "Labels", "checked_notes", "checked_tags"]

#: The most characters of a tag, and of notes: what fits into a column, and into some pages. All of them stay in memory.
_TAG_CHARS: Final = 100
_NOTES_CHARS: Final = 10_000
#: The most tags of one thing.
_MOST_TAGS: Final = 100


class Labels(NamedTuple):
    """The tags, and the notes, of a trial or an experiment."""

    tags: tuple[str, ...] = ()
    notes: str = ""

    def changed(self, tags: Any = None, notes: Any = None) -> Labels:
        """Return these labels with other tags, or other notes, or both.

        Raises:
            ConfigurationError: they are no list of names, or no text.
        """
        return Labels(
            self.tags if tags is None else tuple(checked_tags(tags)),
            self.notes if notes is None else checked_notes(notes),
        )

    def match(self, tags: Iterable[str] = (), text: str = "") -> bool:
        """Whether all of *tags* are there, and *text* stands in the notes, in capitals or not."""
        return set(tags) <= set(self.tags) and text.casefold() in self.notes.casefold()


NO_LABELS: Final = Labels()


def checked_tags(tags: Any) -> list[str]:
    """Return tags as a list, each once, in their order.

    Raises:
        ConfigurationError: they are no list of names.
    """
    if isinstance(tags, str | bytes) or not isinstance(tags, Iterable):
        raise ConfigurationError(f"tags={tags!r:.200} is no list of names; give a list such as ['baseline', 'v2']")
    found = list(dict.fromkeys(tags))
    for tag in found:
        if not isinstance(tag, str) or not tag.strip() or len(tag) > _TAG_CHARS or not tag.isprintable():
            raise ConfigurationError(
                f"tags: {tag!r:.200} is no tag; give a text of up to {_TAG_CHARS} characters, on one line"
            )
    if len(found) > _MOST_TAGS:
        raise ConfigurationError(f"there are {len(found)} tags, and the most is {_MOST_TAGS}")
    return found


def checked_notes(notes: Any) -> str:
    """Return notes.

    Raises:
        ConfigurationError: they are no text, or a long one.
    """
    if not isinstance(notes, str):
        raise ConfigurationError(f"notes={notes!r:.200} is no text")
    if len(notes) > _NOTES_CHARS:
        raise ConfigurationError(
            f"notes: the text has {len(notes):,} characters, and the most is {_NOTES_CHARS:,}; name a file that has it"
        )
    return notes
