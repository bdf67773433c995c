import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from insclr.cli import main


def _insclr(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "insclr", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def _call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """The command in this process: status, output, messages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["insclr", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out, shown.err


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


def test_a_device_that_is_not_there_is_told_by_every_command_that_describes(
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
        status, _, message = _call(capsys, *arguments, "--device", "cuda:1")
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
        status, _, message = _call(capsys, *arguments)
        assert status == 2, arguments
        assert message.startswith("insclr: ")
        assert "Traceback" not in message
    assert not (tmp_path / "run").exists()


def test_recipes_are_listed_and_printed_with_their_knobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert "paper-gldv2" in _call(capsys, "recipes")[1]
    printed = _call(capsys, "recipes", "paper-gldv2")[1]
    assert re.search(r"^steps = 60000 +# iterations", printed, re.MULTILINE)


def test_evaluate_prints_and_writes_the_numbers(
    small_collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, shown, message = _call(
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
def test_a_stopped_command_says_what_is_kept_and_shows_no_traceback(
    small_collection: Path, tmp_path: Path, sent: signal.Signals
) -> None:
    images = tmp_path / "list.txt"  # enough for some seconds of work
    for copy in range(8):
        shutil.copytree(small_collection, tmp_path / str(copy))
    images.write_text("\n".join(str(file) for file in sorted(tmp_path.glob("*/*.png"))))
    command = [sys.executable, "-m", "insclr", "index", "pretrained:efficientnet_lite0", images]
    with subprocess.Popen(
        [*command, "--store", tmp_path / "store"], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        while not (tmp_path / "store" / "writer.lock").exists() and run.poll() is None:
            time.sleep(0.05)
        time.sleep(0.5)
        # A terminal sends Ctrl-C to the workers too.
        os.killpg(run.pid, sent)
        _, said = run.communicate(timeout=30)
    assert run.returncode == 128 + sent
    assert said.splitlines()[1:] == [
        "insclr: stopped. What was written is whole: the same command goes on from there, a training with --resume."
    ]
    assert said.startswith("INFO: photos are described by ")
