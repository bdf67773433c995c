"""The report of a run: whole in itself, and true to the metrics."""

import base64
import io
import os
import re

import pytest
import safetensors.torch
import torch
from PIL import Image

from helpers.parsed_page import Page
from helpers.written_run import HOSTILE, NAMES, inspection, make_run, save_inspection, step
from insclr.errors import UserError
from insclr.report.page import Thumbnails
from insclr.report.run_report import write_report
from insclr.run_folder import note_measured


def report(run):
    return write_report(run).read_text(encoding="utf-8")


def test_the_page_is_whole_in_itself(tmp_path):
    page = Page(report(make_run(tmp_path)))
    assert not page.loads
    assert "http" not in page.html
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert not list((tmp_path / "run").glob(".*.part"))


def test_every_picture_of_the_inspector_has_its_thumbnail_once(tmp_path):
    html = report(make_run(tmp_path))
    rules = dict(re.findall(r"\.(t\d+)\{background-image:url\(data:image/jpeg;base64,([^)]*)\)\}", html))
    shown = [attributes["class"].split() for attributes in Page(html).having_class("pic")]
    assert len(shown) == 10  # five tiles in each of two states
    assert {classes[1] for classes in shown} == set(rules)
    assert len(rules) == len(NAMES)
    for text in rules.values():
        with Image.open(io.BytesIO(base64.b64decode(text))) as image:
            assert image.size == (96, 64)


def test_the_numbers_shown_are_those_of_the_metrics(tmp_path):
    page = Page(report(make_run(tmp_path)))
    assert "round 1, step 10\nloss: 1.25" in page.text
    assert "round 1, step 20\nloss: 0.5" in page.text
    assert "round 1, step 10\nselected: 83.2 %\nnn: all neighbours: 75.0 %" in page.text
    assert "round 1, step 10\nmined: 45.3 %" in page.text
    assert "round 1, step 10\nper anchor: 14.2" in page.text
    assert "45.0 → 70.3" in page.text
    assert "+25.2" in page.text
    assert "3 min 20 s" in page.text


@pytest.mark.parametrize(
    ("initial_fc", "start"), [("random", "pretrained features"), ("views", "initial FC")]
)
def test_the_map_before_training_is_named_after_what_was_measured(tmp_path, initial_fc, start):
    run = make_run(tmp_path)
    text = (run / "recipe.toml").read_text()
    assert "[network]" in text
    (run / "recipe.toml").write_text(text.replace("[network]", f'[network]\ninitial_fc = "{initial_fc}"'))
    assert f"one view a photo: {start} → end" in Page(report(run)).text


def test_without_labels_there_is_no_precision_and_no_map(tmp_path):
    page = Page(report(make_run(tmp_path, labelled=False)))
    assert "Positives from the candidate pool" in page.text
    assert "Precision" not in page.text
    assert "mAP" not in page.text
    assert "No labels were used" in page.text
    assert {attributes["class"] for attributes in page.having_class("tile")} == {"tile taken", "tile left"}


def test_tiles_say_what_was_right_wrong_and_missed(tmp_path):
    page = Page(report(make_run(tmp_path)))
    kinds = [attributes["class"] for attributes in page.having_class("tile")]
    assert kinds[:4] == ["tile right", "tile left", "tile wrong", "tile missed"]
    assert page.text.count("✗ 0.66") == 2  # the mined one shows its similarity to the set, in both states
    assert len(page.having_class("badge")) == 2


def test_an_anchor_without_mined_images_is_reported_only_where_the_method_mines(tmp_path):
    run = make_run(tmp_path)
    nothing = [inspection(True)["tuples"][0] | {"mined": []}]
    for positives, told in ((1.5, 1), (0.0, 0)):
        summary = {"anchors": 4, "memory": {"positives": positives, "precision": None}}
        save_inspection(run, 1, "end", inspection(True) | {"tuples": nothing, "summary": summary})
        assert report(run).count('<span class="more">nothing</span>') == told


def test_calibrated_numbers_come_with_their_reason(tmp_path):
    page = Page(report(make_run(tmp_path)))
    assert "10.0% of random pairs are more similar" in page.text
    assert "0.067" in page.text
    assert "Round 1: something < else" in page.text


def test_the_size_of_views_comes_with_its_reason(tmp_path):
    run = make_run(tmp_path)
    (run / "options.json").write_text('{"size": "views of 320 px, by the pixels of the photos"}')
    assert "Before round 1: views of 320 px, by the pixels of the photos." in Page(report(run)).text


def test_the_inspector_shows_the_start_and_the_state_after_each_round(tmp_path):
    records = [step(20, True), step(10, True, round_number=2)]
    run = make_run(tmp_path, records=records)
    (run / "round-1" / "inspection-end.json").unlink()

    def moments():
        return re.findall(r'<label for="moment-\d">([^<]*)<', report(run))

    assert moments() == ["Start"]
    save_inspection(run, 2, "start", inspection(True))  # the network that round 1 ended with
    assert moments() == ["Start", "After round 1"]
    save_inspection(run, 2, "end", inspection(True))
    assert moments() == ["Start", "After round 1", "After round 2"]
    assert re.findall(r'aria-label="(Start|After round \d)"', report(run)) == moments()


def test_the_average_with_the_initial_fc_is_reported_once_it_is_done(tmp_path):
    for folder, kept, finished, told in (("a", 0.6, True, 1), ("b", 0.6, False, 0), ("c", 0.0, True, 0)):
        (tmp_path / folder).mkdir()
        run = make_run(tmp_path / folder, kept=kept, finished=finished)
        assert report(run).count("averaged with its initial weights (weight 60%)") == told
    # Where the guard left every round out, the layer is its start.
    (tmp_path / "skipped").mkdir()
    run = make_run(tmp_path / "skipped", kept=0.6, records=[])
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(x for x in lines if '"end"' not in x) + "\n")
    assert "averaged with its initial weights" not in report(run)


def test_what_the_guard_did_stands_at_the_top(tmp_path):
    guard = [
        {
            "round": 1,
            "step": 20,
            "event": "guard",
            "message": "Fell back to <round 1>.",
            "action": "step back",
        },
        {
            "round": 1,
            "step": 20,
            "event": "guard",
            "message": "All is well.",
            "action": "ok",
            "consistency": 0.9,
        },
        {"round": 1, "step": 20, "event": "never heard of"},
    ]
    html = report(make_run(tmp_path, guard=guard))
    boxes = re.findall(r'<div class="note-box">(.*?)</div>', html)
    assert boxes == ["<b>The guard stepped in</b>Fell back to &lt;round 1&gt;."]
    assert html.count("All is well.") == 1
    assert "consistency 0.9" in html


def test_a_guard_with_nothing_to_say_is_mentioned(tmp_path):
    assert "The guard was on and reported nothing" in report(make_run(tmp_path))


def test_hostile_file_names_stay_text(tmp_path):
    run = make_run(tmp_path)
    (run / "skipped.csv").write_text('path,reason\n<script>alert(1)</script>.jpg,"<b>empty</b> file"\n')
    page = Page(report(run))
    assert HOSTILE in page.attribute("aria-label")
    assert "<script>alert(1)</script>.jpg" in page.text
    assert "<b>empty</b> file" in page.text
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert not page.attribute("onerror")


def test_a_file_name_that_is_no_text_does_not_stop_the_report(tmp_path):
    strange = os.fsdecode(b"photo-\xff.png")
    run = make_run(tmp_path)
    save_inspection(
        run, 1, "end", inspection(True) | {"tuples": [inspection(True)["tuples"][0] | {"anchor": strange}]}
    )
    Image.new("RGB", (30, 30)).save(tmp_path / "photos" / strange, "PNG")
    assert 'aria-label="photo-?.png"' in report(run)


def test_an_unfinished_run_is_shown_as_far_as_it_came(tmp_path):
    run = make_run(tmp_path, finished=False)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 1, "step": 30, "lo')  # killed while writing
    page = Page(report(run))
    assert "This run is not finished: it has come to round 1, step 20." in page.text
    assert "--resume" in page.text
    assert "round 1, step 20\nloss: 0.5" in page.text


def test_a_run_that_has_only_begun_has_a_report(tmp_path):
    run = make_run(tmp_path, records=[], finished=False)
    (run / "metrics.jsonl").unlink()
    for file in (run / "round-1").iterdir():
        file.unlink()
    page = Page(report(run))
    assert "it has come to its beginning" in page.text
    assert "svg" not in {tag for tag, _ in page.tags}


def test_steps_done_again_after_a_resume_count_once(tmp_path):
    records = [step(10, True), step(20, True, loss=9.0), step(20, True, loss=0.5)]
    page = Page(report(make_run(tmp_path, records=records)))
    assert "round 1, step 20\nloss: 0.5" in page.text
    loss = next(a["points"] for tag, a in page.tags if tag == "polyline" and a["class"] == "s3")
    assert len(loss.split()) == 2


def test_rounds_follow_each_other_on_one_axis(tmp_path):
    records = [step(10, True), step(20, True), step(10, True, round_number=2, loss=0.125)]
    page = Page(report(make_run(tmp_path, records=records)))
    assert "round 2, step 10\nloss: 0.125" in page.text
    # 30 steps from x = 46 to x = 428: step 10 of round 2 is the last, step 20 of round 1 at two thirds.
    lines = [a["points"] for tag, a in page.tags if tag == "polyline" and a["class"] == "s3"]
    places = [point.split(",")[0] for line in lines[:2] for point in line.split()]
    assert places == ["173.3", "300.7", "428.0"]


def test_long_runs_are_averaged_not_cut(tmp_path):
    records = [step(10 * n, False, loss=float(n % 2)) for n in range(1, 1001)]
    html = report(make_run(tmp_path, labelled=False, records=records))
    longest = max(len(points.split()) for points in re.findall(r'polyline class="s3" points="([^"]*)"', html))
    assert longest <= 240
    assert "step 10000" in html
    assert len(html) < 3_000_000


def test_images_that_could_not_be_read_are_listed_even_if_a_resume_forgot_why(tmp_path):
    run = make_run(tmp_path)
    safetensors.torch.save_file({"ids": torch.tensor([0, 1, 3])}, run / "usable.safetensors")
    page = Page(report(run))
    assert "Learned the particular things in 3 photos" in page.text
    assert "photos, 1 left out" in page.text
    assert "could not be read" in page.text


def test_photos_that_are_gone_leave_their_names(tmp_path):
    run = make_run(tmp_path)
    (tmp_path / "photos" / "far.png").unlink()
    page = Page(report(run))
    assert [a["aria-label"] for a in page.having_class("pic") if a["class"] == "pic"] == ["far.png"] * 4


def test_thumbnails_stop_at_their_budget(tmp_path):
    Image.effect_noise((200, 200), 100).convert("RGB").save(tmp_path / "noise.png")
    assert Thumbnails(tmp_path, budget=100).css_class("noise.png") == ""
    assert Thumbnails(tmp_path, budget=100_000).css_class("noise.png") == "t0"


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"not a run folder.*recipe\.toml"):
        write_report(tmp_path)


def test_people_read_what_was_learned_what_was_left_out_and_what_comes_next_before_any_jargon(tmp_path):
    text = report(make_run(tmp_path))
    people, engineers = text.split("For engineers")
    for question in ("What was learned?", "What was left out?", "What next?"):
        assert question in people
    # Commands are code, and break at their spaces alone.
    assert "<code><span>insclr</span> <span>serve</span> <span>STORE</span></code>" in people
    assert "<span>--store</span>" in people
    assert "`" not in Page(people).text
    for word in ("anchor", "tuple", "active negatives"):
        assert word not in people.split("<main")[-1].lower(), word
    assert "Recipe</h2>" in engineers


def test_what_was_measured_of_the_model_comes_before_what_was_measured_along_training(tmp_path):
    run = make_run(tmp_path)
    note_measured(run, map={"before": 52.04, "after": 69.71, "views": 2})
    sentence = "80% of the first 5 results show the same thing (between 63% and 91%, from 30 judged results)"
    note_measured(
        run, proof=[{"title": "Before", "sentence": "x < y"}, {"title": "Now", "sentence": sentence}]
    )
    people, engineers = (" ".join(Page(part).text.split()) for part in report(run).split("For engineers"))
    assert "52.0 → 69.7" in people
    assert "pretrained network has 52.0, both with 2 views of every photo" in people
    assert "45.0 → 70.3" not in people  # the run's own numbers: one view, from another start
    assert "45.0 → 70.3" in engineers
    assert f"Before: x < y. Now: {sentence}." in people


def test_a_report_without_measurements_explains_how_to_measure(tmp_path):
    assert "Judge 30 results on the Teach page" in Page(report(make_run(tmp_path, labelled=False))).text
