"""The experiments that the live page shows."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from mqtune.cli.list import described_here, described_there, listed_once
from mqtune.cli.owners import owner_of
from mqtune.cli.place import Place, live_broker
from mqtune.cli.ui.paced import Paced
from mqtune.core.errors import AccessDenied, BrokerUnavailable, ConfigurationError, MqtuneError
from mqtune.core.machine import SERVER_FOLDER
from mqtune.journal.files.copy import JOURNAL_FILE
from mqtune.results.experiments import saved_experiments, state_in_words, state_of_folder, with_waiting
from mqtune.results.frames import Row

_LISTED: Final = (
    *("name", "outcome", "created_at", "metric", "trials", "reports", "statuses", "progress"),
    *("tags", "notes", "error", "mode", "reason"),
)


class Listed(NamedTuple):
    """A list of experiments. *problem* is the error if those on the broker are missing."""

    rows: list[Row]
    problem: MqtuneError | None


class Places:
    """Finds and lists the experiments that the live page shows.

    Args:
        given: the experiments that the user named. If empty, all are shown.
        broker: the broker's URL, or None.
        broker_alone: whether to omit the experiments on this machine.
    """

    def __init__(self, given: Sequence[Place], broker: str | None, *, broker_alone: bool) -> None:
        self.broker = broker
        self._given = {place.name: place for place in given}
        self._broker_alone = broker_alone
        self._paced = Paced()

    @property
    def only(self) -> str:
        """The name of the experiment if the user named only one, else an empty text."""
        return next(iter(self._given)) if len(self._given) == 1 else ""

    def find(self, name: str) -> Place:
        """Return the place of an experiment. On a broker, it need not exist.

        Raises:
            ConfigurationError: the experiment is not shown, or does not exist.
        """
        if self._given:
            place = self._given.get(name)
        else:
            place = self._here().get(name) or (Place(name, None, self.broker) if self.broker else None)
        if place is None:
            raise ConfigurationError(f"there is no experiment {name!r} here")
        return place

    def near(self, name: str) -> str:
        """Return the name of a shown experiment that is most similar to *name*, or an empty text."""
        known = [str(row["name"]) for row in self.listed().rows]
        return next(iter(difflib.get_close_matches(name, known, 1)), "")

    def listed(self) -> Listed:
        """Return summaries of all shown experiments, the most recently active first.

        A summary is brief if the experiment has a long journal on a broker.
        """
        here = {name: place for name, place in self._here().items() if not self._given or name in self._given}
        here |= {name: place for name, place in self._given.items() if place.folder is not None}
        remote: list[Row] = []
        problem = None
        try:
            remote += (row for row in self._on_broker() if not self._given or row["name"] in self._given)
        except MqtuneError as error:
            problem = error
        local, remote = listed_once([self._listed_here(place) for place in here.values()], remote)
        # The page needs unique names.
        known = {row["name"] for row in local}
        remote = [row for row in remote if row["name"] not in known]
        live = [row for row in remote if not row.get("outcome")]
        return Listed([*live, *local, *(row for row in remote if row.get("outcome"))], problem)

    def check_broker(self) -> None:
        """Check that the broker, if any, answers.

        Raises:
            MqtuneError: the broker does not answer, or refuses the account.
        """
        from mqtune.client import Client  # noqa: PLC0415 - only this needs redis

        if self.broker:
            with Client(self.broker) as client:
                client.experiments()

    def servers(self) -> Iterator[str]:
        """Yield the URL of each server that has a shown experiment."""
        urls = {self.broker or ""}
        for place in self._given.values() or self._here().values():
            if place.folder is not None and (place.folder / SERVER_FOLDER / "url").exists():
                urls.add(live_broker(place) or "")
        yield from filter(None, urls)

    def _here(self) -> dict[str, Place]:
        if self._broker_alone:
            return {}
        return {folder.name: Place(folder.name, folder, self.broker) for folder in saved_experiments()}

    def _listed_here(self, place: Place) -> Row:
        folder = place.folder
        assert folder is not None  # noqa: S101 - for types
        version = os.stat(folder / JOURNAL_FILE).st_mtime_ns
        made = self._paced.get(folder, version, lambda: described_here(folder))
        state = state_of_folder(folder, str(made.value.get("outcome") or ""))
        return {**_listed(made.value, state), "name": place.name}

    def _on_broker(self) -> Iterator[Row]:
        from mqtune.client import Client  # noqa: PLC0415 - only this needs redis

        if not self.broker:
            return
        url = self.broker
        with Client(url) as client:
            for experiment in client.experiments():
                try:
                    if (state := experiment.state()) is not None:
                        key, version = (state.name,), (state.entries, state.is_driven)
                        made = self._paced.get(key, version, lambda: described_there(state, url, client.place))
                        words = state_in_words(
                            state.outcome, is_driven=state.is_driven, age_s=state.age_s, script=state.script
                        )
                        yield _listed(made.value, words)
                except BrokerUnavailable:
                    # The caller reports that the list is incomplete.
                    raise
                except AccessDenied:
                    continue
                except MqtuneError as error:
                    yield {"name": experiment.name, "error": str(error)}


def _listed(described: Row, state: str) -> Row:
    best, counts = described.get("best"), described.get("statuses")
    row: Row = {name: described[name] for name in _LISTED if name in described}
    row["state"] = with_waiting(state, counts if isinstance(counts, dict) else {})
    if owner := str(owner_of(described)):
        row["owner"] = owner
    if isinstance(best, dict):
        row |= {"best": best["value"], "best_trial": best["trial"]}
    return row
