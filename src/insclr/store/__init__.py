"""Stores: durable rows with descriptors, embedded (a folder) or in a Milvus cluster (an address)."""

from pathlib import Path
from typing import TYPE_CHECKING

from insclr.arrays import MAX_REGIONS, Regions
from insclr.errors import UserError
from insclr.store.local import LocalStore
from insclr.store.rows import (
    Entry,
    IndexedImage,
    NearestRegions,
    Neighbours,
    Row,
    Store,
    StoreInfo,
    StoreUnavailable,
    new_entry,
)
from insclr.store.where import Condition, parse_where

if TYPE_CHECKING:
    from insclr.store.milvus import MilvusStore

__all__ = [
    "MAX_REGIONS",
    "Condition",
    "Entry",
    "IndexedImage",
    "NearestRegions",
    "Neighbours",
    "Regions",
    "Row",
    "Store",
    "StoreInfo",
    "StoreUnavailable",
    "create_store",
    "folder_of",
    "is_store",
    "new_entry",
    "open_store",
    "parse_where",
]


def open_store(uri: str | Path) -> Store:
    """Open a store: a folder, or Milvus (`http://host:19530/NAME`, or a Milvus Lite file `NAME.db`)."""
    folder = folder_of(uri)
    return _milvus()(str(uri)) if folder is None else LocalStore(folder)


def create_store(uri: str | Path, info: StoreInfo) -> Store:
    """Open a store for writing, making it where there is none; UserError when it is another model's."""
    folder = folder_of(uri)
    store: Store = _milvus().create(str(uri), info) if folder is None else LocalStore.create(folder, info)
    try:
        store.info.refuse_other_model(info.fingerprint, store.uri)
        store.info.refuse_other_size(info.size, store.uri)
    except BaseException:
        store.close()
        raise
    return store


def is_store(uri: str | Path) -> bool:
    """Whether this is the address of a store that exists, as far as that is known without a server."""
    folder = folder_of(uri)
    return folder is None or LocalStore.exists(folder)


def folder_of(uri: str | Path) -> Path | None:
    """The folder of a store with this address; None for Milvus."""
    return None if "://" in str(uri) or str(uri).endswith(".db") else Path(uri)


def _milvus() -> "type[MilvusStore]":
    """Loaded when first used: most stores are folders."""
    try:
        from insclr.store.milvus import MilvusStore
    except ModuleNotFoundError:
        raise UserError("a Milvus store needs pymilvus: pip install 'insclr[milvus]'") from None
    return MilvusStore
