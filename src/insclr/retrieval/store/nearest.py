"""The fast search beside the rows: an exact half-precision scan, and for many rows a coarse scan before it.

Measured on 100,000 random 512-d vectors, one core: the exact scan takes 7.4 ms a query (recall@10 0.999
against float32); a 4-bit product-quantised scan that keeps the best 300 for exact rescoring takes 1.1 ms at
recall 0.994 and builds in 4 s. Inverted lists cannot beat that there: random vectors have no cells to skip
(a quarter of the lists of an IVF: recall 0.46).
"""

import logging
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Descriptors, Ids, Scores
from insclr.files import whole_file
from insclr.retrieval.store.rows import Neighbours

_log = logging.getLogger(__name__)
faiss: Any = import_module("faiss")  # its type stubs know nothing of the Python layer

EXACT_UP_TO = 20_000  # rows; below, the exact scan is as fast (1.5 ms)
_RESCORED = 300
_TRAINING_ROWS = 50_000
_FEW_QUERIES = 8
_THREADS: int = faiss.omp_get_max_threads()


class NearestRows:
    """Rows in memory, searched by cosine.

    `coarse_file` is where the trained coarse scan is kept between runs; its name must change with the rows,
    and a file that does not fit or cannot be read is made again.
    """

    def __init__(self, ids: Ids, descriptors: NDArray[np.float16], coarse_file: Path | None = None) -> None:
        count, dim = descriptors.shape
        self.ids = ids  # (rows,) ascending
        self._exact = faiss.IndexScalarQuantizer(
            dim, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        )
        self._exact.add_sa_codes(np.ascontiguousarray(descriptors).view(np.uint8))
        # The same memory seen as an array: rows are read back without a second copy.
        self._descriptors: NDArray[np.float16] = (
            faiss.rev_swig_ptr(self._exact.codes.data(), count * dim * 2).view(np.float16).reshape(count, dim)
            if count
            else descriptors
        )
        self._coarse = self._coarse_scan(coarse_file) if count > EXACT_UP_TO and dim % 2 == 0 else None

    def positions(self, ids: Ids) -> NDArray[np.int64]:
        """Where these ids are in memory; KeyError when one is not there."""
        if not len(self.ids):
            if len(ids):
                raise KeyError(int(ids[0]))
            return ids
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        gone = self.ids[places] != ids
        if gone.any():
            raise KeyError(int(ids[gone][0]))
        return places

    def descriptors(self, ids: Ids) -> Descriptors:
        """The descriptors of these ids in this order."""
        return self._descriptors[self.positions(ids)].astype(np.float32)

    def search(self, queries: Descriptors, top: int, allowed: NDArray[np.bool_] | None = None) -> Neighbours:
        """The `top` nearest rows of each query, among the `allowed` ones (one flag a row)."""
        found = min(top, len(self.ids) if allowed is None else int(allowed.sum()))
        ids = np.full((len(queries), top), -1, dtype=np.int64)
        similarities = np.full((len(queries), top), -1.0, dtype=np.float32)
        if not found:
            return Neighbours(ids, similarities)
        # One query is one thread's work in faiss, a team would only wait (the setting is per thread).
        faiss.omp_set_num_threads(1 if len(queries) <= _FEW_QUERIES else _THREADS)
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        rescored = max(_RESCORED, 4 * top)
        if self._coarse is not None and allowed is None and rescored < len(self.ids) // 4:
            near, places = self._two_scans(queries, top, rescored)
        else:
            near, places = self._exact.search(queries, found, params=_only(allowed))
        ids[:, :found] = self.ids[places[:, :found]]
        similarities[:, :found] = near[:, :found]
        return Neighbours(ids, similarities)

    def _two_scans(self, queries: Descriptors, top: int, rescored: int) -> tuple[Scores, Ids]:
        assert self._coarse is not None
        _, candidates = self._coarse.search(queries, rescored)  # (queries, rescored)
        near = np.empty((len(queries), top), dtype=np.float32)
        places = np.empty((len(queries), top), dtype=np.int64)
        for query, rows, best, where in zip(queries, candidates, near, places, strict=True):
            rows = rows[rows >= 0]
            similarities = self._descriptors[rows].astype(np.float32) @ query
            order = np.argsort(-similarities)[:top]
            best[:], where[:] = similarities[order], rows[order]
        return near, places

    def _coarse_scan(self, file: Path | None) -> Any:
        kept = _read(file) if file is not None else None
        if kept is not None and kept.ntotal == len(self.ids) and kept.d == self._descriptors.shape[1]:
            return kept
        dim = self._descriptors.shape[1]
        faiss.omp_set_num_threads(1)  # two numbers at a time: too little work for a team
        coarse = faiss.IndexPQFastScan(dim, dim // 2, 4, faiss.METRIC_INNER_PRODUCT)
        sample = np.random.default_rng(0).choice(
            len(self.ids), min(_TRAINING_ROWS, len(self.ids)), replace=False
        )
        coarse.train(self._descriptors[np.sort(sample)].astype(np.float32))
        for start in range(0, len(self.ids), 65536):
            coarse.add(self._descriptors[start : start + 65536].astype(np.float32))
        if file is not None:
            _write(coarse, file)
        return coarse


def _only(allowed: NDArray[np.bool_] | None) -> Any:
    if allowed is None:
        return None
    return faiss.SearchParameters(sel=faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little")))


def _read(file: Path) -> Any:
    if not file.exists():
        return None
    try:
        return faiss.read_index(str(file))
    except RuntimeError as error:
        _log.warning("%s cannot be read (%s): it is made again", file, error)
        return None


def _write(coarse: Any, file: Path) -> None:
    try:
        with whole_file(file) as scratch:
            faiss.write_index(coarse, str(scratch))
        for old in file.parent.glob(f"{file.name.split('-')[0]}-*{file.suffix}"):
            if old != file:
                old.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("%s cannot be kept (%s): it is made again next time", file, error)
