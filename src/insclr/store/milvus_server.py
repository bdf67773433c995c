"""The connection to a Milvus server, which all reads and writes of the cluster store use.

A read of Milvus covers the writes that its query nodes have received so far; waiting for all of them ("Strong") takes
0.2 seconds. The first read of a collection waits, so that it covers all rows written before the store was opened. The
first read after our own write waits too. Other reads may be up to 5 seconds behind the writes of other processes
(Milvus' "Bounded").
"""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import grpc
import numpy as np
from pymilvus import MilvusClient
from pymilvus.exceptions import MilvusException

from insclr.arrays import Descriptors, Ids
from insclr.errors import UserError
from insclr.store.milvus_fields import UNUSED, Fields
from insclr.store.rows import StoreUnavailable

TOKEN = "INSCLR_MILVUS_TOKEN"  # environment variable: user:password, or an API key
HALF_MADE = "the store at {uri} was left half made: run `insclr index` again"
MAX_RESULTS = 16_384  # of one query: Milvus' own limit
_OLDEST = (2, 3)  # the first version with upsert and cosine
_PART, _PAGE = 1000, 10_000  # rows in one message: with descriptors (64 MB is the limit), and without
MAX_HITS_PER_MESSAGE = 500_000
_CONNECT, _ANSWER, _LOAD = 10.0, 60.0, 900.0  # seconds
WRITE_TIMEOUT = (
    180.0  # seconds: a killed server needs half a minute to restart, and an indexing run waits for it
)
_SETTLE = 900.0  # seconds that an indexing run waits for Milvus' own index
_BUSY = 0.5  # seconds before the next request to a server that is starting
_LONGEST = 300  # characters of an error message of the server
# SCANN: quantised rows in groups, whose best candidates are compared exactly. It is built in a fraction of the time
# of a graph (HNSW), and has a higher recall for data without clusters. Milvus scans segments of under 1,024 rows.
_GROUPS = 256  # per segment: a search reads all of them
_INDEX = {"index_type": "SCANN", "metric_type": "COSINE", "params": {"nlist": _GROUPS}}
_SCAN = {"index_type": "FLAT", "metric_type": "L2"}  # of such collections
_EFFORT, _MAX_EFFORT = 512, 32_768  # candidates that are compared exactly
_TEMPORARY = ("not ready", "not loaded", "not available", "unavailable", "no available", "deadlineexceeded")
_DENIED = ("quota", "limit exceeded", "deny", "rate limit", "ratelimiter", "no space")


class MilvusServer:
    """The server of an address `http://host:port/NAME`, or a Milvus Lite file, and its collections.

    Every error is a UserError in one sentence.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        server, self.name = _parse_uri(uri)
        self.client = _connect(uri, server)
        self._read: set[str] = set()  # collections that this process has read
        self._unread: set[str] = set()  # collections that this process has written since its last read
        version = str(self.call("get_server_version"))
        self.version = _version(version)
        if self.version < _OLDEST:
            raise UserError(f"Milvus at {uri} is of version {version}: insclr needs 2.3 or newer")

    def has(self, collection: str) -> bool:
        """Whether the server has this collection."""
        return bool(self.call("has_collection", collection))

    def describe(self, collection: str) -> tuple[str, set[str]]:
        """A collection's description, and the names of its fields."""
        found = self.call("describe_collection", collection)
        return str(found.get("description", "")), {str(field["name"]) for field in found["fields"]}

    def create(self, collection: str, fields: Fields, description: str = "") -> None:
        """Create a collection and its index where missing; two processes may do so at the same time."""
        vector = next(name for name, field in fields.items() if "dim" in field)
        if not self.has(collection):
            schema = self.client.create_schema(auto_id=False, description=description)
            for name, field in fields.items():
                schema.add_field(name, **field)
            with _unless(lambda: self.has(collection)):
                self.call("create_collection", collection, schema=schema)
        if not self._indexes(collection):
            index = self.client.prepare_index_params()
            index.add_index(vector, **(_SCAN if vector == UNUSED else _INDEX))
            with _unless(lambda: bool(self._indexes(collection))):
                self.call("create_index", collection, index)
        self.load(collection)

    def load(self, collection: str) -> None:
        """Load a collection into the memory of the server."""
        if not self._indexes(collection):
            raise UserError(HALF_MADE.format(uri=self.uri))
        self.call("load_collection", collection, timeout=_LOAD)

    def get(self, collection: str, ids: Sequence[Any], fields: list[str]) -> Iterator[dict[str, Any]]:
        """The rows of these keys, in any order; missing rows are left out."""
        for start in range(0, len(ids), _PART):
            part = list(ids[start : start + _PART])
            yield from self._reading("get", collection, ids=part, output_fields=fields)

    def every(
        self, collection: str, key: str, fields: list[str], page: int = _PAGE
    ) -> Iterator[dict[str, Any]]:
        """All rows, ascending by their key, which is a text or a number from 0 on; `fields` hold it."""
        # Milvus orders pages only for an iterator, which does not wait for writes. The count waits for them.
        self.count(collection)
        ordered: dict[str, Any] = {"limit": page, "iterator": "True", "reduce_stop_for_best": "True"}
        rows = self.call("query", collection, filter="", output_fields=fields, **ordered)
        while rows:
            yield from rows
            after = f"{key} > {json.dumps(rows[-1][key], ensure_ascii=False)}"
            rows = self.call("query", collection, filter=after, output_fields=fields, **ordered)

    def count(self, collection: str) -> int:
        """How many rows a collection has."""
        found = self._reading("query", collection, filter="", output_fields=["count(*)"])
        return int(found[0]["count(*)"])

    def search(
        self, collection: str, queries: Descriptors, top: int, expression: str, fields: list[str]
    ) -> Iterator[list[dict[str, Any]]]:
        """The nearest rows of each query among those that meet the filter: `id`, `distance` and `entity`.

        At most MAX_RESULTS of them.
        """
        limit = min(top, MAX_RESULTS)
        candidates = min(_MAX_EFFORT, max(_EFFORT, 4 * limit))
        effort = {"nprobe": _GROUPS, "reorder_k": candidates}
        step = max(1, min(_PART, MAX_HITS_PER_MESSAGE // limit))
        for start in range(0, len(queries), step):
            block = np.asarray(queries[start : start + step], dtype=np.float32)
            yield from self._reading(
                "search",
                collection,
                data=list(block),
                limit=limit,
                filter=expression,
                search_params={"metric_type": "COSINE", "params": effort},
                output_fields=fields,
            )

    def upsert(self, collection: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows, in place of those with the same keys."""
        for start in range(0, len(rows), _PART):
            self.call("upsert", collection, list(rows[start : start + _PART]), timeout=WRITE_TIMEOUT)
            self._unread.add(collection)

    def delete(self, collection: str, ids: Sequence[int] | Ids) -> None:
        """Remove the rows of these keys."""
        for start in range(0, len(ids), _PART):
            part = [int(one) for one in ids[start : start + _PART]]
            self.call("delete", collection, ids=part, timeout=WRITE_TIMEOUT)
            self._unread.add(collection)

    def settle(self, collection: str) -> bool:
        """Close the open segments and wait until they are indexed; returns whether this was done in time."""
        end = time.monotonic() + _SETTLE
        with _explain_errors(self.uri):
            try:
                self.client.flush(collection, timeout=_LOAD, retry_on_rate_limit=False)
            except MilvusException as error:  # a server with a rate limit flushes later, by itself
                if not _is_denied(error):
                    raise
        index = self._indexes(collection)[0]
        while self.call("describe_index", collection, index).get("pending_index_rows"):
            if time.monotonic() > end:
                return False
            time.sleep(_BUSY)
        return True

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def _indexes(self, collection: str) -> list[str]:
        return list(self.call("list_indexes", collection))

    def _reading(self, method: str, collection: str, **arguments: Any) -> Any:
        # "Session" would wait only for our own writes, but Milvus 2.3 gives deletions no timestamp.
        level = "Strong" if collection in self._unread or collection not in self._read else "Bounded"
        found = self.call(method, collection, consistency_level=level, **arguments)
        self._read.add(collection)
        self._unread.discard(collection)
        return found

    def call(self, method: str, *arguments: Any, timeout: float | None = None, **named: Any) -> Any:
        """Call a method of the client; repeat while the server is starting or busy, until the time is over."""
        timeout = timeout or _ANSWER
        deadline = time.monotonic() + timeout
        with _explain_errors(self.uri):
            while True:
                try:
                    return getattr(self.client, method)(*arguments, timeout=timeout, **named)
                except MilvusException as error:
                    if not _is_temporary(error) or time.monotonic() > deadline:
                        raise
                    time.sleep(_BUSY)


@contextmanager
def _unless(made: Callable[[], bool]) -> Iterator[None]:
    """Create something in this block; an error is ignored when another process has created it meanwhile."""
    try:
        yield
    except StoreUnavailable:
        if not made():
            raise


def _parse_uri(uri: str) -> tuple[str, str]:
    """The server's address without the collection, and the collection's name."""
    server, name = uri, "insclr"
    if "://" in uri:
        parts = urlsplit(uri)
        if parts.username or parts.password:
            raise UserError(
                "every user of this machine can read a password in an address: leave it out, and set "
                f"{TOKEN}=user:password instead"
            )
        server, name = f"{parts.scheme}://{parts.netloc}", parts.path.strip("/") or "insclr"
    if not name.isidentifier() or not name.isascii():
        raise UserError(f"{name!r} cannot name a Milvus collection: letters, digits and _ only")
    return server, name


def _connect(uri: str, server: str) -> Any:
    # The log of pymilvus repeats every raised error with a traceback.
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    token = os.environ.get(TOKEN, "")
    began = time.monotonic()
    with _explain_errors(uri):
        try:
            return MilvusClient(uri=server, token=token, timeout=_CONNECT)
        except MilvusException:
            if time.monotonic() - began > _CONNECT / 2:
                raise
            # A server closes idle connections ("too many pings"). A second attempt opens a new one.
            return MilvusClient(uri=server, token=token, timeout=_CONNECT)


def _version(text: str) -> tuple[int, int]:
    """Parse the version of a server. Milvus Lite has its own numbers and counts as the newest."""
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (9, 9)


@contextmanager
def _explain_errors(uri: str) -> Iterator[None]:
    try:
        yield
    except MilvusException as error:
        raise StoreUnavailable(_sentence(uri, error, _shorten(error.message))) from error
    except grpc.RpcError as error:  # pymilvus does not convert all of them: a deadline, a lost server
        reason = error.details() if hasattr(error, "details") else type(error).__name__
        raise StoreUnavailable(_sentence(uri, error, str(reason))) from error


def _sentence(uri: str, error: Exception, reason: str) -> str:
    if _is_locked(error):
        now = "its current value is wrong" if os.environ.get(TOKEN) else "it is empty now"
        return f"Milvus at {uri} requires the right password: set {TOKEN}=user:password ({now})"
    if "fail connecting" in reason.lower():
        return f"Milvus at {uri} cannot be reached: is it running there, and is the address right?"
    if _is_denied(error):
        return (
            f"Milvus at {uri} refuses the request because of a quota or too little memory or disk ({reason}): "
            "free some. Rows written so far are intact. Run the same command to continue."
        )
    return f"Milvus at {uri} reports an error: {reason}"


def _is_locked(error: BaseException) -> bool:
    """Whether the server refuses the password; pymilvus hides that behind its own errors."""
    behind, seen = [error], set[int]()
    while behind:
        one = behind.pop()
        if re.search(r"unauthenticated|auth check failure", str(one), re.IGNORECASE):
            return True
        seen.add(id(one))  # some errors are their own cause
        behind += [
            cause for cause in (one.__cause__, one.__context__) if cause is not None and id(cause) not in seen
        ]
    return False


def _is_denied(error: Exception) -> bool:
    reason = str(getattr(error, "message", "")).lower()
    return getattr(error, "code", None) in (8, 9) or any(word in reason for word in _DENIED)


def _is_temporary(error: Exception) -> bool:
    """Whether the server is starting or busy, so that a later request may succeed."""
    reason = str(getattr(error, "message", "")).lower()
    return any(words in reason for words in _TEMPORARY)


def _shorten(message: object) -> str:
    """The message of a Milvus error, without its stack trace."""
    text = re.sub(r"stack trace:(\s+\S+:\d+\s+\S+)+", "", str(message))
    return " ".join(text.split())[:_LONGEST]
