"""A run folder written by hand: four images, one or two rounds, and the file name of an attacker."""

import json

from PIL import Image

HOSTILE = 'a"><img src=x onerror=alert(1)>&.png'
NAMES = ["anchor.png", "near.png", "far.png", HOSTILE]
RECIPE = """
name = "fast"                       # what the recipe is called
guard = true

[network]
backbone = "small"
initial_fc_weight = {kept}

[[rounds]]
train = "fc"
steps = 20
pool = 50                           # size of the candidate pool

[rounds.method]
name = "calibrated"
weights = "a # b"                   # a file
k = "auto"                          # <b>topk</b>

[rounds.loss]
margin = "auto"                     # a negative counts only above this
normalise = "mean"                  # sum or mean
"""


def step(number, labelled, round_number=1, **changes):
    values = {"loss": 1.25, "batch_positives": 2.6, "bank_positives": 14.2, "active_negatives": 9.0}
    if labelled:
        values |= {"batch_precision": 0.8319, "nn_precision": 0.75, "memory_precision": 0.4526}
    return {"round": round_number, "step": number} | values | changes


def inspection(labelled):
    def picture(path, right, **more):
        return {"path": path, "similarity": 0.71, "right": right if labelled else None} | more

    counts = [0] * 80
    counts[60] = 5
    return {
        "method": "D",
        "labelled": labelled,
        "criteria": {"batch_threshold": 0.3, "margin": 0.1},
        "summary": {"anchors": 4, "batch": {"positives": 1.0, "precision": 0.5 if labelled else None}},
        "histograms": {"edges": [-1 + i / 40 for i in range(81)], "counts": {"random pairs": counts}},
        "tuples": [
            {
                "anchor": "anchor.png",
                "members": [
                    picture("near.png", True, selected=True),
                    picture("far.png", False, selected=False),
                ],
                "mined": [picture(HOSTILE, False, score=0.664, repeat=2)],
                "passed": [picture("far.png", True, score=None, repeat=0)],
            }
        ],
    }


def make_run(tmp_path, *, labelled=True, records=None, guard=(), finished=True, names=NAMES, kept=0.0):
    photos, run = tmp_path / "photos", tmp_path / "run"
    photos.mkdir()
    run.mkdir()
    for place, name in enumerate(NAMES):
        Image.new("RGB", (300, 200), (60 * place, 120, 200)).save(photos / name)
    (run / "recipe.toml").write_text(RECIPE.format(kept=kept))
    (run / "images.json").write_text(json.dumps({"root": str(photos), "paths": list(names)}))
    start = {
        "round": 1,
        "step": -1,
        "event": "start",
        "pool": 50,
        "reasons": ["margin = 0.067: 10.0% of random pairs are more similar", "something < else"],
        "criteria": {"method": "D", "margin": 0.067, "k": 5},
    }
    end = {"round": 1, "step": 20, "event": "end", "steps": 20, "seconds": 200.0}
    if records is None:
        records = [step(10, labelled), step(20, labelled, loss=0.5)]
    lines = [start | ({"map": 45.04} if labelled else {}), *records, *guard]
    if finished:
        lines += [end, {"round": 2, "step": -1, "event": "finish"} | ({"map": 70.26} if labelled else {})]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "skipped.csv").write_text("path,reason\n")
    for moment in ("start", "end"):
        save_inspection(run, 1, moment, inspection(labelled))
    return run


def save_inspection(run, round_number, moment, inspection):
    file = run / f"round-{round_number}" / f"inspection-{moment}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(inspection))
