"""The live page's web application: its routes and event streams."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final, cast

import click
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mqtune.cli.steer import ACTIONS
from mqtune.cli.ui import trials, views
from mqtune.cli.ui.access import Access, Gate
from mqtune.cli.ui.facts import facts
from mqtune.cli.ui.feed import Feed, Feeds
from mqtune.cli.ui.logs import Log
from mqtune.cli.ui.paced import Paced
from mqtune.cli.ui.places import Places
from mqtune.cli.ui.steering import ids_of, steer
from mqtune.cli.ui.threads import RequestThreads
from mqtune.core.errors import BrokerUnavailable, ConfigurationError, MqtuneError
from mqtune.core.timing import Timing
from mqtune.journal.exchange.logs import LogStream
from mqtune.results.frames import Row
from mqtune.results.plots.by_plotly import script
from mqtune.results.results import json_text

ASSETS: Final = Path(__file__).with_name("assets")
#: The shortest interval between two messages about an experiment, too short for people to notice.
_TICK_S: Final = 0.05
#: Seconds of silence before a stream sends a keepalive, which detects a closed connection.
_QUIET_S: Final = 15.0
#: Seconds between messages about the progress of opening an experiment.
_OPENING_S: Final = 0.3
#: Seconds between reads of a trial's output.
_POLL_S: Final = 0.2
_ROWS: Final = 25
#: The most pictures drawn at the same time: two, so that a slow one does not block the other. More would delay events.
_PICTURES_AT_ONCE: Final = 2
#: The most threads for requests about one experiment. Further requests wait without a thread.
_REQUESTS_AT_ONCE: Final = 8
#: The longest request, enough for the ids of 100,000 trials.
_MOST_BYTES: Final = 1024 * 1024


class Json(Response):
    """A response with plain values as JSON. NaN and infinities become texts."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return json_text(content).encode(errors="backslashreplace")


class Page:
    """The live page's request handlers.

    Args:
        places: the shown experiments.
        access: the access control.
        steers: whether the page may change experiments.
    """

    def __init__(self, places: Places, access: Access, *, steers: bool = False, timing: Timing = Timing()) -> None:
        self.feeds = Feeds(places.find, timing)
        #: The event loop of the server, or None before it runs.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._is_closing = False
        #: The events that open streams wait for.
        self._waited_for: set[asyncio.Event] = set()
        self._places = places
        self._access = access
        self._steers = steers
        self._paced, self._pictures = Paced(), Paced(_PICTURES_AT_ONCE)
        self._threads = RequestThreads(_REQUESTS_AT_ONCE)

    def app(self) -> Starlette:
        """Return the web application."""
        routes = [
            Route("/", self.index),
            Route(f"/{script().name}", self.plotly),
            Mount("/assets", StaticFiles(directory=ASSETS)),
            Route("/api/login", self.login, methods=["POST"]),
            Route("/api/me", self.me),
            Route("/api/steer", self.steer, methods=["POST"]),
            Route("/api/experiments", self.experiments),
            Route("/api/fleet", self._in_thread(self.fleet)),
            Route("/api/fleet/line", self._in_thread(self.fleet_line)),
            Route("/api/trials", self._in_thread(self.trials)),
            Route("/api/export", self.export, methods=["POST"]),
            Route("/api/picture", self._in_thread(self.picture)),
            Route("/api/compared", self._in_thread(self.compared)),
            Route("/api/summaries", self._in_thread(self.summaries)),
            Route("/api/trial", self._in_thread(self.trial)),
            Route("/api/usage", self._in_thread(self.usage)),
            Route("/api/why", self._in_thread(self.why)),
            Route("/api/facts", self._in_thread(self.facts)),
            Route("/api/history", self._in_thread(self.history)),
            Route("/api/near", self._in_thread(self.near)),
            Route("/api/code", self._in_thread(self.code)),
            Route("/api/checkpoint", self._in_thread(self.checkpoint)),
            Route("/api/events", self.events),
            Route("/api/log", self.log),
        ]
        handlers: dict[object, Callable[[Request, Exception], Response]] = {
            MqtuneError: _failed,
            OSError: _failed,
            click.ClickException: _failed,
        }
        middleware = [Middleware(Gate, access=self._access), Middleware(GZipMiddleware, compresslevel=5)]
        return Starlette(routes=routes, exception_handlers=handlers, middleware=middleware, lifespan=self._lifespan)

    def _in_thread(self, handler: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that runs in a thread, as it may block on a server or a disk."""

        async def handle(request: Request) -> Response:
            return await self._threads.run(_name(request), handler, request)

        return handle

    def end(self) -> None:
        """End all streams. Any thread may call this."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._end_streams)

    def _end_streams(self) -> None:
        self._is_closing = True
        for event in self._waited_for:
            event.set()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(self.feeds.close)

    def index(self, _: Request) -> Response:
        """Return the page's HTML, without data."""
        return FileResponse(ASSETS / "index.html")

    def plotly(self, _: Request) -> Response:
        """Return plotly.js. Browsers may cache it forever, as its version is in its address."""
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return FileResponse(script(), media_type="text/javascript", headers=headers)

    async def login(self, request: Request) -> Response:
        """Exchange the token in a request for a cookie."""
        return self._access.let_in(request, (await _body(request)).get("token"))

    def me(self, _: Request) -> Response:
        """Return whether the page may change experiments, and the statuses that each action needs."""
        verbs = {verb: [status.value for status in words.statuses] for verb, words in ACTIONS.items()}
        return Json({"csrf": self._access.csrf, "steer": self._steers, "verbs": verbs, "plotly": script().name})

    async def steer(self, request: Request) -> Response:
        """Carry out a button's request."""
        if not self._steers:
            return Json({"error": "this page may not change experiments; start it with --steer"}, 403)
        if not self._access.may_change(request):
            return Json({"error": "the request does not come from this page"}, 403)
        return Json(await run_in_threadpool(steer, self._places, await _body(request)))

    def experiments(self, _: Request) -> Response:
        rows, problem = self._places.listed()
        return Json({"experiments": rows, "problem": str(problem or "")})

    def fleet(self, _: Request) -> Response:
        """Return the fleet's workers, queues, shares and running trials."""
        return self._cached(("fleet",), object(), lambda: views.fleet_page(self._places, self.feeds))

    def fleet_line(self, _: Request) -> Response:
        """Return the numbers of workers and busy slots."""
        return self._cached(("fleet line",), object(), lambda: views.fleet_line(self._places))

    def near(self, request: Request) -> Response:
        """Return the experiment's name that is most similar to a missing one."""
        return Json({"name": self._places.near(_name(request))})

    def facts(self, request: Request) -> Response:
        """Return figures about an experiment, such as its speed and savings."""
        feed = self._feed(request)
        return self._cached(("facts", feed.place.name), (id(feed), feed.last), lambda: facts(feed))

    def history(self, request: Request) -> Response:
        """Return an experiment's events as sentences."""
        return Json(self._feed(request).log_page(request.query_params.get("kind", "")))

    def trials(self, request: Request) -> Response:
        """Return rows of the filtered and sorted trials, or of named ones, or the ids of all."""
        feed, asked = self._feed(request), request.query_params
        where, sort, reverse = asked.get("where", "").strip(), asked.get("sort", ""), "reverse" in asked
        make = functools.partial(trials.ordered, feed, where, sort, reverse=reverse)
        key = ("trials", feed.place.name, where, sort, reverse)
        order = self._paced.get(key, (id(feed), feed.last), make)
        ids = cast("list[str]", order.value["ids"])
        if "ids" in asked:
            return Json({"ids": ids, "statuses": trials.statuses_of(feed, ids)})
        begin, count = _number(asked.get("begin", ""), 0), _number(asked.get("count", ""), _ROWS)
        shown = asked.getlist("trial") or ids[begin : begin + min(count, trials.MOST_ROWS)]
        rows = trials.rows_of(feed, shown)
        page = {**order.value, "rows": rows, "begin": begin, "total": len(ids)}
        del page["ids"]
        return Json({**page, "pause_s": order.pause_s})

    async def export(self, request: Request) -> Response:
        """Return named trials as the content of a CSV file."""
        body = await _body(request)
        name = str(body.get("name") or "")
        return Json(await self._threads.run(name, self._exported, name, body))

    def _exported(self, name: str, wanted: Row) -> Row:
        return trials.exported(self.feeds.get(name), ids_of(wanted))

    def picture(self, request: Request) -> Response:
        """Return a picture of an experiment or a trial."""
        feed, asked = self._feed(request), request.query_params
        kind, trial = asked.get("kind", ""), asked.get("trial", "")
        metric, x, where, at = (asked.get(name, "").strip() for name in ("metric", "x", "where", "at"))
        chosen = views.Asked(metric, x, where, tuple(asked.getlist("of")), at, tuple(asked.getlist("order")))
        make = functools.partial(views.picture, feed, kind, chosen, trial=trial)
        key = ("picture", feed.place.name, kind, trial, chosen)
        return self._cached(key, (id(feed), feed.last), make, self._pictures)

    def compared(self, request: Request) -> Response:
        """Return a picture that compares several experiments."""
        asked = request.query_params
        names, kind = asked.getlist("of"), asked.get("kind", "")
        make = functools.partial(views.compared, self.feeds, names, kind)
        return self._cached(("compared", *names, kind), object(), make, self._pictures)

    def summaries(self, request: Request) -> Response:
        return Json(views.summaries(self.feeds, request.query_params.getlist("of")))

    def trial(self, request: Request) -> Response:
        return Json(views.trial_page(self._feed(request), request.query_params.get("trial", "")))

    def usage(self, request: Request) -> Response:
        """Return how a trial's attempts use or used their machines."""
        feed, trial = self._feed(request), request.query_params.get("trial", "")
        return self._cached(("usage", feed.place.name, trial), object(), lambda: views.usage(feed, trial))

    def code(self, request: Request) -> Response:
        """Return the names of the files of an attempt's code, or the content of one."""
        asked = request.query_params
        attempt = _number(asked.get("attempt", ""), 0)
        return Json(views.code(self._feed(request), asked.get("trial", ""), attempt, asked.get("file", "")))

    def checkpoint(self, request: Request) -> Response:
        """Return the names and sizes of the files of a trial's checkpoint."""
        asked = request.query_params
        return Json(views.checkpoint(self._feed(request), asked.get("trial", ""), asked.get("id", "")))

    def why(self, request: Request) -> Response:
        """Return why a trial waits or, without one, why the experiment's trials wait."""
        feed, trial = self._feed(request), request.query_params.get("trial", "")
        make = functools.partial(views.why, self._places, self.feeds, feed, trial)
        return self._cached(("why", feed.place.name, trial), object(), make)

    def _cached(
        self, key: tuple[object, ...], version: object, make: Callable[[], Row], paced: Paced | None = None
    ) -> Response:
        made = (paced or self._paced).get(key, version, make)
        return Json({**made.value, "pause_s": made.pause_s})

    def _feed(self, request: Request) -> Feed:
        return self.feeds.get(_name(request))

    async def events(self, request: Request) -> Response:
        """Stream an experiment's summary and the rows of changed trials.

        Until the experiment is open, the stream has the progress instead.
        """
        opened = asyncio.ensure_future(self._threads.run(_name(request), self._feed, request))
        # Nobody needs the feed or its error if the stream has ended meanwhile.
        opened.add_done_callback(lambda opened: opened.cancelled() or opened.exception())
        # An error within this time has a status, as most errors have, and most feeds open faster.
        await asyncio.wait([opened], timeout=_OPENING_S)
        if opened.done():
            opened.result()
        return _stream(self._messages(_name(request), opened, request.headers.get("last-event-id", "")))

    async def _messages(self, name: str, opened: asyncio.Future[Feed], after: str) -> AsyncIterator[str]:
        """Yield the progress until the feed is open, and then the changes, or the error."""
        while not opened.done():
            if self._is_closing:
                return
            opening = self.feeds.opening(name)
            yield _message({"opening": {"entries": opening.entries, "total": opening.total}})
            await asyncio.wait([opened], timeout=_OPENING_S)
        try:
            feed = opened.result()
        except (MqtuneError, OSError) as error:
            yield _message({"error": str(error)})
            return
        async for message in self._changes(feed, after):
            yield message

    async def _changes(self, feed: Feed, after: str) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        with self._stream_event() as news:

            def tell() -> None:
                # The loop may have been closed meanwhile.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(news.set)

            feed.listeners.add(tell)
            try:
                while not self._is_closing:
                    news.clear()
                    after, changes = await run_in_threadpool(views.changed, feed, after)
                    yield _message(changes, after)
                    await asyncio.sleep(_TICK_S)
                    while not await _is_set_within(news, _QUIET_S):
                        yield ": keepalive\n\n"
            finally:
                feed.listeners.discard(tell)

    @contextlib.contextmanager
    def _stream_event(self) -> Iterator[asyncio.Event]:
        """Yield an event that a stream may wait for. It is set when the server ends."""
        event = asyncio.Event()
        self._waited_for.add(event)
        try:
            yield event
        finally:
            self._waited_for.discard(event)

    async def log(self, request: Request) -> Response:
        """Stream an attempt's output."""
        name, asked = _name(request), request.query_params
        feed = await self._threads.run(name, self._feed, request)
        stream: LogStream = "stderr" if asked.get("stream") == "stderr" else "stdout"
        attempt = _number(asked.get("attempt", ""), 0)
        log = await self._threads.run(name, Log, feed, asked.get("trial", ""), stream, attempt)
        return _stream(self._output(name, log))

    async def _output(self, name: str, log: Log) -> AsyncIterator[str]:
        with contextlib.closing(log), self._stream_event() as end:
            is_over = False
            while not is_over and not self._is_closing:
                text, is_over = await self._threads.run(name, log.read)
                if text or is_over:
                    yield _message({"text": text, "over": is_over})
                else:
                    await _is_set_within(end, _POLL_S)


def _name(request: Request) -> str:
    """Return the name of the experiment in a request, or an empty text."""
    return request.query_params.get("name", "")


async def _is_set_within(event: asyncio.Event, timeout_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), timeout_s)
    return event.is_set()


def _stream(messages: AsyncIterator[str]) -> Response:
    # The header keeps proxies from buffering the stream.
    return StreamingResponse(messages, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def _message(content: object, id_: str = "") -> str:
    # An entry's id needs no escaping, as it has only digits and a dash.
    return f"{f'id: {id_}' + chr(10) if id_ else ''}data: {json_text(content)}\n\n"


async def _body(request: Request) -> Row:
    if _number(request.headers.get("content-length", ""), _MOST_BYTES + 1) > _MOST_BYTES:
        raise click.UsageError("the request is too long")
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise click.UsageError("the request is not a JSON object")
    return body


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else otherwise  # noqa: PLR2004 - digits


def _failed(_: Request, error: Exception) -> Response:
    statuses = {ConfigurationError: 404, OSError: 404, BrokerUnavailable: 503}
    status = next((code for kind, code in statuses.items() if isinstance(error, kind)), 400)
    message = error.message if isinstance(error, click.ClickException) else str(error)
    return Json({"error": message}, status)
