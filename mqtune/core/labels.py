"""The tags and notes of trials and experiments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from mqtune.core.errors import ConfigurationError

#: The maximum lengths of a tag (a column) and of notes (some pages). All of them stay in memory.
_TAG_CHARS: Final = 100
_NOTES_CHARS: Final = 10_000
#: The most tags of one thing.
_MOST_TAGS: Final = 100


class Labels(NamedTuple):
    """The tags and notes of a trial or an experiment."""

    tags: tuple[str, ...] = ()
    notes: str = ""

    def changed(self, tags: object = None, notes: object = None) -> Labels:
        """Return these labels with other tags, other notes, or both.

        Raises:
            ConfigurationError: the tags are not a list of names, or the notes are not text.
        """
        return Labels(
            self.tags if tags is None else tuple(checked_tags(tags)),
            self.notes if notes is None else checked_notes(notes),
        )

    def after(self, arguments: Mapping[str, object]) -> Labels:
        """Return these labels after a request: tags added or removed, notes replaced or appended.

        Raises:
            ConfigurationError: an argument is invalid.
        """
        gone = checked_tags(arguments.get("untag", []))
        tags = [*self.tags, *checked_tags(arguments.get("tags", []))]
        note = checked_notes(arguments.get("note", ""))
        notes = checked_notes(arguments.get("notes", self.notes))
        return self.changed([tag for tag in tags if tag not in gone], "\n".join(filter(None, (notes, note))))

    def match(self, tags: Iterable[str] = (), text: str = "") -> bool:
        """Whether the labels have all of *tags*, and *text* in the notes. Case is ignored."""
        return set(tags) <= set(self.tags) and text.casefold() in self.notes.casefold()


NO_LABELS: Final = Labels()


def checked_tags(tags: object) -> list[str]:
    """Return tags as a list without duplicates, in their order.

    Raises:
        ConfigurationError: *tags* is not a list of names.
    """
    if isinstance(tags, str | bytes) or not isinstance(tags, Iterable):
        raise ConfigurationError(f"tags={tags!r:.200} is not a list of names; give a list such as ['baseline', 'v2']")
    given = list(tags)
    for tag in given:
        if not isinstance(tag, str) or not tag.strip() or len(tag) > _TAG_CHARS or not tag.isprintable():
            raise ConfigurationError(
                f"tags: {tag!r:.200} is not a tag; give a text of up to {_TAG_CHARS} characters, on one line"
            )
    unique_tags = list(dict.fromkeys(given))
    if len(unique_tags) > _MOST_TAGS:
        raise ConfigurationError(f"there are {len(unique_tags)} tags, and the limit is {_MOST_TAGS}; remove some")
    return unique_tags


def checked_notes(notes: object) -> str:
    """Return *notes* if they are valid.

    Raises:
        ConfigurationError: the notes are not text, or too long.
    """
    if not isinstance(notes, str):
        raise ConfigurationError(f"notes={notes!r:.200} is not text; give a string")
    if len(notes) > _NOTES_CHARS:
        raise ConfigurationError(
            f"notes: the text has {len(notes):,} characters, and the limit is {_NOTES_CHARS:,}; put it into a file and "
            "give the file's name"
        )
    return notes
