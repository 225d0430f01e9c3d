"""What travels as a bundle, what comes of it on a worker, and who is believed."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from mqtune.core.codec import encode_value
from mqtune.core.errors import CodeRefused, ConfigurationError
from mqtune.driver import Project, bring, bundling, differences, packed
from mqtune.trainable import Bundle, CodeKeys, File, TrainableSpec, is_signed, signature, unpack
from mqtune.trainable.bundle import MOST_BYTES
from mqtune.worker import Bundles, ExperimentHere, WorkerSettings, bundles as worker_bundles
from mqtune.worker.bundles import KEPT

KEY = "a key of sixteen letters"
TRAIN = TrainableSpec("train", module="train")


def write(folder: Path, *names: str, content: str = "def train(config): ...\n") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


# What is packed.


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_git_says_which_files_are_packed_and_neither_secrets_nor_links_out_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
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
    assert "6 look like secrets, and stay here: .envrc, .s3cfg, conf/my-credentials.json, keys/id_rsa, " in secrets
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
    write(
        tmp_path,
        "a/__pycache__/train.pyc",
        ".hidden/x.py",
        "a/.hidden.py",
        "venv/pyvenv.cfg",
        "venv/lib/x.py",
        "node_modules/x.js",
    )
    write(tmp_path, ".mqtuneignore", content="# no code\n\ndata/\n*.bin\ndocs/*.md\n")
    assert {*packed(tmp_path, tmp_path)} == {"train.py", "docs/deep/z.md", "data.py"}
    write(tmp_path, ".mqtuneignore", content="!data/x.csv\n")
    with pytest.raises(ConfigurationError, match=r"mqtuneignore has '!data/x.csv'.*knows neither ! nor \*\*"):
        packed(tmp_path, tmp_path)


def test_too_much_is_refused_by_name_and_big_files_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path, "train.py")
    monkeypatch.setattr(bundling, "MOST_BYTES", 1_000)
    monkeypatch.setattr(bundling, "BIG_BYTES", 500)
    write(tmp_path, "big.bin", content="x" * 600)
    with caplog.at_level(logging.WARNING):
        packed(tmp_path, tmp_path)
    assert "1 are big for code; each worker fetches them: big.bin" in caplog.text
    with monkeypatch.context() as patch:
        patch.setattr(bundling, "_MOST_LISTED", 2)
        with pytest.raises(ConfigurationError, match=r"has 2 files and more: give your project's folder"):
            packed(tmp_path, tmp_path)
    write(tmp_path, "huge.bin", content="x" * 2_000)
    with pytest.raises(ConfigurationError, match=r"has 3 files of 0 MB.*huge.bin \(0.0 MB\), big.bin.*\.mqtuneignore"):
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


def test_the_code_root_may_be_in_the_folder_or_above_it_and_the_trainable_must_travel(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    root = tmp_path / "project"
    write(root, "src/train.py", "src/helper.py", "conf.yaml")
    inner = Project(root, TRAIN, root / "src")
    assert (inner.root, {*inner.pack({"train.py": b""}).files()}) == (
        "src",
        {"src/train.py", "src/helper.py", "conf.yaml"},
    )
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


# What comes of it.


def bundle_of(*entries: Any, version: int = 1) -> Bundle:
    """A bundle that somebody has made by hand, with the right hash."""
    plain = encode_value([version, list(entries)])
    return Bundle(hashlib.sha256(plain).hexdigest(), zlib.compress(plain))


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../up", "a/../../up", "a//b", "./a", "a/", "", ".", "..", "a\0b", "a\\..\\b", 7, "x" * 5_000],
)
def test_a_name_that_leads_elsewhere_is_refused(name: object):
    with pytest.raises(CodeRefused, match=r"is not a file below a folder|can't be read"):
        bundle_of([name, b"", False]).files()


def test_what_is_no_bundle_is_refused():
    good = Bundle.of({"a.py": File(b"1")})
    for bad, why in (
        (Bundle(good.digest, good.data[:-3]), "other content"),
        (Bundle(good.digest, b"\0" * 9), "damaged"),
        (Bundle(good.digest, Bundle.of({"a.py": File(b"2")}).data), "other content"),
        (Bundle(good.digest, zlib.compress(bytes(2 * MOST_BYTES))), "other content"),
        (bundle_of(["a", "text", False]), "not a file"),
        (bundle_of(["a", b""]), "can't be read"),
        (bundle_of(version=2), "version 2.*upgrade"),
        (bundle_of(["a", bytes(MOST_BYTES + 1), False]), "32 MiB"),
    ):
        with pytest.raises(CodeRefused, match=why):
            bad.files()


def test_files_that_can_not_both_be_there_are_an_error_and_nothing_is_overwritten(tmp_path: Path):
    with pytest.raises(OSError, match="a"):
        unpack({"a": File(b"1"), "a/b": File(b"2")}, tmp_path / "clash")
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError):
        unpack({"a": File(b"1")}, tmp_path / "there")


class Exchange:
    """A server with bundles; counts how often each is fetched."""

    def __init__(self, *there: Bundle, key: str = KEY) -> None:
        self.there = {bundle.digest: bundle for bundle in there}
        self.key = key
        self.fetched: list[str] = []

    def __call__(self, experiment: str) -> Any:
        return self

    def signature(self, digest: str) -> str | None:
        return signature(self.key, digest) if digest in self.there else None

    def bundle(self, digest: str) -> Bundle | None:
        self.fetched.append(digest)
        return self.there.get(digest)


def here(experiment: str, definition: dict[str, Any]) -> ExperimentHere:
    journal: Any = SimpleNamespace(experiment=experiment)
    return ExperimentHere(journal, definition)


def unpacked(tmp_path: Path, exchange: Exchange, *, key: str = KEY, used: Callable[[], set[Path]] = set) -> Bundles:
    return Bundles(tmp_path / "cache", key, exchange, used)


def test_slots_that_ask_at_once_unpack_it_once(tmp_path: Path):
    bundle = Bundle.of({f"src/m{number}.py": File(b"1" * 1_000) for number in range(100)})
    exchange = Exchange(bundle)
    there = unpacked(tmp_path, exchange)
    definition = {"bundle": bundle.digest, "bundle_root": "src"}
    with ThreadPoolExecutor(8) as slots:
        (found,) = set(slots.map(lambda number: there.of(here(f"e{number}", definition)), range(32)))
    assert (found.code_root, found.cwd) == (found.top / "src", found.top)
    assert there.of(here("e0", {**definition, "bundle_is_cwd": False})).cwd is None
    assert len([*found.code_root.iterdir()]) == 100
    assert exchange.fetched == [bundle.digest]
    # Somebody has cleared it away.
    worker_bundles.shutil.rmtree(found.top)
    assert there.of(here("e1", definition)).code_root.is_dir()
    there.close()
    assert not (tmp_path / "cache").exists()


def test_who_has_not_the_key_is_refused_also_when_it_is_unpacked_for_another(tmp_path: Path):
    bundle = Bundle.of({"train.py": File(b"")})
    exchange = Exchange(bundle)
    there = unpacked(tmp_path, exchange)
    definition = {"bundle": bundle.digest}
    trusted = here("trusted", definition)
    there.of(trusted)
    exchange.key = "another key of somebody's"
    assert there.of(trusted)
    with pytest.raises(CodeRefused, match="is not signed with this worker's MQTUNE_CODE_KEY"):
        there.of(here("other", definition))
    with pytest.raises(CodeRefused, match="--accept-code"):
        unpacked(tmp_path, exchange, key="").of(here("trusted", definition))
    assert unpacked(tmp_path, exchange, key="").of(here("of the machine", {})) is None
    for bad in ({"bundle": "../x"}, {"bundle": 7}, {"bundle": bundle.digest, "bundle_root": "../.."}):
        with pytest.raises(CodeRefused, match="no driver of mqtune says"):
            there.of(here("trusted", bad))
    with pytest.raises(CodeRefused, match="is not signed"):
        there.of(here("trusted", {"bundle": "0" * 64}))


def test_a_full_disk_leaves_nothing_half_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bundle = Bundle.of({"a.py": File(b"1"), "train.py": File(b"2")})
    there, written = unpacked(tmp_path, Exchange(bundle)), []

    def full(files: Any, folder: Path) -> None:
        unpack({"a.py": files["a.py"]}, folder)
        written.append(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(worker_bundles, "unpack", full)
        with pytest.raises(OSError, match="No space left"):
            there.of(here("e", {"bundle": bundle.digest}))
    assert not written[0].exists()
    assert (there.of(here("e", {"bundle": bundle.digest})).top / "train.py").read_bytes() == b"2"


def test_the_bundles_used_longest_ago_go_but_none_that_is_in_use(tmp_path: Path):
    every = [Bundle.of({"train.py": File(str(number).encode())}) for number in range(KEPT + 3)]
    used: set[Path] = set()
    there = unpacked(tmp_path, Exchange(*every), used=lambda: used)
    for bundle in every:
        found = there.of(here("e", {"bundle": bundle.digest}))
        used |= {found.code_root} if bundle is every[0] else set()
        there.of(here("e", {"bundle": every[1].digest}))
    left = [bundle for bundle in every if (tmp_path / "cache" / bundle.digest).is_dir()]
    assert left[:2] == every[:2]
    assert left[-1] is every[-1]
    assert len(left) == KEPT + 1


# Keys.


def test_a_worker_that_takes_code_needs_a_key_that_nobody_guesses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MQTUNE_CODE_KEY", raising=False)
    with pytest.raises(ConfigurationError, match=r"--accept-code needs MQTUNE_CODE_KEY.*is not set.*openssl rand"):
        WorkerSettings(broker="redis://", accept_code=True)
    monkeypatch.setenv("MQTUNE_CODE_KEY", "short")
    with pytest.raises(ConfigurationError, match=r"has 5 letters, and needs 16"):
        WorkerSettings(broker="redis://", accept_code=True)
    monkeypatch.setenv("MQTUNE_CODE_KEY", KEY)
    settings = WorkerSettings(broker="redis://", accept_code=True, gpus="0", slots=1)
    assert {*settings.plan().offer.tags} == {"accepts-code"}
    assert KEY not in repr(settings)
    assert not WorkerSettings(broker="redis://", gpus="0", slots=1).plan().offer.tags


def test_a_signature_is_of_one_key_and_one_bundle():
    assert is_signed(KEY, "d1", signature(KEY, "d1"))
    for key, digest, found in (
        (KEY, "d2", signature(KEY, "d1")),
        ("x" * 16, "d1", signature(KEY, "d1")),
        (KEY, "d1", "ü"),
        (KEY, "d1", signature(KEY, "d1", "submission")),
    ):
        assert not is_signed(key, digest, found)


def test_what_a_server_has_is_never_signed_for_it(monkeypatch: pytest.MonkeyPatch):
    bundle = Bundle.of({"train.py": File(b"")})

    class Server(Exchange):
        def put(self, bundle: Bundle, signed: str, *, before: str) -> None:
            raise AssertionError(signed)

    bring({"bundle": bundle.digest}, None, Server(bundle, key="their own"), KEY, is_own=False)
    bring({}, None, Server(), "", is_own=False)
    with pytest.raises(ConfigurationError, match="is not on this machine: run its script instead"):
        bring({"bundle": bundle.digest}, None, Server(), KEY, is_own=False)
    with pytest.raises(ConfigurationError, match="is not on this machine"):
        bring({"bundle": bundle.digest}, None, Server(bundle), KEY, is_own=True)


# Requirements.


def test_python_and_packages_that_differ_are_said_in_a_few_words():
    here = {"python": ".".join(map(str, sys.version_info[:3])), "packages": {"pytest": pytest.__version__}}
    assert differences(here) == ""
    # The distribution of yaml is PyYAML.
    packages = {
        "pytest": "1.0",
        "yaml": "1.0",
        "no_such_package": "3",
        **{f"msgpack{number}": "0" for number in range(3)},
    }
    said = differences({"python": "2.7.18", "packages": packages})
    assert said == (
        f"Python 2.7.18 (here {here['python']}), pytest 1.0 (here {pytest.__version__}), yaml 1.0 (here {yaml.__version__})"
    )


# A key for each team.

OTHER_KEY = "another key of some letters"


def test_the_key_of_the_first_pattern_that_fits_a_name_counts() -> None:
    keys = CodeKeys(f"team-a-special=x{KEY}, team-a-*={KEY},team-b-*={OTHER_KEY}")

    keys.check("--accept-code")
    assert keys.of("team-a-special") == f"x{KEY}"
    assert (keys.of("team-a-1"), keys.of("team-b-1")) == (KEY, OTHER_KEY)
    with pytest.raises(
        CodeRefused, match=r"no key for 'team-c-1'; it has keys for team-a-special, team-a-\*, team-b-\*"
    ) as refused:
        keys.of("team-c-1")
    assert KEY not in str(refused.value)


@pytest.mark.parametrize("key", [KEY, "YWJjZGVmZ2hpamtsbW5v==", "with, a comma and more"])
def test_a_text_without_patterns_is_one_key_for_all(key: str) -> None:
    assert CodeKeys(key).of("anything") == key
    CodeKeys(key).check("--accept-code")


@pytest.mark.parametrize("text", [f"team-a-*={KEY},{OTHER_KEY}", f"a*={KEY},a*={OTHER_KEY}", "team-a-*=short", ""])
def test_what_is_no_key_for_some_names_is_refused_without_saying_a_key(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--drivers needs MQTUNE_CODE_KEY") as refused:
        CodeKeys(text).check("--drivers")
    assert KEY not in str(refused.value)
    with pytest.raises(CodeRefused):
        CodeKeys("").of("anything")


def test_code_of_one_team_is_not_run_with_the_key_of_another(tmp_path: Path) -> None:
    bundle = Bundle.of({"train.py": File(b"x = 1")})
    bundles = unpacked(tmp_path, Exchange(bundle, key=KEY), key=f"team-a-*={KEY},team-b-*={OTHER_KEY}")

    definition = {"bundle": bundle.digest}
    assert bundles.of(here("team-a-1", definition)) is not None
    for name, why in (("team-b-1", "is not signed"), ("team-c-1", "has no key for")):
        with pytest.raises(CodeRefused, match=why):
            bundles.of(here(name, definition))
