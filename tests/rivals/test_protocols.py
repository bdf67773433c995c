"""The public benchmarks: their real ground-truth files, and small made-up ones with images on disk."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from insclr.errors import UserError
from insclr.evaluation.protocol import Judgement, load_protocol, map_at_100_metric, trapezoid_metric
from insclr_rivals.landmarks_instre import image_path
from insclr_rivals.oxford_paris import CORRUPT_PARIS


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


# Real files


@pytest.fixture
def ground_truths(shared: Path) -> Path:
    return shared / "protocols"


@pytest.mark.parametrize(("name", "database"), [("roxford5k", 4993), ("rparis6k", 6322)])
def test_the_real_revisited_files(tmp_path, ground_truths, name, database):
    protocol = load_protocol(name, tmp_path, ground_truths / f"gnd_{name}.pkl")
    assert (len(protocol.queries), len(protocol.database), len(protocol.boxes)) == (70, database, 70)  # type: ignore[arg-type]
    assert {setting: len(truth) for setting, truth in protocol.settings.items()} == dict.fromkeys(
        ("easy", "medium", "hard"), 70
    )
    assert all(x1 < x2 and y1 < y2 for x1, y1, x2, y2 in protocol.boxes)  # type: ignore[union-attr]
    assert not set(protocol.queries.paths) & set(protocol.database.paths)
    missing_queries, missing_rows = protocol.missing()
    assert (len(missing_queries), len(missing_rows)) == (70, database)


def test_the_real_instre_file_and_a_perfect_ranking(tmp_path, ground_truths):
    protocol = load_protocol("instre", tmp_path, ground_truths / "gnd_instre.mat")
    assert (len(protocol.queries), len(protocol.database)) == (1250, 27293)
    assert protocol.boxes[0] == (326, 219, 670, 493)  # type: ignore[index]
    truth = protocol.settings["all"]
    # Ids read one off would leave out the first picture of the folder and take one of the next.
    folder = Path(protocol.queries.paths[0]).parent.as_posix() + "/"
    rows = {i for i, path in enumerate(protocol.database.paths) if path.startswith(folder)}
    assert rows <= set(truth[0].positives.tolist())
    assert len(rows) > 50
    # The released evaluator counts rows from 0: a ranking in the order of the ground truth has 95.9 there.
    everything = np.arange(27293)
    perfect = [np.append(one.positives, np.setdiff1d(everything, one.positives)) for one in truth]
    misread = trapezoid_metric(perfect, [Judgement(one.positives + 1) for one in truth])
    assert 100 * misread.means["map"] == pytest.approx(95.9, abs=0.05)
    for start in range(0, 1250, 250):
        block = truth[start : start + 250]
        wrong = np.ones((len(block), 27293), dtype=bool)
        for row, judged in zip(wrong, block, strict=True):
            row[judged.positives] = False
        ranking = np.argsort(wrong, axis=1, kind="stable")  # every positive, then the rest
        assert trapezoid_metric(ranking, block).means["map"] == 1.0


def test_the_real_classic_paris_files(tmp_path, ground_truths):
    protocol = load_protocol("paris6k", tmp_path, ground_truths / "paris6k_classic")
    assert len(protocol.queries) == 55
    assert protocol.queries.paths[0] == "jpg/paris_defense_000605.jpg"
    assert protocol.boxes[0] == (130, 17, 843, 732)  # type: ignore[index]
    # Every query is in the database and right for itself.
    row = {path: i for i, path in enumerate(protocol.database.paths)}
    for query, judged in zip(protocol.queries.paths, protocol.settings["all"], strict=True):
        assert row[query] in judged.positives
        assert not set(judged.positives.tolist()) & set(judged.junk.tolist())


def slow_scores(ranking, positives, junk):
    """AP and P@1/5/10 of the revisited paper, walking down the list one image at a time."""
    place, found, ap, ranks = 0, 0, 0.0, []
    for image in ranking:
        if image in junk:
            continue
        if image in positives:
            before = 1.0 if place == 0 else found / place
            ap += (before + (found + 1) / (place + 1)) / 2 / len(positives)
            found += 1
            ranks.append(place + 1)
        place += 1
    cut = [min(max(ranks), k) for k in (1, 5, 10)]
    return ap, [sum(rank <= k for rank in ranks) / k for k in cut]


def test_a_random_ranking_over_the_real_roxford5k_agrees_with_a_slow_implementation(tmp_path, ground_truths):
    protocol = load_protocol("roxford5k", tmp_path, ground_truths / "gnd_roxford5k.pkl")
    generator = np.random.default_rng(0)
    ranking = np.stack([generator.permutation(4993) for _ in range(70)])
    with (ground_truths / "gnd_roxford5k.pkl").open("rb") as stream:
        raw = pickle.load(stream)["gnd"]
    for setting, right in {"easy": ["easy"], "medium": ["easy", "hard"], "hard": ["hard"]}.items():
        aps, precisions = [], []
        for query, entry in enumerate(raw):
            positives = {i for part in right for i in entry[part]}
            junk = {i for part in ("easy", "hard", "junk") if part not in right for i in entry[part]}
            if positives:
                ap, precision = slow_scores(ranking[query].tolist(), positives, junk)
                aps.append(ap)
                precisions.append(precision)
        score = trapezoid_metric(ranking, protocol.settings[setting])
        assert score.means["map"] == pytest.approx(np.mean(aps), abs=1e-9)
        found = [score.means[f"mp@{k}"] for k in (1, 5, 10)]
        assert found == pytest.approx(np.mean(precisions, axis=0), abs=1e-9)
        assert (~np.isnan(score.ap)).sum() == len(aps)


# Small made-up ones


def small_truth(**changed):
    truth = {"bbx": [0, 0, 4, 4], "easy": [3, 1], "hard": [5, 8], "junk": [7, 0]} | changed
    return {"imlist": [f"image_{i}" for i in range(10)], "qimlist": ["query_a"], "gnd": [truth]}


def test_easy_medium_and_hard_from_a_file(tmp_path):
    (tmp_path / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(small_truth()))
    touch(tmp_path, "jpg/query_a.jpg", *(f"jpg/image_{i}.jpg" for i in range(9)))
    protocol = load_protocol("roxford5k", tmp_path)
    assert protocol.queries.paths == ("jpg/query_a.jpg",)
    assert [ids.tolist() for ids in protocol.missing()] == [[], [9]]
    ranking = np.array([[7, 3, 0, 5, 9, 1, 2, 8, 4, 6]])
    maps = {name: protocol.metric(ranking, truth).means["map"] for name, truth in protocol.settings.items()}
    assert maps == pytest.approx({"easy": 0.791667, "medium": 0.835417, "hard": 0.708333}, abs=1e-6)


def test_a_query_without_positives_does_not_count():
    truth = [Judgement(np.array([1])), Judgement(np.array([], dtype=np.int64), np.array([0]))]
    score = trapezoid_metric(np.array([[1, 0], [1, 0]]), truth)
    assert score.means["map"] == 1
    assert np.isnan(score.ap[1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "not a revisited ground truth"),
        ({"imlist": ["a"], "qimlist": ["b"]}, "not a revisited ground truth"),
        (small_truth(easy=[10]), "query query_a names database rows outside 0 to 9"),
        (small_truth(bbx=[1, 2]), "not a revisited ground truth"),
        (small_truth() | {"gnd": []}, "1 queries but 0 ground truths"),
    ],
)
def test_other_pickles_are_no_ground_truth(tmp_path, content, message):
    (tmp_path / "gnd_rparis6k.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(UserError, match=message):
        load_protocol("rparis6k", tmp_path)


def test_unknown_names_and_missing_files_are_explained(tmp_path):
    with pytest.raises(UserError, match="gldv2, instre, oxford5k, paris6k, roxford5k, rparis6k"):
        load_protocol("holidays", tmp_path)
    with pytest.raises(UserError, match="is no folder"):
        load_protocol("instre", tmp_path / "none")
    for name, wanted in (
        ("roxford5k", "gnd_roxford5k.pkl"),
        ("instre", "gnd_instre.mat"),
        ("gldv2", "solution"),
    ):
        with pytest.raises(UserError, match=wanted):
            load_protocol(name, tmp_path)
    with pytest.raises(UserError, match="no ground truth"):
        load_protocol("oxford5k", tmp_path)


def test_taking_images_out_renumbers_the_ground_truth(tmp_path):
    (tmp_path / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(small_truth()))
    left = load_protocol("roxford5k", tmp_path).without(np.array([], dtype=np.int64), np.array([0, 3]))
    assert len(left.database) == 8
    judged = left.settings["easy"][0]
    names = [Path(left.database.paths[i]).stem for i in (*judged.positives, *judged.junk)]
    assert names == ["image_1", "image_7", "image_5", "image_8"]


def test_instre_counts_from_one(tmp_path):
    entry = np.zeros((1, 1), dtype=[("ok", "O"), ("bbx", "O")])
    entry[0, 0] = (np.array([[3, 1]], dtype=np.uint16), np.array([[1, 2, 3, 4]], dtype=np.uint16))
    names = np.array([[f"INSTRE-S1/x/{i}.jpg" for i in range(4)]], dtype=object)
    two = {
        "gnd": np.repeat(entry, 2, axis=1),
        "imlist": names,
        "qimlist": np.array([["INSTRE-S1/x/q.jpg", "INSTRE-S1/x/r.jpg"]], dtype=object),
    }
    scipy.io.savemat(tmp_path / "gnd_instre.mat", two)
    protocol = load_protocol("instre", tmp_path)
    assert protocol.boxes[0] == (1, 2, 3, 4)  # type: ignore[index]
    score = trapezoid_metric(np.array([[2, 0, 1, 3]] * 2), protocol.settings["all"])
    assert score.means["map"] == 1.0
    misread = [Judgement(np.array([3, 1]))]
    assert trapezoid_metric(np.array([[2, 0, 1, 3]]), misread).means["map"] == pytest.approx(
        0.291667, abs=1e-6
    )
    # MATLAB keeps one query, or one image, in a cell of one element.
    one = {"gnd": entry, "imlist": names, "qimlist": np.array([["INSTRE-S1/x/q.jpg"]], dtype=object)}
    scipy.io.savemat(tmp_path / "gnd_instre.mat", one)
    alone = load_protocol("instre", tmp_path)
    assert alone.queries.paths == ("INSTRE-S1/x/q.jpg",)
    assert len(alone.database) == 4
    assert alone.settings["all"][0].positives.tolist() == [2, 0]
    (tmp_path / "gnd_instre.mat").write_bytes(b"no matlab file")
    with pytest.raises(UserError, match="not the INSTRE ground truth"):
        load_protocol("instre", tmp_path)


def classic_files(root, queries=55):
    for i in range(queries):
        (root / f"hall_{i}_query.txt").write_text(f"oxc1_hall_{i} 1.5 2 30 40\n")
        (root / f"hall_{i}_good.txt").write_text(f"hall_{i}\n")
        (root / f"hall_{i}_ok.txt").write_text("other\n")
        (root / f"hall_{i}_junk.txt").write_text("")
        touch(root, f"jpg/hall_{i}.jpg")
    touch(root, "jpg/other.jpg", "jpg/far.jpg")


def test_classic_files_with_oxfords_prefix(tmp_path, caplog):
    classic_files(tmp_path)
    touch(tmp_path, f"jpg/{sorted(CORRUPT_PARIS)[0]}.jpg")
    protocol = load_protocol("oxford5k", tmp_path)
    assert len(protocol.database) == 57  # with the query images, without the damaged one
    assert protocol.queries.paths[2] == "jpg/hall_2.jpg"
    assert protocol.boxes[2] == (1.5, 2, 30, 40)  # type: ignore[index]
    names = [protocol.database.paths[i] for i in protocol.settings["all"][2].positives]
    assert names == ["jpg/hall_2.jpg", "jpg/other.jpg"]
    assert all(len(ids) == 0 for ids in protocol.missing())
    assert "57 images" in caplog.text  # the real one has 5063


def test_incomplete_classic_files_are_refused(tmp_path):
    classic_files(tmp_path, queries=54)
    with pytest.raises(UserError, match="54 files"):
        load_protocol("oxford5k", tmp_path)
    classic_files(tmp_path)
    (tmp_path / "hall_3_ok.txt").unlink()
    with pytest.raises(UserError, match=r"hall_3_ok\.txt is missing"):
        load_protocol("oxford5k", tmp_path)
    (tmp_path / "hall_3_ok.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(UserError, match=r"hall_3_ok\.txt is not text"):
        load_protocol("oxford5k", tmp_path)
    classic_files(tmp_path)
    (tmp_path / "hall_3_query.txt").write_text("oxc1_hall_3 1 2 3\n")
    with pytest.raises(UserError, match=r"hall_3_query\.txt, line 1"):
        load_protocol("oxford5k", tmp_path)


def test_there_are_twenty_damaged_paris_images():
    assert len(CORRUPT_PARIS) == 20


def gldv2_files(root):
    solution = "id,images,Usage\nqaa1,iaa1 iaa2,Public\nqaa2,iaa1,Private\nqaa3,,Ignored\n"
    (root / "retrieval_solution_v2.1.csv").write_text(solution)
    (root / "index.csv").write_text("id\niaa1\niaa2\niaa3\n")


def test_gldv2_splits_and_paths(tmp_path):
    gldv2_files(tmp_path)
    protocol = load_protocol("gldv2", tmp_path)
    assert protocol.queries.paths == ("q/a/a/qaa1.jpg", "q/a/a/qaa2.jpg")
    assert protocol.database.file(2) == tmp_path / "index" / "i" / "a" / "a" / "iaa3.jpg"
    ranking = np.array([[2, 0, 1], [0, 1, 2]])
    maps = {name: map_at_100_metric(ranking, truth).means["map"] for name, truth in protocol.settings.items()}
    assert maps == pytest.approx({"public": (1 / 2 + 2 / 3) / 2, "private": 1.0})
    assert protocol.depth == 100


def test_gldv2_index_from_the_folder(tmp_path):
    gldv2_files(tmp_path)
    (tmp_path / "index.csv").unlink()
    with pytest.raises(UserError, match=r"neither index\.csv nor"):
        load_protocol("gldv2", tmp_path)
    touch(tmp_path / "index", *(image_path(image) for image in ("iaa1", "iaa9")))
    protocol = load_protocol("gldv2", tmp_path)
    assert [Path(path).stem for path in protocol.database.paths] == ["iaa1", "iaa9", "iaa2"]
    assert protocol.missing()[1].tolist() == [2]


@pytest.mark.parametrize("file", ["retrieval_solution_v2.1.csv", "index.csv"])
@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe", "UTF-8"), (b'id,images,Usage\n"qaa1', "line 2: malformed"), (b"x\n1\n", 'no column "id"')],
)
def test_damaged_gldv2_files_are_named(tmp_path, file, content, message):
    gldv2_files(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_protocol("gldv2", tmp_path)


def test_a_gldv2_id_that_names_no_folders_is_refused(tmp_path):
    gldv2_files(tmp_path)
    (tmp_path / "index.csv").write_text("id\niaa1\nia\n")
    with pytest.raises(UserError, match=r"index\.csv, line 3"):
        load_protocol("gldv2", tmp_path)
