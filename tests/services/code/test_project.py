"""The files of a project that travel to workers."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mqtune.core.errors import ConfigurationError
from mqtune.services.code.project import Project, packed
from mqtune.trainable import TrainableSpec

TRAIN = TrainableSpec("train", module="train")


def write(folder: Path, *names: str, content: str = "def train(config): ...\n") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_git_says_which_files_are_packed(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    root, outside = tmp_path / "project", tmp_path / "outside"
    write(root, "train.py", "new.py", "gone.py", "data/ignored.csv", "pkg/a.py", "pkg/b.ipynb", ".env.example")
    write(root, ".env", "keys/id_rsa", "keys/server.pem", "conf/my-credentials.json", content="secret")
    write(root, ".gitignore", content="data/\n__pycache__/\n")
    write(outside, "shadow")
    (root / "out").symlink_to(outside / "shadow")
    (root / "folder").symlink_to(root / "pkg")
    (root / "inside.py").symlink_to("train.py")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    git(root, "init")
    write(root, ".envrc", ".s3cfg", ".idea/workspace.xml", ".secrets/x.py", ".tracked/conf.py", ".old.env.sample")
    git(root, "add", "train.py", "gone.py", ".gitignore", ".env.example", ".env", ".tracked/conf.py")
    (root / "gone.py").unlink()
    inner = root / "inner"
    write(inner, "of_submodule.py", "build/ignored.py")
    write(inner, ".gitignore", content="build/")
    git(inner, "init")

    with caplog.at_level(logging.WARNING):
        found = packed(root, root)
    files = {".gitignore", ".env.example", ".tracked/conf.py", "train.py", "new.py", "pkg/a.py", "inside.py", "run.sh"}
    assert {*found} == files | {"inner/of_submodule.py"}
    assert [name for name, file in found.items() if file.is_executable] == ["run.sh"]
    secrets, links = [record.getMessage() for record in caplog.records]
    assert (
        "6 of the files for workers look like secrets, and stay here: .envrc, .s3cfg, conf/my-credentials.json, keys/id_rsa, "
        in secrets
    )
    assert links.endswith("lead out of it, or to folders, and stay here: out")


SECRETS = """
    prod.env config.env prod.env.local service_account.json gcp-service-account-1.json kaggle.json api_key.txt openai_api_key
    API_KEYS.json terraform.tfstate terraform.tfstate.backup x.tfvars db_password.txt passwords.yaml client_secret.json
    secrets.toml token hf_access_token.txt aws_credentials.json rclone.conf signing.p8 kubeconfig
"""
#: Code and models with words of secrets in their names.
NO_SECRETS = """
    api_keys.py tokenizer.json added_tokens.json password_strength.py secretary.csv env.py prod.env.example environment.yml
    special_tokens_map.json
"""


def test_what_is_named_like_a_secret_is_not_packed_and_nothing_else_is_left_out(tmp_path: Path):
    write(tmp_path, *(f"conf/{name}" for name in SECRETS.split()), *NO_SECRETS.split())

    assert {*packed(tmp_path, tmp_path)} == {*NO_SECRETS.split()}


def test_without_git_the_ignore_file_says_what_is_left_out(tmp_path: Path):
    write(tmp_path, "train.py", "a/data/x.csv", "data/y.csv", "a/model.bin", "docs/deep/z.md", "docs/z.md", "data.py")
    left_out = "a/__pycache__/train.pyc .hidden/x.py a/.hidden.py venv/pyvenv.cfg venv/lib/x.py node_modules/x.js"
    write(tmp_path, *left_out.split())
    write(tmp_path, ".mqtuneignore", content="# no code\n\ndata/\n*.bin\ndocs/*.md\n")
    assert {*packed(tmp_path, tmp_path)} == {"train.py", "docs/deep/z.md", "data.py"}
    write(tmp_path, ".mqtuneignore", content="!data/x.csv\n")
    with pytest.raises(ConfigurationError, match=r"mqtuneignore has '!data/x.csv'.*knows neither ! nor \*\*"):
        packed(tmp_path, tmp_path)


def test_too_much_is_refused_by_name_and_big_files_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write(tmp_path, "train.py")
    write(tmp_path, "big.bin", content="x" * (5 << 20))
    with caplog.at_level(logging.WARNING):
        packed(tmp_path, tmp_path)
    assert "1 of the files for workers are big for code; each worker fetches them: big.bin" in caplog.text
    with pytest.raises(ConfigurationError, match=r"has 2 files and more: give your project's folder"):
        packed(tmp_path, tmp_path, most_listed=2)
    with (tmp_path / "huge.bin").open("wb") as file:
        file.truncate(33 << 20)
    with pytest.raises(ConfigurationError, match=r"has 3 files of .*huge.bin \(34.6 MB\), big.bin.*\.mqtuneignore"):
        packed(tmp_path, tmp_path)


def test_the_hash_says_what_is_in_it_and_neither_when_nor_where_it_was_packed(tmp_path: Path):
    digests = []
    for name in ("one", "two"):
        root = tmp_path / name
        write(root, "b.py", "train.py", "a/c.py")
        os.utime(root / "b.py", (1, len(digests)))
        digests.append(Project(root, TRAIN, root).pack({"train.py": b""}).digest)
    assert digests[0] == digests[1]
    (tmp_path / "two" / "b.py").chmod(0o755)
    assert Project(tmp_path / "two", TRAIN, tmp_path / "two").pack({"train.py": b""}).digest != digests[0]


def test_the_code_root_may_be_in_the_folder_or_above_it(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    root = tmp_path / "project"
    write(root, "src/train.py", "src/helper.py", "conf.yaml")
    inner = Project(root, TRAIN, root / "src")
    assert inner.root == "src"
    assert {*inner.pack({"train.py": b""}).files()} == {"src/train.py", "src/helper.py", "conf.yaml"}
    spec = TrainableSpec("train", script="project/src/train.py")
    above = Project(root, spec, tmp_path)
    assert (above.root, "project/src/train.py" in above.pack({"train.py": b""}).files()) == (".", True)
    write(tmp_path / "other", "x")
    with pytest.raises(ConfigurationError, match=r"has no .*src/train.py, where trainable 'train' is"):
        Project(tmp_path / "other", TRAIN, root / "src")

    write(root, ".mqtuneignore", content="helper.py\n")
    inner.pack({"train.py": b"", "helper.py": b""})
    assert "are imported and left out: workers need them of their own: src/helper.py" in caplog.text
    write(root, ".mqtuneignore", content="train.py\n")
    with pytest.raises(ConfigurationError, match=r"leaves out .*train.py.*ignores it"):
        inner.pack({"train.py": b""})


def test_experiments_and_stores_in_the_folder_are_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "runs"))
    write(tmp_path, "train.py", "runs/e/journal.msgpack", "store/checkpoint")
    project = Project(tmp_path, TRAIN, tmp_path, [str(tmp_path / "store")])
    assert {*project.pack({}).files()} == {"train.py"}


def test_what_no_trial_runs_is_no_change(tmp_path: Path):
    main = "\nif __name__ == '__main__':\n    print({})\n"
    write(tmp_path, "train.py", content="def train(config): ...\n" + main.format(1))
    write(tmp_path, "conf.yaml", "old.py", content="1")
    before = Project(tmp_path, TRAIN, tmp_path).pack({})
    write(tmp_path, "train.py", content="def train(config): ...\n" + main.format(2))
    (tmp_path / "conf.yaml").write_text("2")
    (tmp_path / "old.py").unlink()
    project = Project(tmp_path, TRAIN, tmp_path)
    assert project.pack({}).digest != before.digest
    assert project.changed_since(before) == ["conf.yaml", "old.py"]
