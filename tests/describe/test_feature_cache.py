"""Descriptors from kept features are those of the images."""

from pathlib import Path

import numpy as np
import pytest

from helpers.histogram_describer import draw_things
from insclr.data.images import ImageList, Skipped, list_images
from insclr.describe import pipeline
from insclr.describe.describer import Describer
from insclr.model.model_file import resolve_model
from insclr.recipe import load_recipe


def test_kept_features_give_the_same_descriptors_without_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = draw_things(tmp_path / "photos", 2, 2)
    (tmp_path / "photos" / "broken.png").write_bytes(b"no picture")
    images = ImageList(tmp_path / "photos", (*paths, "broken.png"))
    model = resolve_model("pretrained:efficientnet_lite0")
    model = type(model)(
        model.network, model.recipe.with_(descriptor=load_recipe("fast").descriptor), model.fingerprint
    )
    expected = Describer("m", model, 0).files(images, Skipped())
    skipped = Skipped()
    kept = Describer("m", model, features=tmp_path / "cache").files(images, skipped)
    found = kept.descriptors
    np.testing.assert_allclose(found, expected.descriptors, atol=2e-3)
    assert kept.hashes == expected.hashes
    assert not found[4].any()
    assert [path for path, _ in skipped] == ["broken.png"]

    def decoded_again(*_: object) -> None:
        raise AssertionError("an image was decoded again")

    monkeypatch.setattr(pipeline, "decode", decoded_again)
    whole = list_images(tmp_path / "photos").subset(
        [i for i in range(5) if "broken" not in list_images(tmp_path / "photos").paths[i]]
    )
    again = Describer("m", model, features=tmp_path / "cache").files(whole, Skipped()).descriptors
    assert sorted(map(tuple, again.round(4).tolist())) == sorted(map(tuple, found[:4].round(4).tolist()))
