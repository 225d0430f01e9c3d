"""Output that is asked for over Redis: what travels, from where on, to whom, and what is refused."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from impaired import nothing_impaired
from waiting import eventually

from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import LogUnavailable
from mqtune.core.keys import ExperimentKeys, control_channel, worker_key
from mqtune.core.timing import Timing
from mqtune.core.trial import Attempt, TrialId
from mqtune.journal import CHUNK_BYTES, LOGS, Claim, LogChunk, LogExchange, RedisClient
from mqtune.results.logs import AttemptOutput
from mqtune.worker import Logs, LogServer

WORKER = "w1@far"
ONE = TrialId("0001")


class Far:
    """A worker on another machine, as far as its logs go; it looks for questions when it is woken."""

    def __init__(self, client: redis.Redis, folder: Path) -> None:
        self.client = client
        self.logs = Logs(folder, (), nothing_impaired())
        self.server = LogServer(WORKER, self.logs, lambda experiment: LogExchange(client, experiment))
        self.server.start()
        client.set(worker_key(WORKER), b"here")
        self.asks = LogExchange(client, "e")
        self._thread = client.pubsub()
        self._thread.subscribe(**{control_channel(WORKER): self._hear})  # type: ignore[arg-type]
        self._hearing = self._thread.run_in_thread(sleep_time=0.005, daemon=True)

    def _hear(self, message: dict[str, Any]) -> None:
        ((experiment, _, _, word),) = decode_value(message["data"])
        assert word == LOGS
        self.server.wake(experiment)

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
def timing() -> Timing:
    return Timing()


@pytest.fixture
def far(redis_client: RedisClient, tmp_path: Path, timing: Timing) -> Iterator[Far]:
    redis_client.timing = timing
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


def test_a_long_log_travels_in_pieces(far: Far) -> None:
    stdout = far.begin()
    whole = bytes(range(256)) * (3 * CHUNK_BYTES // 256) + b"the end"
    stdout.write_bytes(whole)

    assert len(far.ask().data) == CHUNK_BYTES
    attempt = Attempt(1, 0.0, worker=WORKER)
    output = AttemptOutput("e", ONE, attempt, "stdout", far.asks.ask)
    assert output.all(0) == whole
    assert output.all(-10) == whole[-10:]
    far.logs.end(stdout, 10)
    assert b"".join(output.follow(5, lambda chunk: not chunk.is_open)) == whole[5:]


def test_a_log_that_was_shortened_while_it_was_followed_goes_on_with_its_end(far: Far) -> None:
    stdout = far.begin()
    stdout.write_bytes(b"x" * 1000)
    followed = AttemptOutput("e", ONE, Attempt(1, 0.0, worker=WORKER), "stdout", far.asks.ask).follow(
        0, lambda c: not c.is_open
    )
    assert next(followed) == b"x" * 1000

    stdout.write_bytes(b"the last part")
    far.logs.end(stdout, 10)

    rest = list(followed)
    assert b"was cut out of the file" in rest[0]
    assert rest[1:] == [b"the last part"]


def test_only_what_ran_here_for_that_experiment_is_read(far: Far, tmp_path: Path) -> None:
    far.begin(experiment="another").write_bytes(b"another experiment's")
    elsewhere = far.logs.files("e", Claim(ONE, 7, "token"))[0]
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_bytes(b"of a worker that has the same folder")

    for attempt in (1, 7):
        with pytest.raises(LogUnavailable, match=f"trial 0001 attempt {attempt} of experiment e did not run here"):
            far.ask(attempt=attempt)


def test_the_output_of_a_further_seat_is_read_from_the_worker_that_had_it(far: Far) -> None:
    stdout, _ = far.logs.files("e", Claim(TrialId("0001~1"), 1, "token"))
    far.logs.begin(stdout, stdout.with_suffix(".stderr"))
    stdout.write_bytes(b"of seat 1")

    assert far.ask(trial="0001~1").data == b"of seat 1"
    with pytest.raises(LogUnavailable, match="trial 0001~2 attempt 1 of experiment e did not run here"):
        far.ask(trial="0001~2")


@pytest.mark.parametrize("trial", ["../0001", "/etc", "..", "a/b", "", "../0001~1", "0001~/etc", "0001~0", "0001~1~1"])
@pytest.mark.parametrize("timing", [Timing(log_answer_s=0.3)])
def test_a_trial_that_could_be_a_path_is_no_question(far: Far, trial: str) -> None:
    with pytest.raises(LogUnavailable, match="did not answer"):
        far.ask(trial=trial)


def test_a_link_in_the_place_of_a_log_is_not_followed(far: Far, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    far.begin().symlink_to(tmp_path / "secret")

    with pytest.raises(LogUnavailable, match="can't be read"):
        far.ask()


def test_a_worker_that_was_started_anew_still_has_what_it_claimed_last(far: Far) -> None:
    """What it ran it knows from Redis then, and only for its own name."""
    stdout = far.logs.files("e", Claim(ONE, 2, "token"))[0]
    stdout.parent.mkdir(parents=True)
    stdout.write_bytes(b"from before")
    keys = ExperimentKeys("e")
    far.client.hset(keys.trial(ONE), mapping={"attempt": 2, "worker": "w2@far"})
    with pytest.raises(LogUnavailable, match="did not run here"):
        far.ask(attempt=2)

    far.client.hset(keys.trial(ONE), "worker", WORKER)

    assert far.ask(attempt=2) == LogChunk(b"from before", 0, 11, is_open=False)


@pytest.mark.parametrize("timing", [Timing(log_answer_s=0.2)])
def test_a_worker_that_is_not_connected_or_does_not_answer_is_said(far: Far) -> None:
    with pytest.raises(LogUnavailable, match=r"worker gone@far.* is not connected"):
        far.asks.ask("gone@far", ONE, 1, "stdout", 0)

    far.client.set(worker_key("frozen@far"), b"here")
    with pytest.raises(LogUnavailable, match="worker frozen@far did not answer"):
        far.asks.ask("frozen@far", ONE, 1, "stdout", 0)


@pytest.mark.parametrize("timing", [Timing(wake_again_s=0.01)])
def test_a_wake_up_that_was_lost_comes_again(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    far.begin().write_bytes(b"text")
    wakes = iter([True])
    wake = far.server.wake
    monkeypatch.setattr(far.server, "wake", lambda experiment: None if next(wakes, False) else wake(experiment))

    assert far.ask().data == b"text"


ODD: dict[str, object] = {
    "no list": 3,
    "too short": ["token", "0001"],
    "a path for a token": ["../../x", "0001", 1, "stdout", 0],
    "another stream": ["token", "0001", 1, "stdin", 0],
    "a text for the offset": ["token", "0001", 1, "stdout", "0"],
    "an offset beyond all": ["token", "0001", 1, "stdout", 2**63],
    "true for the attempt": ["token", "0001", True, "stdout", 0],
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_question_that_makes_no_sense_is_passed_over(far: Far, odd: object) -> None:
    far.begin().write_bytes(b"text")
    far.client.rpush(ExperimentKeys("e").asked(WORKER), encode_value(odd), b"\xc1")

    assert far.ask().data == b"text"


@pytest.mark.parametrize(
    "answer", [b"\xc1", encode_value([b"x", 0, 1]), encode_value(["x", 0, 1, True]), encode_value([b"x", -1, 1, True])]
)
def test_an_answer_that_can_not_be_read_is_said(redis_client: redis.Redis, answer: bytes) -> None:
    exchange, odd = LogExchange(redis_client, "e"), "odd@far"
    redis_client.set(worker_key(odd), b"here")

    def answer_oddly() -> None:
        question = eventually(lambda: exchange.take(odd))
        redis_client.rpush(ExperimentKeys("e").log(question.token), answer)

    answering = threading.Thread(target=answer_oddly)
    answering.start()
    with pytest.raises(LogUnavailable, match="can't be read"):
        exchange.ask(odd, ONE, 1, "stdout", 0)
    answering.join()
    assert exchange.take(odd) is None


def test_questions_and_answers_go_by_themselves(far: Far) -> None:
    far.begin().write_bytes(b"text")
    far.ask()
    far.client.set(worker_key("frozen@far"), b"here")
    far.client.timing = Timing(log_answer_s=0.05)
    with contextlib.suppress(LogUnavailable):
        LogExchange(far.client, "e").ask("frozen@far", ONE, 1, "stdout", 0)

    (left,) = far.client.keys("mqtune:x:*")
    assert left.decode() == ExperimentKeys("e").asked("frozen@far")
    assert 0 < far.client.pttl(left) <= 60_000


def test_the_broken_keys_of_one_experiment_do_not_end_the_answers_to_others(far: Far) -> None:
    far.client.set(ExperimentKeys("broken").asked(WORKER), b"no list")
    far.server.wake("broken")
    far.begin().write_bytes(b"text")

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


def test_a_worker_that_can_not_write_its_folder_says_so_in_place_of_output(
    redis_client: redis.Redis, tmp_path: Path
) -> None:
    (tmp_path / "logs").touch()
    with contextlib.closing(Far(redis_client, tmp_path / "logs")) as far:
        stdout = far.begin()
        (tmp_path / "logs").unlink()
        far.logs.end(stdout, 100)

        with pytest.raises(LogUnavailable) as missing:
            far.ask()

    assert f"has no output here, as {tmp_path}/logs can't be written: File exists" in str(missing.value)
