"""The page that compares models."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from helpers.parsed_page import Page
from insclr.data.labels import Labels
from insclr.errors import UserError
from insclr.evaluation.compare import compare
from insclr.evaluation.results import LabelResult
from insclr.report.comparison import write_comparison

HOSTILE = 'a"><img src=x onerror=alert(1)>&.png'


def result(root, ap, boxes=None, paths=("0.png", "1.png", "2.png", HOSTILE), roles=None):
    """Four queries, two of each thing; every query finds the other three images in the order of their rows."""
    labels = Labels(root, tuple(paths), ("<b>cup</b>", "<b>cup</b>", "jar", "jar"), roles=roles, boxes=boxes)
    top = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, -1]])
    return LabelResult(labels, np.arange(4), np.array(ap), np.zeros(4, dtype=np.int64), top, images=4)


def page(tmp_path, before, after, names=("old", "new & best"), **options):
    for place, name in enumerate(("0.png", "1.png", "2.png", HOSTILE)):
        Image.new("RGB", (80, 40), (60 * place, 120, 200)).save(tmp_path / name)
    queries = options.pop("queries", 24)
    two = dict(zip(names, (result(tmp_path, ap, **options) for ap in (before, after)), strict=True))
    write_comparison(compare(two, resamples=10), tmp_path / "page.html", *names, queries=queries)
    return Page((tmp_path / "page.html").read_text(encoding="utf-8"))


def test_the_page_loads_nothing_and_is_light_and_dark(tmp_path):
    shown = page(tmp_path, [0.5, 0.5, 0.5, 0.5], [0.9, 0.5, 0.2, 1.0])
    assert not shown.loads
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in shown.tags}
    assert "prefers-color-scheme: dark" in shown.html
    # Every image is in the file once, however often it is shown.
    assert shown.html.count("data:image/jpeg;base64,") == 4
    assert len(shown.having_class("pic")) > 4


def test_queries_stand_under_the_model_that_finds_more_with_right_and_wrong_results(tmp_path):
    shown = page(tmp_path, [0.5, 0.5, 0.5, 0.5], [0.9, 0.5, 0.2, 0.5])
    better, worse = shown.text.split("new & best finds more")[1].split("old finds more")
    assert "0.png" in better
    assert "AP 90.0" in better
    assert "2.png" in worse
    assert "AP 20.0" in worse
    # Query 0 (a cup) finds 1 (a cup), 2 and 3 (jars), with both models; query 2 finds 0, 1, 3.
    kinds = [attributes["class"] for attributes in shown.having_class("tile")]
    assert (
        kinds
        == ["tile right", "tile wrong", "tile wrong"] * 2 + ["tile wrong", "tile wrong", "tile right"] * 2
    )
    assert "1 of 4" in " ".join(shown.text.split())


def test_the_largest_difference_comes_first(tmp_path):
    shown = page(tmp_path, [0.5, 0.5, 0.5, 0.5], [0.6, 0.5, 0.1, 0.5], queries=1)
    assert len(shown.having_class("sample")) == 1
    assert "old finds more" in shown.text


def test_names_with_html_in_them_stay_text(tmp_path):
    shown = page(tmp_path, [0.5] * 4, [0.5, 0.5, 0.5, 0.9], names=("<i>old</i>", "<script>new</script>"))
    assert "<script>new</script> finds more" in shown.text
    assert "<b>cup</b>: 0.png" in shown.attribute("title")
    assert HOSTILE in shown.attribute("aria-label")
    assert not {"script", "img"} & {tag for tag, _ in shown.tags}
    assert not shown.attribute("onerror")


def test_a_box_shows_its_part_of_the_image(tmp_path):
    boxes = ((0.0, 0.0, 20.0, 40.0), None, None, None)
    shown = page(tmp_path, [0.5] * 4, [0.9, 0.5, 0.5, 0.5], boxes=boxes)
    jpegs = re.findall(r"base64,([^)]*)\)", shown.html)
    sizes = [Image.open(io.BytesIO(base64.b64decode(text))).size for text in jpegs]
    assert sorted(sizes) == [(20, 40), (80, 40), (80, 40), (80, 40)]


def test_the_box_of_an_index_image_does_not_cut_it_for_it_is_searched_whole(tmp_path):
    part = (0.0, 0.0, 20.0, 40.0)
    roles = ("query", "index", "index", "index")
    shown = page(tmp_path, [0.5] * 4, [0.9, 0.5, 0.5, 0.5], boxes=(part,) * 4, roles=roles)
    jpegs = re.findall(r"base64,([^)]*)\)", shown.html)
    sizes = [Image.open(io.BytesIO(base64.b64decode(text))).size for text in jpegs]
    assert sorted(sizes) == [(20, 40), (80, 40), (80, 40), (80, 40)]


def test_an_image_that_cannot_be_read_leaves_its_name(tmp_path):
    shown = page(tmp_path, [0.5] * 4, [0.9, 0.5, 0.5, 0.5], paths=("0.png", "gone.png", "2.png", HOSTILE))
    assert [a["aria-label"] for a in shown.having_class("pic") if a["class"] == "pic"] == ["gone.png"] * 2


def test_models_that_agree_and_names_that_are_not_there(tmp_path):
    assert "agree on every query" in page(tmp_path, [0.5] * 4, [0.5] * 4).text
    one = {"a": result(tmp_path, [0.5] * 4)}
    with pytest.raises(UserError, match="c is not among the compared models: a"):
        write_comparison(compare(one), tmp_path / "page.html", "a", "c")
