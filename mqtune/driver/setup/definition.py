"""Writes an experiment's definition, and compares it with the definition in the journal."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from mqtune.checkpoints.store import is_same_store
from mqtune.core.codec import decode_value, encode_value
from mqtune.core.definition import decode_definition
from mqtune.core.errors import CodeDiffers, NameTaken
from mqtune.core.experiment import LOST_BUDGET
from mqtune.core.machine import CHECKPOINTS
from mqtune.core.objective import OUTCOME_CONSTRAINTS
from mqtune.core.registry import CLASS, Difference, described, differences
from mqtune.core.version import __version__
from mqtune.driver.setup.options import LEARN_FROM, LEARNT, Definition, kept_options
from mqtune.driver.setup.settings import MAY_CHANGE, KnownTrainable, Settings
from mqtune.journal.server.connection import redact
from mqtune.trainable.bundle import Bundle
from mqtune.trainable.experiment_code import changed_files, fingerprints, read_code
from mqtune.trainable.spec import program_arguments

#: The parts of a definition whose differences an error names first.
_IMPORTANT: Final = ("trainable", "metric", "mode", OUTCOME_CONSTRAINTS, "space", "searcher", "scheduler", "resources")
#: Largest number of differences that an error names.
_SHOWN: Final = 5
#: Options that must not change and that older definitions lack, with the values that they had then.
_BEFORE: Final[Mapping[str, object]] = {"on_invalid_report": "warn", "max_lost": LOST_BUDGET}


class DefinitionWriter:
    """Writes an experiment's definition from its settings, code, store and broker.

    Args:
        settings: the user's settings.
        broker: the URL of its broker. Empty if it runs on this machine alone, or is simulated.
    """

    def __init__(self, settings: Settings, broker: str = "") -> None:
        self.settings = settings
        self.broker = broker
        #: The URL of the checkpoint store, or empty.
        self.store = ""
        #: Returns an earlier bundle of the experiment by its digest, or None.
        self.find_bundle: Callable[[str], Bundle | None] = lambda _: None
        #: The content of the trainable's files by name, after ``read_code``.
        self.sources: dict[str, bytes] = {}
        #: The bundle of these files. None if none is sent to workers.
        self.bundle: Bundle | None = None
        #: The names of files that have changed since the experiment began.
        self.changed: list[str] = []
        #: The digest of the experiment's earlier bundle, or empty.
        self.bundle_before = ""
        self._drawn_seed = secrets.randbits(32)
        self._learnt: Definition = {}

    def read_code(self) -> None:
        """Read the trainable's files, as far as this machine has them, for their hashes."""
        settings = self.settings
        if settings.project is None:
            self.sources = read_code(settings.spec, settings.code_root)
        else:
            self.sources = read_code(
                settings.spec, settings.code_root, settings.project.written, settings.project.script
            )
            self.bundle = settings.project.pack(self.sources)

    def definition(self, kept: bytes | None) -> Definition:
        """Return the definition of the experiment that this run begins or continues.

        Without *kept*, it is new. Otherwise it is *kept*, with the settings' values of options that may change.

        Args:
            kept: the encoded definition in the journal. None for a new experiment.

        Raises:
            NameTaken: *kept* differs in a part that must not change.
            CodeDiffers: the code has changed, and ``code="strict"`` forbids that.
            ConfigurationError: a source of the searcher's warm start has no trials to learn from.
        """
        settings = self.settings
        if kept is None:
            return self._describe(self._drawn_seed) | self.learnt()
        before = decode_definition(settings.name, kept)
        before |= {key: value for key, value in _BEFORE.items() if key not in before}
        now = self._describe(before["seed"], before.get("searcher"))
        fixed = [key for key in dict.fromkeys([*now, LEARN_FROM, OUTCOME_CONSTRAINTS]) if key not in MAY_CHANGE]
        if is_same_store(str(before.get("store", "")), str(now["store"])):
            before["store"] = now["store"]
        pairs = {key: (_comparable(before.get(key)), _comparable(now.get(key))) for key in fixed}
        if differing := {key: pair for key, pair in pairs.items() if any(differences(key, *pair))}:
            raise NameTaken(self._what_differs(differing))
        self.bundle_before = bundled = str(before.get("bundle", ""))
        if bundled and settings.project is None and isinstance(settings.trainable, KnownTrainable):
            # Workers run the bundle, and the files on this machine may be others.
            self.sources = {}
        elif bundled and self.bundle is None:
            now |= {"bundle": "", "bundle_root": ".", "bundle_is_cwd": True}
        if not self.sources:
            # Without the code, as after ``attach`` on another machine, it counts as unchanged.
            now["code_files"] = before.get("code_files", {})
        if isinstance(settings.trainable, KnownTrainable):
            # This process is not the program of its trials.
            now["arguments"] = before.get("arguments", [])
        self._check_code(now["code_files"], before)
        if now["arguments"] != before.get("arguments", now["arguments"]):
            # This is only warned of: an argument may be, for example, the number of trials.
            self.changed.append("sys.argv")
        return {**before, **{key: value for key, value in now.items() if key in MAY_CHANGE}}

    def learnt(self) -> Definition:
        """Return the part of the definition with the trials that the warm start learns from.

        The trials are read once. Later drivers take them from the definition. The result is empty without a warm start.

        Raises:
            ConfigurationError: the sources have no trials to learn from.
            BrokerUnavailable: the broker doesn't answer.
        """
        settings = self.settings
        if settings.warm_start is not None and not self._learnt:
            metric, mode = settings.objective.metrics[0], settings.objective.modes[0]
            trials = settings.warm_start.read(settings.space, metric, mode, broker=self.broker)
            self._learnt = decode_value(encode_value({LEARNT: trials}))
        return self._learnt

    def _check_code(self, now: Mapping[str, str], before: Definition) -> None:
        project = self.settings.project
        self.changed = changed_files(now, before.get("code_files"))
        earlier = self.find_bundle(self.bundle_before) if self.bundle_before else None
        if project is not None and earlier is not None:
            self.changed = project.changed_since(earlier)
        if self.changed and self.settings.process.code == "strict":
            raise CodeDiffers(
                f"experiment {self.settings.name!r} began with other code, and requires it (code='strict'): "
                f"{', '.join(self.changed)} changed. Restore the earlier code; or use another name; or start over: "
                "run=RunOptions(overwrite=True)"
            )

    def _what_differs(self, differing: Mapping[str, tuple[object, object]]) -> str:
        """Return the error message for an existing experiment of this name that differs.

        It names at most ``_SHOWN`` differences, important ones first.
        """
        name, lines, continues = self.settings.name, [], f"`mqtune drive {self.settings.name}`"
        if moved := self._where_it_ran(*differing.get("store", ("", ""))):
            lines, continues = [moved[0]], moved[1]
        keys = sorted(differing, key=lambda key: (key == "seed", (*_IMPORTANT, key).index(key)))
        every = [difference for key in keys for difference in differences(key, *differing[key])]
        # Name at least one difference, even if all are implied by others.
        named = [
            difference for difference in every if not self._is_implied(difference, differing, has_moved=bool(moved))
        ]
        named = named or (every if moved is None else [])
        lines += map(str, named[:_SHOWN])
        if len(named) > _SHOWN:
            lines.append(f"… and {len(named) - _SHOWN} more")
        head = f"experiment {name!r} already exists, and its settings (left) are not yours (right):"
        ways_out = (
            "To start over with yours, give run=mqtune.RunOptions(overwrite=True), or run "
            f"`mqtune delete {name}` first: both delete its results. To keep it, give yours a new name, such as "
            f"{f'{name}-2'!r}. To continue it with its own settings: {continues}"
        )
        return "\n  ".join([head, *lines, ways_out])

    def _is_implied(self, difference: Difference, differing: Iterable[str], *, has_moved: bool) -> bool:
        """Return whether a difference follows from another one, or is in a drawn seed."""
        # The description of a searcher may repeat the space and the seed.
        is_repeated = any(difference.name.startswith(f"searcher.{key}") for key in differing)
        is_drawn = self.settings.seed is None and difference.name.endswith(".seed")
        is_store = has_moved and difference.name == "store"
        # By default this option is set if the experiment has a store.
        is_default = self.settings.process.pass_checkpoint_dir is None
        follows_store = is_default and difference.name == "pass_checkpoint_dir" and "store" in differing
        return is_repeated or is_drawn or is_store or follows_store

    def _where_it_ran(self, was: object, is_: object) -> tuple[str, str] | None:
        """Return where the experiment ran before, and how to continue it there, as two texts.

        Return None if it ran in the same place. *was* and *is_* are the URLs of its store then and now.
        """
        # By default a run on this machine alone has a store in its folder, and a run on a broker has no store.
        own = f"/{self.settings.name}/{CHECKPOINTS}"
        if self.broker and own in str(was) and not is_:
            ran = f"it ran on this machine, and now a broker is given: {redact(self.broker)}"
            return ran, "backend=mqtune.Local(), or without $MQTUNE_BROKER"
        if not self.broker and own in str(is_) and not was:
            return "it ran on a broker, and now none is given", "with $MQTUNE_BROKER, or backend='redis://…'"
        return None

    def _describe(self, known_seed: int, searcher: object = None) -> Definition:
        """Return a definition of this run's settings.

        Args:
            known_seed: the seed to use if the settings have no seed.
            searcher: the described searcher of an existing experiment.
        """
        settings = self.settings
        kept, rule = kept_options(settings), settings.stop
        if kept["pass_checkpoint_dir"] is None:
            kept["pass_checkpoint_dir"] = settings.checkpoints.store is not None
        seed = known_seed if settings.seed is None else settings.seed
        described_now = kept | {
            "metric": settings.objective.metric,
            "mode": settings.objective.mode,
            **settings.objective.kept_constraints,
            "trainable": settings.spec.encode(),
            "space": settings.space.describe(),
            "searcher": described(settings.new_searcher(seed, searcher)),
            "scheduler": described(settings.scheduler),
            "stop": None if rule is None else described(rule),
            "resources": settings.expected[0].encode() if settings.asks is None else settings.asks.describe(),
            "max_trials": settings.max_trials,
            "seed": seed,
            "arguments": [] if settings.spec.kind == "script" else program_arguments(),
            "store": self.store,
            "code_files": fingerprints(settings.spec, self.sources),
            "code_root": str(settings.code_root),
            "version": __version__,
            **({} if settings.warm_start is None else {LEARN_FROM: settings.warm_start.names}),
            **self._describe_bundle(),
        }
        # Encode and decode it, so that it compares equal to a definition from the journal.
        definition: Definition = decode_value(encode_value(described_now))
        return definition

    def _describe_bundle(self) -> Definition:
        project = self.settings.project
        if self.bundle is None or project is None:
            return {}
        return {"bundle": self.bundle.digest, "bundle_root": project.root, "bundle_is_cwd": project.has_all}


def _comparable(value: object) -> object:
    """Return a part of a definition without the names of classes and the folders of scripts.

    These may differ between two runs of an experiment.
    """
    if isinstance(value, dict):
        value = {key: inner for key, inner in value.items() if key != CLASS}
        return {**value, "script": Path(value["script"]).name} if "script" in value else value
    return value
