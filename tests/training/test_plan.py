"""The plan of a run and the time that is left."""

from insclr.recipe import load_recipe
from insclr.training.plan import Plan


def test_the_plan_names_every_stage() -> None:
    plan = Plan(load_recipe("default", ("minutes=20",)), images=601)
    assert plan.line() == (
        "plan: describe 601 photos, 8 rounds of the last layer, 6 rounds of the late layers (20 min at most), "
        "the report"
    )
    longer = Plan(load_recipe("default", ("minutes=180", "rounds.3.train=all")), images=601)
    assert longer.line() == (
        "plan: describe 601 photos, 8 rounds of the last layer, 5 rounds of the late layers, 1 round of all layers "
        "(together 3 h 0 min at most), the report"
    )
    resumed = Plan(load_recipe("fast"), images=601, done=1)
    assert resumed.line() == "plan: 1 of 2 rounds are done; 1 round of the last layer, the report"


def test_the_plan_begins_with_the_size_of_views_until_a_round_is_done() -> None:
    size = "views of 320 px, by the pixels of the photos"
    new = Plan(load_recipe("fast"), images=601, size=size)
    assert new.line() == f"plan: {size}; describe 601 photos, 2 rounds of the last layer, the report"
    assert size not in Plan(load_recipe("fast"), images=601, done=1, size=size).line()


def test_the_rest_of_a_run_is_never_longer_than_its_minutes_allow() -> None:
    plan = Plan(load_recipe("default", ("minutes=1",)), images=10_000)
    # 10,000 images in tuples of 64: an epoch is 157 steps, three times; five are 400 at most, twice; 0.02 s each
    # until one is measured.
    before_anything = plan.seconds_after()
    assert before_anything is not None
    assert abs(before_anything - (60 + (6 * 157 + 2 * 400) * 0.02)) < 1e-6
    plan.note_describing(views=1000, seconds=10.0)
    # Late rounds: half an epoch in tuples of 16 = 313 steps of some 64 images at 10 ms: minutes, so the limit counts.
    assert plan.seconds_after() == before_anything


def test_what_a_round_took_tells_how_long_the_next_will() -> None:
    plan = Plan(load_recipe("fast"), images=10_000)
    plan.begin_round(0)
    plan._began -= 80.0  # 80 seconds ago
    plan.end_round(steps=400)
    left = plan.seconds_after()
    assert left is not None
    assert 79 < left < 82


def test_while_a_round_prepares_its_own_steps_count_too() -> None:
    plan = Plan(load_recipe("fast"), images=10_000)
    before = plan.seconds_after()
    plan.begin_round(0)
    assert plan.seconds_after() == before
    plan.begin_steps()  # they have a bar of their own from here on
    left = plan.seconds_after()
    assert before is not None
    assert left is not None
    # 400 steps of tuples of 64 at 0.02 s, and one round after them
    assert abs(before - left - 400 * 0.02) < 1e-6
