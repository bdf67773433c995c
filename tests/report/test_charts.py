"""Ticks, scales and numbers of the charts."""

import re
import xml.etree.ElementTree as ET

import pytest

from insclr.report.charts import (
    Mark,
    Scale,
    Series,
    histogram_chart,
    line_chart,
    nice_ticks,
    percentage,
    short,
    used_range,
)


def corners(element):
    return [tuple(float(number) for number in pair.split(",")) for pair in element.get("points").split()]


def titles(svg):
    return [title.text for title in svg.iter("title")]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 8, [0, 2, 4, 6, 8]),
        (0.13, 0.87, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-0.41, -0.12, [-0.5, -0.4, -0.3, -0.2, -0.1]),
        (0, 40_000, [0, 10_000, 20_000, 30_000, 40_000]),
        (3, 3, [1, 2, 3, 4, 5]),
    ],
)
def test_ticks_are_round_numbers_that_enclose_the_values(low, high, ticks):
    assert nice_ticks(low, high) == pytest.approx(ticks)


def test_a_single_value_of_zero_has_an_axis_too():
    ticks = nice_ticks(0, 0)
    assert ticks[0] < 0 < ticks[-1]


def test_a_scale_maps_its_ends_and_its_middle():
    scale = Scale(low=10, high=20, start=100, end=0)
    assert [scale(10), scale(15), scale(20)] == [100, 50, 0]


def test_numbers_are_written_for_people():
    assert [short(0.12345), short(2.665625), short(14.2), short(12345.6)] == [
        "0.123",
        "2.67",
        "14.2",
        "12,346",
    ]
    assert percentage(0.83194) == "83.2 %"


def test_a_line_runs_through_its_values():
    svg = ET.fromstring(line_chart("loss", [Series("loss", [(0, 0), (10, 4), (20, 8)])]))
    # The plot reaches from 46 to 440 - 12 in x and from 250 - 34 up to 12 in y; the axis from 0 to 8.
    line = next(svg.iter("polyline"))
    assert corners(line) == [(46, 216), (237, 114), (428, 12)]
    ticks = [text.text for text in svg.iter("text")]
    assert {"0", "2", "4", "6", "8"} <= set(ticks)


def test_a_line_is_broken_where_a_round_begins():
    points = [(10, 1.0), (20, 2.0), (30, 3.0), (40, 4.0)]
    broken = ET.fromstring(line_chart("loss", [Series("loss", points)], marks=[Mark(20, "round 2")]))
    assert [len(corners(line)) for line in broken.iter("polyline")] == [2, 2]
    whole = ET.fromstring(
        line_chart("loss", [Series("loss", points)], marks=[Mark(20, "round 2")], breaks=False)
    )
    assert [len(corners(line)) for line in whole.iter("polyline")] == [4]
    assert "round 2" in [text.text for text in whole.iter("text")]


def test_hovering_tells_all_values_at_a_place():
    series = [Series("selected", [(10, 0.8319), (20, 0.9)]), Series("all", [(10, 0.5)], 5, dashed=True)]
    svg = ET.fromstring(line_chart("precision", series, percent=True, x_names={10: "round 1, step 10"}))
    assert titles(svg) == ["round 1, step 10\nselected: 83.2 %\nall: 50.0 %", "20\nselected: 90.0 %"]


def test_the_legend_names_several_lines_in_their_colours_and_escapes_them():
    text = line_chart("a < b", [Series("x<y", [(0, 1), (1, 2)], 2), Series("z", [(0, 2), (1, 1)], 4)])
    svg = ET.fromstring(text)
    assert svg.get("aria-label") == "a < b"
    assert [one.text for one in svg.iter("text") if one.get("class") == "legend"] == ["x<y", "z"]
    assert [line.get("class") for line in svg.iter("polyline")] == ["s2", "s4"]
    assert not re.search(r"#[0-9a-f]{3,6}\b", text), "colours come from the page's variables"


def test_a_long_legend_takes_several_rows_and_stays_inside():
    series = [Series(f"a rather long name {n}", [(0, n), (1, n)]) for n in range(5)]
    svg = ET.fromstring(line_chart("many", series))
    names = [one for one in svg.iter("text") if one.get("class") == "legend"]
    assert len({one.get("y") for one in names}) > 1
    assert max(float(one.get("x")) + 6 * len(one.text) for one in names) <= 440  # type: ignore[arg-type]


def test_nothing_to_draw_gives_nothing():
    assert line_chart("loss", [Series("loss", [])]) == ""
    assert histogram_chart("none", [0, 1], {"a": [0]}, colours=[1]) == ""


def test_one_lonely_point_is_visible():
    svg = ET.fromstring(line_chart("loss", [Series("loss", [(10, 2.0)])]))
    assert len(list(svg.iter("circle"))) == 1


def test_histograms_are_drawn_to_one_height_and_tell_shares():
    edges = [0.0, 0.1, 0.2, 0.3]
    svg = ET.fromstring(
        histogram_chart(
            "s", edges, {"many": [30, 60, 10], "few": [0, 1, 1]}, colours=[5, 2], reach=(0.0, 0.3)
        )
    )
    many, few = [corners(line) for line in svg.iter("polyline")]
    assert min(y for _, y in many) == min(y for _, y in few)
    assert titles(svg)[0] == "0.000 … 0.100\nmany: 30.0 %\nfew: 0.0 %"
    # x runs from 46 - 24 to 428: three bins of 135.33; "few" begins at the second.
    assert [round(x, 1) for x, _ in few][:2] == [157.3, 157.3]


def test_only_the_used_part_of_the_bins_is_shown():
    assert used_range([0, 1, 2, 3, 4], [[0, 5, 0, 0], [0, 0, 2, 0]]) == (1, 3)
    assert used_range([0, 1, 2], [[0, 0]]) == (0, 2)
