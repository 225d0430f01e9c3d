"""What mqtune's checkpoints cost: a small dict in Redis, and a large directory in a store."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.measurement import Context, Figures, Skip
from benchmarks.saving import CALLS, ROUNDS, in_turns, write_files
from benchmarks.systems.mqtune_running import Observed, fifo, observing, run
from benchmarks.work import stream
from benchmarks.work.base import percentiles

if TYPE_CHECKING:
    from mqtune.checkpoints import CheckpointStore
    from mqtune.core.trial import CheckpointId

__all__ = ["measure_dicts", "measure_directory", "measure_large", "measure_s3", "measure_stream"]

#: What a plain read asks for at once.
READ_BYTES: Final = 2**22
BUCKET: Final = "benchmark"
#: moto imports all of AWS.
S3_START_S: Final = 60.0


def measure_dicts(context: Context) -> Figures:
    """Time reports with and without a dict, from before the call to its end and to the decision."""
    from benchmarks import trainables_saving

    observed = Observed()
    run(context, trainables_saving.dicts, 1, observing(fifo(), observed), slots=1)
    calls = json.loads((context.folder / CALLS).read_text())
    found: Figures = {}
    for name, wanted in (("plain", False), ("dict", True)):
        spans = [
            (after - before, decided - before)
            for (is_with, before, after), decided in zip(calls, observed.shown, strict=True)
            if is_with == wanted
        ]
        found |= percentiles(f"{name}_call", "us", [1e6 * call for call, _ in spans])
        found |= percentiles(f"{name}_decision", "ms", [1e3 * decision for _, decision in spans])
    return found


def measure_stream(context: Context) -> Figures:
    """Have two trials report as fast as they can, each time with a dict."""
    from benchmarks import trainables_saving

    observed, reports = Observed(), context.sizes["stream_reports"]
    run(context, trainables_saving.stream_dicts, stream.PARTIES, observing(fifo(), observed))
    figures = stream.figures(context.folder, reports=reports, last_decision=observed.shown[-1])
    return {"dict_reports_per_s": figures["reports_per_s"]}


def measure_directory(context: Context) -> Figures:
    """Time, in a trial, reports with a directory and plain copies of it; then have the last one fetched again."""
    from benchmarks import trainables_saving
    from mqtune.checkpoints import experiment_url, open_store
    from mqtune.driver.settings import Checkpoints

    folder = context.folder / "store"
    name = run(context, trainables_saving.directories, 1, fifo(), slots=1, checkpoints=Checkpoints(folder)).experiment
    taken = {
        name: statistics.median(times) for name, times in json.loads((context.folder / ROUNDS).read_text()).items()
    }
    store = open_store(experiment_url(folder, name))
    newest = max(store.ids())
    fetch_s = statistics.median(_fetch_s(context, store, newest) for _ in range(context.sizes["rounds"]))
    return {
        "copy_s": taken["copy"],
        "synced_copy_s": taken["synced_copy"],
        "save_s": taken["save"],
        "save_over_copy": taken["save"] / taken["copy"],
        "save_over_synced_copy": taken["save"] / taken["synced_copy"],
        "fetch_s": fetch_s,
        "fetch_over_copy": fetch_s / taken["copy"],
    }


def _fetch_s(context: Context, store: CheckpointStore, checkpoint: CheckpointId) -> float:
    target = context.folder / "fetched"
    begin = time.monotonic()
    store.fetch(checkpoint, target)
    taken_s = time.monotonic() - begin
    shutil.rmtree(target)
    return taken_s


def measure_large(context: Context) -> Figures:
    """Time, in a trial, both ways to save 1 GB beside plain work; then have it fetched here, as another machine would."""
    from benchmarks import trainables_saving
    from mqtune.checkpoints import experiment_url, open_store
    from mqtune.driver.settings import Checkpoints

    folder = context.folder / "store"
    name = run(context, trainables_saving.large, 1, fifo(), slots=1, checkpoints=Checkpoints(folder)).experiment
    taken = json.loads((context.folder / ROUNDS).read_text())
    store = open_store(experiment_url(folder, name))
    newest = max(store.ids())
    stored = [path for path in folder.rglob("part-*") if newest in path.parts]
    target = context.folder / "fetched"
    works = {
        "read": lambda _: [_read(path) for path in stored],
        "copy_back": lambda _: [_copy_into(target, path) for path in stored],
        "fetch": lambda _: store.fetch(newest, target),
    }
    taken |= in_turns(
        works,
        context.sizes["rounds"],
        before=lambda: [_forget(path) for path in stored],
        after=lambda: shutil.rmtree(target, ignore_errors=True),
    )
    median = {each: statistics.median(times) for each, times in taken.items()}
    return {
        **{f"large_{each}_s": found for each, found in median.items()},
        "large_path_speed": median["copy"] / median["path"],
        "large_dir_speed": median["write"] / median["dir"],
        "large_fetch_speed": median["read"] / median["fetch"],
        "large_fetch_over_copy": median["copy_back"] / median["fetch"],
    }


def _forget(path: Path) -> None:
    """Have the system forget what it holds of a file in memory: another machine has nothing of it."""
    if not hasattr(os, "posix_fadvise"):
        raise Skip("this system does not say how to read a file anew")
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _read(path: Path) -> None:
    buffer = bytearray(READ_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _copy_into(folder: Path, path: Path) -> None:
    folder.mkdir(exist_ok=True)
    shutil.copyfile(path, folder / path.name)


def measure_s3(context: Context) -> Figures:
    """Time saves and fetches of one file of 1 GB in an S3 on this machine, beside the same by s3fs alone."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("s3fs") is None:
        raise Skip("moto and s3fs are not installed")
    with _s3():
        return _measure_s3(context)


def _measure_s3(context: Context) -> Figures:
    import s3fs

    from mqtune.checkpoints import open_store
    from mqtune.core.trial import checkpoint_id

    source, back = context.folder / "source", context.folder / "back"
    write_files(source, 1, context.sizes["large_megabytes"] * 1_000_000)
    (file,) = source.iterdir()
    files = s3fs.S3FileSystem()
    files.mkdir(BUCKET)
    store = open_store(f"s3://{BUCKET}/store")
    store.create()

    def id_of(number: int) -> CheckpointId:
        return checkpoint_id("0001", 1, number + 1, in_memory=False)

    saved = in_turns(
        {
            "put": lambda number: files.put_file(str(file), f"{BUCKET}/plain-{number}"),
            "save": lambda number: store.save(id_of(number), source, {}),
        },
        context.sizes["rounds"],
    )
    fetched = in_turns(
        {
            "get": lambda number: files.get_file(f"{BUCKET}/plain-{number}", str(back)),
            "got": lambda number: store.fetch(id_of(number), back),
        },
        context.sizes["rounds"],
        after=lambda: shutil.rmtree(back) if back.is_dir() else back.unlink(),
    )
    median = {each: statistics.median(times) for each, times in (saved | fetched).items()}
    return {
        **{f"large_{each}_s": found for each, found in median.items()},
        "s3_save_speed": median["put"] / median["save"],
        "s3_fetch_speed": median["get"] / median["got"],
    }


@contextmanager
def _s3() -> Iterator[None]:
    """Run moto's server in a process of its own, and have this one's S3 be there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "benchmark",
        "AWS_SECRET_ACCESS_KEY": "benchmark",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)])
    try:
        deadline = time.monotonic() + S3_START_S
        while not _answers(port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("moto's server does not start")
            time.sleep(0.1)
        yield
    finally:
        server.terminate()
        server.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
