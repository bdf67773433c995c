"""A connection to a Milvus server: what all reads and writes of the cluster store have in common.

Milvus answers a read from what its query nodes have seen so far; waiting until they have seen everything ("Strong")
takes a fifth of a second. Here the first read of a collection waits, so that what was written before the store was
opened is found, and so does the first read after a write of our own; other reads may be up to 5 seconds behind what
other processes write (Milvus' "Bounded").
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

import numpy as np

from insclr.arrays import Descriptors, Ids
from insclr.errors import UserError
from insclr.store.rows import StoreUnavailable

TOKEN = "INSCLR_MILVUS_TOKEN"  # environment variable: user:password, or an API key
HALF_MADE = "the store at {uri} was left half made: run `insclr index` again"
MAX_RESULTS = 16_384  # of one query: Milvus' own limit
_OLDEST = (2, 3)  # upsert and cosine came with it
_PART, _PAGE = 1000, 10_000  # rows in one message: with descriptors (64 MB is the limit), and without
MAX_HITS_PER_MESSAGE = 500_000
_CONNECT, _ANSWER, _LOAD = 10.0, 60.0, 900.0  # seconds
WRITE_TIMEOUT = (
    180.0  # seconds: a killed server needs half a minute to restart, and an indexing run waits for it
)
_SETTLE = 900.0  # seconds that an indexing run waits for Milvus' own index
_BUSY = 0.5  # seconds before a server that is starting is asked again
_LONGEST = 300  # characters of what a server says
# Rows packed to half a byte for two numbers, in groups; what looks best is compared exactly. Built in a fraction of
# the time of a graph (HNSW), and finds more where nothing lies in groups. Segments of under 1,024 rows are scanned.
_GROUPS = 256  # of a segment, all of which are looked at
_INDEX = {"index_type": "SCANN", "metric_type": "COSINE", "params": {"nlist": _GROUPS}}
UNUSED = "unused"  # the vector of a collection of texts, which must have one
_SCAN = {"index_type": "FLAT", "metric_type": "L2"}  # of such collections
_EFFORT, _MAX_EFFORT = 512, 32_768  # candidates that are compared exactly
_PASSING = ("not ready", "not loaded", "not available", "unavailable", "no available", "deadlineexceeded")
_DENIED = ("quota", "limit exceeded", "deny", "rate limit", "ratelimiter", "no space")

Fields = Mapping[str, Mapping[str, Any]]  # what pymilvus' `add_field` takes, by the fields' names


class MilvusServer:
    """The server of an address `http://host:port/NAME`, or a Milvus Lite file, and its collections.

    What goes wrong is a UserError in one sentence.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        server, self.name = _parse_uri(uri)
        self._client = _connect(uri, server)
        self._read: set[str] = set()  # collections that were read before
        self._unread: set[str] = set()  # collections with writes of ours since the last read
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
        """Make a collection with its index, or what is missing of one; two that do so at once make one."""
        vector = next(name for name, field in fields.items() if "dim" in field)
        if not self.has(collection):
            schema = self._client.create_schema(auto_id=False, description=description)
            for name, field in fields.items():
                schema.add_field(name, **field)
            with _unless(lambda: self.has(collection)):
                self.call("create_collection", collection, schema=schema)
        if not self._indexes(collection):
            index = self._client.prepare_index_params()
            index.add_index(vector, **(_SCAN if vector == UNUSED else _INDEX))
            with _unless(lambda: bool(self._indexes(collection))):
                self.call("create_index", collection, index)
        self.load(collection)

    def load(self, collection: str) -> None:
        """Have the server hold a collection ready to be read."""
        if not self._indexes(collection):
            raise UserError(HALF_MADE.format(uri=self.uri))
        self.call("load_collection", collection, timeout=_LOAD)

    def get(self, collection: str, ids: Sequence[Any], fields: list[str]) -> Iterator[dict[str, Any]]:
        """The rows of these keys, in any order; those that are gone are left out."""
        for start in range(0, len(ids), _PART):
            part = list(ids[start : start + _PART])
            yield from self._reading("get", collection, ids=part, output_fields=fields)

    def every(
        self, collection: str, key: str, fields: list[str], page: int = _PAGE
    ) -> Iterator[dict[str, Any]]:
        """All rows, ascending by their key, which is a text or a number from 0 on; `fields` hold it."""
        # Milvus gives pages in order only to an iterator, and waits for no write then: the count does.
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
        # ef is for collections that were made with a graph.
        effort = {"nprobe": _GROUPS, "reorder_k": candidates, "ef": candidates}
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
        """Close the segments at hand and wait until they are indexed; whether they are when the time is over."""
        from pymilvus.exceptions import MilvusException

        end = time.monotonic() + _SETTLE
        with _explain_errors(self.uri):
            try:
                self._client.flush(collection, timeout=_LOAD, retry_on_rate_limit=False)
            except MilvusException as error:  # one that is asked too often does it later, by itself
                if not _is_denied(error):
                    raise
        index = self._indexes(collection)[0]
        while self.call("describe_index", collection, index).get("pending_index_rows"):
            if time.monotonic() > end:
                return False
            time.sleep(_BUSY)
        return True

    def close(self) -> None:
        """Leave the server."""
        self._client.close()

    def _indexes(self, collection: str) -> list[str]:
        return list(self.call("list_indexes", collection))

    def _reading(self, method: str, collection: str, **arguments: Any) -> Any:
        # "Session" would wait for our own writes alone, but not for deletions: Milvus 2.3 gives those no time.
        level = "Strong" if collection in self._unread or collection not in self._read else "Bounded"
        found = self.call(method, collection, consistency_level=level, **arguments)
        self._read.add(collection)
        self._unread.discard(collection)
        return found

    def call(self, method: str, *arguments: Any, timeout: float | None = None, **named: Any) -> Any:
        """Ask the server; one that is just starting or busy is asked again until the time is over."""
        from pymilvus.exceptions import MilvusException

        timeout = timeout or _ANSWER
        deadline = time.monotonic() + timeout
        with _explain_errors(self.uri):
            while True:
                try:
                    return getattr(self._client, method)(*arguments, timeout=timeout, **named)
                except MilvusException as error:
                    if not _is_passing(error) or time.monotonic() > deadline:
                        raise
                    time.sleep(_BUSY)


@contextmanager
def _unless(made: Callable[[], bool]) -> Iterator[None]:
    """Making something that another process may have made since it was looked for: that it is there is enough."""
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
                "a password in an address can be read by everybody on this machine: leave it out, and set "
                f"{TOKEN}=user:password instead"
            )
        server, name = f"{parts.scheme}://{parts.netloc}", parts.path.strip("/") or "insclr"
    if not name.isidentifier() or not name.isascii():
        raise UserError(f"{name!r} cannot name a Milvus collection: letters, digits and _ only")
    return server, name


def _connect(uri: str, server: str) -> Any:
    try:
        from pymilvus import MilvusClient
    except ImportError:
        raise UserError("a Milvus store needs pymilvus: pip install 'insclr[milvus]'") from None
    # Its own log repeats, with a traceback, every error that is raised to us anyway.
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    token = os.environ.get(TOKEN, "")
    began = time.monotonic()
    with _explain_errors(uri):
        from pymilvus.exceptions import MilvusException

        try:
            return MilvusClient(uri=server, token=token, timeout=_CONNECT)
        except MilvusException:
            if time.monotonic() - began > _CONNECT / 2:
                raise
            # A server closes connections that were idle ("too many pings"): a second attempt opens a new one.
            return MilvusClient(uri=server, token=token, timeout=_CONNECT)


def _version(told: str) -> tuple[int, int]:
    """A server's version; Milvus Lite, which counts its own, can what the newest can."""
    found = re.match(r"v?(\d+)\.(\d+)", told)
    return (int(found[1]), int(found[2])) if found else (9, 9)


@contextmanager
def _explain_errors(uri: str) -> Iterator[None]:
    import grpc
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except MilvusException as error:
        raise StoreUnavailable(_sentence(uri, error, _shorten(error.message))) from error
    except grpc.RpcError as error:  # pymilvus lets some through: a deadline, a server that went away
        reason = error.details() if hasattr(error, "details") else type(error).__name__
        raise StoreUnavailable(_sentence(uri, error, str(reason))) from error


def _sentence(uri: str, error: Exception, reason: str) -> str:
    if _is_locked(error):
        now = "what it holds now is wrong" if os.environ.get(TOKEN) else "it is empty now"
        return f"Milvus at {uri} lets nobody in without the right password: set {TOKEN}=user:password ({now})"
    if "fail connecting" in reason.lower():
        return f"Milvus at {uri} cannot be reached: is it running there, and is the address right?"
    if _is_denied(error):
        return (
            f"Milvus at {uri} refuses it, for a quota or want of memory or disk ({reason}): make room there. What "
            "was written is whole, and the same command goes on"
        )
    return f"Milvus at {uri} does not answer as it should: {reason}"


def _is_locked(error: BaseException) -> bool:
    """Whether the server wants another password; pymilvus hides that behind errors of its own."""
    behind, seen = [error], set[int]()
    while behind:
        one = behind.pop()
        if re.search(r"unauthenticated|auth check failure", str(one), re.IGNORECASE):
            return True
        seen.add(id(one))  # some are their own cause
        behind += [
            cause for cause in (one.__cause__, one.__context__) if cause is not None and id(cause) not in seen
        ]
    return False


def _is_denied(error: Exception) -> bool:
    reason = str(getattr(error, "message", "")).lower()
    return getattr(error, "code", None) in (8, 9) or any(word in reason for word in _DENIED)


def _is_passing(error: Exception) -> bool:
    """Whether a server that is starting, or busy, may answer the next time."""
    reason = str(getattr(error, "message", "")).lower()
    return any(words in reason for words in _PASSING)


def _shorten(message: object) -> str:
    """What an error of Milvus says, without the places in its source."""
    told = re.sub(r"stack trace:(\s+\S+:\d+\s+\S+)+", "", str(message))
    return " ".join(told.split())[:_LONGEST]
