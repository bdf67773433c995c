"""Descriptor files: every image's descriptor in one .parquet or .npz, brought up to date instead of made again."""

import contextlib
import pickle
import shutil
import zipfile
import zlib
from collections.abc import Generator, Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from insclr.data.formats import on_disk
from insclr.data.images import ImageList
from insclr.data.skipped import Skipped
from insclr.describe.pipeline import as_opened, describe_images
from insclr.engine.opened import OpenedModel
from insclr.errors import UserError
from insclr.files import open_file, whole_file
from insclr.recipe import DescriptorRecipe

if TYPE_CHECKING:
    from insclr.model.model_file import Model

IMAGES_PER_WRITE = 2048  # images between two writes: what a kill can cost
_UNREADABLE = (
    *(KeyError, TypeError, ValueError, AttributeError, OSError, EOFError),
    *(pa.ArrowException, zipfile.BadZipFile, zlib.error, pickle.UnpicklingError),
)
_Stamp = tuple[int, int]  # size in bytes and modification time of a file


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

    def __str__(self) -> str:
        return f"{self.file}: {self.described} described, {self.reused} kept, {self.skipped} unreadable"


def describe_to_file(
    model: "Model | OpenedModel",
    images: ImageList,
    out: Path,
    settings: DescriptorRecipe,
    also: Sequence[Path] = (),
) -> DescribeSummary:
    """Describe the images that `out` does not hold yet, or holds in an older state, and write it whole.

    Work is kept in parts beside `out` as it goes: killed, the same call goes on. Unreadable images are left
    out and listed in `out` + .skipped.csv. Rows are taken from the descriptor files `also`, too.
    """
    _check_suffix(out)
    opened = as_opened(model, settings)
    key = _key(opened.fingerprint, settings)
    parts = out.with_name(f".{out.name}.parts")
    stamps = [_stamp(images.file(i)) for i in range(len(images))]
    wanted = list(zip(images.paths, stamps, strict=True))
    known: dict[tuple[str, _Stamp], NDArray[np.float32]] = {}
    for file in [*also, *([out] if out.exists() else []), *sorted(parts.glob("*.npz"))]:
        known |= _rows(file, key, set(wanted))
    missing = [i for i, row in enumerate(wanted) if row not in known]
    skipped = Skipped()
    for start in range(0, len(missing), IMAGES_PER_WRITE):
        ids = missing[start : start + IMAGES_PER_WRITE]
        descriptors = describe_images(opened, images.subset(ids), settings, skipped=skipped)
        good = [place for place, i in enumerate(ids) if images.paths[i] not in skipped]
        chunk = [wanted[ids[place]] for place in good]
        number = len(list(parts.glob("*.npz")))
        _write(parts / f"{number:05d}.npz", _table(key, chunk, descriptors[good]))
        known |= {row: descriptors[place] for row, place in zip(chunk, good, strict=True)}
    rows = [row for row in wanted if row in known]
    stack = np.stack([known[row] for row in rows]) if rows else np.zeros((0, opened.engine.dim), np.float32)
    skipped.write(skipped_file(out))
    _write(out, _table(key, rows, stack))
    shutil.rmtree(parts, ignore_errors=True)
    return DescribeSummary(
        out, len(missing) - len(skipped), len(rows) - len(missing) + len(skipped), len(skipped)
    )


def skipped_file(out: Path) -> Path:
    """Where the unreadable images of a descriptor file are listed."""
    return out.with_name(f"{out.name}.skipped.csv")


def _key(fingerprint: str, settings: DescriptorRecipe) -> str:
    """What a descriptor depends on besides its image."""
    key = (
        f"{fingerprint} size={settings.size} fit={settings.fit} scales={settings.scales} zoom={settings.zoom}"
    )
    # Older files have scales resized from the file: their descriptors must not be mixed with ours.
    return key if settings.scales == (1.0,) else f"{key} interpolated"


def read_descriptors(file: Path) -> DescriptorTable:
    """Read a descriptor file."""
    _check_suffix(file)
    if not file.is_file():
        raise UserError(f"There is no descriptor file {file}.")
    try:
        table = _read_npz(file) if file.suffix == ".npz" else _read_parquet(file)
        if table.stamps.shape != (len(table.paths), 2) or table.descriptors.shape[:-1] != (len(table.paths),):
            raise ValueError("its columns are not of one length")
        return table
    except _UNREADABLE as error:
        raise UserError(f"{file} is not a whole descriptor file of insclr embed ({error}).") from error


def descriptor_blocks(file: Path, rows: int) -> Generator[NDArray[np.float32], None, None]:
    """The descriptors of a file, `rows` at a time; of a .parquet no more are held."""
    _check_suffix(file)
    if not file.is_file():
        raise UserError(f"There is no descriptor file {file}.")
    return _blocks(file, rows)


def _blocks(file: Path, rows: int) -> Generator[NDArray[np.float32], None, None]:
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


def _rows(
    file: Path, key: str, wanted: Set[tuple[str, _Stamp]]
) -> dict[tuple[str, _Stamp], NDArray[np.float32]]:
    """The wanted ones of a file's rows, where the same model has described them in the same way."""
    held = read_descriptors(file)
    if held.key != key:
        return {}
    rows = [
        (path, (int(size), int(mtime))) for path, (size, mtime) in zip(held.paths, held.stamps, strict=True)
    ]
    # Copies, since a view would hold the whole file in memory.
    return {row: held.descriptors[place].copy() for place, row in enumerate(rows) if row in wanted}


def _table(key: str, rows: list[tuple[str, _Stamp]], descriptors: NDArray[np.float32]) -> DescriptorTable:
    stamps = np.array([stamp for _, stamp in rows], dtype=np.int64).reshape(-1, 2)
    return DescriptorTable(key, tuple(path for path, _ in rows), stamps, descriptors)


def write_tables(file: Path, tables: Iterable[DescriptorTable]) -> None:
    """Write tables of one key behind each other as one descriptor file; .parquet holds one of them at a time."""
    if file.suffix == ".npz":
        held = list(tables)
        _write(
            file,
            DescriptorTable(
                held[0].key,
                tuple(path for one in held for path in one.paths),
                np.concatenate([one.stamps for one in held]),
                np.concatenate([one.descriptors for one in held]),
            ),
        )
        return
    with whole_file(file) as scratch, contextlib.ExitStack() as opened:
        writer: pyarrow.parquet.ParquetWriter | None = None
        for one in tables:
            rows = _arrow(one)
            if writer is None:
                writer = opened.enter_context(pyarrow.parquet.ParquetWriter(scratch, rows.schema))
            writer.write_table(rows)


def _write(file: Path, rows: DescriptorTable) -> None:
    if file.suffix != ".npz":
        write_tables(file, [rows])
        return
    with whole_file(file) as scratch, scratch.open("wb") as opened:
        np.savez(
            opened,
            key=rows.key,
            paths=np.array(rows.paths, str),
            stamps=rows.stamps,
            vectors=rows.descriptors,
        )


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


def _stamp(file: Path) -> _Stamp:
    try:
        status = on_disk(file).stat()
    except OSError:
        return (-1, -1)  # extraction will say what is wrong with it
    return status.st_size, status.st_mtime_ns


def _check_suffix(file: Path) -> None:
    if file.suffix not in (".npz", ".parquet"):
        raise UserError(f"{file}: a descriptor file ends in .parquet or .npz.")
