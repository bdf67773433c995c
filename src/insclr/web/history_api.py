"""The API of the history: every step that people made, going back to any of them, and doing an undone one again."""

import io
import re
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Response
from pydantic import BaseModel, Field

from insclr.errors import UserError
from insclr.feedback.entries import describe_act, join_acts
from insclr.feedback.name_files import import_names, write_table
from insclr.store import Entry, new_entry
from insclr.web.api import ERRORS, WRITE_ERRORS, Offer, StoreNumber
from insclr.web.served import Refused
from insclr.web.things_api import Done

history_api = APIRouter(prefix="/api/stores/{store}/history")
names_api = APIRouter(prefix="/api/stores/{store}")
_CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {}}}}
StepId = Annotated[
    str, Body(embed=True, max_length=64, description="id of a step; empty: before all of them")
]


class Step(BaseModel):
    """An act of a person: a name, a correction, an answer."""

    id: str
    at: str = Field(description="when, as ISO 8601 in UTC; empty where that is not known")
    message: str
    undone: bool


class Imported(BaseModel):
    """What a table of names did."""

    named: int = Field(description="photos that have a new name")
    unchanged: int
    unknown: list[str] = Field(description="paths of the table that the store does not have")


class History(BaseModel):
    """The steps, newest first."""

    steps: list[Step]
    total: int


@history_api.get("", responses=ERRORS)
def history(
    served: Offer,
    store: StoreNumber,
    count: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Annotated[int, Query(ge=0, le=10**7)] = 0,
) -> History:
    """What people did, the undone steps among it."""
    home = served.store(store)
    (acts, undone), feedback = _read(home.store.journal()), home.feedback.read()
    steps = [
        Step(
            id=act[-1].id, at=_time(act[-1]), message=describe_act(act, feedback), undone=act[-1].id in undone
        )
        for act in reversed(acts)
    ]
    return History(steps=steps[offset : offset + count], total=len(steps))


@history_api.post("/back", responses=WRITE_ERRORS)
def go_back(served: Offer, store: StoreNumber, step: StepId = "") -> Done:
    """Undo every step after this one."""
    home = served.store(store)
    acts, undone = _read(home.store.journal())
    after = acts[_find(acts, step) + 1 :] if step else acts
    wanted = [act for act in after if act[-1].id not in undone]
    if not wanted:
        raise Refused(400, "no step after this one holds: there is nothing to undo")
    home.feedback.append([new_entry("undo", {"entry": one.id}) for act in wanted for one in act])
    return Done(id=step, message=f"{len(wanted)} step{'' if len(wanted) == 1 else 's'} undone")


@history_api.post("/again", responses=WRITE_ERRORS)
def do_again(served: Offer, store: StoreNumber, step: StepId) -> Done:
    """Do an undone step once more, as the newest one."""
    home = served.store(store)
    acts, undone = _read(home.store.journal())
    act = acts[_find(acts, step)]
    if act[-1].id not in undone:
        raise Refused(400, "this step was not undone")
    made = join_acts([new_entry(one.kind, one.data) for one in act])
    home.feedback.append(made)
    return Done(id=made[-1].id, message=describe_act(made, home.feedback.read()))


@names_api.get("/names.csv", responses=ERRORS | _CSV, response_class=Response)
def export_names(served: Offer, store: StoreNumber) -> Response:
    """The names of photos as a table: path, name, and whether a person or the score gave it."""
    written = io.StringIO(newline="")
    write_table(served.store(store).store, written)
    headers = {
        "content-disposition": 'attachment; filename="names.csv"',
        "cache-control": "private, no-store",
    }
    # The mark tells spreadsheets that it is UTF-8.
    return Response(written.getvalue().encode("utf-8-sig"), media_type="text/csv", headers=headers)


@names_api.post("/names.csv", responses=WRITE_ERRORS)
def import_table(
    served: Offer, store: StoreNumber, table: Annotated[bytes, Body(media_type="text/csv")]
) -> Imported:
    """Take names from a table with the columns path and name."""
    home = served.store(store)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "names.csv"
        file.write_bytes(table)
        try:
            report = import_names(home.store, str(file))
        except UserError as error:  # people know no temporary folder
            raise Refused(400, str(error).replace(str(file), "the table")) from error
    home.feedback.invalidate()
    return Imported(named=report.named, unchanged=report.unchanged, unknown=report.unknown)


def _read(journal: list[Entry]) -> tuple[list[list[Entry]], set[str]]:
    """The acts, oldest first, and the ids of undone entries."""
    undone = {str(one.data.get("entry")) for one in journal if one.kind == "undo"}
    acts: dict[str, list[Entry]] = {}
    for one in journal:
        if one.kind != "undo":
            acts.setdefault(str(one.data.get("act") or one.id), []).append(one)
    return list(acts.values()), undone


def _find(acts: list[list[Entry]], step: str) -> int:
    for place, act in enumerate(acts):
        if act[-1].id == step:
            return place
    raise Refused(404, "this step is not in the history")


def _time(entry: Entry) -> str:
    """The time in an entry's id: its nanoseconds since 1970."""
    found = re.match(r"(\d{19,20})-", entry.id)
    try:
        return datetime.fromtimestamp(int(found[1]) / 1e9, UTC).isoformat(timespec="seconds") if found else ""
    except (ValueError, OverflowError, OSError):
        return ""
