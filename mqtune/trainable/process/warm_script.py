"""A Python script whose trials are forks, and start no interpreter, because its first imports are done already.

Done once are the imports that the script begins with, up to its first other statement, or module that is the user's own: whatever
comes later may depend on the trial, by its arguments, or by what the script has set before. What was printed meanwhile is printed
again in each trial. Imports after which a fork is not the same as a fresh interpreter are refused.

A script whose file has changed since the experiment began is run in the same way, from what it was; if its imports are refused, none of
them is done before.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import gc
import importlib
import importlib.util
import io
import os
import signal
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import PathFinder, SourceFileLoader
from itertools import takewhile
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import IO, Any, Final, NamedTuple, TextIO

from mqtune.trainable import reporting
from mqtune.trainable.frozen_code import body_of, frozen
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.descendants import LIBC, own_children
from mqtune.trainable.process.output import flush, flush_native
from mqtune.trainable.process.protocol import RELAY, STOP_SIGNAL, BecomeScript
from mqtune.trainable.process.relay import address_of
from mqtune.trainable.process.runner import seed_generators

_OUTPUTS: Final = (1, 2)
#: The signals that a trial's process handles itself.
_SIGNALS: Final = (signal.SIGTERM, STOP_SIGNAL)
#: The origins of modules that are in no file.
_IN_PYTHON: Final = ("built-in", "frozen")
_BUFFERED: Final = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_STANDARD_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep


class NotForkable(Exception):
    """The script's trials need interpreters of their own; the text says why."""


class _Face(NamedTuple):
    """What a program sees of how it was started."""

    main: ModuleType
    arguments: Sequence[str]
    path: list[str]
    stdout: TextIO
    stderr: TextIO

    @classmethod
    def now(cls) -> _Face:
        return cls(sys.modules["__main__"], sys.argv, list(sys.path), sys.stdout, sys.stderr)

    def put_on(self) -> None:
        sys.modules["__main__"] = self.main
        sys.argv = self.arguments  # type: ignore[assignment]
        sys.path[:] = self.path
        sys.stdout, sys.stderr = self.stdout, self.stderr


class _UnknownArguments(Sequence[str]):
    """Takes the place of ``sys.argv`` when only the script is known, and notes whether anything else is read."""

    def __init__(self, script: str) -> None:
        self._script = script
        self.were_read = False

    def __len__(self) -> int:
        self.were_read = True
        return 1

    def __getitem__(self, index: Any) -> Any:
        self.were_read = self.were_read or index != 0
        return [self._script][index]


class ForkedScript:
    """The process of a script, as ``subprocess.Popen`` shows one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or the negative number of the signal that ended it; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


@dataclass(frozen=True, slots=True)
class WarmScript:
    """A script that forks of this process run; its first imports are done here, or none.

    Attributes:
        path: its file.
        code: all of it; its source if it was not compiled yet.
        face: what it sees, but for its arguments, and a main module that nobody else has.
        handlers: the handlers that its imports have left, for the signals that a trial's process handles itself.
        printed: what its imports have printed, on standard output and error.
        shared: the names of all modules that its fork begins with, in their order.
    """

    path: Path
    code: CodeType | bytes
    face: _Face
    handlers: Mapping[int, Any]
    printed: tuple[bytes, ...]
    shared: dict[str, None] = field(default_factory=dict)

    def start(
        self, arguments: list[str], environment: Mapping[str, str], output: int, channel: Channel, ours: Channel
    ) -> ForkedScript:
        """Start the script in a fork of this process; in that it raises BecomeScript.

        Args:
            arguments: the script's arguments.
            environment: what its environment has besides this process's, but for the address of the channel.
            output: where its standard output goes.
            channel: to this process.
            ours: the end of that which stays here.
        """
        # Here, where it copies no memory.
        importlib.invalidate_caches()
        if not self.shared:
            self.shared.update(dict.fromkeys(sys.modules))
            # A collection in the fork, or a look at all objects there, would copy them.
            gc.freeze()
        # A signal that came before its handlers are the script's would be lost.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if pid:
            return ForkedScript(pid)
        ours.close()
        os.dup2(output, 1)
        raise BecomeScript(partial(self._run, arguments, environment, os.dup(channel.fileno()), mask))

    def _run(self, arguments: list[str], environment: Mapping[str, str], channel: int, mask: set[int]) -> None:
        """Be the script; nothing of the trial's process is on the stack any more."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        for fd in _open_files():
            if fd not in (0, *_OUTPUTS, channel):
                os.close(fd)
        os.set_inheritable(channel, True)
        reporting.current = None
        os.environ.update({**environment, RELAY: address_of(channel)})
        seed_generators()
        main, given = _main_of(self.path), [str(self.path), *arguments]
        self.face._replace(main=main, arguments=given).put_on()
        sys.orig_argv[:] = [sys.executable, *given]
        for output, printed in zip(_OUTPUTS, self.printed, strict=True):
            _write(output, printed)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        status = 0
        try:
            if isinstance(self.code, bytes):
                for name, _ in _hidden(self.face.path[0]):
                    del sys.modules[name]
            code = self.code if isinstance(self.code, CodeType) else _compiled(self.path, self.code)
            exec(code, vars(main))  # noqa: S102 - it is what a trial is for
        except SystemExit as ending:
            # Python would print any other code first.
            if not isinstance(ending.code, int | None):
                raise
            status = ending.code or 0
        except BaseException:
            sys.excepthook = partial(_show_error, sys.excepthook)
            raise
        del main
        self._end(status)
        sys.exit(status)

    def _end(self, code: int) -> None:
        """End this process without taking apart what the script has not imported itself, which would copy all of that memory.

        The steps are Python's own (``Py_FinalizeEx``). It returns where Python itself has to take them, as daemon threads run.
        """
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        if LIBC is None or threading.active_count() > 1 or not _is_flushed():
            return
        for each in gc.get_objects():
            # One that a shared module refers to is not closed any more.
            if issubclass(type(each), _BUFFERED):
                with contextlib.suppress(Exception):
                    each.flush()
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
        # From the end, as going through all names would copy them.
        later = takewhile(next(reversed(self.shared)).__ne__, reversed(sys.modules))
        _take_apart(["__main__", *reversed([name for name in later if name not in self.shared])])
        _is_flushed()
        # With the exit handlers of code in C.
        LIBC.exit(code)


def _is_flushed() -> bool:
    """Flush what was printed; return whether it is written."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except Exception:  # noqa: BLE001 - they may be a script's own
        return False
    return True


def _take_apart(names: list[str]) -> None:
    """Forget modules, and clear those that something else still refers to."""
    modules = [weakref.ref(each) for each in map(sys.modules.get, names) if isinstance(each, ModuleType)]
    for name in names:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in names:
        sys.modules.pop(name, None)
    gc.collect()
    for each in reversed(modules):
        if (module := each()) is not None:
            content = vars(module)
            for name in sorted(content.keys() - {"__builtins__"}, key=_is_public):
                content[name] = None


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name.startswith("__")


#: The script of this process and those forked from it; None unless ``warm_up`` was called.
warm: WarmScript | None = None


def warm_up(path: Path) -> None:
    """Do the imports that a script begins with, so that ``warm`` can start it.

    Raises:
        NotForkable: its trials need interpreters of their own. This process should end: the imports may have left anything.
    """
    global warm  # noqa: PLW0603 - of the process
    before, opened, arguments = _Face.now(), _open_files(), _UnknownArguments(str(path))
    source = frozen().source(str(path))
    face = _Face(_main_of(path), arguments, _path_of(path), sys.__stdout__, sys.__stderr__)  # type: ignore[arg-type]
    face.put_on()
    try:
        for _, origin in _hidden(face.path[0]):
            raise NotForkable(f"{origin} takes the place of a module that mqtune has imported")
        with _kept_output() as files:
            code = _import_first(path, path.read_bytes() if source is None else source)
        printed = tuple(_content(file) for file in files)
        face = _Face.now()
    finally:
        before.put_on()
    _refuse_unlike(arguments, opened)
    warm = WarmScript(path, code, face, {number: signal.getsignal(number) for number in _SIGNALS}, printed)


def as_it_was(path: Path) -> WarmScript | None:
    """Return a script as it was when the experiment began, with none of its imports done; None if its file has not changed."""
    source = frozen().source(str(path))
    if source is None or (path.is_file() and path.read_bytes() == source):
        return None
    face = _Face(_main_of(path), [], _path_of(path), sys.__stdout__, sys.__stderr__)  # type: ignore[arg-type]
    return WarmScript(path, source, face, dict.fromkeys(_SIGNALS, signal.SIG_DFL), (b"", b""))


def _compiled(path: Path, source: bytes) -> CodeType:
    return compile(source, str(path), "exec", dont_inherit=True)


def _main_of(path: Path) -> ModuleType:
    """Return an empty module like the one in which Python runs a file."""
    main = ModuleType("__main__")
    its: dict[str, object] = {
        "__file__": str(path),
        "__cached__": None,
        "__loader__": SourceFileLoader("__main__", str(path)),
        "__builtins__": sys.modules["builtins"],
    }
    vars(main).update(its)
    return main


def _path_of(path: Path) -> list[str]:
    return list(sys.path) if sys.flags.safe_path else [str(path.resolve().parent), *sys.path]


def _import_first(path: Path, source: bytes) -> CodeType:
    """Do the script's first imports, and return all of it."""
    statement: ast.stmt | None = None
    try:
        for statement in _first_imports(source):
            if not all(map(_is_installed, _names_in(statement))):
                break
            alone = compile(ast.Module([statement], []), str(path), "exec", dont_inherit=True)
            exec(alone, {"__name__": "__main__"})  # noqa: S102 - the script would do the same
        return _compiled(path, source)
    except BaseException as error:
        what = "it" if statement is None else f"`{ast.unparse(statement)}`"
        raise NotForkable(f"{what} raised {type(error).__name__}: {error}") from error


def _first_imports(source: bytes) -> Iterator[ast.stmt]:
    """Yield the imports before the first statement that could change what they do."""
    for statement in body_of(source):
        match statement:
            case ast.Import() | ast.ImportFrom(level=0):
                yield statement
            case ast.Expr(ast.Constant()) | ast.Assign([ast.Name()], ast.Constant()):
                pass
            case _:
                return


def _names_in(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.ImportFrom(module=str(name)):
            return [name]
        case ast.Import(names):
            return [alias.name for alias in names]
    return []


def _is_installed(name: str) -> bool:
    """Whether a module is Python's own or an installed package's, and not the user's, which may change between two trials."""
    top = name.partition(".")[0]
    if top in sys.modules:
        return True
    spec = importlib.util.find_spec(top)
    if spec is None:
        return False
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return bool(places) and all(
        place in _IN_PYTHON or place.startswith(_STANDARD_LIBRARY) or "site-packages" in place for place in places
    )


def _hidden(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the names of the modules of this process in whose place a script would import a file in its folder, each with that file."""
    for name, module in list(sys.modules.items()):
        if (
            "." in name
            or name == "__main__"
            or getattr(getattr(module, "__spec__", None), "origin", None) in _IN_PYTHON
        ):
            continue
        spec = PathFinder.find_spec(name, [folder])
        if spec is not None and spec.origin and spec.origin != getattr(module, "__file__", None):
            yield name, spec.origin


def _refuse_unlike(arguments: _UnknownArguments, opened: set[int]) -> None:
    """Refuse imports that have left what no fork can share, or have done what depends on the trial."""
    what = ""
    if arguments.were_read:
        what = "have read the arguments"
    elif threading.active_count() > 1:
        what = f"have started the thread {threading.enumerate()[-1].name}"
    elif own_children():
        what = "have started a process"
    elif new := _open_files() - opened:
        what = f"have opened {_name_of(min(new))}"
    if what:
        raise NotForkable(f"its imports {what}")


def _open_files() -> set[int]:
    found = set()
    for fd in map(int, os.listdir("/dev/fd")):
        # The one by which they were listed is closed again.
        with contextlib.suppress(OSError):
            os.fstat(fd)
            found.add(fd)
    return found


def _name_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return "a file"


@contextlib.contextmanager
def _kept_output() -> Iterator[list[IO[bytes]]]:
    """Have all that is printed within the block, also by code in C, go to files."""
    files: list[IO[bytes]] = [tempfile.TemporaryFile() for _ in _OUTPUTS]  # noqa: SIM115 - their content is read later
    before = [os.dup(fd) for fd in _OUTPUTS]
    for fd, file in zip(_OUTPUTS, files, strict=True):
        os.dup2(file.fileno(), fd)
    try:
        yield files
    finally:
        flush()
        flush_native()
        for fd, copy in zip(_OUTPUTS, before, strict=True):
            os.dup2(copy, fd)
            os.close(copy)


def _content(file: IO[bytes]) -> bytes:
    with file:
        file.seek(0)
        return file.read()


def _write(fd: int, data: bytes) -> None:
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(fd, data) :]


def _show_error(
    hook: Callable[..., object], kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Show an error that ends the script without the frames below it."""
    while trace is not None and trace.tb_frame.f_code is not WarmScript._run.__code__:
        trace = trace.tb_next
    own = None if trace is None else trace.tb_next
    hook(kind, error.with_traceback(own), own)
