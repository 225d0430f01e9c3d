"""Messages to a chat or another program: an experiment has ended, or trials have failed."""

from __future__ import annotations

import html
import json
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import HTTPException
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from mqtune.core.callback import Callback
from mqtune.core.errors import ConfigurationError
from mqtune.core.text import printable
from mqtune.core.trial import Trial, TrialStatus
from mqtune.results.display import best_text, counts_text

if TYPE_CHECKING:
    from mqtune.core.experiment import Experiment

#: The failed trials that a message each tells of; how many there were in all stands in the last one.
MOST_FAILURES: Final = 3
#: The most characters of a message: an error may be long, and the logs have it.
_MOST_CHARS: Final = 1000
#: How long one try may take, and what is waited before each further one, in seconds: in all less than callbacks are waited for at the end.
_TIMEOUT_S: Final = 2.5
_WAITS_S: Final = (0.5, 1.0)
#: What a server may be over again soon: too many requests, or an error of its own.
_PASSING: Final = frozenset({429, 500, 502, 503, 504})


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes a redirect for a refusal: it would become a GET without the text, of whatever place the answer names."""

    def redirect_request(self, *_: object) -> None:
        """Follow none."""


_opener: Final = urllib.request.build_opener(_NoRedirects)
_WORDS: Final = {status.value: status.phrase for status in HTTPStatus}


class Webhook(Callback):
    """Posts ``{"text": …}`` as JSON, which Slack, Mattermost and Discord's ``/slack`` addresses take, when an experiment ends.

    It also does so for the first failed trials. A message is tried three times, and may arrive twice where an answer was lost. One that can't be
    delivered is logged as a callback's error, without the address, which is a secret.

    Args:
        url: the address, http or https.
        failures: whether to tell of failed trials, too.

    Raises:
        ConfigurationError: the address is neither, or has characters that no address has.
    """

    def __init__(self, url: str, *, failures: bool = True) -> None:
        self._url = url
        self._host = _host_of(url)
        self._tells_failures = failures
        self._failures = 0
        self._experiment: Experiment | None = None

    def on_start(self, experiment: Experiment) -> None:
        self._experiment = experiment

    def on_trial_end(self, trial: Trial) -> None:
        if trial.status is not TrialStatus.FAILED or self._experiment is None:
            return
        self._failures += 1
        if self._tells_failures and self._failures <= MOST_FAILURES:
            self._post(f"{self._experiment.name}: trial {trial.id} failed: {trial.reason}")

    def on_end(self) -> None:
        if self._experiment is not None:
            experiment = self._experiment
            how = experiment.outcome or "its driver has ended"
            parts = [f"{experiment.name}: {how}", counts_text(experiment), best_text(experiment)]
            self._post(" · ".join(filter(None, parts)))

    def _post(self, text: str) -> None:
        for wait_s in _WAITS_S:
            if self._is_taken(text, is_last=False):
                return
            # The driver gives its callbacks this long at its end; while it runs, other callbacks wait, and no trial does.
            time.sleep(wait_s)
        self._is_taken(text, is_last=True)

    def _is_taken(self, text: str, *, is_last: bool) -> bool:
        """Post a text once, and return whether it is with the server.

        Raises:
            ConnectionError: it is not, and to try again makes no sense.
        """
        # Slack takes <!channel> in a trial's error as a call to everybody.
        data = json.dumps({"text": html.escape(text[:_MOST_CHARS], quote=False)}).encode()
        request = urllib.request.Request(self._url, data, {"Content-Type": "application/json"})  # noqa: S310 - checked
        try:
            with _opener.open(request, timeout=_TIMEOUT_S):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            if is_last or error.code not in _PASSING:
                # Not in the server's words, in which it may repeat the address.
                words = _WORDS.get(error.code, "")
                raise ConnectionError(f"the webhook at {self._host} answered {error.code} {words}".rstrip()) from None
        except OSError as error:
            if is_last:
                reason = printable(str(getattr(error, "reason", error)))
                raise ConnectionError(f"the webhook at {self._host} can't be reached: {reason}") from None
        except (HTTPException, ValueError) as error:
            # Their texts have what the server has said.
            if is_last:
                kind = type(error).__name__
                raise ConnectionError(f"the webhook at {self._host} answered no HTTP ({kind})") from None
        return False


def _host_of(url: str) -> str:
    """Return the host of an address; no error repeats the address.

    Raises:
        ConfigurationError: it is no address.
    """
    if not (url.isascii() and url.isprintable()) or " " in url:
        raise ConfigurationError(
            "Webhook: the address has a space, a control character or a letter beyond ASCII; write these as %20 and the like"
        )
    try:
        parts = urlsplit(url)
        # A port that is no number is found only now.
        scheme, host, _ = parts.scheme, parts.hostname, parts.port
    except ValueError:
        raise ConfigurationError("Webhook: the address's host or port can't be read") from None
    if scheme not in ("http", "https") or not host:
        raise ConfigurationError(
            f"Webhook: the address must begin with https:// or http://, not {scheme or 'nothing'}://"
        )
    return host
