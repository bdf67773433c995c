"""`insclr watch`: images are indexed once they are complete, until Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import insclr
from helpers.called import call
from helpers.histogram_describer import draw, draw_things
from insclr.cli.indexing import complete_files
from insclr.store import open_store
from insclr.store.store_models import model_folder, read_models, write_models


def test_a_file_is_complete_when_it_was_not_written_to_for_an_interval(tmp_path: Path) -> None:
    draw_things(tmp_path, 1, 3)
    (tmp_path / "empty.png").write_bytes(b"")
    now = time.time()
    for name, seconds in (("0/0.png", -60), ("0/1.png", 0), ("0/2.png", 3600), ("empty.png", -60)):
        os.utime(tmp_path / name, (now + seconds, now + seconds))
    # A camera's clock may be an hour ahead.
    assert list(complete_files(tmp_path, every=10)) == ["0/0.png", "0/2.png"]


def test_only_a_folder_can_be_watched_and_a_new_store_needs_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, message in ((tmp_path / "nowhere", "is not a folder"), (tmp_path, "name with --model")):
        status, _, error = call(capsys, "watch", folder, "--store", tmp_path / "new")
        assert (status, message in error) == (2, True), error
    assert not (tmp_path / "new").exists()


def test_images_are_indexed_as_they_arrive_until_ctrl_c(tmp_path: Path) -> None:
    folder, store, away = tmp_path / "images", tmp_path / "store", tmp_path / "away"
    draw_things(folder, 1, 2)
    command = [sys.executable, "-m", "insclr", "watch", str(folder), "--store", str(store), "--every", "0.2"]
    command += ["--model", "pretrained:efficientnet_lite0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "watching" in process.stdout.readline()
        assert "2 added" in process.stdout.readline()
        (folder / "bad.png").write_bytes(b"no image")
        draw(folder / "9" / "0.png", 9, 0)
        assert "1 added: 3 images in the store" in process.stdout.readline()
        (folder / "0" / "0.png").unlink()  # its row stays
        draw(folder / "0" / "1.png", 7, 0)
        assert "1 changed: 3 images in the store" in process.stdout.readline()
        folder.rename(away)
        time.sleep(1)
        away.rename(folder)
        draw(folder / "9" / "1.png", 9, 1)
        assert "1 added: 4 images in the store" in process.stdout.readline()
        # A model that is learned meanwhile is used from then on.
        insclr.whiten("pretrained:efficientnet_lite0", folder, tmp_path / "other.safetensors", dim=4)
        insclr.index(tmp_path / "other.safetensors", folder, model_folder(store, 2))
        write_models(store, read_models(store).use(2))
        draw(folder / "9" / "2.png", 9, 2)
        assert "1 added: 4 images in the store" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "5 images added and 1 changed" in out
    assert "stopped" in errors
    assert "Traceback" not in errors
    assert errors.count("unreadable: bad.png") == 2  # once for either model
    assert errors.count("waiting for it to come back") == 1
    opened = open_store(store)
    assert set(opened.rows_by_path()) == {"0/1.png", "9/0.png", "9/1.png", "9/2.png"}
    opened.close()
    earlier = open_store(model_folder(store, 1))
    assert set(earlier.rows_by_path()) == {"0/0.png", "0/1.png", "9/0.png", "9/1.png"}
    earlier.close()
