"""What a run folder keeps, and what can be read from it."""

import json
import os
import subprocess
import sys
import time

import pytest
import safetensors.torch
import torch

from insclr.data.images import Skipped
from insclr.data.tuples import FeedbackGroups
from insclr.errors import UserError
from insclr.mining.candidates import PairTrust
from insclr.recipe import Recipe, load_recipe, to_toml
from insclr.run_folder import RunFolder, RunReader, kept_answers
from insclr.tracking import Tracker
from insclr.training.plan import choose_recipe


def test_an_inspection_is_read_back_as_it_was_saved(tmp_path):
    run = RunFolder(tmp_path / "run", Recipe(), resume=False)
    run.save_inspection(1, "start", {"tuples": [1]})
    assert run.inspection(1, "start") == {"tuples": [1]}
    assert RunReader(run.path).inspection(1, "start") == {"tuples": [1]}
    assert run.inspection(1, "end") is None


def test_a_round_ends_as_the_next_one_starts(tmp_path):
    run = RunFolder(tmp_path / "run", Recipe(), resume=False)
    run.save_inspection(2, "start", {"of": "round 2"})
    assert run.inspection(1, "end") == {"of": "round 2"}
    assert run.inspection(2, "end") is None
    run.save_inspection(1, "end", {"of": "round 1"})
    assert run.inspection(1, "end") == {"of": "round 1"}


def test_a_run_that_has_only_begun_can_be_read(tmp_path):
    RunFolder(tmp_path / "run", Recipe(name="mine"), resume=False)
    run = RunReader(tmp_path / "run")
    assert run.recipe_text == to_toml(Recipe(name="mine"), comments=True)
    assert run.recipe()["name"] == "mine"
    assert (len(run.images()), run.usable(), run.read_skipped(), run.metrics()) == (0, None, {}, [])
    assert not run.finished


def test_a_run_of_an_earlier_version_resumes_with_its_old_key_names(tmp_path):
    recipe = load_recipe("default")
    path = RunFolder(tmp_path / "run", recipe, resume=False).path
    text = (path / "recipe.toml").read_text()
    renamed = {"initial_fc": "start", "initial_fc_weight": "keep_start", "renew_initial_fc": "renew_start"}
    for new, old in renamed.items():
        assert f"\n{new} = " in text
        text = text.replace(f"\n{new} = ", f"\n{old} = ")
    (path / "recipe.toml").write_text(text)
    assert RunFolder(path, recipe, resume=True).resumed
    assert choose_recipe(path, None, (), resume=True) == recipe
    assert RunReader(path).recipe()["network"]["initial_fc_weight"] == 0.6
    with pytest.raises(UserError, match="another recipe"):
        RunFolder(path, load_recipe("default", ("network.initial_fc_weight=0.5",)), resume=True)


def test_the_fingerprint_names_the_folders_of_earlier_versions():
    """The value changes only with the text of the recipe, never with the code that computes it."""
    assert load_recipe("paper-small").fingerprint() == "6596372e9bf2"


def test_images_left_out_are_read_with_their_reason_or_without(tmp_path):
    RunFolder(tmp_path / "run", Recipe(), resume=False)
    run = RunReader(tmp_path / "run")
    strange = os.fsdecode(b"photo-\xff.png")
    (run.path / "images.json").write_text(json.dumps({"root": "photos", "paths": ["a", "b", strange]}))
    safetensors.torch.save_file({"ids": torch.tensor([0])}, run.path / "usable.safetensors")
    skipped = Skipped()
    skipped.add(strange, "truncated")
    skipped.write(run.skipped_file)
    assert run.usable() == [0]
    assert run.read_skipped() == {strange: "truncated", "b": "could not be read"}


def test_a_run_keeps_the_feedback_that_it_began_with(tmp_path):
    run = RunFolder(tmp_path / "run", Recipe(), resume=False, options={"answers": "/store"})
    assert run.feedback(None) is None
    groups, apart = torch.tensor([0, 0, 1]), torch.tensor([[0, 1]])
    run.feedback(FeedbackGroups(groups, torch.tensor([True, True, False]), apart))
    later = run.feedback(FeedbackGroups(groups, torch.ones(3, dtype=torch.bool), apart))
    assert later is not None
    assert later.has_feedback.tolist() == [True, True, False]
    assert kept_answers(run.path) == "/store"


def test_a_run_folder_of_an_earlier_version_keeps_its_feedback(tmp_path):
    run = RunFolder(tmp_path / "run", Recipe(), resume=False)
    (run.path / "answers.json").write_text('{"store": "/old"}')
    spoken = torch.tensor([True, True, False])
    tensors = {"groups": torch.tensor([0, 0, 1]), "spoken": spoken, "apart": torch.tensor([[0, 1]])}
    safetensors.torch.save_file(tensors, run.path / "taught.safetensors")
    feedback = run.feedback(None)
    assert feedback is not None
    assert feedback.groups.tolist() == [0, 0, 1]
    assert torch.equal(feedback.has_feedback, spoken)
    assert kept_answers(run.path) == "/old"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("images.json", '["a.jpg"]'),
        ("images.json", '{"root": 3, "paths": ["a.jpg"]}'),
        ("images.json", '{"root": "/p", "paths": 3}'),
        ("options.json", "7"),
        ("start.json", '{"size": {"core": "many"}}'),
        ("start.json", '{"size": {"other": 1}}'),
    ],
)
def test_a_file_that_holds_something_else_is_named(name, content, tmp_path):
    run = RunFolder(tmp_path / "run", Recipe(), resume=False)
    (run.path / name).write_text(content)
    read = {"images.json": lambda: run.images(None), "start.json": run.size}
    with pytest.raises(UserError, match=rf"{name} is damaged"):
        read.get(name, lambda: run.option("images"))()


def test_a_damaged_log_gives_its_good_records(tmp_path):
    run = RunFolder(tmp_path / "run", Recipe(), resume=False)
    good = {"round": 1, "step": 5, "event": "end", "steps": 5}
    lines = ['{"round": [1], "step": 3}', json.dumps(good), "[" * 100_000, '{"round": 1, "st']
    (run.path / "metrics.jsonl").write_text("\n".join(lines))
    assert run.kept_rounds() == {1}


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"not a run folder.*recipe\.toml"):
        RunReader(tmp_path)
    (tmp_path / "recipe.toml").write_text("name = ")
    with pytest.raises(UserError, match=r"recipe\.toml is not valid TOML"):
        RunReader(tmp_path).recipe()


HOLD = """
import fcntl, sys, time
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def test_resume_waits_for_the_workers_of_a_killed_run(tmp_path, monkeypatch):
    run = RunFolder(tmp_path / "run", Recipe(), resume=False)
    half = run.path / ".model.safetensors.01234567.part"
    half.write_text("half")
    os.utime(half, (1e9, 1e9))
    command = [sys.executable, "-c", HOLD, str(run.path / ".lock")]
    with subprocess.Popen([*command, "1"], stdout=subprocess.PIPE, text=True) as orphan:
        assert orphan.stdout.readline() == "held\n"  # type: ignore[union-attr]
        began = time.monotonic()
        with run.writing():
            assert 0.5 < time.monotonic() - began < 9
            assert not half.exists()
    monkeypatch.setattr("insclr.run_folder.LOCK_WAIT", 0.2)
    with subprocess.Popen([*command, "60"], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"  # type: ignore[union-attr]
        with pytest.raises(UserError, match="busy with"), run.writing():
            pass
        other.kill()


def test_pairs_are_untested_until_a_round_is_kept_and_untrusted_for_good(tmp_path):
    run = RunFolder(tmp_path / "run", Recipe(), resume=False)
    assert run.pair_trust() is PairTrust.UNTESTED
    log = Tracker(run.path)
    log.event(1, "end", step=3, steps=3)
    log.event(1, "guard", step=3, action="step back")
    assert RunReader(run.path).pair_trust() is PairTrust.UNTESTED
    log.event(2, "end", step=3, steps=3)
    log.close()
    assert run.kept_rounds() == {2}
    assert RunReader(run.path).pair_trust() is PairTrust.TRUSTED
    run.save_pair_trust(PairTrust.UNTRUSTED)
    assert RunReader(run.path).pair_trust() is PairTrust.UNTRUSTED


def test_a_run_of_an_earlier_version_has_its_trust_in_pairs(tmp_path):
    run = RunFolder(tmp_path / "run", Recipe(), resume=False)
    start = {"size": {"core": 3, "whole": 0}, "reasons": ["why"], "mined": False}
    (run.path / "start.json").write_text(json.dumps(start))
    assert run.pair_trust() is PairTrust.UNTRUSTED
    assert (run.size().core, run.initial_fc_reasons()) == (3, ["why"])
    (run.path / "start.json").write_text(json.dumps(start | {"mined": True}))
    assert run.pair_trust() is PairTrust.UNTESTED
