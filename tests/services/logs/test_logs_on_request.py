"""Output over Redis: the chunks of an answer, and the questions that are refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from impaired import nothing_impaired

from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import LogUnavailable
from mqtune.core.keys import ExperimentKeys, control_channel, worker_key
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialId
from mqtune.journal import LOGS, Claim, LogChunk, LogExchange, RedisClient
from mqtune.services.logs.worker import LogServer
from mqtune.worker import Logs

WORKER = "w1@far"
ONE = TrialId("0001")


class Far:
    """A worker on another machine, as far as its logs go; it looks for questions when it is woken."""

    def __init__(self, client: redis.Redis, folder: Path) -> None:
        self.client = client
        self.logs = Logs(folder, (), nothing_impaired())
        self.server = LogServer(WORKER, lambda: self.logs, lambda experiment: LogExchange(client, experiment))
        self.server.start()
        client.set(worker_key(WORKER), b"here")
        self.asks = LogExchange(client, "e")
        self._thread = client.pubsub()
        self._thread.subscribe(**{control_channel(WORKER): self._hear})  # type: ignore[arg-type]
        self._hearing = self._thread.run_in_thread(sleep_time=0.005, daemon=True)

    def _hear(self, message: dict[str, Any]) -> None:
        ((experiment, _, _, word),) = decode_value(message["data"])
        assert word == LOGS
        self.server.hinted(experiment, LOGS)

    def begin(self, attempt: int = 1, experiment: str = "e") -> Path:
        stdout, stderr = self.logs.files(experiment, Claim(ONE, attempt, "token"))
        self.logs.begin(stdout, stderr)
        return stdout

    def ask(self, offset: int = 0, *, trial: str = ONE, attempt: int = 1) -> LogChunk:
        return self.asks.ask(WORKER, TrialId(trial), attempt, "stdout", offset)

    def close(self) -> None:
        self._hearing.stop()
        self._hearing.join(5)
        self._thread.close()
        self.server.close()


@pytest.fixture
def far(request: pytest.FixtureRequest, redis_client: RedisClient, tmp_path: Path) -> Iterator[Far]:
    redis_client.timing = getattr(request, "param", Timing())
    with contextlib.closing(Far(redis_client, tmp_path / "logs")) as far:
        yield far


def test_a_log_is_read_from_any_offset_while_it_is_written_and_afterwards(far: Far) -> None:
    stdout = far.begin()
    assert far.ask() == LogChunk(b"", 0, 0, is_open=True)

    stdout.write_bytes(b"first\nsecond\n")
    assert far.ask() == LogChunk(b"first\nsecond\n", 0, 13, is_open=True)
    assert far.ask(6) == LogChunk(b"second\n", 6, 13, is_open=True)
    assert far.ask(-7) == LogChunk(b"second\n", 6, 13, is_open=True)
    assert far.ask(99) == LogChunk(b"", 99, 13, is_open=True)

    far.logs.end(stdout, 100)
    assert far.ask(6) == LogChunk(b"second\n", 6, 13, is_open=False)


def test_only_what_ran_here_for_that_experiment_is_read(far: Far, tmp_path: Path) -> None:
    far.begin(experiment="another").write_bytes(b"another experiment's")
    elsewhere = far.logs.files("e", Claim(ONE, 7, "token"))[0]
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_bytes(b"of a worker that has the same folder")

    for attempt in (1, 7):
        with pytest.raises(LogUnavailable, match=f"trial 0001 attempt {attempt} of experiment e did not run here"):
            far.ask(attempt=attempt)


@pytest.mark.parametrize("trial", ["../0001", "/etc", "..", "", "../0001~1", "0001~/etc"])
@pytest.mark.parametrize("far", [Timing(log_answer_s=0.3)], indirect=True)
def test_a_trial_that_could_be_a_path_is_no_question(far: Far, trial: str) -> None:
    with pytest.raises(LogUnavailable, match="did not answer"):
        far.ask(trial=trial)


def test_a_link_in_the_place_of_a_log_is_not_followed(far: Far, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    far.begin().symlink_to(tmp_path / "secret")

    with pytest.raises(LogUnavailable, match="can't be read"):
        far.ask()


ODD: dict[str, object] = {
    "too short": ["token", "0001"],
    "a path for a token": ["../../x", "0001", 1, "stdout", 0],
    "another stream": ["token", "0001", 1, "stdin", 0],
    "an offset beyond all": ["token", "0001", 1, "stdout", 2**63],
    "true for the attempt": ["token", "0001", True, "stdout", 0],
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_question_that_makes_no_sense_is_passed_over(far: Far, odd: object) -> None:
    far.begin().write_bytes(b"text")
    far.client.rpush(ExperimentKeys("e").asked(WORKER), encode_value(odd), b"\xc1")

    assert far.ask().data == b"text"


def test_output_that_is_not_there_is_named_with_the_reason(far: Far, redis_client: redis.Redis, tmp_path: Path) -> None:
    redis_client.hset(ExperimentKeys("e").submission, mapping={"run": 2, "worker": WORKER})

    with pytest.raises(LogUnavailable) as never_began:
        far.ask(trial="driver", attempt=2)
    with pytest.raises(LogUnavailable, match="run 1 of script e did not run here, or too long ago"):
        far.ask(trial="driver", attempt=1)
    stdout = far.begin()
    far.logs.end(stdout, 100)
    with pytest.raises(LogUnavailable) as deleted:
        far.ask()
    stdout.mkdir()
    with pytest.raises(LogUnavailable) as unreadable:
        far.ask()

    why = "has no output here: it did not start here, or its file was deleted"
    assert str(never_began.value) == f"worker {WORKER}: run 2 of script e {why}"
    assert str(deleted.value) == f"worker {WORKER}: trial 0001 attempt 1 of experiment e {why}"
    assert "the output of trial 0001 attempt 1 of experiment e can't be read: " in str(unreadable.value)
