"""Index by several processes: directly into a cluster, or into one temporary store per process."""

import contextlib
import hashlib
import os
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from insclr.data.formats import on_disk
from insclr.data.images import ImageList
from insclr.describe.describer import Describer
from insclr.errors import UserError
from insclr.files import only_writer, whole_file
from insclr.options import IndexOptions
from insclr.retrieval.index import (
    DescribedRow,
    IndexReport,
    index_images,
    is_unchanged,
    stored_paths,
)
from insclr.shards import PATIENCE, Shard, left_to_do
from insclr.store import StoreInfo, create_store, folder_of, open_store


def index_shard(
    describer: Describer,
    images: ImageList,
    uri: str | Path,
    shard: Shard,
    options: IndexOptions = IndexOptions(),
    **changes: Any,
) -> IndexReport:
    """Index a shard's share of the images.

    A cluster takes the rows of all shards at once. For a folder every shard describes what the store has not into a
    store of its own beside it; the last shard writes the store from them, as one process would have.
    """
    given = options.change(changes)
    if shard.whole:
        return index_images(describer, images, uri, given)
    if given.verify:
        raise UserError("--verify reads every photo in one process: leave --shard out.")
    folder = folder_of(uri)
    if folder is None:
        return index_images(describer, images, uri, given, shard=shard)
    shares = _Shares(describer, images, folder, shard)
    described = shares.describe(given)
    missing = shard.complete(shares.missing)
    merged = None if missing or not shard.merges else shares.merge(given)
    return merged or replace(described, waits_for=left_to_do(missing, shard, f"{uri} is written"))


class _Shares:
    """The stores of all shards, beside the one that they are for."""

    def __init__(self, describer: Describer, images: ImageList, store: Path, shard: Shard) -> None:
        self._describer, self._images, self._store, self._shard = describer, images, store, shard
        self._folder = store.with_name(f".{store.name}.shards")
        self._numbers = range(1, shard.of + 1)

    def describe(self, options: IndexOptions) -> IndexReport:
        """Describe this shard's images that the store does not know, or knows in an older state."""
        self._done_file(self._shard.number).unlink(missing_ok=True)
        root, wanted, regions = self._choose_images(options.regions)
        report = IndexReport()
        if wanted:
            share = self._share(self._shard.number)
            who = self._describer
            info = StoreInfo(who.name, who.fingerprint, who.dim, root, who.size)
            create_store(share, info).close()
            own = IndexOptions(regions=regions, batch=options.batch)
            report = index_images(self._describer, self._images.subset(wanted), share, own)
        with whole_file(self._done_file(self._shard.number)) as scratch:
            scratch.write_text(self._digest(self._shard.number))
        return report

    def missing(self) -> list[int]:
        """The shards that are not done with these images; none once another one has written the store."""
        if self._is_merged():
            return []
        return [number for number in self._numbers if not self._is_done(number)]

    def merge(self, options: IndexOptions) -> IndexReport | None:
        """Bring the store up to date with what all shards described; None when another one has done so."""
        with only_writer(self._folder / "lock", PATIENCE):
            if self._is_merged():
                return None
            with contextlib.ExitStack() as stack:
                described: dict[str, DescribedRow] = {}
                for share in filter(Path.exists, map(self._share, self._numbers)):
                    store = stack.enter_context(closing(open_store(share)))
                    described |= {
                        path: DescribedRow(store, row) for path, row in store.rows_by_path().items()
                    }
                report = index_images(
                    self._describer, self._images, self._store, options, described=described
                )
            for number in self._numbers:
                self._done_file(number).unlink()
                shutil.rmtree(self._share(number), ignore_errors=True)
            (self._folder / "lock").unlink()
        with contextlib.suppress(OSError):  # a shard that was started once more is at work there
            self._folder.rmdir()
        return report

    def _choose_images(self, regions: bool) -> tuple[Path, list[int], bool]:
        """The store's root, this shard's images that are to be described, and whether with regions."""
        share = self._shard.share(len(self._images))
        if not self._store.exists():
            return Path(os.path.abspath(self._images.root)), list(share), regions  # noqa: PTH100
        with closing(open_store(self._store)) as store:
            store.info.refuse_other_model(self._describer.fingerprint, store.uri)
            store.info.refuse_other_size(self._describer.size, store.uri)
            known, have_regions = store.rows_by_path(), set(store.region_ids().tolist())
            regions = regions or bool(have_regions)
            wanted = []
            for i, path in zip(share, stored_paths(store.info.root, self._images.subset(share)), strict=True):
                row = known.get(path)
                complete = row is not None and (not regions or row.id in have_regions)
                # The run that writes the store reports files that are gone.
                file = on_disk(self._images.file(i))
                with contextlib.suppress(OSError):
                    if row is None or not complete or not is_unchanged(row.image, file.stat()):
                        wanted.append(i)
            return store.info.root, wanted, regions

    def _share(self, number: int) -> Path:
        return self._folder / f"{number}-of-{self._shard.of}"

    def _done_file(self, number: int) -> Path:
        return self._folder / f"{number}-of-{self._shard.of}.done"

    def _is_done(self, number: int) -> bool:
        file = self._done_file(number)
        return file.exists() and file.read_text() == self._digest(number)

    def _is_merged(self) -> bool:
        return not self._done_file(self._shard.number).exists()

    def _digest(self, number: int) -> str:
        paths = self._images.subset(self._shard.share(len(self._images), number)).paths
        text = "\n".join([self._describer.fingerprint, str(self._describer.size), *paths])
        return hashlib.sha256(text.encode()).hexdigest()
