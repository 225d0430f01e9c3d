"""The page of contracts: no row is left out, and what a row names is there."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from attempts import start_message
from bench import Bench, Obedient
from pages import CODE, ROOT, absent_tests, definitions, table_lines

import mqtune
from mqtune.checkpoints import open_store
from mqtune.core.events import TrialStaged
from mqtune.core.trial import Attempt, Trial, TrialId, TrialStatus, checkpoint_id
from mqtune.trainable.process.saver import Saver

PAGE: Final = ROOT / "docs" / "contracts.md"
HEADING: Final = ["theirs", "ours", "test", "differs, because"]
_NUMBER: Final = re.compile(r"(\d+)\. ")
_OURS: Final = re.compile(r"(mqtune(?:\.\w+)+)(?:\((\w+)=…\))?")
_PLACE: Final = re.compile(r"(mqtune/[\w/]+\.py): ([\w.]+)")


class Row(NamedTuple):
    """One row of the page, and the text of the heading that it stands below."""

    section: str
    theirs: str
    ours: str
    test: str
    differs: str


def rows() -> list[Row]:
    """Return all rows but the heads of tables."""
    plain = [(section, cells) for section, _, cells in table_lines(PAGE) if cells != HEADING and set(cells[0]) != {"-"}]
    return [Row(section, *cells) for section, cells in plain]


#: Every class, public method, property, status and module-level name of the five texts, and the private ones, in which many
#: of their rules are; read from each ``class``, ``def``, enum member and constant. Behind a class stand its members.
MEMBERS: Final = {
    "1. Syne Tune: TrialBackend": """
        TrialAndStatusInformation TrialIdAndResultList BUSY_STATUS Trial TrialResult
        delete_checkpoints pass_args_as_json trial_ids _trial_dict _last_metric_seen_index
        TrialBackend: __init__ start_trial copy_checkpoint delete_checkpoint resume_trial _resume_trial pause_trial
        TrialBackend: _pause_trial stop_trial _cleanup_after_trial _stop_trial new_trial_id _schedule _all_trial_results
        TrialBackend: fetch_status_results busy_trial_ids stdout stderr stop_all set_path entrypoint_path set_entrypoint
        TrialBackend: on_tuner_save
        Status.completed Status.in_progress Status.failed Status.paused Status.stopped Status.stopping
        """,
    "2. Ray Tune: TrialExecutor": """
        TrialExecutor: __init__ set_status try_checkpoint_metadata get_checkpoints has_resources start_trial stop_trial
        TrialExecutor: continue_training pause_trial unpause_trial resume_trial reset_trial get_running_trials
        TrialExecutor: on_step_begin on_step_end on_no_available_trials get_next_available_trial get_next_failed_trial
        TrialExecutor: fetch_result debug_string resource_string restore save export_trial_if_needed has_gpus cleanup
        Trial.PENDING Trial.RUNNING Trial.PAUSED Trial.TERMINATED Trial.ERROR
        Checkpoint.MEMORY Checkpoint.PERSISTENT
        """,
    "3. Ray Tune: FunctionRunner": """
        RESULT_FETCH_TIMEOUT ERROR_REPORT_TIMEOUT ERROR_FETCH_TIMEOUT NULL_MARKER TEMP_MARKER wrap_function ImplicitFunc
        FuncCheckpointUtil: mk_null_checkpoint_dir mk_temp_checkpoint_dir is_temp_checkpoint_dir is_null_checkpoint
        FuncCheckpointUtil: create_perm_checkpoint
        StatusReporter: __init__ __call__ make_checkpoint_dir set_checkpoint has_new_checkpoint get_checkpoint _start
        StatusReporter: logdir trial_name trial_id
        _RunnerThread: run
        FunctionRunner: setup _trainable_func _start step execute save save_to_object load_checkpoint
        FunctionRunner: restore_from_object cleanup _report_thread_runner_error
        """,
    "4. Ray Tune: TrialRunner": """
        TrialRunner: __init__ is_finished step get_trials add_trial debug_string has_resources _can_launch_more
        TrialRunner: _launch_trial _process_events _get_runnable _commit_resources _return_resources _stop_trial
        TrialRunner: _pause_trial _update_avail_resources
        """,
    "5. Ax: BaseTrial and TrialStatus": """
        DEFAULT_STATUSES_TO_WARM_START immutable_once_run
        TrialStatus: CANDIDATE STAGED FAILED COMPLETED RUNNING ABANDONED DISPATCHED EARLY_STOPPED is_terminal
        TrialStatus: expecting_data is_deployed is_failed is_abandoned is_candidate is_completed is_running
        TrialStatus: is_early_stopped __format__
        BaseTrial: __init__ experiment index status ttl_seconds completed_successfully did_not_complete runner
        BaseTrial: deployed_name run_metadata stop_metadata trial_type assign_runner update_run_metadata
        BaseTrial: update_stop_metadata run stop complete fetch_data lookup_data _check_existing_and_name_arm
        BaseTrial: _get_default_name _set_generation_step_index arms arms_by_name __repr__ abandoned_arms generator_runs
        BaseTrial: _get_candidate_metadata_from_all_generator_runs _get_candidate_metadata time_created time_completed
        BaseTrial: time_staged time_run_started is_abandoned abandoned_reason mark_staged mark_running mark_completed
        BaseTrial: mark_abandoned mark_failed mark_early_stopped mark_as mark_arm_abandoned _mark_failed_if_past_TTL
        BaseTrial: _status _unique_id
        """,
}

#: How many numbered pitfalls, tensions, holes or complaints a section answers.
NUMBERED: Final = {
    "1. Syne Tune: TrialBackend": 20,
    "3. Ray Tune: FunctionRunner": 4,
    "5. Ax: BaseTrial and TrialStatus": 9,
    "6. Ray Tune: what came later": 25,
}


def members(section: str) -> set[str]:
    """Return what a text has, members with their class in front."""
    found: set[str] = set()
    for line in MEMBERS[section].strip().splitlines():
        owner, colon, names = line.strip().rpartition(": ")
        found.update(f"{owner}.{name}" if colon else name for name in names.split())
        found.update([owner] if colon else [])
    return found


def test_every_row_has_four_cells_and_none_is_empty() -> None:
    wrong = [number for _, number, cells in table_lines(PAGE) if len(cells) != len(HEADING) or not all(cells)]

    assert wrong == [], "lines of tables with another number of cells, or an empty one"
    assert len(rows()) > 400


@pytest.mark.parametrize("section", MEMBERS)
def test_every_name_of_the_five_texts_has_a_row(section: str) -> None:
    named = {name for row in rows() if row.section == section for name in CODE.findall(row.theirs)}

    assert sorted(members(section) - named) == []


@pytest.mark.parametrize("section", NUMBERED)
def test_every_numbered_pitfall_has_a_row(section: str) -> None:
    numbers = [int(found[1]) for row in rows() if row.section == section and (found := _NUMBER.match(row.theirs))]

    assert numbers == list(range(1, NUMBERED[section] + 1))


def test_nothing_has_two_rows() -> None:
    seen = [(row.section, row.theirs) for row in rows()]

    assert sorted({row for row in seen if seen.count(row) > 1}) == []


def test_every_row_names_a_test_and_every_test_is_there() -> None:
    unnamed = [row.theirs for row in rows() if not CODE.findall(row.test)]

    assert unnamed == []
    assert absent_tests(name for row in rows() for name in CODE.findall(row.test)) == []


def test_everything_of_ours_that_a_row_names_is_there() -> None:
    absent = []
    for row in rows():
        for name in CODE.findall(f"{row.ours} {row.differs}"):
            if found := _OURS.fullmatch(name):
                is_there = _is_public(found[1], found[2])
            elif found := _PLACE.fullmatch(name):
                is_there = (ROOT / found[1]).is_file() and found[2] in definitions(found[1])
            else:
                is_there = "mqtune." not in name and "mqtune/" not in name
            if not is_there:
                absent.append((row.theirs, name))

    assert absent == []


def _is_public(dotted: str, argument: str | None) -> bool:
    """Whether a name is what users import, and takes the argument, if there is one."""
    module, *names = dotted.split(".")
    found: Any = importlib.import_module(module)
    if names[0] not in found.__all__:
        return False
    for name in names:
        if not hasattr(found, name):
            return False
        found = getattr(found, name)
    return argument is None or argument in inspect.signature(found).parameters


def test_a_row_without_a_counterpart_says_why() -> None:
    assert [row.theirs for row in rows() if row.ours == "–" and row.differs == "–"] == []


def test_a_name_that_is_not_there_is_found() -> None:
    assert _is_public("mqtune.TrialHandle.stop", "reason")
    assert not _is_public("mqtune.TrialHandle.stop", "why")
    assert not _is_public("mqtune.TrialHandle.halt", None)
    assert not _is_public("mqtune.tuner.Tuner", None)
    assert "Driver.step" in definitions("mqtune/driver/loop.py")
    assert "Driver.halt" not in definitions("mqtune/driver/loop.py")


def test_nothing_is_left_to_do_on_the_page() -> None:
    assert "TODO" not in PAGE.read_text()


# What the page says, and no other test shows.


def test_what_was_fetched_may_be_saved_again(tmp_path: Path) -> None:
    """It gets a name of its own, and what it was fetched from stays as it is."""
    store = open_store(str(tmp_path / "store"))
    store.create()
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "w").write_text("1.5")
    first = checkpoint_id("0001", 1, 1, in_memory=False)
    store.save(first, tmp_path / "weights", {"training_iteration": 3})
    message = start_message(
        trial="0001", attempt=2, store=store.url, checkpoint=first, folder=str(tmp_path / "attempt")
    )
    saver = Saver(message)
    fetched = saver.fetch()
    assert fetched is not None
    (fetched.path / "w").write_text("2.5")

    saved, _ = saver.save(fetched, {"training_iteration": 4})

    assert saved == checkpoint_id("0001", 2, 1, in_memory=False)
    for name, (weight, iteration) in {first: ("1.5", 3), saved: ("2.5", 4)}.items():
        target = tmp_path / "look" / name
        assert store.fetch(name, target) == {"training_iteration": iteration}
        assert (target / "w").read_text() == weight


def test_a_status_shows_its_name() -> None:
    assert f"{TrialStatus.RUNNING}" == str(TrialStatus.RUNNING) == "TrialStatus.RUNNING"


def test_a_trial_has_no_type_runner_or_resources_of_its_own() -> None:
    """All trials of an experiment run the one trainable, in slots of one shape, on one backend."""
    own = {field.name for kind in (Trial, Attempt) for field in dataclasses.fields(kind)}
    own |= set(inspect.signature(mqtune.Tuner.add).parameters)

    assert not own & {"trainable", "trial_type", "runner", "backend", "resources"}
    assert {"trainable", "backend", "resources"} <= set(inspect.signature(mqtune.Tuner).parameters)


def test_an_event_is_in_the_journal_and_the_fold_before_scheduler_and_callbacks_hear_of_it_in_this_order(
    tmp_path: Path,
) -> None:
    heard: list[str] = []

    def note(who: str, trial: TrialId) -> None:
        is_journaled = any(event.trial == trial for event in bench.of(TrialStaged))
        heard.append(f"{who}: {is_journaled and trial in bench.experiment.trials}")

    class Hearing(Obedient):
        def on_stage(self, trial: Trial) -> None:
            note("scheduler", trial.id)

    class Watching(mqtune.Callback):
        in_loop = True

        def on_stage(self, trial: Trial) -> None:
            note("callback", trial.id)

    bench = Bench(tmp_path, slots=1, max_trials=1, scheduler=Hearing, callbacks=[Watching()])
    bench.step()

    assert heard == ["scheduler: True", "callback: True"]


def test_a_numbered_row_says_why_it_can_not_happen() -> None:
    assert [row.theirs for row in rows() if _NUMBER.match(row.theirs) and row.differs == "–"] == []
