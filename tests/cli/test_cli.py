"""The command line: help, mistakes, and each command once."""

import errno
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import insclr
from helpers.called import call
from insclr.cli import _OneLine, main
from insclr.describe.descriptor_file import read_descriptors
from insclr.model.embedded import embedded_weights
from insclr.store import open_store


def _insclr(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, "-m", "insclr", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def test_help_lists_every_command_without_loading_torch() -> None:
    result = _insclr("--help")
    assert result.returncode == 0
    for command in ("check", "demo-data", "train", "recipes", "embed", "evaluate", "whiten"):
        assert re.search(rf"^  {command} ", result.stdout, re.MULTILINE), command
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "insclr", "--help"], capture_output=True, text=True
    ).stderr
    heavy = ("torch", "timm", "torchvision", "numpy", "faiss", "pyarrow", "fastapi", "PIL")
    assert not [name for name in heavy if re.search(rf"\| +{name}$", loaded, re.MULTILINE)]


def test_help_answers_within_half_a_second_of_processor_time() -> None:
    before = os.times()
    _insclr("--help")
    after = os.times()
    assert (after.children_user + after.children_system) - (
        before.children_user + before.children_system
    ) < 0.5


def test_help_shows_every_summary_whole(capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(call(capsys, "--help")[1].partition("Commands:")[2].split())
    assert "..." not in shown
    assert "Draw a collection to try InsCLR on: no download, always the same." in shown


def test_a_system_without_fork_gets_a_message_with_the_systems_that_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "fork")  # as on Windows
    status, out, err = call(capsys, "check", ".")
    assert (status, out) == (2, "")
    assert err == "insclr: insclr runs on Linux and macOS; on Windows, run it in WSL.\n"


def test_version_and_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version")[:2] == (0, f"insclr {insclr.__version__}\n")
    assert "--install-completion" in call(capsys, "--help")[1]
    asked = os.environ | {"_INSCLR_COMPLETE": "complete_bash", "COMP_WORDS": "insclr em", "COMP_CWORD": "1"}
    start = "import sys; sys.argv = ['insclr']; from insclr.cli import main; main()"
    completed = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, env=asked)
    assert completed.stdout.split() == ["embed"]


def test_a_name_that_is_not_utf8_is_refused_by_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"caf\xe9")
    for arguments in (
        ("check", name),
        ("train", name, "--out", "run"),
        ("index", "pretrained:efficientnet_lite0", "photos", "--store", name),
        ("serve", name),
    ):
        status, _, message = call(capsys, *arguments)
        assert (status, "not UTF-8" in message) == (2, True), message


def test_weights_are_taken_wherever_a_model_is_named(
    small_collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, white, store = tmp_path / "weights.pt", tmp_path / "white.safetensors", tmp_path / "store"
    other_weights = {
        n: torch.from_numpy(w).roll(1, 0) if n.startswith("conv_head") else torch.from_numpy(w)
        for n, w in embedded_weights().items()
    }
    torch.save(other_weights, file)
    model, size = "pretrained:efficientnet_lite0", ("--size", "32")
    labels, weights = ("--labels", small_collection / "labels.csv"), ("--weights", file)
    for arguments in (
        ("embed", model, small_collection, "--out", tmp_path / "with.npz", *weights, *size),
        ("embed", model, small_collection, "--out", tmp_path / "without.npz", *size),
        ("evaluate", model, *labels, *weights, *size),
        ("whiten", model, small_collection, "--out", white, "--dim", "8", *weights),
        ("compare", model, white, *labels, *weights, *size),
        ("index", model, small_collection, "--store", store, *weights),
        ("search", store, small_collection / "thing3-1.png", "--top", "1"),  # the store remembers the file
        ("search", store, small_collection / "thing3-1.png", "--top", "1", "--model", model, *weights),
    ):
        status, shown, message = call(capsys, *arguments)
        assert status == 0, (arguments, message)
    assert "thing3-1.png" in shown
    status, _, message = call(capsys, "evaluate", white, *labels, *weights)
    assert (status, "goes with a model named pretrained:NAME" in message) == (2, True)
    used, other = (read_descriptors(tmp_path / f"{name}.npz").descriptors for name in ("with", "without"))
    assert not np.allclose(used, other, atol=0.01)


def test_every_command_that_describes_reports_a_missing_device(
    small_collection: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    model, labels = "pretrained:efficientnet_lite0", ("--labels", small_collection / "labels.csv")
    for arguments in (
        ("embed", model, small_collection, "--out", tmp_path / "d.npz"),
        ("evaluate", model, *labels),
        ("compare", model, "pretrained:other", *labels),
        ("index", model, small_collection, "--store", tmp_path / "store"),
        ("whiten", model, small_collection, "--out", tmp_path / "white.safetensors"),
    ):
        status, _, message = call(capsys, *arguments, "--device", "cuda:1")
        assert status == 2, arguments
        assert "The device cuda:1 is not there" in message
    assert list(tmp_path.iterdir()) == []


def test_a_users_mistake_is_one_message_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ("check", tmp_path / "nothing"),
        ("check", tmp_path),
        ("train", tmp_path / "nothing", "--out", tmp_path / "run", "--recipe", "fast"),
        ("train", tmp_path, "--out", tmp_path / "run", "--recipe", "none"),
        ("evaluate", "pretrained:efficientnet_lite0"),
        ("recipes", "none"),
    ):
        status, _, message = call(capsys, *arguments)
        assert status == 2, arguments
        assert message.startswith("insclr: ")
        assert "Traceback" not in message
    assert not (tmp_path / "run").exists()


def test_recipes_are_listed_and_printed_with_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert "paper-gldv2" in call(capsys, "recipes")[1]
    printed = call(capsys, "recipes", "paper-gldv2")[1]
    assert re.search(r"^steps = 60000 +# iterations", printed, re.MULTILINE)


def test_evaluate_prints_and_writes_the_numbers(
    small_collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, shown, message = call(
        capsys,
        "evaluate", "pretrained:efficientnet_lite0", "--labels", small_collection / "labels.csv",
        "--size", "64", "--fit", "square", "--scales", "1", "--json", tmp_path / "numbers.json",
    )  # fmt: skip
    assert status == 0, message
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert {"map", "r@1", "r@5", "r@10"} <= numbers.keys()
    assert (numbers["queries"], numbers["images"]) == (48, 48)
    assert f"{numbers['map']:.2f}" in shown


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_command_reports_what_is_kept_and_shows_no_traceback(
    small_collection: Path, tmp_path: Path, sent: signal.Signals
) -> None:
    images = tmp_path / "list.txt"  # enough for some seconds of work
    for copy in range(8):
        shutil.copytree(small_collection, tmp_path / str(copy))
    images.write_text("\n".join(str(file) for file in sorted(tmp_path.glob("*/*.png"))))
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "insclr",
        "index",
        "pretrained:efficientnet_lite0",
        images,
    ]
    with subprocess.Popen(
        [*command, "--store", tmp_path / "store"], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        while not (tmp_path / "store" / "writer.lock").exists() and run.poll() is None:
            time.sleep(0.05)
        time.sleep(0.5)
        # A terminal sends Ctrl-C to the workers too.
        os.killpg(run.pid, sent)
        _, said = run.communicate(timeout=30)
    kept = f"insclr: stopped. {tmp_path / 'store'} keeps the images indexed so far. Run the same command to continue."
    assert (run.returncode, said.splitlines()[-1]) == (128 + sent, kept), said
    assert said.startswith("INFO: photos are described by ")
    assert "Traceback" not in said


def test_a_stopped_training_reports_what_the_run_folder_keeps(small_collection: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    long = ("--set", "rounds.steps=100000", "--set", "rounds.epochs=0", "--set", "checkpoint_every=5")
    small: tuple[str, ...] = (
        "--set",
        "rounds.plain_size=64",
        "--set",
        "rounds.augmented_size=64",
        "--set",
        "workers=0",
    )
    # At this size mined pairs do not bear each other out: the guard would learn nothing and end by itself.
    small += ("--set", "guard=false")
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "insclr",
        "train",
        small_collection,
        "--out",
        run,
        "--recipe",
        "fast",
    ]
    with subprocess.Popen([*command, *long, *small], stderr=subprocess.PIPE, text=True) as training:
        while not list(run.glob("round-1/step-*.pt")) and training.poll() is None:
            time.sleep(0.05)
        training.send_signal(signal.SIGINT)
        _, said = training.communicate(timeout=60)
    assert training.returncode == 128 + signal.SIGINT
    kept = rf"insclr: stopped. {run} keeps 0 of 2 rounds and \d+ steps of round 1. "
    assert re.fullmatch(kept + f"Continue: insclr train --resume --out {run}", said.splitlines()[-1]), said


def test_a_name_in_a_log_message_cannot_forge_a_line_or_colour_the_terminal() -> None:
    told = {"levelname": "WARNING", "msg": "folder %s cannot be read", "args": ("a\x1b[31m\nERROR: b",)}
    shown = _OneLine("%(levelname)s: %(message)s").format(logging.makeLogRecord(told))
    assert shown == r"WARNING: folder a\x1b[31m\nERROR: b cannot be read"


def test_log_json_makes_every_line_of_stderr_an_object(small_collection: Path, tmp_path: Path) -> None:
    shutil.copy(small_collection / "thing3-1.png", tmp_path)
    (tmp_path / "bad.png").write_bytes(b"no image")
    index = ("index", "pretrained:efficientnet_lite0", tmp_path, "--store", tmp_path / "store")
    done = _insclr("--verbose", "--log", "json", *index)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 0
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    assert [line["logger"] for line in lines if "described by" in line["message"]] == ["insclr.engine.choose"]
    assert "unreadable: bad.png" in [line["message"][:19] for line in lines]
    failed = _insclr("--log", "json", "check", tmp_path / "nowhere")
    (line,) = map(json.loads, failed.stderr.splitlines())
    assert (failed.returncode, line["level"], "does not exist" in line["message"]) == (2, "error", True)


def test_damaged_exif_data_print_no_warning_of_a_library(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x010E] = "x" * 200
    for grey in (0, 9):
        Image.new("L", (64, 48), grey).save(tmp_path / f"{grey}.jpg", exif=exif.tobytes()[:-150])
    done = subprocess.run([sys.executable, "-m", "insclr", "check", tmp_path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("2 images: 2 usable")


def test_an_index_of_unreadable_photos_only_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / "photos" / name).write_bytes(b"\xff\xd8\xff\xe0 not a photo")
    ended = _insclr(
        "index", "pretrained:efficientnet_lite0", tmp_path / "photos", "--store", tmp_path / "store"
    )
    assert ended.returncode == 2
    assert "none of the 2 images could be read" in ended.stderr


def test_an_image_that_the_disk_fails_to_give_is_not_passed_over(
    small_collection: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = os.fstat
    failing = (small_collection / "thing0-0.png").stat().st_ino

    def fstat(file: int) -> os.stat_result:
        if real(file).st_ino == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(file)

    command = (
        "index",
        "pretrained:efficientnet_lite0",
        small_collection,
        "--store",
        tmp_path / "s",
        "--engine",
        "torch",
    )
    with monkeypatch.context() as patched:
        patched.setattr("insclr.files.os.fstat", fstat)
        status, _, said = call(capsys, *command)
    assert (status, "1 images could not be read just now" in said) == (2, True), said
    assert call(capsys, *command)[0] == 0


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-"])
def test_a_closed_output_changes_nothing(tmp_path: Path, closed: str) -> None:
    for i in range(2):
        Image.effect_noise((64, 64), 40 + 20 * i).save(tmp_path / f"{i}.png")
    store = tmp_path / "store"
    command = (
        f"{sys.executable} -m insclr index pretrained:efficientnet_lite0 {tmp_path} --store {store} {closed}"
    )
    assert subprocess.run(["sh", "-c", command], env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode == 0
    assert len(open_store(store).ids()) == 2


def _errors_in_a_circle() -> OSError:
    first, second = OSError(errno.EACCES, "Permission denied"), ValueError("because of the first")
    first.__context__, second.__context__ = second, first
    return first


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (_errors_in_a_circle(), "Permission denied"),
        (MemoryError(), "not enough memory"),
        (ImportError("libtorch.so: failed to map segment from shared object"), "not enough memory"),
        (RuntimeError("can't start new thread"), "not enough memory"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (
            RuntimeError("unable to open file <block> in read-only mode: Interrupted system call (4)"),
            "block: Interrupted system call",
        ),
    ],
)
def test_a_fault_of_the_system_ends_in_a_sentence(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr("insclr.cli.require_text", fail)
    monkeypatch.setattr("os._exit", sys.exit)  # this process is the tests' own
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_signal_ends_even_a_command_that_hangs() -> None:
    code = (
        "import time, insclr.cli as cli\n"
        "cli.LAST_SECONDS = 1\n"
        "def hang(*_):\n"
        "    try:\n"
        "        print('begun', flush=True); time.sleep(60)\n"
        "    finally:\n"
        "        time.sleep(60)\n"
        "cli.require_text = hang\n"
        "cli.main()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.terminate()
    assert process.wait(30) != 0
