"""The files of an experiment's code, their versions, and their changes."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bench import writer_of

import mqtune
from mqtune.core.codec import encode_value
from mqtune.trainable import FrozenCode, TrainableSpec, fingerprint, fingerprints, loaded_files, read_code, resolve

TRAIN = TrainableSpec("train", module="train")


def write(root: Path, **files: str) -> None:
    """Write files; in their names two underscores stand for a slash, unless they have one."""
    for name, source in files.items():
        path = root / f"{name if '/' in name else name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)


def test_several_threads_find_an_experiments_code_at_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        train="def train(config, rates=[1, 2]):\n    return {'x': [config, (rates, 2)], 'y': lambda: 3}\n" * 40,
    )
    before, before_callbacks = gc.get_threshold(), list(gc.callbacks)
    with ThreadPoolExecutor(8) as threads:
        try:
            # Other threads go on in the middle of parsing.
            gc.set_threshold(5)
            gc.callbacks.append(lambda *_: time.sleep(1e-6))
            found = list(threads.map(lambda _: list(read_code(TRAIN, tmp_path)), range(40)))
        finally:
            gc.callbacks[:] = before_callbacks
            gc.set_threshold(*before)

    assert found == [["train.py"]] * 40


def test_what_only_the_driver_runs_is_no_part_of_a_files_fingerprint() -> None:
    code = b"import mqtune\n\ndef train(config):\n    pass\n"
    driver = b"\n\nif __name__ == '__main__':\n    mqtune.Tuner(train, max_trials=%d).run()\n"

    one = fingerprint(code + driver % 10)

    assert fingerprint(code + driver % 20) == fingerprint(code) == one
    assert fingerprint(code + b"\n\nif '__main__' == __name__:\n    pass\n") == one
    assert fingerprint(code.replace(b"pass", b"return") + driver % 10) != one
    assert fingerprint(code + driver % 10, is_run=True) != fingerprint(code + driver % 20, is_run=True)


@pytest.mark.parametrize(
    "source",
    [
        b"if __name__ == '__main__':\n    x = 1\nelse:\n    x = %d\n",
        b"if __name__ != '__main__':\n    x = %d\n",
        b"if __name__ == '__main__' or True:\n    x = %d\n",
        b"x = %d  # __main__\n",
        b"def half(__main__ %d\n",
        b"\xff\xfe __main__ %d",
    ],
)
def test_whatever_else_stands_in_a_file_counts(source: bytes) -> None:
    assert fingerprint(source % 1) != fingerprint(source % 2)


def test_the_code_is_what_the_trainables_imports_name_wherever_they_stand(tmp_path: Path) -> None:
    write(
        tmp_path,
        train="import os, helper\nfrom package.model import Net\ndef train(config):\n    import lazy\n"
        "if __name__ == '__main__':\n    import plots\n",
        helper="import json\nimport site_only\n",
        package__model="from .layers import Dense\nfrom .. import nothing\n",
        package__layers="from package.deep.down import x\n",
        **{"package/__init__": "from . import settings\n"},
        **dict.fromkeys(("lazy", "plots", "unrelated", "mqtune", "package__settings", "package__deep__down"), ""),
    )

    found = read_code(TRAIN, tmp_path)

    assert next(iter(found)) == "train.py"
    package = {f"package/{name}.py" for name in ("__init__", "model", "layers", "settings", "deep/down")}
    assert {*found} == {"train.py", "helper.py", "lazy.py", *package}
    assert found["package/layers.py"] == b"from package.deep.down import x\n"


def test_files_are_named_from_the_trainables_folder_so_that_the_code_root_may_be_another(tmp_path: Path) -> None:
    write(tmp_path, project__train="import helper, beside\n", project__beside="", helper="")
    spec = TrainableSpec("train", script="project/train.py")

    from_above = read_code(spec, tmp_path)
    from_within = read_code(TrainableSpec("train", script="train.py"), tmp_path / "project")

    assert sorted(from_above) == ["../helper.py", "beside.py", "train.py"]
    assert sorted(from_within) == ["beside.py", "train.py"]


def test_a_worker_takes_from_a_definition_only_paths_of_code_below_its_code_root(tmp_path: Path) -> None:
    write(tmp_path, root__project__train="", root__helper="", outside="")
    root, good = tmp_path / "root", "0123456789abcdef"
    spec = TrainableSpec("train", module="project.train")
    outside = ("../../outside.py", "/etc/passwd.py", "secrets.env", "a\0.py", 8, "site-packages/d.py")
    files = {"train.py": good, "../helper.py": good, **dict.fromkeys(outside, good), "b.py": "../../x", "c.py": 7}

    found = resolve(spec, root, files)

    assert found == {str(root / "project" / "train.py"): good, str(root / "helper.py"): good}
    assert resolve(spec, root, None) == resolve(spec, root, ["train.py"]) == resolve(TRAIN, root, files) == {}


@pytest.fixture
def path_of_imports() -> Iterator[None]:
    finders, path, modules = list(sys.meta_path), list(sys.path), set(sys.modules)
    yield
    sys.meta_path[:], sys.path[:] = finders, path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def frozen(root: Path, spec: TrainableSpec = TRAIN) -> FrozenCode:
    files = fingerprints(spec, read_code(spec, root))
    return FrozenCode(root / ".code", resolve(spec, root, files))


def test_frozen_code_is_imported_as_it_was_whatever_it_is_now(tmp_path: Path, path_of_imports: None) -> None:
    write(
        tmp_path,
        train="import frozen_one\ndef train(config):\n    import frozen_two\n",
        frozen_one="X = 1\n",
        frozen_two="X = 2\n",
    )
    code = frozen(tmp_path)
    write(tmp_path, train="", frozen_one="X = 'other'\n", frozen_two="X = (\n", free_one="X = 3\n")
    sys.path.insert(0, str(tmp_path))

    code.install()

    import free_one  # type: ignore[import-not-found]
    import frozen_one  # type: ignore[import-not-found]
    import frozen_two  # type: ignore[import-not-found]

    assert (frozen_one.X, frozen_two.X, free_one.X) == (1, 2, 3)
    assert frozen_one.__file__ == str(tmp_path / "frozen_one.py")
    assert code.differing == []


def test_what_was_imported_of_mqtune_is_nobodys_code_also_below_a_code_root() -> None:
    package = Path(mqtune.__file__).parent

    loaded = [Path(path) for path, _ in loaded_files(package.parent)]

    assert Path(__file__) in loaded
    assert not any(package in path.parents for path in loaded)


def test_a_copy_that_is_not_what_it_is_called_is_not_taken_and_one_that_can_not_be_written_is_no_error(tmp_path: Path):
    file, kept = tmp_path / "x.py", tmp_path / "kept"
    file.write_text("X = 1\n")
    wanted = {str(file): fingerprint(b"X = 1\n")}
    FrozenCode(kept, wanted)
    FrozenCode(file / "below", wanted)
    file.write_text("X = 3\n")
    assert FrozenCode(kept, wanted).source(str(file)) == b"X = 1\n"

    (kept / wanted[str(file)]).write_bytes(b"X = 2\n")

    for folder in (kept, file / "below"):
        code = FrozenCode(folder, wanted)
        assert (code.source(str(file)), code.differing) == (None, [str(file)])


def definition(kept: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    sys.modules.pop("train_of_plans", None)
    import train_of_plans  # type: ignore[import-not-found]

    writer = writer_of(train_of_plans.train)
    writer.read_code()
    return writer, writer.definition(None if kept is None else encode_value(kept))


@pytest.mark.parametrize("was_recorded", [True, False])
def test_same_or_unrecorded_code_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_recorded: bool
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (script := tmp_path / "train_of_plans.py").write_text("def train(config):\n    pass\n")
    _, before = definition()
    files = before["code_files"]
    if not was_recorded:
        del before["code_files"], before["code"]

    writer, after = definition(before)

    assert writer.changed == []
    assert after["code_files"] == files != {}
    # A file that came or went shows in the file that imports it.
    script.with_name("new.py").touch()
    script.write_text("import new\n" + script.read_text())
    changed, _ = definition({**before, "code_files": {**files, "old.py": "0123456789abcdef"}})
    assert changed.changed == [script.name]
