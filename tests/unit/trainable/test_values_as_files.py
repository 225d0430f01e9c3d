"""Arrays, data frames and tensors travel as files, and come back as they were."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqtune.trainable import CannotTravel, stored, values


def travelled(value: object, folder: Path) -> Any:
    """Return a value as a worker reads it."""
    kept = stored(value)
    assert kept is not None
    assert stored(value) == kept
    path = folder / kept.name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(kept.content)
    return eval(f"values.{kept.call.format('path')}", {"values": values, "path": path})


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="int8").reshape(2, 3)[:, ::2],
        np.asfortranarray(np.ones((3, 2), "float16")),
        np.array(["a", "bc"]),
        np.array([np.datetime64("2020-01-01"), np.datetime64("NaT", "D")]),
        np.array([(1, 2.5)], dtype=[("a", ">i4"), ("b", "f8")]),
        np.array(3.5),
        np.empty((0, 4), dtype=bool),
    ],
    ids=str,
)
def test_an_array_keeps_its_type_and_shape(array: Any, tmp_path: Path) -> None:
    found = travelled(array, tmp_path)
    assert (found.dtype, found.shape, found.flags.writeable) == (array.dtype, array.shape, True)
    np.testing.assert_array_equal(found, array)


def test_an_array_that_is_large_or_of_objects_is_refused() -> None:
    with pytest.raises(CannotTravel, match="an array of Python objects"):
        stored(np.array([{}]))
    with pytest.raises(CannotTravel, match="a ndarray of 40 MB, and at most 32 MB can be sent"):
        stored(np.empty(5_000_000))
    assert stored([1.0]) is None
    assert stored(np.ma.masked_array([1])) is None


# pyarrow's own call, which a pandas that is newer warns of.
@pytest.mark.filterwarnings("ignore:Series.values returning an ndarray")
def test_a_data_frame_keeps_types_index_and_categories(tmp_path: Path) -> None:
    pd, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    columns = {
        "number": [1.5, float("nan"), 3],
        "text": ["x", None, "z"],
        "kind": pd.Categorical(["low", "high", "low"], ["low", "mid", "high"], ordered=True),
        "count": pd.array([1, None, 3], dtype="Int64"),
        "time": pd.to_datetime(["2020-01-01", "2020-03-01", None]).tz_localize("Europe/Berlin"),
        "bytes": [b"a", b"b", b"c"],
    }
    index = pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)], names=["letter", None])
    table = pd.DataFrame(columns, index=index)
    for frame in (table, pd.DataFrame({0: [1], 1: [2.0]}, index=[3])):
        pd.testing.assert_frame_equal(travelled(frame, tmp_path), frame, check_exact=True)
    found = travelled(table, tmp_path)
    found.loc[("a", 1), "number"] = 7.0
    for series in (table["kind"], pd.Series([1, 2], name=None), pd.Series([1.0], index=["a"], name=5)):
        pd.testing.assert_series_equal(travelled(series, tmp_path), series)


def test_a_data_frame_that_would_change_is_refused() -> None:
    pd, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    with pytest.raises(CannotTravel, match=r"a DataFrame that Arrow would change: .*"):
        stored(pd.DataFrame({"pair": [(1, 2)]}))
    with pytest.raises(CannotTravel, match=r"a DataFrame that Arrow can't hold: .*"):
        stored(pd.DataFrame({"any": [object()]}))


def test_a_data_frame_without_arrow_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pd = pytest.importorskip("pandas")
    monkeypatch.setitem(importlib.sys.modules, "pyarrow", None)  # type: ignore[attr-defined]
    with pytest.raises(CannotTravel, match="a DataFrame, for which pyarrow is missing: pip install pyarrow"):
        stored(pd.DataFrame({"a": [1]}))


def test_a_frame_of_polars_keeps_its_types(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    kind = pl.Series(["x", "y"], dtype=pl.Enum(["y", "x"]))
    frame = pl.DataFrame({"a": [1, None], "kind": kind, "list": [[1.0], []], "text": ["a", "b"]})
    frame = frame.with_columns(pl.col("text").cast(pl.Categorical).alias("category"))
    found = travelled(frame, tmp_path)
    assert found.schema == frame.schema
    assert found.equals(frame)
    series = travelled(frame["kind"], tmp_path)
    assert (series.name, series.dtype, series.to_list()) == ("kind", frame["kind"].dtype, ["x", "y"])
    with pytest.raises(CannotTravel, match=r"a DataFrame that Arrow would change: .*Object.* to .*Binary"):
        stored(pl.DataFrame({"o": pl.Series([{1}], dtype=pl.Object)}))


def test_a_tensor_keeps_its_type_and_whether_it_wants_a_gradient(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for tensor in (
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T,
        torch.tensor(2.5, requires_grad=True),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([True, False]),
        torch.empty((0, 3)),
    ):
        found = travelled(tensor, tmp_path)
        assert (found.dtype, found.shape, found.requires_grad) == (tensor.dtype, tensor.shape, tensor.requires_grad)
        assert torch.equal(found, tensor)
    with pytest.raises(CannotTravel, match=r"use tensor.detach\(\).cpu\(\)"):
        stored(torch.ones(1, requires_grad=True) * 2)
    assert stored(torch.nn.Parameter(torch.ones(1))) is None
