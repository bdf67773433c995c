"""Index: bring a store up to date with a list of images, and process only changed images."""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from insclr.arrays import Descriptors
from insclr.data.camera_data import CAMERA_COLUMNS, read_camera_data
from insclr.data.formats import on_disk
from insclr.data.images import ImageList, Skipped
from insclr.describe.describer import Describer
from insclr.files import is_there
from insclr.options import IndexOptions
from insclr.progress import progress_bar, working
from insclr.retrieval.local_store import update_local
from insclr.retrieval.score import calibrate_store
from insclr.shards import Shard
from insclr.store import IndexedImage, Regions, Row, Store, StoreInfo, create_store

WHOLE = Shard()
_CAMERA_NOTE = "camera data"  # set once they were read; stores of earlier versions have none


class DescribedRow(NamedTuple):
    """A row of another store, whose descriptor can be taken."""

    store: Store
    row: Row


DescribedRows = Mapping[str, DescribedRow]  # by their paths in the store that is brought up to date


@dataclass
class IndexReport:
    """What an indexing run did, in images."""

    added: int = 0
    changed: int = 0
    updated: int = 0  # same content: only times, names or columns were written anew
    regions: int = 0  # same content, described again because the row had no regions
    unchanged: int = 0
    pruned: int = 0
    vanished: int = 0  # rows whose file is not in the list, kept without `prune`
    total: int = 0
    skipped: Skipped = field(default_factory=Skipped)
    not_read: Mapping[str, int] = field(default_factory=dict)  # what else the folder holds, by kind
    local: str = ""  # what was decided about local evidence, if anything was
    waits_for: str = ""  # of a shard that did not write the store: who will, or has

    def __repr__(self) -> str:
        return f"IndexReport({self.summary()})"

    def summary(self) -> str:
        """One line for people."""
        if self.waits_for:
            return f"{self.added + self.changed} images described; {self.waits_for}"
        counts = (
            (self.added, "added"),
            (self.changed, "changed"),
            (self.updated, "updated"),
            (self.regions, "given regions"),
            (self.unchanged, "unchanged"),
            (self.pruned, "dropped"),
            (self.vanished, "no longer listed (drop them with --prune)"),
            (len(self.skipped), "unreadable"),
        )
        return f"{self.total} images in the store: {_join_counts(counts) or 'nothing to do'}"

    def arrivals(self) -> str:
        """One line for people about what is new."""
        counts = ((self.added, "added"), (self.changed, "changed"))
        return f"{_join_counts(counts)}: {self.total} images in the store"


def _join_counts(counts: Iterable[tuple[int, str]]) -> str:
    return ", ".join(f"{count} {word}" for count, word in counts if count)


def index_images(
    describer: Describer,
    images: ImageList,
    uri: str | Path,
    options: IndexOptions = IndexOptions(),
    *,
    shard: Shard = WHOLE,
    described: DescribedRows | None = None,
    **changes: Any,
) -> IndexReport:
    """Index `images` into the store at `uri`, made where there is none.

    New files are described, changed ones described again, with `prune` rows of unlisted files dropped.
    With `regions` every row has some, also those that are there already; a store that has them goes on having them.
    A file of the same size and modification time counts as unchanged, unless `verify` has its content read. Every
    `batch` is one transaction: a run that is killed loses at most the batch at hand, and the next run goes on.
    Of several shards each brings its share of the images up to date, and the first one drops rows. What is
    `described` elsewhere is taken from there.
    """
    given = options.change(changes)
    root = Path(os.path.abspath(images.root))  # noqa: PTH100 (links stay as the user named them)
    info = StoreInfo(describer.name, describer.fingerprint, describer.dim, root, describer.size)
    with closing(create_store(uri, info)) as store, store.writing():
        run = _Run(describer, images, store, given, described or {})
        share = shard.share(len(images))
        with progress_bar("indexing", len(share)) as bar:
            for start in range(share.start, share.stop, given.batch):
                part = range(start, min(start + given.batch, share.stop))
                run.bring_up_to_date(part)
                bar.advance(len(part))
        if shard.first:
            run.drop_unlisted(given.prune)
        store.set_note(_CAMERA_NOTE, "1")
        with working("building the index"):
            store.settle()
        with working("calibrating the score"):
            calibrate_store(store)
        local = update_local(store, given.local)
        return replace(run.report, total=store.count(), not_read=images.not_read, local=local)


class _Run:
    """One run over the images, a batch at a time."""

    def __init__(
        self,
        describer: Describer,
        images: ImageList,
        store: Store,
        options: IndexOptions,
        described: DescribedRows,
    ) -> None:
        self.verify = options.verify
        self.described = described
        self.have_regions = set(store.region_ids().tolist())
        self.regions = options.regions or bool(self.have_regions)
        self.describer = describer
        self.images = images
        self.store = store
        self.report = IndexReport()
        self.known = store.rows_by_path()
        self.read_all_camera_data = store.note(_CAMERA_NOTE) is None
        self.paths = stored_paths(store.info.root, images)
        # Content described before, under whatever name: a moved or copied file keeps its descriptor.
        self.rows_by_hash = {row.image.hash: row.id for row in self.known.values()}

    def bring_up_to_date(self, part: range) -> None:
        """Write what is new about these images. A file that has no row of its size and time is read once."""
        same: list[IndexedImage] = []  # this store has a descriptor of their content
        taken: list[IndexedImage] = []  # another store has one
        to_read: dict[int, IndexedImage] = {}
        for i, image in self._list_present(part):
            if self._has_content(image.hash):
                same.append(image)
            elif image.path in self.described and self.described[image.path].row.image.hash == image.hash:
                taken.append(image)
            else:
                to_read[i] = image
        found = self.describer.files(
            self.images.subset(to_read), self.report.skipped, regions=self.regions, known=self._has_content
        )
        # The hash is that of the bytes described: where the file changed after `stat`, the next run reads it again.
        read = [
            self._add_camera_data(replace(one, hash=content), found.camera.get(row, {}))
            for row, (one, content) in enumerate(zip(to_read.values(), found.hashes, strict=True))
        ]
        # Before any row changes whose descriptor they share.
        self._keep_descriptors([*same, *(one for one in read if self._has_content(one.hash))])
        self._take(taken)
        new = [row for row in range(len(read)) if found.descriptors[row].any()]
        regions = [found.regions[row] for row in new] if self.regions else None
        self._upsert([read[row] for row in new], found.descriptors[new], regions)
        # What was read is no image: the old row would show what is no longer in the file.
        self._drop_stale([read[row].path for row in found.reasons if read[row].hash])

    def _has_content(self, content: str) -> bool:
        """Whether a complete row has this content, under whatever name."""
        return content in self.rows_by_hash and self._is_complete(self.rows_by_hash[content])

    def _is_complete(self, row: int) -> bool:
        """Whether a row has all that is asked of one."""
        return not self.regions or row in self.have_regions

    def drop_unlisted(self, prune: bool) -> None:
        """Drop the rows whose file is no longer listed or no longer there; without `prune` count them."""
        there = {path for i, path in enumerate(self.paths) if is_there(on_disk(self.images.file(i)))}
        gone = [path for path in self.known if path not in there]
        if prune and gone:
            self.store.delete(gone)
        self.report.pruned += len(gone) if prune else 0
        self.report.vanished += 0 if prune else len(gone)

    def _list_present(self, part: range) -> Iterator[tuple[int, IndexedImage]]:
        """The images of the batch that are there; with a hash where a row of the same size and time has one."""
        for i in part:
            path = self.paths[i]
            try:
                # Before the content is read: a change in between shows up as a change next time.
                state = on_disk(self.images.file(i)).stat()
            except OSError as error:
                self.report.skipped.add(self.images.paths[i], f"cannot be read: {error.strerror}")
                continue
            columns = {name: values[i] for name, values in self.images.columns.items()}
            if (row := self._find_row(path)) is not None:
                # A folder has no columns: those that a table gave before stay, and so does what the camera wrote.
                kept = {k: v for k, v in row.image.columns.items() if not columns or k in CAMERA_COLUMNS}
                columns = kept | {k: v for k, v in columns.items() if v or k not in kept}
            known_hash = self._known_hash(path, state)
            image = IndexedImage(path, known_hash, state.st_size, state.st_mtime_ns, columns)
            if self.read_all_camera_data and known_hash:
                image = self._add_camera_data(image, read_camera_data(self.images.file(i)))
            yield i, image

    def _add_camera_data(self, image: IndexedImage, camera: Mapping[str, str]) -> IndexedImage:
        """The image with these columns of its EXIF data, where the user gives no column of that name."""
        given = {
            name: value
            for name, value in image.columns.items()
            if name not in CAMERA_COLUMNS or (value and name in self.images.columns)
        }
        return replace(image, columns={**camera, **given})

    def _find_row(self, path: str) -> Row | None:
        """The row of this path, here or where it is described."""
        return self.known.get(path) or (self.described[path].row if path in self.described else None)

    def _known_hash(self, path: str, state: os.stat_result) -> str:
        """The hash of a file's content as a row has it that is not older than the file; else an empty text."""
        rows = [self.known.get(path), self.described[path].row if path in self.described else None]
        known = (row.image for row in rows if row is not None and not self.verify)
        return next((one.hash for one in known if is_unchanged(one, state)), "")

    def _keep_descriptors(self, images: Sequence[IndexedImage]) -> None:
        """Write rows whose content has a descriptor here: their own, or that of a moved or copied file."""
        update, copies = [], []
        for image in images:
            row = self.known.get(image.path)
            if row is None or row.image.hash != image.hash or not self._is_complete(row.id):
                copies.append(image)
            elif row.image != image:
                update.append(image)
            else:
                self.report.unchanged += 1
        if update:
            self.store.update(update)
            self.report.updated += len(update)
        if copies:
            rows = [self.rows_by_hash[one.hash] for one in copies]
            self._upsert(
                copies, self.store.descriptors(rows), self.store.regions(rows) if self.regions else None
            )

    def _take(self, images: Sequence[IndexedImage]) -> None:
        """Write rows that are described elsewhere; a batch lies in one store, or at the end of a share in two."""
        found = [(self.described[one.path], one) for one in images]
        for _, group in itertools.groupby(found, key=lambda pair: id(pair[0].store)):
            rows = list(group)
            store, ids = rows[0][0].store, [one.row.id for one, _ in rows]
            regions = store.regions(ids) if self.regions else None
            self._upsert([image for _, image in rows], store.descriptors(ids), regions)

    def _drop_stale(self, paths: Sequence[str]) -> None:
        stale = [path for path in paths if path in self.known]
        if stale:
            self.store.delete(stale)
            self._drop_content(stale)
            self.report.pruned += len(stale)

    def _upsert(
        self, images: Sequence[IndexedImage], descriptors: Descriptors, regions: Sequence[Regions] | None
    ) -> None:
        if images:
            self.store.upsert(images, descriptors, regions)
            known = [self.known[one.path].image.hash == one.hash for one in images if one.path in self.known]
            self.report.regions += sum(known)
            self.report.changed += len(known) - sum(known)
            self.report.added += len(images) - len(known)
            self._drop_content([one.path for one in images])

    def _drop_content(self, paths: Sequence[str]) -> None:
        """The rows of these paths no longer hold the descriptor of the content they had."""
        for row in (self.known[path] for path in paths if path in self.known):
            if self.rows_by_hash.get(row.image.hash) == row.id:
                del self.rows_by_hash[row.image.hash]


def stored_paths(root: Path, images: ImageList) -> list[str]:
    """The paths that rows are kept under: relative to the store's root, absolute when a file lies elsewhere."""
    files = (Path(os.path.abspath(images.file(i))) for i in range(len(images)))  # noqa: PTH100
    return [
        file.relative_to(root).as_posix() if file.is_relative_to(root) else file.as_posix() for file in files
    ]


def is_unchanged(image: IndexedImage, state: os.stat_result) -> bool:
    """Whether a file has the size and the time that a row was made from."""
    return (image.size, image.mtime) == (state.st_size, state.st_mtime_ns)
