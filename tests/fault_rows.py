"""Which tests hold each row of docs/faults.md: by the heading of its table and its first cell."""

from __future__ import annotations

from typing import Final

__all__ = ["TESTS"]

TESTS: Final[dict[str, dict[str, list[str]]]] = {
    "The driver": {
        "It is killed, or its machine goes down": [
            "tests/property/test_replay_simulated.py::test_drivers_that_start_from_any_prefix_go_on_to_the_same_end",
            "tests/acceptance/test_driver_loss.py::test_a_driver_that_is_killed_is_replaced_at_once_and_no_running_trial_is_disturbed",
        ],
        "It is a [submitted](how-to/submit.md) script, and its worker or that machine goes down": [
            "tests/acceptance/test_submit.py::test_when_the_machine_of_a_driver_dies_another_goes_on_and_nothing_is_lost_or_done_twice",
            "tests/acceptance/test_submit.py::test_a_worker_that_is_told_to_go_gives_its_scripts_back_and_their_trials_go_on",
        ],
        "A submitted script is killed time and again, or finds no server": [
            "tests/acceptance/test_submit.py::test_a_script_that_is_killed_or_finds_no_server_runs_again_and_not_for_ever",
            "tests/integration/test_submissions.py::test_runs_that_are_lost_soon_after_their_begin_end_a_submission_and_those_that_are_given_back_never_do",
        ],
        "A submitted script is signed with another key than its workers have": [
            "tests/acceptance/test_submit.py::test_a_script_that_is_not_signed_for_a_worker_waits_unread_for_one_that_it_is_signed_for",
            "tests/unit/worker/test_driver_slots.py::test_it_is_refused_with_the_reason_and_then_passed_over",
        ],
        "The driver of a run on one machine is killed": [
            "tests/acceptance/test_driver_loss.py::test_a_local_experiment_whose_driver_was_killed_is_resumed_from_its_folder"
        ],
        "Two machines, or containers, have one host name": [
            "tests/unit/journal/test_lock.py::test_a_living_driver_on_another_machine_of_the_same_name_is_not_displaced",
            "tests/unit/worker/test_scratch.py::test_a_living_worker_of_another_machine_of_this_name_keeps_its_folders",
        ],
        "A second worker gets the name of a living one": [
            "tests/contract/test_journal.py::TestFleet::test_a_name_is_one_processs_until_that_has_left_or_was_silent_for_too_long",
            "tests/unit/worker/test_worker_settings.py::test_a_name_that_a_worker_of_another_machine_keeps_is_refused",
        ],
        "A second driver comes for a living one's experiment": [
            "tests/acceptance/test_driver_loss.py::test_a_second_driver_is_refused_and_told_who_has_the_experiment_and_since_when"
        ],
        "It is frozen or cut off for longer than its lock, and replaced": [
            "tests/acceptance/test_driver_loss.py::test_a_driver_that_was_replaced_ends_with_an_error_and_disturbs_nothing"
        ],
        "Nobody drives any more": [
            "tests/acceptance/test_driver_loss.py::test_with_stop_what_runs_is_handed_back_with_its_state_and_goes_on_when_a_driver_comes",
            "tests/acceptance/test_driver_loss.py::test_with_finish_what_runs_ends_by_itself_and_nothing_else_starts_until_a_driver_comes",
            "tests/acceptance/test_driver_loss.py::test_with_continue_all_that_is_queued_runs_without_a_driver",
        ],
        "It is silent or dead, and has a share of a fleet": [
            "tests/acceptance/test_shared_fleet.py::test_a_driver_that_is_killed_has_its_share_until_its_demand_runs_out_and_another_has_the_slots_then",
            "tests/acceptance/test_shared_fleet.py::test_slots_are_shared_by_weight_then_by_priority_and_given_back",
            "tests/unit/driver/test_share_keeper.py::test_slots_of_trials_that_nobody_drives_are_nobodys_to_give",
        ],
        "It works out the shares of a fleet for all, and is killed, frozen or cut off": [
            "tests/acceptance/test_one_divides.py::test_when_the_driver_that_divides_is_killed_or_frozen_another_does_and_shares_stay_right",
            "tests/integration/test_demands.py::test_who_was_frozen_while_it_divided_writes_over_nothing_when_it_goes_on",
        ],
        "It has more than its share of a fleet for long": [
            "tests/acceptance/test_shared_fleet.py::test_trials_are_paused_for_others_and_go_on_later_without_losing_a_report"
        ],
        "The script is lost, and had a scheduler, searcher or function of its own": [
            "tests/unit/driver/test_attach.py::test_what_only_the_script_has_is_asked_for_by_its_name"
        ],
        "Ctrl-C": [
            "tests/acceptance/test_endings.py::test_ctrl_c_saves_everything_and_the_same_script_goes_on",
            "tests/acceptance/test_endings.py::test_sigterm_ends_a_run_as_ctrl_c_does_with_the_exit_code_of_its_own",
        ],
        "Ctrl-C again": [
            "tests/acceptance/test_endings.py::test_ctrl_c_twice_ends_at_once_and_the_same_script_goes_on",
            "tests/unit/driver/test_interrupts.py::test_the_second_signal_ends_a_process_whose_main_thread_is_busy_in_c_code",
            "tests/unit/driver/test_interrupts.py::test_an_end_in_good_order_that_takes_too_long_is_cut_short",
        ],
    },
    "Workers and trials": {
        "A worker, or its machine, dies": [
            "tests/acceptance/test_worker_deaths.py::test_a_machine_that_dies_leaves_nothing_and_its_trial_goes_on_elsewhere"
        ],
        "A worker is frozen or cut off past its lease": [
            "tests/acceptance/test_worker_deaths.py::test_a_worker_that_was_frozen_past_its_lease_kills_its_trial_when_it_thaws_and_serves_on"
        ],
        "A slot's zygote is killed": [
            "tests/acceptance/test_worker_deaths.py::test_a_part_of_a_worker_that_is_killed_costs_one_attempt_and_the_worker_serves_on"
        ],
        "… after a trial has left a daemon in a session of its own, which holds a file or a device": [
            "tests/acceptance/test_worker_deaths.py::test_zygotes_that_are_killed_leave_no_daemon_with_a_device_and_no_zombie"
        ],
        "A worker is killed together with its zygotes, and leaves such a daemon": [
            "tests/acceptance/test_worker_deaths.py::test_a_worker_ends_what_one_before_it_left_that_was_killed_with_its_zygotes",
            "tests/integration/test_leftovers.py::test_what_is_not_known_to_be_a_dead_workers_is_left_alone",
        ],
        "A slot's zygote is killed while no trial uses it": [
            "tests/integration/test_worker_attempt.py::test_a_process_that_is_killed_while_no_trial_uses_it_is_no_zombie_for_long"
        ],
        "An importer is killed, or frozen": [
            "tests/integration/test_importers.py::test_an_importer_that_is_killed_takes_no_trial_along",
            "tests/integration/test_importers.py::test_an_importer_that_is_frozen_is_killed_and_takes_no_trial_along",
        ],
        "A slot's zygote is frozen (SIGSTOP)": [
            "tests/acceptance/test_worker_deaths.py::test_a_trial_whose_zygote_is_frozen_outlives_its_time_no_longer_than_any_other",
            "tests/integration/test_worker_attempt.py::test_a_trial_under_a_frozen_zygote_is_ended_when_that_is_wanted",
            "tests/integration/test_worker_attempt.py::test_a_trial_that_ends_under_a_frozen_zygote_has_ended_as_it_says",
            "tests/integration/test_worker_attempt.py::test_a_trial_that_a_frozen_zygote_does_not_start_is_started_by_a_fresh_one",
            "tests/integration/test_worker_attempt.py::test_a_trial_whose_zygote_dies_with_the_trial_before_is_started_by_a_fresh_one",
        ],
        "A module changes signals when it is imported (SIGCHLD, `set_wakeup_fd`, asyncio)": [
            "tests/integration/test_zygotes.py::test_whatever_a_module_does_with_signals_on_import_trials_end_and_what_they_leave_is_gone",
            "tests/integration/test_zygotes.py::test_a_trial_finds_signals_as_its_module_has_left_them",
        ],
        "A thread of a worker meets an unforeseen error (no memory left)": [
            "tests/unit/worker/test_worker_threads.py::test_a_step_that_fails_is_logged_and_the_next_one_is_taken",
            "tests/integration/test_consuming.py::test_a_worker_whose_uplink_has_died_ends_at_once_with_an_error_and_its_trials_with_it",
        ],
        "A worker serves many short trials of several experiments": [
            "tests/acceptance/test_worker_growth.py::test_many_short_trials_of_three_experiments_leave_no_zombie_and_a_worker_that_has_not_grown"
        ],
        "A trial's process or group is killed": [
            "tests/acceptance/test_worker_deaths.py::test_a_part_of_a_worker_that_is_killed_costs_one_attempt_and_the_worker_serves_on"
        ],
        "Memory runs out": ["tests/unit/worker/test_worker_processes.py::test_a_trial_that_the_system_killed_says_so"],
        "A worker can't import the code, reach the store or start a process, and others can": [
            "tests/acceptance/test_worker_deaths.py::test_a_worker_on_which_nothing_can_be_imported_costs_no_trial_and_leaves_the_queue"
        ],
        "No worker can do that": [
            "tests/acceptance/test_bad_input.py::test_a_module_that_the_worker_lacks_is_named_with_the_worker_and_its_code_root"
        ],
        "`mqtune drain`, SIGTERM, a preemption": [
            "tests/acceptance/test_draining.py::test_a_worker_that_is_drained_is_gone_and_its_trial_goes_on_where_it_was"
        ],
        "No worker is left": ["tests/acceptance/test_draining.py::test_down_to_no_worker_and_up_again_costs_nothing"],
        "A worker no longer takes trials after a reconnect": [
            "tests/integration/test_consuming.py::test_a_worker_that_takes_nothing_reconnects_and_its_trials_go_on",
            "tests/integration/test_consuming.py::test_a_worker_that_reconnecting_does_not_help_hands_its_trials_back_and_starts_anew",
        ],
        "A machine's clock is hours off, or steps back": [
            "tests/acceptance/test_clock_skew.py::test_clocks_that_are_hours_off_change_no_decision_and_no_time"
        ],
    },
    "GPUs": {
        "A GPU's memory does not come back when a trial has ended": [
            "tests/integration/test_quarantine.py::test_a_gpu_that_stays_full_takes_no_trial_until_its_memory_is_back"
        ],
        "Others hold a GPU's memory when a worker starts, or a trial begins": [
            "tests/integration/test_quarantine.py::test_memory_that_others_have_from_the_start_closes_a_device_until_it_is_free_and_drivers_can_say_why"
        ],
        "A GPU is broken: trials fail there at once": [
            "tests/integration/test_quarantine.py::test_a_device_on_which_trials_fail_at_once_takes_few_of_them_and_is_back_when_a_probe_does_well"
        ],
        "A GPU is lost, or has an uncorrectable ECC error": [
            "tests/integration/test_quarantine.py::test_an_error_that_names_the_device_costs_the_trial_nothing"
        ],
        "NVIDIA's driver fails when a worker starts": [
            "tests/unit/worker/test_devices.py::test_auto_is_refused_where_the_driver_fails_so_that_no_gpu_machine_joins_as_one_without_gpus"
        ],
        "NVIDIA's driver hangs later, or is not there": [
            "tests/unit/worker/test_device_memory.py::test_devices_that_can_not_say_how_full_they_are_cost_no_wait"
        ],
    },
    "Redis": {
        "It is restarted (append-only file on), frozen, slow, or connections are cut": [
            "tests/acceptance/test_redis_faults.py::test_trials_run_on_and_everything_arrives_once",
            "tests/acceptance/test_redis_faults.py::test_a_freeze_that_outlasts_leases_costs_no_attempt_and_stops_no_worker_from_taking_trials",
        ],
        "Its memory is full (`maxmemory`)": [
            "tests/acceptance/test_redis_faults.py::test_on_a_full_redis_a_driver_lives_says_so_and_can_be_told_to_end_and_what_has_ended_makes_room",
            "tests/integration/test_full_redis.py::test_what_takes_memory_waits_for_room_longer_than_for_a_server_that_is_away_and_says_so_once",
            "tests/chaos/test_world.py::test_a_worker_that_connects_again_to_a_full_redis_waits_until_it_is_not",
        ],
        "An experiment's journal is full (`RunOptions(journal_mb=…)`): it has had millions of reports, or a trial reports in a loop without end": [
            "tests/acceptance/test_full_journal.py::test_a_trial_that_floods_waits_while_another_experiment_of_its_worker_goes_on_and_goes_on_once_its_journal_may_have_more",
            "tests/acceptance/test_full_journal.py::test_a_trial_that_waits_for_room_in_its_journal_is_stopped_and_what_it_has_sent_is_there",
        ],
        "An experiment's trials report faster than an operator's cap allows (`mqtune quota --reports-per-s`)": [
            "tests/acceptance/test_rate_caps.py::test_a_trial_that_reports_without_end_keeps_to_its_cap_loses_nothing_and_slows_no_other_experiment_of_its_worker",
            "tests/acceptance/test_rate_caps.py::test_a_trial_that_is_stopped_does_not_wait_for_its_cap_and_what_it_has_sent_is_there",
        ],
        "The checkpoint store is away, or full, while the oldest entries of a journal are to move there": [
            "tests/unit/driver/test_trimming.py::test_a_store_that_is_away_holds_nothing_up_is_said_once_and_tried_again"
        ],
        "The driver is killed while entries move to the store": [
            "tests/unit/driver/test_trimming.py::test_a_driver_that_died_between_a_file_and_its_removal_is_followed_by_one_that_makes_the_same_file",
            "tests/acceptance/test_chapters.py::test_a_flood_leaves_redis_its_driver_dies_and_one_on_another_machine_and_all_who_look_miss_nothing",
        ],
        "Redis comes back empty, or set back, and a part of the journal was in the store": [
            "tests/unit/driver/test_trimming.py::test_what_a_server_has_lost_is_put_back_behind_the_chapters",
            "tests/unit/driver/test_trimming.py::test_a_driver_that_begins_on_an_emptied_server_puts_back_what_is_behind_the_chapters",
        ],
        "A file with the oldest entries of a journal is lost or damaged, or the store can't be reached by who reads": [
            "tests/contract/journals/chapters.py::ChapterContract::test_a_chapter_that_can_not_be_read_is_named_and_what_is_behind_it_can_be_read",
            "tests/integration/test_ended.py::test_what_can_not_be_archived_stays_is_named_and_holds_up_no_other",
        ],
        "Its disk is full": [
            "tests/acceptance/test_bounds.py::test_a_redis_whose_disk_is_full_is_waited_for_and_nothing_is_lost"
        ],
        "It comes back empty": [
            "tests/acceptance/test_redis_faults.py::test_an_emptied_redis_gets_the_experiment_back_and_its_trials_run_again"
        ],
        "It comes back in an older state (a dump; a power cut)": [
            "tests/acceptance/test_redis_faults.py::test_a_redis_that_is_set_back_gets_the_end_of_the_experiment_back"
        ],
        "It fails over to a replica that lacks the last second (Sentinel, or a managed Redis)": [
            "tests/acceptance/test_failover.py::test_a_failover_loses_no_report_also_when_the_new_master_lacks_the_last_second",
            "tests/integration/test_redis_client.py::test_a_server_that_was_demoted_is_connected_to_anew",
        ],
        "It was emptied while nobody drove": [
            "tests/unit/journal/test_restore.py::test_a_server_that_is_emptied_as_a_driver_begins_gets_the_experiment_back",
            "tests/acceptance/test_redis_faults.py::test_a_script_that_is_run_again_finds_its_experiment_although_redis_was_emptied_or_lost_its_journals_beginning",
        ],
        "The beginning of an experiment's journal was deleted, or evicted, while nobody drove": [
            "tests/acceptance/test_redis_faults.py::test_a_script_that_is_run_again_finds_its_experiment_although_redis_was_emptied_or_lost_its_journals_beginning",
            "tests/integration/test_outages.py::test_a_beginning_that_was_deleted_while_nobody_drove_is_brought_back",
        ],
        "It was set back while nobody drove, and reports that no driver had read are gone": [
            "tests/acceptance/test_redis_faults.py::test_a_trial_in_lockstep_goes_on_when_a_redis_that_is_set_back_has_lost_a_report_that_nobody_had_read",
            "tests/integration/test_worker_attempt.py::test_no_attempt_has_ended_without_reports_that_a_server_has_lost_before_its_end",
        ],
        "It was set back to before an attempt was claimed, while nobody drove or before its driver had read the claim": [
            "tests/acceptance/test_redis_faults.py::test_an_attempt_that_runs_twice_as_a_redis_that_is_set_back_has_lost_its_claim_saves_again"
        ],
        "It was set back, and another driver went on from there": [
            "tests/unit/journal/test_restore.py::test_a_driver_that_begins_leaves_what_another_has_made_of_a_set_back_server"
        ],
        "The folder has an earlier experiment of that name, which is in no Redis any more": [
            "tests/acceptance/test_cli_delete.py::test_an_archive_keeps_the_earlier_one_of_that_name",
            "tests/unit/journal/test_journal_reader.py::test_a_copy_of_another_journal_is_put_aside_and_one_begun",
        ],
        "The messages of a queue are lost": [
            "tests/unit/driver/test_driver.py::test_a_message_that_was_lost_is_published_again_and_one_that_waits_is_not"
        ],
    },
    "Disks, and large things": {
        "A trial prints gigabytes": [
            "tests/acceptance/test_bounds.py::test_a_trial_that_prints_without_end_keeps_its_first_and_last_lines_and_fills_no_disk"
        ],
        "A worker's disk is full, or its log folder can't be written": [
            "tests/unit/trainable/test_trainable_runner.py::test_output_goes_on_where_there_is_room_again_and_says_what_was_lost",
            "tests/acceptance/test_bounds.py::test_a_worker_whose_log_folder_can_not_be_written_runs_trials_all_the_same",
            "tests/unit/worker/test_worker_logs.py::test_a_disk_that_is_full_is_known_of_until_there_is_room_and_what_is_missing_is_said",
        ],
        "A worker's disk is full while code that a driver brings is unpacked, or the worker is killed meanwhile": [
            "tests/unit/worker/test_bundles.py::test_a_full_disk_leaves_nothing_half_there"
        ],
        "The checkpoint store is full": [
            "tests/acceptance/test_bounds.py::test_a_store_that_is_full_is_an_error_in_the_trial_and_what_was_half_written_is_never_seen"
        ],
        "The disk of the driver is full": [
            "tests/unit/journal/test_journal_reader.py::test_a_disk_that_is_full_is_said_once_and_the_reading_goes_on",
            "tests/acceptance/test_driver_loss.py::test_a_copy_that_can_not_be_written_ends_no_driver_and_is_completed_by_the_next_one",
        ],
        "A report over 1 MiB, or nested more than 510 deep": [
            "tests/acceptance/test_bounds.py::test_large_reports_arrive_or_are_refused_with_their_size_and_everything_shows_them"
        ],
        "A config over 1 MiB": [
            "tests/acceptance/test_bounds.py::test_a_config_of_a_megabyte_arrives_and_a_larger_one_is_refused_with_its_size"
        ],
        "10,000 trials with 100 reports each": [
            "tests/unit/driver/test_driver_memory.py::test_what_a_driver_remembers_does_not_grow_with_the_reports"
        ],
    },
    "Trust": {
        "A malformed message, hint or worker's description": [
            "tests/acceptance/test_hostile_messages.py::test_hints_and_workers_that_are_none_disturb_nobody",
            "tests/acceptance/test_hostile_messages.py::test_a_message_that_is_no_task_of_mqtunes_runs_nothing_and_ends_no_worker",
        ],
        "A name in the fleet's register that is not text, or one experiment's broken keys": [
            "tests/contract/test_journal.py::TestFleet::test_a_name_that_is_no_text_hides_no_worker",
            "tests/integration/test_worker_runtime.py::test_an_experiment_whose_leases_are_broken_costs_no_other_its_leases",
        ],
        "An entry that is not an event in one experiment's journal, a definition that makes no sense, or a key of another type": [
            "tests/integration/test_client.py::test_an_experiment_with_something_that_is_none_of_mqtunes_is_named_and_hides_no_other",
            "tests/integration/test_client.py::test_an_experiment_of_which_a_key_is_of_another_type_can_be_deleted_once_that_key_is_gone",
        ],
        "Messages with headers that make no sense, or of more and more experiments": [
            "tests/acceptance/test_hostile_messages.py::test_messages_whose_headers_make_no_sense_take_no_slot",
            "tests/integration/test_worker_runtime.py::test_a_worker_does_not_grow_with_the_experiments_that_come_by",
        ],
        "`celery -A shop control shutdown` of another application on the same Redis": [
            "tests/acceptance/test_celery_face.py::test_celerys_commands_work_on_a_worker_and_its_trials"
        ],
        "A pickled task or remote command": [
            "tests/acceptance/test_hostile_messages.py::test_remote_commands_that_are_none_run_nothing_and_end_no_worker"
        ],
        "A trainable closes descriptors that are not its own (`os.closerange`)": [
            "tests/integration/test_worker_attempt.py::test_a_trial_that_has_closed_its_pipe_is_told_so_and_writes_nothing_elsewhere"
        ],
        "Another entry of the journal that can't be read": [
            "tests/acceptance/test_hostile_messages.py::test_an_entry_that_can_not_be_read_is_a_clear_error_and_the_run_goes_on_without_it"
        ],
        "The key of a trial, its lease or its place among those that wait is deleted, or evicted": [
            "tests/acceptance/test_hostile_messages.py::test_a_trial_whose_key_is_deleted_runs_again_with_the_reason",
            "tests/contract/journals/leases.py::LeaseContract::test_an_attempt_that_the_server_has_lost_is_ended_by_the_driver_once",
        ],
        "A report in the journal that can't be read": [
            "tests/unit/results/test_results.py::test_reports_that_can_not_be_read_are_left_out_counted_and_shown",
            "tests/unit/core/test_events.py::test_a_report_that_can_not_be_read_takes_none_with_it_that_can",
        ],
        "Somebody writes nonsense into a trial's hash": [
            "tests/contract/test_journal.py::TestRedisJournal::test_nonsense_in_the_hash_of_a_trial_keeps_no_driver_and_no_other_trial_from_going_on"
        ],
        "A trial floods its worker with small parts, such as checkpoints without a report": [
            "tests/unit/worker/test_uplink.py::test_a_trial_that_floods_the_uplink_with_small_parts_delays_nobody_else",
            "tests/unit/worker/test_uplink.py::test_many_checkpoints_without_a_report_are_journaled_some_hundreds_at_once",
        ],
        "A trial's process sends noise, or names another trial's checkpoint": [
            "tests/unit/worker/test_uplink.py::test_what_is_not_the_attempts_own_is_not_written_and_what_came_before_it_is",
            "tests/property/test_decoders.py::test_a_trial_that_sends_noise_ends_and_the_others_of_its_worker_go_on",
        ],
        "A trainable outside the code root": ["tests/unit/trainable/test_trainable_spec.py::test_no_link_leads_out"],
        "Somebody makes requests without end": [
            "tests/unit/driver/test_requests.py::test_a_flood_of_requests_is_carried_out_over_several_rounds_and_each_leaves_reports_their_turn",
            "tests/acceptance/test_rate_caps.py::test_requests_over_a_cap_are_refused_with_its_name_and_neither_stall_the_driver_nor_keep_others_from_theirs",
        ],
        "A driver wants more than a quota allows": [
            "tests/integration/test_quotas.py::test_no_more_run_than_a_quota_allows_of_all_that_fall_under_it"
        ],
        "A driver's demand for slots can't be read": [
            "tests/integration/test_demands.py::test_what_is_no_demand_is_left_out",
            "tests/integration/test_demands.py::test_a_table_that_is_none_is_warned_of_once_and_ends_no_driver",
        ],
        "A share, or what is published of the register, can't be read": [
            "tests/integration/test_demands.py::test_a_share_or_a_register_that_makes_no_sense_disturbs_no_driver",
            "tests/integration/test_demands.py::test_a_table_that_is_none_is_warned_of_once_and_ends_no_driver",
        ],
        "An account lacks a permission": [
            "tests/acceptance/test_acl.py::test_the_driver_of_a_team_is_told_at_once_that_it_may_not_drive_others_experiments"
        ],
        "A Redis in cluster mode, or a Sentinel in place of a server": [
            "tests/integration/test_connection.py::test_a_server_of_a_kind_that_can_not_have_an_experiment_says_so_at_once"
        ],
        "The wrong certificate, or host name": [
            "tests/acceptance/test_tls.py::test_a_driver_says_at_once_whose_certificate_it_does_not_trust"
        ],
        "A Redis without a password that others can reach": [
            "tests/acceptance/test_tls.py::test_a_redis_without_a_password_is_warned_of_unless_only_this_machine_reaches_it"
        ],
        "Somebody brings code without the workers' key, other files under its hash, or names that lead elsewhere": [
            "tests/acceptance/test_code_to_workers.py::test_code_that_is_signed_with_another_key_is_refused_and_without_one_nothing_begins",
            "tests/unit/worker/test_bundles.py::test_a_name_that_leads_elsewhere_is_refused",
            "tests/unit/worker/test_bundles.py::test_what_is_no_bundle_is_refused",
        ],
    },
    "Celery and Redis under long tasks": {
        "1. A long task is run again each visibility timeout": [
            "tests/contract/journals/staging.py::StagingContract::test_a_claim_with_another_token_finds_the_attempt_taken",
            "tests/unit/backends/test_simulated.py::test_an_attempt_that_is_published_twice_is_claimed_once",
        ],
        "2. A crash loses a task that was acknowledged early": [
            "tests/acceptance/test_endings.py::test_kill_9_of_a_worker_leaves_no_process_and_its_trial_goes_on_elsewhere"
        ],
        "3. A message is lost between the queue and the worker's books": [
            "tests/unit/driver/test_driver.py::test_a_message_that_was_lost_is_published_again_and_one_that_waits_is_not",
            "tests/unit/driver/test_driver.py::test_an_attempt_that_a_worker_holds_is_not_published_again_until_that_runs_out",
        ],
        "4. Tasks wait behind a long one in a worker that took them ahead": [
            "tests/acceptance/test_sharing.py::test_no_trial_waits_behind_a_long_one_while_another_worker_is_idle",
            "tests/unit/worker/test_worker_settings.py::test_an_option_that_would_do_harm_or_nothing_is_refused",
        ],
        "5. A revoke is forgotten by a restart, a late worker, or after three hours": [
            "tests/acceptance/test_celery_face.py::test_a_task_that_is_revoked_while_no_driver_lives_never_runs_on_a_worker_that_joins_later",
            "tests/contract/journals/intents.py::IntentContract::test_an_attempt_that_nobody_has_claimed_is_ended_by_the_decision",
            "tests/acceptance/test_celery_face.py::test_an_attempt_that_is_revoked_in_the_queue_ends_without_running",
        ],
        "6. A thread pool can't terminate a task": [
            "tests/acceptance/test_celery_face.py::test_celerys_commands_work_on_a_worker_and_its_trials"
        ],
        "7. Tasks may have no processes of their own": [
            "tests/acceptance/test_sharing.py::test_a_trial_may_have_processes_of_its_own"
        ],
        "8. CUDA breaks in forked processes": [
            "tests/acceptance/test_celery_face.py::test_each_slot_has_its_device_before_user_code_is_imported_and_the_worker_never_loads_cuda"
        ],
        "9. A worker stops consuming after a reconnect, and looks healthy": [
            "tests/integration/test_consuming.py::test_a_worker_that_takes_nothing_reconnects_and_its_trials_go_on",
            "tests/integration/test_consuming.py::test_a_worker_that_reconnecting_does_not_help_hands_its_trials_back_and_starts_anew",
            "tests/integration/test_consuming.py::test_a_worker_takes_trials_after_its_connections_were_cut_and_redis_was_restarted_time_and_again",
        ],
        "10. An outage of the result backend loses the outcome, or the slot": [
            "tests/acceptance/test_redis_faults.py::test_trials_run_on_and_everything_arrives_once",
            "tests/unit/worker/test_worker_settings.py::test_a_setting_that_was_changed_is_named_with_both_values",
        ],
        "11. SIGTERM kills a long task, or waits for it for ever": [
            "tests/acceptance/test_lifecycle.py::test_a_worker_that_goes_hands_its_trial_on_with_the_state_that_it_had",
            "tests/acceptance/test_draining.py::test_a_worker_has_the_grace_that_it_was_given",
        ],
        "12. A process that was killed for memory leaves its task STARTED for ever": [
            "tests/unit/worker/test_worker_processes.py::test_a_trial_that_the_system_killed_says_so",
            "tests/unit/worker/test_worker_processes.py::test_other_ends_are_told_apart",
        ],
        "13. A worker's death leaves children that hold the GPU": [
            "tests/acceptance/test_endings.py::test_kill_9_of_a_worker_leaves_no_process_and_its_trial_goes_on_elsewhere",
            "tests/integration/test_zygotes.py::test_a_zygote_that_is_killed_takes_its_trial_along",
        ],
        "14. `ping` and `inspect` are slow, or wrong, in a large fleet": [
            "tests/contract/test_journal.py::TestFleet::test_a_worker_whose_heartbeat_stops_falls_out",
            "tests/acceptance/test_celery_face.py::test_inspecting_a_fleet_needs_nothing_but_the_broker",
        ],
        "15. Settings that are in the wrong place, or in two": [
            "tests/unit/worker/test_worker_settings.py::test_a_setting_that_was_changed_is_named_with_both_values",
            "tests/acceptance/test_celery_face.py::test_what_can_not_work_is_refused_in_one_line_with_the_way_out",
        ],
        "A client library that tries again writes twice": [
            "tests/contract/test_journal.py::TestRedisJournal::test_a_write_whose_answer_was_lost_is_done_once",
            "tests/integration/test_connection.py::test_a_command_that_times_out_is_not_repeated",
        ],
        "A subscriber that is too slow is cut off without an error": [
            "tests/integration/test_follow.py::test_a_follower_that_is_too_slow_is_cut_off_and_catches_up",
            "tests/integration/test_follow.py::test_what_messages_lose_is_read_from_the_journal",
        ],
        "A control message is lost in a reconnect": [
            "tests/contract/journals/intents.py::IntentContract::test_a_running_attempt_hears_its_intent_with_every_answer_until_it_ends",
            "tests/contract/test_journal.py::TestFleet::test_hints_come_again_after_the_connection_was_lost",
        ],
        "`revoke(terminate=True)` leaves grandchildren behind": [
            "tests/acceptance/test_bad_input.py::test_what_a_trial_leaves_behind_is_killed_before_its_slot_is_used_again"
        ],
        "After a warm shutdown with early acknowledgement tasks are lost": [
            "tests/acceptance/test_celery_face.py::test_ctrl_c_hands_the_trials_back_and_another_worker_takes_them",
            "tests/acceptance/test_celery_face.py::test_a_shutdown_by_remote_control_hands_the_trials_back",
        ],
        "A message reaches a worker that is about to go": [
            "tests/acceptance/test_celery_face.py::test_what_comes_while_a_worker_leaves_is_run_by_another_at_once"
        ],
        "Flower shows a task as running after it was terminated": [
            "tests/acceptance/test_flower.py::test_each_end_has_its_state_with_config_and_latest_metrics"
        ],
        "Redis without a persistent file comes back without its queues": [
            "tests/acceptance/test_redis_faults.py::test_an_emptied_redis_gets_the_experiment_back_and_its_trials_run_again"
        ],
    },
    "What users of other tuners ask for most": {
        "1. Each trial its own GPU": [
            "tests/acceptance/test_celery_face.py::test_each_slot_has_its_device_before_user_code_is_imported_and_the_worker_never_loads_cuda"
        ],
        "2. A worker that was killed must not leave its trial running for ever": [
            "tests/acceptance/test_endings.py::test_kill_9_of_a_worker_leaves_no_process_and_its_trial_goes_on_elsewhere"
        ],
        "3. But a living one must not be declared dead": [
            "tests/unit/driver/test_driver.py::test_after_an_outage_of_redis_workers_have_their_turn_before_their_leases_are_reaped",
            "tests/contract/journals/leases.py::LeaseContract::test_losing_ends_an_attempt_and_fences_its_worker",
        ],
        "4. The same trial goes on, from its checkpoint": [
            "tests/acceptance/test_lifecycle.py::test_a_worker_that_is_killed_loses_its_trial_which_goes_on_from_its_checkpoint"
        ],
        "5. A search goes on when its driver has died": [
            "tests/acceptance/test_lifecycle.py::test_a_driver_that_goes_leaves_its_trials_running_and_the_next_one_pauses_and_resumes_them",
            "tests/property/test_replay_simulated.py::test_drivers_that_start_from_any_prefix_go_on_to_the_same_end",
        ],
        "6. A paused trial frees its GPU": [
            "mqtune/testing/backends/pausing.py::PausingContract::test_a_resumed_trial_continues_from_its_newest_checkpoint",
            "tests/unit/driver/test_driver_trials.py::test_a_paused_trial_frees_its_slot_and_goes_on_from_its_newest_checkpoint",
        ],
        "7. Stop, pause or resume one trial while it runs": [
            "tests/acceptance/test_celery_face.py::test_celerys_commands_work_on_a_worker_and_its_trials",
            "mqtune/testing/backends/ending.py::EndingContract::test_a_user_ends_a_running_trial_and_its_slot_is_used_again",
        ],
        "8. Train finished trials longer; more trials after the end": [
            "tests/unit/driver/test_requests.py::test_a_script_that_asks_for_more_trials_again_and_again_gets_them"
        ],
        "9. GPU memory that is really free for the next trial": [
            "tests/integration/test_quarantine.py::test_the_next_trial_waits_for_the_memory_of_the_last_and_a_worker_that_is_told_to_go_does_not"
        ],
        "10. Grandchildren go, too": [
            "tests/integration/test_zygotes.py::test_whatever_a_module_does_with_signals_on_import_trials_end_and_what_they_leave_is_gone"
        ],
        "11. Several experiments on one fleet": [
            "tests/acceptance/test_sharing.py::test_two_experiments_share_a_fleet_and_both_come_forward",
            "tests/acceptance/test_shared_fleet.py::test_slots_are_shared_by_weight_then_by_priority_and_given_back",
            "tests/contract/journals/lock.py::LockContract::test_experiments_are_apart",
        ],
        "12. GPUs of several sizes, GPU memory, CPU trials beside": [
            "tests/integration/test_queues.py::test_workers_of_different_shapes_both_get_messages",
            "tests/unit/backends/test_celery_backend.py::test_what_is_scarce_is_left_to_those_who_ask_for_it",
        ],
        "13. Small trials that share a GPU": [
            "tests/unit/backends/test_celery_backend.py::test_attempts_that_are_published_together_go_where_they_would_go_one_by_one"
        ],
        '14. "My module isn\'t found on the workers"': [
            "tests/acceptance/test_bad_input.py::test_a_module_that_the_worker_lacks_is_named_with_the_worker_and_its_code_root"
        ],
        "15. A driver that stays fast with thousands of trials": [
            "tests/unit/driver/test_driver_memory.py::test_what_a_driver_remembers_does_not_grow_with_the_reports",
            "tests/unit/driver/test_timers.py::test_of_many_attempts_a_part_is_checked_at_a_time_and_each_one_in_a_while",
        ],
        "16. Disks that don't fill up; nothing deleted that somebody will fork": [
            "tests/unit/driver/test_checkpoint_gc.py::test_the_last_and_the_best_of_a_running_trial_are_kept_and_the_rest_is_deleted",
            "tests/acceptance/test_checkpoints.py::test_what_a_fork_began_with_stays_until_it_has_its_own",
        ],
        "17. A preemption is no failure": [
            "tests/acceptance/test_draining.py::test_down_to_no_worker_and_up_again_costs_nothing"
        ],
        "18. Drain a worker": [
            "tests/acceptance/test_draining.py::test_a_worker_that_is_drained_is_gone_and_its_trial_goes_on_where_it_was"
        ],
        "19. Say why it waits; keep logs": [
            "tests/acceptance/test_bad_input.py::test_no_worker_that_fits_is_said_with_what_there_is_and_the_run_goes_on_when_one_joins",
            "tests/acceptance/test_cli_show.py::test_a_failed_trial_is_shown_with_its_error_and_the_end_of_its_output",
        ],
        "20. Rules that really end the search, also with NaN": [
            "mqtune/testing/backends/ending.py::EndingContract::test_stopping_all_trials_starts_no_other",
            "tests/acceptance/test_bad_input.py::test_nan_and_infinity_are_values_and_never_best",
        ],
    },
}
