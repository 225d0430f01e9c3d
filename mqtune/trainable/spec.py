"""How a trainable is named on the wire, and found again on a worker: by module or script, under a code root."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mqtune.errors import TrainableNotFound

__all__ = ["Trainable", "TrainableSpec"]

Trainable = Callable[[dict[str, Any]], Any]

#: The name under which a driver's script is imported on a worker, so that its ``if __name__ == "__main__"`` is not run.
_SCRIPT_MODULE = "__mqtune_script__"


@dataclass(frozen=True, slots=True)
class TrainableSpec:
    """A function by name: either ``module`` or ``script`` (a path below the code root) is set."""

    name: str
    module: str = ""
    script: str = ""

    def __str__(self) -> str:
        return f"{self.module or self.script}:{self.name}"

    def encode(self) -> dict[str, str]:
        """Return plain values for a message."""
        return asdict(self)

    @classmethod
    def of(cls, trainable: object) -> tuple[TrainableSpec, Path]:
        """Return the name of a function, and the code root below which it was found here.

        Raises:
            TrainableNotFound: the function has no name that another process could import it by.
        """
        if not inspect.isfunction(trainable):
            raise TrainableNotFound(f"trainable {trainable!r} is not a function; give a function that takes the config")
        name, module = trainable.__qualname__, trainable.__module__
        if "<" in name:
            raise TrainableNotFound(
                f"trainable {name!r} is defined inside a function or is a lambda, so workers can't import it; "
                "move it to the top level of its module"
            )
        _check_signature(trainable)
        if module != "__main__":
            return cls(name, module=module), _root_of(sys.modules[module])
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        if spec is not None and spec.name != "__main__":
            return cls(name, module=spec.name.removesuffix(".__main__")), _root_of(main, spec.name)
        file = getattr(main, "__file__", None)
        if file is None or not Path(file).is_file():
            raise TrainableNotFound(
                f"trainable {name!r} was typed into an interactive session, so workers can't import it; put it into a file"
            )
        path = Path(file).absolute()
        # Workers are started in the project's folder as a rule, and so is the script.
        root = Path.cwd() if Path.cwd() in path.parents else path.parent
        return cls(name, script=str(path.relative_to(root))), root

    def locate(self, code_root: Path) -> Path:
        """Return the file below *code_root* that holds the trainable.

        Raises:
            TrainableNotFound: there is none.
        """
        base = code_root / (self.script or Path(*self.module.split(".")))
        choices = [base] if self.script else [base.with_name(base.name + ".py"), base / "__init__.py"]
        for path in choices:
            if path.is_file() and code_root in path.absolute().parents and ".." not in path.parts:
                return path
        what = f"script {self.script!r}" if self.script else f"module {self.module!r}"
        raise TrainableNotFound(f"{what} of trainable {self.name!r} is not below the code root {code_root}")

    def load(self, code_root: Path) -> Trainable:
        """Import the trainable from below *code_root*, which goes first on ``sys.path``; user code runs.

        Raises:
            TrainableNotFound: there is no such file, or it doesn't define the function.
            Exception: whatever the import raises.
        """
        path = self.locate(code_root)
        # A script finds what lies beside it, as it does when Python runs it.
        for folder in dict.fromkeys((str(code_root), str(path.parent) if self.script else str(code_root))):
            if folder not in sys.path:
                sys.path.insert(0, folder)
        found: Any = _import_script(path) if self.script else importlib.import_module(self.module)
        for part in self.name.split("."):
            found = getattr(found, part, None)
        if not callable(found):
            raise TrainableNotFound(f"{path} does not define {self.name!r}; is the code on this machine up to date?")
        return found  # type: ignore[no-any-return]


def _import_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_SCRIPT_MODULE, path)
    if spec is None or spec.loader is None:
        raise TrainableNotFound(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_SCRIPT_MODULE] = module
    spec.loader.exec_module(module)
    return module


def _root_of(module: ModuleType, name: str | None = None) -> Path:
    """Return the folder that must be on ``sys.path`` for the module to be imported by its name."""
    file = getattr(module, "__file__", None)
    if file is None:
        raise TrainableNotFound(
            f"module {module.__name__!r} has no file, so workers can't import it; put it into a file"
        )
    path = Path(file).absolute()
    depth = (name or module.__name__).count(".") + (path.name == "__init__.py")
    return path.parents[depth]


def _check_signature(trainable: Callable[..., Any]) -> None:
    try:
        inspect.signature(trainable).bind({})
    except TypeError:
        found = f"{trainable.__name__}{inspect.signature(trainable)}"
        raise TrainableNotFound(f"trainable {found} can't be called with one argument; write it as f(config)") from None
