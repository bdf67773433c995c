"""Stores: durable rows with descriptors, embedded (a folder) or in a Milvus cluster (an address)."""

from pathlib import Path
from typing import TYPE_CHECKING

from insclr.store.journal import Entry, new_entry
from insclr.store.local import LocalStore
from insclr.store.rows import (
    MAX_REGIONS,
    IndexedImage,
    NearestRegions,
    Neighbours,
    Regions,
    Row,
    Store,
    StoreInfo,
    StoreUnavailable,
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
    "is_milvus",
    "new_entry",
    "open_store",
    "parse_where",
]


def open_store(uri: str | Path) -> Store:
    """Open a store: a folder, or Milvus (`http://host:19530/NAME`, or a Milvus Lite file `NAME.db`)."""
    return _milvus()(str(uri)) if is_milvus(uri) else LocalStore(Path(uri))


def create_store(uri: str | Path, info: StoreInfo) -> Store:
    """Open a store for writing, making it where there is none; UserError when it is another model's."""
    store: Store = _milvus().create(str(uri), info) if is_milvus(uri) else LocalStore.create(Path(uri), info)
    try:
        store.info.refuse_other_model(info.fingerprint, store.uri)
        store.info.refuse_other_size(info.size, store.uri)
    except BaseException:
        store.close()
        raise
    return store


def is_milvus(uri: str | Path) -> bool:
    """Whether a store's address is one of Milvus; else it is a folder."""
    return "://" in str(uri) or str(uri).endswith(".db")


def _milvus() -> "type[MilvusStore]":
    """Loaded when first used: most stores are folders."""
    from insclr.store.milvus import MilvusStore

    return MilvusStore
