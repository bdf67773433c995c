"""Index: bring a store up to date with a list of images, and process only changed images."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from insclr.arrays import Descriptors
from insclr.data.camera_data import CAMERA_COLUMNS, read_camera_data
from insclr.data.formats import on_disk
from insclr.data.images import ImageList, Skipped
from insclr.describe.describer import Describer
from insclr.describe.descriptor_parts import DescribedParts
from insclr.describe.pipeline import Described
from insclr.errors import UserError
from insclr.files import is_there, only_writer, whole_file
from insclr.options import IndexOptions
from insclr.progress import progress_bar, working
from insclr.retrieval.local_store import update_local
from insclr.retrieval.score import calibrate_store
from insclr.shards import PATIENCE, Shard, left_to_do
from insclr.store import IndexedImage, Regions, Store, StoreInfo, create_store, folder_of, open_store

_WHOLE = Shard()
Describe = Callable[..., Described]  # `Describer.files`
_CAMERA_NOTE = "camera data"  # set once they were read; stores of earlier versions have none


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
    shard: Shard = _WHOLE,
    **changes: Any,
) -> IndexReport:
    """Index `images` into the store at `uri`, made where there is none.

    New files are described, changed ones described again, with `prune` rows of unlisted files dropped.
    With `regions` every row has some, also those that are there already; a store that has them goes on having them.
    A file of the same size and modification time counts as unchanged, unless `verify` has its content read. Every
    `batch` is one transaction: a run that is killed loses at most the batch at hand, and the next run goes on.
    Of several shards each describes its share. A server takes all rows at once; for a folder every shard
    keeps what it described beside the store, and the last one writes the store, as one process would have.
    """
    given = options.change(changes)
    if not shard.whole and given.verify:
        raise UserError("--verify reads every photo in one process: leave --shard out.")
    folder = folder_of(uri)
    if not shard.whole and folder is not None:
        return _Shares(describer, images, folder, shard, given).index()
    batches = _batches(images, given, shard)
    return _bring_up_to_date(describer, images, uri, given, batches, describer.files, first=shard.first)


def _batches(images: ImageList, options: IndexOptions, shard: Shard = _WHOLE) -> list[range]:
    """The batches of a shard: those of one process, shared out."""
    batches = list(_WHOLE.batches(len(images), options.batch))
    return [batches[i] for i in shard.share(len(batches))]


def _bring_up_to_date(
    describer: Describer,
    images: ImageList,
    uri: str | Path,
    options: IndexOptions,
    batches: Sequence[range],
    describe: Describe,
    *,
    first: bool = True,
) -> IndexReport:
    """Write what is new about the images of these batches; the first of several processes drops rows too."""
    info = StoreInfo(describer.name, describer.fingerprint, describer.dim, _root_of(images), describer.size)
    with closing(create_store(uri, info)) as store, store.writing():
        run = _Run(images, store, options, describe)
        with progress_bar("indexing", sum(map(len, batches))) as bar:
            for part in batches:
                run.write(*run.read(part))
                bar.advance(len(part))
        if first:
            run.drop_unlisted(options.prune)
        store.set_note(_CAMERA_NOTE, "1")
        with working("building the index"):
            store.settle()
        with working("calibrating the score"):
            calibrate_store(store)
        local = update_local(store, options.local)
        return replace(run.report, total=store.count(), not_read=images.not_read, local=local)


class _Shares:
    """What several processes describe for the store in a folder: parts in a folder beside it."""

    def __init__(
        self, describer: Describer, images: ImageList, store: Path, shard: Shard, options: IndexOptions
    ) -> None:
        self._describer, self._images, self._store, self._shard = describer, images, store, shard
        self._options = options
        self._folder = store.with_name(f".{store.name}.shards")

    def index(self) -> IndexReport:
        """Describe this shard's images that the store does not know; write the store where all others are done."""
        number = self._shard.number
        self._done_file(number).unlink(missing_ok=True)
        report = self._describe_share()
        with whole_file(self._done_file(number)) as scratch:
            scratch.write_text(self._digest(number))
        missing = self._shard.complete(self._missing)
        merged = None if missing or not self._shard.merges else self._merge()
        return merged or replace(
            report, waits_for=left_to_do(missing, self._shard, f"{self._store} is written")
        )

    def _describe_share(self) -> IndexReport:
        with ExitStack() as stack:
            store = None
            if self._store.exists():
                store = stack.enter_context(closing(open_store(self._store)))
                store.info.refuse_other_model(self._describer.fingerprint, store.uri)
                store.info.refuse_other_size(self._describer.size, store.uri)
            run = _Run(self._images, store, self._options, self._describe)
            for part in _batches(self._images, self._options, self._shard):
                *_, found = run.read(part)
                run.report.added += int(found.descriptors.any(1).sum())
            return run.report

    def _merge(self) -> IndexReport | None:
        """Write the store from all parts; None when another shard has done so."""
        with only_writer(self._folder / "lock", PATIENCE):
            if self._is_merged():
                return None
            batches = _batches(self._images, self._options)
            report = _bring_up_to_date(
                self._describer, self._images, self._store, self._options, batches, self._describe
            )
            for number in self._shard.numbers:
                self._done_file(number).unlink()
            # A shard that was started once more may be at work there.
            shutil.rmtree(self._folder, ignore_errors=True)
        return report

    def _describe(
        self, images: ImageList, skipped: Skipped, *, regions: bool, known: Callable[[str], bool]
    ) -> Described:
        """As the describer does; parts that a shard has described are read."""
        if not len(images):
            return self._describer.files(images, skipped, regions=regions)
        parts = DescribedParts(
            self._folder, f"{self._describer.fingerprint} {self._describer.size} {regions}"
        )
        make = partial(self._describer.files, images, Skipped(), regions=regions, known=known)
        found = parts.describe(images, None, make, known)
        for row, reason in found.reasons.items():
            skipped.add(images.paths[row], reason)
        return found

    def _missing(self) -> list[int]:
        """The shards that are not done with these images; none once another one has written the store."""
        return [] if self._is_merged() else [one for one in self._shard.numbers if not self._is_done(one)]

    def _is_done(self, number: int) -> bool:
        file = self._done_file(number)
        return file.exists() and file.read_text() == self._digest(number)

    def _is_merged(self) -> bool:
        return not self._done_file(self._shard.number).exists()

    def _done_file(self, number: int) -> Path:
        return self._folder / f"{number}-of-{self._shard.of}.done"

    def _digest(self, number: int) -> str:
        shard = Shard(number, self._shard.of)
        paths = (self._images.paths[i] for part in _batches(self._images, self._options, shard) for i in part)
        text = "\n".join([self._describer.fingerprint, str(self._describer.size), *paths])
        return hashlib.sha256(text.encode()).hexdigest()


# Images whose content the store knows, images that were read, and what was described of the latter.
Batch = tuple[list[IndexedImage], list[IndexedImage], Described]


class _Run:
    """One run over the images, a batch at a time; without a store nothing is known and only read."""

    def __init__(
        self, images: ImageList, store: Store | None, options: IndexOptions, describe: Describe
    ) -> None:
        self.verify = options.verify
        self.have_regions = set(store.region_ids().tolist() if store else ())
        self.regions = options.regions or bool(self.have_regions)
        self.describe = describe
        self.images = images
        self.report = IndexReport()
        self.known = store.rows_by_path() if store else {}
        self.read_all_camera_data = store is not None and store.note(_CAMERA_NOTE) is None
        self.paths = _stored_paths(store.info.root if store else _root_of(images), images)
        # Content described before, under whatever name: a moved or copied file keeps its descriptor.
        self.rows_by_hash = {row.image.hash: row.id for row in self.known.values()}
        if store:
            self.store = store

    def read(self, part: range) -> Batch:
        """Describe what is new about these images. A file that has no row of its size and time is read once."""
        same: list[IndexedImage] = []  # the store has a descriptor of their content
        to_read: dict[int, IndexedImage] = {}
        for i, image in self._list_present(part):
            if self._has_content(image.hash):
                same.append(image)
            else:
                to_read[i] = image
        found = self.describe(
            self.images.subset(to_read), self.report.skipped, regions=self.regions, known=self._has_content
        )
        # The hash is that of the bytes described: where the file changed after `stat`, the next run reads it again.
        read = [
            self._add_camera_data(replace(one, hash=content), found.camera.get(row, {}))
            for row, (one, content) in enumerate(zip(to_read.values(), found.hashes, strict=True))
        ]
        return same, read, found

    def write(self, same: list[IndexedImage], read: list[IndexedImage], found: Described) -> None:
        """Write what `read` has found."""
        # Before any row changes whose descriptor they share.
        self._keep_descriptors([*same, *(one for one in read if self._has_content(one.hash))])
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
            if (row := self.known.get(path)) is not None:
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

    def _known_hash(self, path: str, state: os.stat_result) -> str:
        """The hash of a file's content where the row has it and is not older than the file; else an empty text."""
        row = None if self.verify else self.known.get(path)
        unchanged = row is not None and (row.image.size, row.image.mtime) == (
            state.st_size,
            state.st_mtime_ns,
        )
        return row.image.hash if row is not None and unchanged else ""

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


def _stored_paths(root: Path, images: ImageList) -> list[str]:
    """The paths that rows are kept under: relative to the store's root, absolute when a file lies elsewhere."""
    files = (Path(os.path.abspath(images.file(i))) for i in range(len(images)))  # noqa: PTH100
    return [
        file.relative_to(root).as_posix() if file.is_relative_to(root) else file.as_posix() for file in files
    ]


def _root_of(images: ImageList) -> Path:
    return Path(os.path.abspath(images.root))  # noqa: PTH100 (links stay as the user named them)
