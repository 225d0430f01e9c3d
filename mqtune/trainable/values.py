"""Stores arrays, data frames and tensors as files beside a trainable's written module.

The driver writes them and workers read them. No pickle is used. A file is named by the hash of its content, so equal
values are stored once.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

#: A user's object. Its type's library may be missing here.
UserObject: TypeAlias = Any
#: Maximum bytes, in memory, of all stored values. A bundle has 32 MiB, of which the rest is for code.
MOST_VALUE_BYTES: Final = 32_000_000
#: Folder of the files, beside the written module.
VALUES_FOLDER: Final = "values"
#: How many characters of the hash are in a file's name: 128 bits.
_NAME_CHARS: Final = 32


class CannotTravel(Exception):
    """A value can't be sent to workers. The text names it and the reason."""


class StoredValue(NamedTuple):
    """A value as a file. ``call`` is the Python call that reads it, with ``{}`` for its path."""

    content: bytes
    suffix: str
    call: str

    @property
    def name(self) -> str:
        """The file's path from the written module's folder."""
        return f"{VALUES_FOLDER}/{hashlib.sha256(self.content).hexdigest()[:_NAME_CHARS]}{self.suffix}"


def stored(value: object) -> StoredValue | None:
    """Return an array, data frame or tensor as a file, or None for a value of another type.

    Raises:
        CannotTravel: it is too large, or would be different when read again.
    """
    kind = type(value)
    store = _KINDS.get((kind.__module__.partition(".")[0], kind.__name__))
    if store is None:
        return None
    size = _size_of(value)
    if size > MOST_VALUE_BYTES:
        raise CannotTravel(
            f"{with_article(kind)} of {size / 1e6:,.0f} MB, and at most {MOST_VALUE_BYTES / 1e6:.0f} MB can be sent"
        )
    return store(value)


def beside(written: str, name: str) -> Path:
    """Return the path of a file, given from the written module's folder."""
    return Path(written).parent / name


def with_article(kind: type) -> str:
    """Return the name of a type with its article."""
    return f"{'an' if kind.__name__[0].lower() in 'aeiou' else 'a'} {kind.__name__}"


def _size_of(value: UserObject) -> int:
    if hasattr(value, "memory_usage"):
        usage = value.memory_usage(index=True, deep=True)
        return int(usage if isinstance(usage, int) else usage.sum())
    return int(value.estimated_size() if hasattr(value, "estimated_size") else value.nbytes)


# Arrays.


def _store_array(value: UserObject) -> StoredValue:
    return StoredValue(_npy_bytes(value, value.dtype), ".npy", "array({})")


def _npy_bytes(value: UserObject, dtype: UserObject) -> bytes:
    import numpy as np  # noqa: PLC0415 - most trainables have no array

    if dtype.hasobject:
        raise CannotTravel(
            "an array of Python objects, which only a pickle could hold: give a list, or an array of another dtype"
        )
    file = io.BytesIO()
    np.save(file, value, allow_pickle=False)
    return file.getvalue()


def array(path: Path) -> UserObject:
    """Read a NumPy array."""
    import numpy as np  # noqa: PLC0415

    return np.load(path, allow_pickle=False)


# Tensors.


def _store_tensor(value: UserObject) -> StoredValue:
    import torch  # noqa: PLC0415 - most trainables have no tensor

    if value.device.type != "cpu" or value.layout is not torch.strided or value.grad_fn is not None:
        raise CannotTravel(
            "a Tensor that is on a device, is sparse, or has a gradient graph: give tensor.detach().cpu(), and if it "
            "is sparse its .to_dense()"
        )
    dtype = str(value.dtype).removeprefix("torch.")
    # NumPy lacks some types, such as bfloat16, so the bytes travel.
    content = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
    call = f"tensor({{}}, {dtype!r}, {tuple(value.shape)!r}, requires_grad={value.requires_grad})"
    return StoredValue(_npy_bytes(content, content.dtype), ".npy", call)


def tensor(path: Path, dtype: str, shape: tuple[int, ...], *, requires_grad: bool) -> UserObject:
    """Read a tensor of PyTorch."""
    import torch  # noqa: PLC0415

    kind, content = getattr(torch, dtype), torch.from_numpy(array(path))
    # An empty tensor can't be viewed as another type.
    flat = content.view(kind) if content.numel() else torch.empty(0, dtype=kind)
    return flat.reshape(shape).requires_grad_(requires_grad)


# Frames: as an Arrow stream, which is read without a thread. A process with a thread pool can't be forked.


def _store_frame(value: UserObject) -> StoredValue:
    content = _arrow_bytes(value)
    _check_same(frame(io.BytesIO(content)), value)
    return StoredValue(content, ".arrow", "frame({})")


def _store_series(value: UserObject) -> StoredValue:
    if not isinstance(value.name, str | int | None):
        raise CannotTravel(f"a Series whose name {value.name!r} is neither a text nor an integer: rename it")
    content = _arrow_bytes(value.to_frame("values"))
    _check_same(series(io.BytesIO(content), value.name), value)
    return StoredValue(content, ".arrow", f"series({{}}, {value.name!r})")


def _arrow_bytes(value: UserObject) -> bytes:
    try:
        import pyarrow as pa  # noqa: PLC0415
    except ImportError:
        raise CannotTravel(f"{with_article(type(value))}, for which pyarrow is missing: pip install pyarrow") from None
    file = io.BytesIO()
    try:
        table = pa.Table.from_pandas(value, nthreads=1)
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise CannotTravel(f"{with_article(type(value))} that Arrow can't hold: {error}") from None
    return file.getvalue()


def _check_same(read: UserObject, value: UserObject) -> None:
    """Raise CannotTravel if a value has changed when it is read again.

    Values, types, index and categories count.
    """
    import pandas as pd  # noqa: PLC0415

    testing: UserObject = pd.testing
    check = testing.assert_frame_equal if isinstance(value, pd.DataFrame) else testing.assert_series_equal
    try:
        check(read, value, check_exact=True, check_freq=False)
    except AssertionError as error:
        raise CannotTravel(
            f"{with_article(type(value))} that Arrow would change: {' '.join(str(error).split())}"
        ) from None


def frame(file: Path | io.BytesIO) -> UserObject:
    """Read a DataFrame of pandas."""
    import pyarrow as pa  # noqa: PLC0415

    content = file.read_bytes() if isinstance(file, Path) else file.getvalue()
    # Arrow's own memory is read-only.
    return pa.ipc.open_stream(content).read_all().to_pandas(use_threads=False).copy()


def series(file: Path | io.BytesIO, name: str | int | None) -> UserObject:
    """Read a Series of pandas."""
    return frame(file)["values"].rename(name)


def _store_polars(value: UserObject) -> StoredValue:
    is_series = type(value).__name__ == "Series"
    table, end, file = value.to_frame() if is_series else value, ".to_series()" if is_series else "", io.BytesIO()
    try:
        table.write_ipc_stream(file)
        back = polars_frame(io.BytesIO(file.getvalue()))
    except Exception as error:  # noqa: BLE001 - the types are Polars' own
        raise CannotTravel(f"{with_article(type(value))} that Arrow can't hold: {error}") from None
    # Polars writes a Python object as its address.
    if back.schema != table.schema or not back.equals(table):
        raise CannotTravel(f"{with_article(type(value))} that Arrow would change: {table.schema} to {back.schema}")
    return StoredValue(file.getvalue(), ".arrow", "polars_frame({})" + end)


def polars_frame(file: Path | io.BytesIO) -> UserObject:
    """Read a DataFrame of Polars."""
    import polars as pl  # noqa: PLC0415

    return pl.read_ipc_stream(file)


#: The functions that store a value, by package and name of its type.
_KINDS: Final[dict[tuple[str, str], Callable[[UserObject], StoredValue]]] = {
    ("numpy", "ndarray"): _store_array,
    ("torch", "Tensor"): _store_tensor,
    ("pandas", "DataFrame"): _store_frame,
    ("pandas", "Series"): _store_series,
    ("polars", "DataFrame"): _store_polars,
    ("polars", "Series"): _store_polars,
}
