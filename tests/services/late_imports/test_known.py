"""A worker keeps what trials import late, and which packages it must not import early."""

from __future__ import annotations

from pathlib import Path

from mqtune.services.late_imports.known import LateImports
from mqtune.trainable import TrainableSpec

TRAIN, OTHER = TrainableSpec("train", module="jobs"), TrainableSpec("other", module="jobs")


def test_what_a_zygote_had_to_import_is_kept_for_the_next_worker_and_the_rest_is_not(tmp_path: Path) -> None:
    late = LateImports(tmp_path, usual=())
    late.learn(TRAIN, [({}, ["a", "a.b"]), ({"X": "hash"}, ["c"])])
    assert late.of(TRAIN) == [({}, ["a", "a.b"]), ({"X": "hash"}, ["c"])]
    assert late.of(TRAIN, {"a"}) == [({}, ["a.b"]), ({"X": "hash"}, ["c"])]

    late.settle(TRAIN, ["a", "a.b", "c"], ["a", "c"])
    late.learn(TRAIN, [({}, ["a.b"])])

    for each in (late, LateImports(tmp_path, usual=())):
        assert each.of(TRAIN) == [({}, ["a"]), ({"X": "hash"}, ["c"])]
        assert each.of(OTHER) == []


def test_a_package_that_is_not_safe_is_not_tried_again_and_after_some_of_them_none_is(tmp_path: Path) -> None:
    late = LateImports(tmp_path, usual=())
    late.learn(TRAIN, [({}, ["good", "bad.deep", "bad.other"])])
    late.refuse(TRAIN, "bad.deep", "it has started a thread")
    late.settle(TRAIN, ["good"], ["good"])

    again = LateImports(tmp_path, usual=())
    again.learn(TRAIN, [({}, ["bad.third"])])
    assert again.of(TRAIN) == [({}, ["good"])]

    for name in ("worse", "worst", "last"):
        again.refuse(TRAIN, name, "it has opened a file")
    assert again.of(TRAIN) == []
