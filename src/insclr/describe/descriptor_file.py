"""Descriptor files: the descriptors of all images in one .parquet or .npz file, updated when images change."""

import contextlib
import pickle
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from insclr.data.images import ImageList
from insclr.describe.descriptor_parts import DescriptorParts
from insclr.describe.pipeline import as_opened
from insclr.engine.opened import OpenedModel
from insclr.errors import UserError
from insclr.files import only_writer, open_file, whole_file
from insclr.recipe import DescriptorRecipe
from insclr.shards import PATIENCE, Shard, left_to_do

if TYPE_CHECKING:
    from insclr.model.model_file import Model

_ROWS = 2048  # rows written at once
_WHOLE = Shard()
_UNREADABLE = (
    *(KeyError, TypeError, ValueError, AttributeError, OSError, EOFError),
    *(pa.ArrowException, zipfile.BadZipFile, zlib.error, pickle.UnpicklingError),
)
_ImageStamp = tuple[str, tuple[int, int]]  # path, and `ImageList.stamp` of the file


@dataclass(frozen=True)
class DescriptorTable:
    """The descriptors of some images, and which model made them how (`key`)."""

    key: str
    paths: tuple[str, ...]
    stamps: NDArray[np.int64]  # (N, 2) size and mtime in nanoseconds
    descriptors: NDArray[np.float32]  # (N, D)


@dataclass(frozen=True)
class DescribeSummary:
    """What a run of `describe_to_file` did."""

    file: Path
    described: int
    reused: int
    skipped: int
    shards: str = ""  # of several shards: which ones are missing, or that all are put together

    def __str__(self) -> str:
        counts = f"{self.described} described, {self.reused} kept, {self.skipped} unreadable"
        return f"{self.file}: {counts}" + (f"\n{self.shards}" if self.shards else "")


def describe_to_file(
    model: "Model | OpenedModel",
    images: ImageList,
    out: Path,
    settings: DescriptorRecipe,
    shard: Shard = _WHOLE,
) -> DescribeSummary:
    """Describe the images that `out` does not hold yet, or holds in an older state, and write it whole.

    Work is kept in parts beside `out` until then: killed, the same call goes on. Of several shards each describes its
    share of the images, and the last one writes `out`. Unreadable images are left out and listed in
    `out` + .skipped.csv.
    """
    _check_suffix(out)
    opened = as_opened(model, settings)
    key, folder = _key(opened.fingerprint, settings), out.with_name(f".{out.name}.parts")
    wanted = [(path, images.stamp(i)) for i, path in enumerate(images.paths)]
    known = _rows(out, key, set(wanted)) if out.exists() else {}
    new = images.subset(i for i, row in enumerate(wanted) if row not in known)
    parts = DescriptorParts(opened, folder, shard, settings)
    missing = parts.make_share([(new, None)])
    if missing or not shard.merges:
        rows = len(known) + len(shard.share(len(new)))
        text = left_to_do(missing, shard, f"{out} is written")
    else:
        folder.mkdir(parents=True, exist_ok=True)  # where nothing was described it has no parts
        with only_writer(folder / "lock", PATIENCE):
            write_tables(out, _tables(key, wanted, known, parts.blocks(new), opened.engine.dim))
            parts.skipped.write(out.with_name(f"{out.name}.skipped.csv"))
            shutil.rmtree(folder, ignore_errors=True)
        rows = len(wanted)
        text = "" if shard.whole else f"{out}: put together from {shard.of} shards"
    reused = rows - parts.described - len(parts.skipped)
    return DescribeSummary(out, parts.described, reused, len(parts.skipped), text)


def _tables(
    key: str,
    wanted: Sequence[_ImageStamp],
    known: Mapping[_ImageStamp, NDArray[np.float32]],
    new: Iterable[NDArray[np.float32]],
    dim: int,
) -> Iterator[DescriptorTable]:
    """The rows of the images in their order, some at a time, without those of unreadable images."""
    made = (row for block in new for row in block)
    for start in range(0, max(1, len(wanted)), _ROWS):
        rows = [(one, known[one] if one in known else next(made)) for one in wanted[start : start + _ROWS]]
        rows = [(one, row) for one, row in rows if row.any()]
        yield DescriptorTable(
            key,
            tuple(path for (path, _), _ in rows),
            np.array([stamp for (_, stamp), _ in rows], dtype=np.int64).reshape(-1, 2),
            np.array([row for _, row in rows], dtype=np.float32).reshape(-1, dim),
        )


def _key(fingerprint: str, settings: DescriptorRecipe) -> str:
    """What a descriptor depends on besides its image."""
    key = (
        f"{fingerprint} size={settings.size} fit={settings.fit} scales={settings.scales} zoom={settings.zoom}"
    )
    # Older files have scales resized from the file: their descriptors must not be mixed with ours.
    return key if settings.scales == (1.0,) else f"{key} interpolated"


def read_descriptors(file: Path) -> DescriptorTable:
    """Read a descriptor file."""
    _check_file(file)
    try:
        table = _read_npz(file) if file.suffix == ".npz" else _read_parquet(file)
        if table.stamps.shape != (len(table.paths), 2) or table.descriptors.shape[:-1] != (len(table.paths),):
            raise ValueError("its columns are not of one length")
        return table
    except _UNREADABLE as error:
        raise UserError(f"{file} is not a whole descriptor file of insclr embed ({error}).") from error


def descriptor_blocks(file: Path, rows: int) -> Iterator[NDArray[np.float32]]:
    """The descriptors of a file, `rows` at a time; of a .parquet no more are held."""
    _check_file(file)
    if file.suffix == ".npz":
        held = read_descriptors(file).descriptors
        yield from (held[start : start + rows] for start in range(0, len(held), rows))
        return
    try:
        with open_file(file) as opened:
            for batch in pyarrow.parquet.ParquetFile(opened).iter_batches(rows, columns=["vector"]):
                column = batch.column(0)
                yield np.array(column.flatten(), np.float32).reshape(len(column), column.type.list_size)
    except _UNREADABLE as error:
        raise UserError(f"{file} is not a whole descriptor file of insclr embed ({error}).") from error


def _read_npz(file: Path) -> DescriptorTable:
    with open_file(file) as opened, np.load(opened, allow_pickle=False) as held:
        paths = tuple(map(str, held["paths"].tolist()))
        return DescriptorTable(str(held["key"]), paths, held["stamps"], held["vectors"])


def _read_parquet(file: Path) -> DescriptorTable:
    with open_file(file) as opened:
        table = pyarrow.parquet.read_table(opened)
    descriptors = table["vector"].combine_chunks()
    return DescriptorTable(
        table.schema.metadata[b"insclr"].decode(),
        tuple(table["path"].to_pylist()),
        np.stack([table["size"].to_numpy(), table["mtime_ns"].to_numpy()], axis=1),
        np.array(descriptors.flatten()).reshape(len(descriptors), descriptors.type.list_size),
    )


def _rows(file: Path, key: str, wanted: Set[_ImageStamp]) -> dict[_ImageStamp, NDArray[np.float32]]:
    """The wanted ones of a file's rows, where the same model has described them in the same way."""
    held = read_descriptors(file)
    if held.key != key:
        return {}
    rows = [
        (path, (int(size), int(mtime))) for path, (size, mtime) in zip(held.paths, held.stamps, strict=True)
    ]
    # Copies, since a view would hold the whole file in memory.
    return {row: held.descriptors[place].copy() for place, row in enumerate(rows) if row in wanted}


def write_tables(file: Path, tables: Iterable[DescriptorTable]) -> None:
    """Write tables of one key behind each other as one descriptor file; .parquet holds one of them at a time."""
    if file.suffix == ".npz":
        held = list(tables)
        with whole_file(file) as scratch, scratch.open("wb") as opened:
            np.savez(
                opened,
                key=held[0].key,
                paths=np.array([path for one in held for path in one.paths], str),
                stamps=np.concatenate([one.stamps for one in held]),
                vectors=np.concatenate([one.descriptors for one in held]),
            )
        return
    with whole_file(file) as scratch, contextlib.ExitStack() as opened_writer:
        writer: pyarrow.parquet.ParquetWriter | None = None
        for one in tables:
            rows = _arrow(one)
            if writer is None:
                writer = opened_writer.enter_context(pyarrow.parquet.ParquetWriter(scratch, rows.schema))
            writer.write_table(rows)


def _arrow(rows: DescriptorTable) -> pa.Table:
    dim = rows.descriptors.shape[1]
    table = pa.table(
        {
            "path": pa.array(rows.paths, pa.string()),
            "size": rows.stamps[:, 0],
            "mtime_ns": rows.stamps[:, 1],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(rows.descriptors.reshape(-1)), dim),
        }
    )
    return table.replace_schema_metadata({"insclr": rows.key})


def _check_file(file: Path) -> None:
    _check_suffix(file)
    if not file.is_file():
        raise UserError(f"There is no descriptor file {file}.")


def _check_suffix(file: Path) -> None:
    if file.suffix not in (".npz", ".parquet"):
        raise UserError(f"{file}: a descriptor file ends in .parquet or .npz.")
