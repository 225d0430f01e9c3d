"""The user's program as each trial's process executes it: code, arguments, seed and folder."""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Self

from mqtune.core.errors import TrainableNotFound
from mqtune.trainable.frozen_code import FrozenCode, freeze, frozen
from mqtune.trainable.main_module import compile_file
from mqtune.trainable.spec import Loaded, TrainableSpec

#: The libraries with a global generator of random numbers.
_LIBRARIES: Final = ("random", "numpy.random", "torch")
#: The functions of each library that seed its generator, and that get and set its state. PyTorch is missing, as its
#: generator is never seeded a second time.
_ACCESS: Final = {"random": ("seed", "getstate", "setstate"), "numpy.random": ("seed", "get_state", "set_state")}
#: NumPy's seeds are below this number.
_SEEDS: Final = 2**32
#: For each library whose generator the program has seeded, the generator's state at the end of the program.
_states_of_program: dict[str, object] = {}


@dataclass(frozen=True, slots=True)
class Program:
    """The program of an experiment on this worker.

    Attributes:
        spec: the trainable.
        code_root: the folder with the trainable's code.
        home: the working directory of the program's processes, unless trials have their own.
        code: the files of the experiment's code, as paths on this machine with fingerprints.
        code_folder: the folder with a copy of each of these files.
        arguments: ``sys.argv`` of the driver.
        seed: the seed of random generators while the program is executed. Each trial seeds them anew.
        spawns: whether each trial starts a new interpreter instead of a fork.
        zygote: the class of its zygotes, as "module:name" of a service; empty for the kernel's.
        parts: a module for each service with a part in trial processes, and a text for that part.
    """

    spec: TrainableSpec
    code_root: Path
    home: Path
    code: tuple[tuple[str, str], ...] = ()
    code_folder: Path = Path()
    arguments: tuple[str, ...] = ()
    seed: int = 0
    spawns: bool = False
    zygote: str = ""
    parts: tuple[tuple[str, str], ...] = ()

    def encode(self) -> dict[str, object]:
        """Return plain values for a message."""
        paths = {name: str(getattr(self, name)) for name in ("code_root", "home", "code_folder")}
        return {**asdict(self), **paths, "spec": self.spec.encode(), "arguments": list(self.arguments)}

    @classmethod
    def decode(cls, values: Mapping[str, Any]) -> Self:
        """Return the program that ``encode`` has encoded."""
        return cls(
            TrainableSpec.decode(values["spec"]),
            Path(values["code_root"]),
            Path(values["home"]),
            tuple((path, wanted) for path, wanted in values["code"]),
            Path(values["code_folder"]),
            tuple(values["arguments"]),
            values["seed"],
            values["spawns"],
            values["zygote"],
            tuple((module, text) for module, text in values["parts"]),
        )

    @property
    def is_script(self) -> bool:
        """Whether the trainable is a script, which runs in a child of the trial's process."""
        return self.spec.kind == "script"

    def freeze(self) -> None:
        """Make this process and its forks import the code as it was when the experiment began."""
        freeze(FrozenCode(self.code_folder, dict(self.code), is_run=self.is_script))

    def compile(self, files: Iterable[str]) -> None:
        """Compile the main module, and the frozen modules among *files*, so that forks need not."""
        frozen().compile(files)
        if self.spec.script or self.spec.is_main:
            compile_file(self.spec.locate(self.code_root))

    def load(self) -> Loaded:
        """Execute the code that defines the trainable, and return the trainable.

        A script is not executed here: the result is its path.
        """
        if not self.is_script:
            self.set_arguments()
            with seeded(self.seed):
                return self.spec.load(self.code_root)
        return self.spec.load(self.code_root)

    def set_arguments(self) -> None:
        """Set ``sys.argv`` to the driver's, with the program's path on this machine."""
        arguments: Sequence[str] = self.arguments or [""]
        if self.spec.script or self.spec.is_main:
            # A missing file is reported later, when the program is loaded.
            with contextlib.suppress(TrainableNotFound):
                arguments = [str(self.spec.locate(self.code_root).absolute()), *self.arguments[1:]]
        sys.argv[:] = arguments


def seed_generators(seed: int | None = None) -> None:
    """Seed the global random generators of the imported libraries.

    Without a *seed*, those of Python and NumPy get new random seeds, and PyTorch's keeps its state. Generators that the
    program has seeded get the state in which the program has left them. Python changes its own at each fork.
    """
    for name in _LIBRARIES:
        if name not in sys.modules:
            continue
        if seed is None and name in _states_of_program:
            _, _, set_state = _ACCESS[name]
            getattr(sys.modules[name], set_state)(_states_of_program[name])
        else:
            _seed_library(name, seed)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global random generators, also those of libraries imported within the block.

    The states of generators that the block seeds are kept for ``seed_generators``.
    """
    seed_generators(seed)
    with contextlib.ExitStack() as stack:
        for name in _ACCESS.keys() & sys.modules.keys():
            _SeedWatch(name, stack)
        finder = _SeedOnImport(seed, stack)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(finder)


def _seed_library(name: str, seed: int | None) -> None:
    if name == "random":
        random.seed(seed)
    elif name == "numpy.random":
        sys.modules[name].seed(None if seed is None else seed % _SEEDS)
    elif seed is not None:
        _seed_torch(sys.modules[name], seed)


def _seed_torch(torch: ModuleType, seed: int) -> None:
    """Seed PyTorch's generators like ``torch.manual_seed``, without importing PyTorch's compiler."""
    is_new = torch.initial_seed() != seed
    torch.default_generator.manual_seed(seed)
    if is_new:
        # PyTorch applies it when a device is first used. This takes milliseconds, and forks inherit it.
        for device in (torch.cuda, torch.xpu):
            device.manual_seed_all(seed)


class _SeedWatch:
    """Notices whether the program seeds a library's generator.

    If so, it keeps the state when the stack is closed.
    """

    def __init__(self, library: str, stack: contextlib.ExitStack) -> None:
        self._library, self._module = library, sys.modules[library]
        self._is_seeded = False
        #: States that the program has taken before it seeded the generator.
        self._unseeded: list[object] = []
        stack.callback(self._keep_state)
        for name, notice in zip(_ACCESS[library], (self._on_seed, self._on_get, self._on_set), strict=True):
            self._wrap(name, notice, stack)

    def _wrap(self, name: str, notice: Callable[[list[object], object], None], stack: contextlib.ExitStack) -> None:
        original = getattr(self._module, name)

        @functools.wraps(original)
        def watched(*args: object, **kwargs: object) -> object:
            result: object = original(*args, **kwargs)
            notice([*args, *kwargs.values()], result)
            return result

        setattr(self._module, name, watched)
        stack.callback(self._unwrap, name, original, watched)

    def _unwrap(self, name: str, original: object, watched: object) -> None:
        # The program may have put its own function there.
        if getattr(self._module, name, None) is watched:
            setattr(self._module, name, original)

    def _on_seed(self, given: list[object], _: object) -> None:
        # Without a value, the libraries draw a random seed.
        self._is_seeded = any(value is not None for value in given)

    def _on_get(self, _: list[object], state: object) -> None:
        if not self._is_seeded:
            self._unseeded.append(state)

    def _on_set(self, given: list[object], _: object) -> None:
        # Often a program seeds for one step, and then sets the state from before.
        self._is_seeded = not any(value is state for value in given for state in self._unseeded)

    def _keep_state(self) -> None:
        if self._is_seeded:
            _, get_state, _ = _ACCESS[self._library]
            _states_of_program[self._library] = getattr(self._module, get_state)()


class _SeedOnImport:
    """Seeds a library's generator when the program imports the library."""

    def __init__(self, seed: int, watches: contextlib.ExitStack) -> None:
        self._seed = seed
        self._watches = watches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a library by the other finders, and have its generator seeded after its import.

        Return None for any other module.
        """
        if fullname not in _LIBRARIES:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        specs = (finder.find_spec(fullname, path, target) for finder in finders)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            _call_after(spec.loader, lambda: self._begin(fullname))
        return spec

    def _begin(self, library: str) -> None:
        _seed_library(library, self._seed)
        if library in _ACCESS:
            _SeedWatch(library, self._watches)


def _call_after(loader: Any, action: Callable[[], None]) -> None:
    """Call an action after a loader has executed its module, once."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        execute(module)
        action()

    loader.exec_module = exec_module
