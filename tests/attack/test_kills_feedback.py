"""kill -9 while people teach: what the server acknowledged is kept, what it did not is there whole or not at all."""

import json
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import httpx
import safetensors.torch
import torch

from helpers.drawn_store import make_store
from helpers.faults import ACTS
from helpers.histogram_describer import HistogramDescriber
from helpers.killing import MODEL, Note, kill_at, kill_inside, rows_of, same, whole, whole_step
from helpers.running_server import Server, running
from insclr.feedback.entries import name_thing
from insclr.feedback.feedback import Feedback, read_feedback
from insclr.feedback.name_files import import_names
from insclr.feedback.names import build_gallery
from insclr.store import Entry, open_store
from insclr.store.store_models import read_models

SHOWN = HistogramDescriber.fingerprint
SETTINGS = "workers=1 checkpoint_every=20 rounds.steps=60 rounds.epochs=0 rounds.tuples=16"


def journal_of(folder: Path) -> list[Entry]:
    store = open_store(folder)
    try:
        return store.journal()
    finally:
        store.close()


def told(folder: Path) -> tuple[object, ...]:
    """All that holds, without the random numbers of things."""
    store = open_store(folder)
    try:
        said: Feedback = read_feedback(store)
        shown = {
            row.image.path: thing.name for thing in build_gallery(store, said).things for row in thing.rows
        }
    finally:
        store.close()
    links = sorted((link.one, link.other, link.same) for link in said.links)
    named = sorted((thing.name, thing.hidden, thing.images) for thing in said.things.values())
    return shown, links, named, sorted(said.skipped), len(said.judged)


class Teacher(threading.Thread):
    """A person at the page who answers, names, joins, splits and takes back, one act after the other."""

    # Acts and the last entry that each writes: what comes before it makes a group of photos a thing that stays.
    WRITES = {act: act for act in ACTS} | {"split": "name"}

    def __init__(self, server: Server, store: Path, seed: int) -> None:
        super().__init__(daemon=True)
        self.server, self.store, self.dice = server, store, random.Random(seed)
        self.known = journal_of(store)  # acknowledged, as read right after the answer
        self.under_way = ""
        self.acts: list[str] = []
        self.wrong: list[str] = []

    def run(self) -> None:
        try:
            self._teach()
        except Exception as error:  # a thread's own are not seen by the test
            self.wrong.append(repr(error))

    def _teach(self) -> None:
        base = f"{self.server.url}/api/stores/0"
        with httpx.Client(timeout=30) as client:
            while True:
                act = self.dice.choice(list(self.WRITES))
                try:
                    wanted = self._wanted(client, base, act)
                    if wanted is None:
                        continue
                    self.under_way = act
                    answer = client.post(base + wanted[0], json=wanted[1])
                except httpx.TransportError:
                    return  # the server was killed
                if answer.status_code != 200:
                    self.wrong.append(f"{act}: {answer.status_code} {answer.text[:200]}")
                    return
                now = journal_of(self.store)
                if now[: len(self.known)] != self.known or len(now) == len(self.known):
                    self.wrong.append(f"{act} was acknowledged and is not in the journal")
                self.known, self.under_way = now, ""
                self.acts.append(act)

    def _wanted(self, client: httpx.Client, base: str, act: str) -> tuple[str, dict[str, object]] | None:
        """The address and the content of an act; None where there is nothing to do it to."""
        dice, shown = self.dice, {"fingerprint": SHOWN}
        if act in ("answer", "skip", "judge"):
            one, two, three = dice.sample([row["ref"] for row in client.get(f"{base}/sample").json()], 3)
            return {
                "answer": ("/teach/answer", shown | {"query": one, "same": [two], "different": [three]}),
                "skip": ("/teach/skip", shown | {"query": one}),
                "judge": (
                    "/teach/judge",
                    shown | {"query": one, "result": two, "rank": 1, "model": SHOWN, "same": True},
                ),
            }[act]
        found = client.get(f"{base}/things").json()
        things = [one["id"] for one in found["things"]]
        if act == "undo":
            return ("/undo", {}) if found["undo"] else None
        if len(things) < (4 if act == "merge" else 2):  # lest all become one
            return None
        thing, other = dice.sample(things, 2)
        refs = [one["ref"] for one in client.get(f"{base}/things/{thing}").json()["pictures"]]
        if act in ("remove", "split") and len(refs) < 2:
            return None
        content: dict[str, dict[str, object]] = {
            "name": {"name": f"thing of {dice.randrange(10**6)}"},
            "remove": shown | {"refs": dice.sample(refs, 1)},
            "split": shown | {"refs": refs[: len(refs) // 2], "name": ""},
            "merge": {"into": other, "name": f"joined {dice.randrange(10**6)}"},
            "hide": {"hidden": dice.random() < 0.5},
        }
        chosen = {"remove": "/photos/remove", "split": "/photos/name"}
        return chosen.get(act, f"/things/{thing}/{act}"), content[act]


def test_the_server_while_people_teach(tmp_path: Path, kills: int, note: Note) -> None:
    make_store(tmp_path, things=6, views=8).store.close()
    store, fresh = tmp_path / "store", tmp_path / "fresh"
    shutil.copytree(store, fresh)
    dice, acts, struck, kept = random.Random(6), 0, 0, 0
    for number in range(kills):
        with running(store) as server:
            teacher = Teacher(server, store, seed=number)
            teacher.start()
            acts_before, end = dice.randint(1, 40), time.monotonic() + 60
            while len(teacher.acts) < acts_before and teacher.is_alive() and time.monotonic() < end:
                time.sleep(0.002)
            time.sleep(dice.uniform(0, 0.05))
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            teacher.join(60)
        assert not teacher.is_alive()
        assert teacher.wrong == []
        now = journal_of(store)
        assert now[: len(teacher.known)] == teacher.known, "what was acknowledged is lost"
        further = now[len(teacher.known) :]
        if teacher.under_way:
            struck += 1
            kept += bool(further)
            assert not further or further[-1].kind == Teacher.WRITES[teacher.under_way], "half an act"
        else:
            assert not further
        acts += len(teacher.acts)
    opened = open_store(fresh)
    opened.append(journal_of(store))
    opened.close()
    assert told(store) == told(fresh)
    assert same(rows_of(store), rows_of(fresh))
    note(
        f"kill -9 x {kills} ({struck} in an act) of the server while people teach",
        f"{acts} acknowledged acts kept, of the others {kept} whole and {struck - kept} not at all",
        "0 names, answers lost",
    )


def name_from(store: Path, table: Path) -> None:
    opened = open_store(store)
    try:
        import_names(opened, str(table))
    finally:
        opened.close()


def test_names_import(tmp_path: Path, kills: int, note: Note) -> None:
    make_store(tmp_path, things=20, views=25).store.close()
    store, step = tmp_path / "store", "insclr.store.local.LocalStore.append"
    table = tmp_path / "names.csv"
    paths = sorted(rows_of(store))
    table.write_text("path,name\n" + "".join(f"{path},name {number}\n" for number, path in enumerate(paths)))
    shutil.copytree(store, tmp_path / "unbroken")
    seconds = whole_step(step, tmp_path / "told", name_from, tmp_path / "unbroken", table)
    before, expected = told(store), told(tmp_path / "unbroken")
    dice, inside, there = random.Random(7), 0, 0
    for number in range(kills):
        broken = tmp_path / f"s{number}"
        shutil.copytree(store, broken)
        delay = dice.uniform(0, seconds)
        inside += kill_inside(step, delay, tmp_path / "told", name_from, broken, table)
        found = told(broken)
        assert found in (before, expected), "some names of the table, not all"
        there += found == expected
        name_from(broken, table)
        assert told(broken)[0] == expected[0]
    note(
        f"kill -9 x {kills} ({inside} inside the write): names import of {len(paths)}",
        f"{there} times all names, else none; then as unbroken",
        "0 names lost",
    )


def test_learn(images: Path, tmp_path: Path, kills: int, note: Note) -> None:
    """Every second kill hits a `learn` that goes on after one."""
    named, arguments = tmp_path / "named", ["--recipe", "fast"]
    arguments += [word for change in SETTINGS.split() for word in ("--set", change)]
    whole("index", MODEL, images, "--store", named)
    opened = open_store(named)
    rows = sorted(opened.rows_by_path().items())
    for number, begin in enumerate(range(0, 40, 10)):
        hashes = [row.image.hash for _, row in rows[begin : begin + 5]]
        opened.append(name_thing(f"thing-{number:04x}", f"name {number}", hashes))
    opened.close()
    journal, before = journal_of(named), rows_of(named)
    shutil.copytree(named, tmp_path / "unbroken")
    seconds = whole("learn", tmp_path / "unbroken", *arguments)
    expected, learned = rows_of(tmp_path / "unbroken"), tmp_path / "unbroken" / "models" / "2"
    weights = safetensors.torch.load_file(learned / "run" / "model.safetensors")
    dice, hit = random.Random(8), 0
    for number in range(0, kills, 2):
        store = tmp_path / f"s{number}"
        shutil.copytree(named, store)
        for _ in range(min(2, kills - number)):
            if read_models(store).current == 1:
                hit += kill_at(dice.uniform(0.05, 0.8) * seconds, "learn", store, *arguments)
            assert journal_of(store) == journal
            assert same(rows_of(store / "models" / "1"), before)
        if read_models(store).current == 1:
            whole("learn", store, *arguments)
        run = store / "models" / "2" / "run"
        found = safetensors.torch.load_file(run / "model.safetensors")
        assert all(torch.equal(found[key], weights[key]) for key in weights)
        assert same(rows_of(store), expected)
        assert journal_of(store) == journal
        assert not list(store.rglob("*.part"))
        for line in (run / "metrics.jsonl").read_text().splitlines():
            json.loads(line)
    note(
        f"kill -9 x {kills} ({hit} at work): learn",
        "names kept, weights bit-equal to an unbroken run, rows equal",
        "0 lost, equal",
    )
