"""Local evidence of a store: whether it is used, which a test of the collection decides, and what is kept for it."""

import json
import logging
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from insclr.arrays import Ids
from insclr.errors import UserError
from insclr.progress import working
from insclr.retrieval.local_database import LocalFeatureDatabase, keep_features
from insclr.retrieval.local_evidence import LocalEvidence, confirm_neighbours, learn_weight
from insclr.retrieval.local_features import LocalFeatures
from insclr.retrieval.local_index import SAMPLED_IMAGES, LocalIndex, Vocabulary, Words
from insclr.retrieval.score import Answer, score_curve_of
from insclr.store import Store

_log = logging.getLogger(__name__)

_NOTE = "local evidence"
_LEAST_ROWS = 30
_GROWN = 8  # a vocabulary is learned anew when a collection has grown so many times


@dataclass(frozen=True)
class Decision:
    """Whether searches of a store use local evidence, why, and the weight of the evidence by what people answered."""

    used: bool
    reason: str
    rows: int  # of the store then
    weight: float = 1.0

    def line(self) -> str:
        """One line for people."""
        return f"local evidence {'on' if self.used else 'off'}: {self.reason}"


def decision_of(store: Store) -> Decision | None:
    """What was decided for a store; None where nothing was."""
    try:
        values: dict[str, Any] = json.loads(store.note(_NOTE) or "null")
        return Decision(**values)
    except (ValueError, TypeError):
        return None


def update_local(store: Store, choice: str) -> str:
    """Bring local features up to date, where they are wanted ("on") or help ("auto"); a line for people, or none."""
    kept_decision = decision_of(store)
    with closing(LocalFeatureDatabase(store.parts)) as kept:
        kept.drop(kept.hashes() - {row.image.hash for row in store.rows_by_path().values()})
        decision = _decide(store, kept, choice, kept_decision)
        if decision is None:
            return ""
        if not decision.used:
            kept.drop(kept.hashes())
        else:
            keep_features(store, kept, store.rows_by_path().values())
            _keep_words(kept)
        store.set_note(_NOTE, json.dumps(asdict(decision)))
    return decision.line() if decision != kept_decision else ""


def learn_from_answers(store: Store, answers: Sequence[Answer], before: Store | None = None) -> None:
    """Learn the weight of the evidence from pairs that people answered, with calibrated scores of their cosines.

    Where the model of the store was trained on the answers, they are rows of the store `before`, whose model was not.
    """
    rows = before or store
    decision, local = decision_of(store), local_evidence_of(rows, "auto")
    if decision is not None and decision.used and local is not None:
        with working("learning what matched points are worth"):
            weight = learn_weight(local, rows, score_curve_of(rows), answers)
        store.set_note(_NOTE, json.dumps(asdict(replace(decision, weight=weight))))


def _decide(
    store: Store, kept: LocalFeatureDatabase, choice: str, before: Decision | None
) -> Decision | None:
    rows = store.count()
    if choice == "off":
        return Decision(False, "switched off", rows) if before or kept.hashes() else None
    if choice == "on":
        return before if before and before.used else Decision(True, "switched on", rows)
    if before and rows < 2 * before.rows:
        return before
    if rows < _LEAST_ROWS:
        return None
    with working("testing whether matched points help"):
        return _test(store, kept, before)


def _test(store: Store, kept: LocalFeatureDatabase, before: Decision | None) -> Decision:
    """Whether verification confirms neighbours far more often than random pairs."""

    def extract(ids: Ids) -> list[LocalFeatures | None]:
        rows = {row.id: row for row in store.rows(ids.tolist())}
        keep_features(store, kept, rows.values())
        found = kept.read([row.image.hash for row in rows.values()])
        return [found.get(rows[one].image.hash) if one in rows else None for one in ids.tolist()]

    result = confirm_neighbours(store, extract)
    return Decision(result.helps, result.reason(), store.count(), before.weight if before else 1.0)


def _keep_words(kept: LocalFeatureDatabase) -> None:
    """Quantise the points of every image that has features and no words."""
    hashes = sorted(kept.hashes())
    vocabulary = kept.vocabulary()
    learned_from = 0 if vocabulary is None else Vocabulary.from_bytes(vocabulary).images
    if len(hashes) > _GROWN * learned_from:
        chosen = np.random.default_rng(0).permutation(hashes)[:SAMPLED_IMAGES].tolist()
        learned = Vocabulary.learn(list(kept.read(chosen).values()), images=len(hashes))
        kept.write_vocabulary(vocabulary := learned.to_bytes())
    assert vocabulary is not None or not hashes
    missing = sorted(set(hashes) - kept.words().keys())
    for start in range(0, len(missing), 256):
        quantise = Vocabulary.from_bytes(vocabulary or b"").quantise
        features = kept.read(missing[start : start + 256])
        kept.write_words({one: quantise(found).to_bytes() for one, found in features.items()})


def _open(store: Store, kept: LocalFeatureDatabase) -> LocalEvidence | None:
    """The local evidence of a store's images; None where there are no features."""
    vocabulary, words = kept.vocabulary(), kept.words()
    rows = sorted(
        (row.id, row.image.hash) for row in store.rows_by_path().values() if row.image.hash in words
    )
    if vocabulary is None or not rows:
        return None
    hashes = dict(rows)
    index = LocalIndex(Vocabulary.from_bytes(vocabulary), [Words.from_bytes(words[one]) for _, one in rows])

    def read(ids: Ids) -> Sequence[LocalFeatures | None]:
        wanted = [hashes.get(one, "") for one in ids.tolist()]
        found = kept.read([one for one in wanted if one])
        return [found.get(one) for one in wanted]

    decision = decision_of(store)
    weight = decision.weight if decision else 1.0
    return LocalEvidence(np.array([id_ for id_, _ in rows], np.int64), index, read, weight)


_opened: dict[str, tuple[str, LocalEvidence | None]] = {}  # by address, as of a version of the store
_opening = threading.Lock()


def local_evidence_of(store: Store, choice: str) -> LocalEvidence | None:
    """What a search adds to cosines: "on" wants it, "auto" where it was decided to help; None for nothing."""
    if not uses_local(store, choice):
        return None
    version = f"{store.version()} {store.note(_NOTE)}"
    with _opening:
        known, found = _opened.get(store.uri, ("", None))
        if known != version or found is None:  # features may have been made since
            found = _open(store, LocalFeatureDatabase(store.parts))
            _opened[store.uri] = version, found
            if found is None and choice == "auto" and known != version:
                _log.warning(_missing_features(store))
    if found is None and choice == "on":
        raise UserError(_missing_features(store))
    return found


def _missing_features(store: Store) -> str:
    return (
        f"the store {store.uri} has no local features of these photos: make them with `insclr index MODEL IMAGES "
        f"--store {store.uri} --local on`, or search with --local off"
    )


def uses_local(store: Store, choice: str) -> bool:
    """Whether a search with this choice is to use local evidence."""
    return choice == "on" or (choice == "auto" and local_choice_of(store) == "on")


def local_choice_of(store: Store) -> str:
    """The choice for another store of the same images."""
    decision = decision_of(store)
    return "auto" if decision is None else "on" if decision.used else "off"
