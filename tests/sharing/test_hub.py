"""Push and pull against a server that speaks the hub's API: what arrives, who may read it, and what goes wrong."""

import doctest
import os
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
import yaml

import insclr
from helpers.called import call
from helpers.hub_server import HubServer, Repository
from insclr.errors import UserError
from insclr.model.model_file import load_model


def test_what_is_pushed_is_what_is_pulled(
    hub: HubServer, small_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = call(capsys, "push", small_model, "alice/things")
    assert status == 0
    made = hub.repositories["alice/things"]
    assert made.private
    assert len(made.commits) == 1
    assert sorted(made.files) == ["README.md", "model.safetensors"]
    assert made.files["model.safetensors"] == small_model.read_bytes()
    assert f"{hub.address}/alice/things/commit/" in out
    pulled = tmp_path / "new" / "things.safetensors"
    status, out, _ = call(capsys, "pull", "alice/things", "--out", pulled)
    assert status == 0
    assert pulled.read_bytes() == small_model.read_bytes()
    assert "test_resnet, 16 numbers" in out
    assert [file.name for file in pulled.parent.iterdir()] == ["things.safetensors"]


def test_a_second_push_is_a_second_commit(hub: HubServer, small_model: Path, private_model: Path) -> None:
    insclr.push(small_model, "alice/things")
    insclr.push(private_model, "alice/things")
    assert len(hub.repositories["alice/things"].commits) == 2


def test_no_folder_of_this_machine_is_uploaded(hub: HubServer, private_model: Path) -> None:
    pushed = insclr.push(private_model, "alice/things")
    files = hub.repositories["alice/things"].files
    for content in files.values():
        assert b"acme" not in content
        assert b"/home/alice" not in content
        assert str(private_model.parent).encode() not in content
    assert b"resnet10t-special.pth" in files["model.safetensors"]
    assert pushed.fingerprint != load_model(private_model).fingerprint  # another recipe, another digest
    (again := private_model.with_name("again.safetensors")).write_bytes(files["model.safetensors"])
    photos = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        torch.testing.assert_close(
            load_model(again).network(photos), load_model(private_model).network(photos)
        )


def test_public_is_asked_for_and_a_repository_that_is_there_keeps_who_may_read_it(
    hub: HubServer, small_model: Path
) -> None:
    insclr.push(small_model, "alice/open", public=True)
    assert not hub.repositories["alice/open"].private
    with pytest.raises(UserError, match=r"alice/open is there and public: pass --public"):
        insclr.push(small_model, "alice/open")
    hub.repositories["alice/closed"] = Repository(private=True)
    with pytest.raises(UserError, match=r"alice/closed is there and private"):
        insclr.push(small_model, "alice/closed", public=True)
    assert hub.repositories["alice/closed"].files == {}


def test_a_dry_run_shows_everything_and_connects_to_nothing(
    hub: HubServer, small_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    status, out, _ = call(capsys, "push", small_model, "alice/things", "--dry-run")
    assert status == 0
    assert hub.asked == []
    assert out.startswith("would be uploaded to alice/things (private)\n")
    assert "model.safetensors" in out
    front = yaml.safe_load(out[out.index("---\n") :].split("---\n")[1])
    assert front["library_name"] == "insclr"


def test_the_example_of_pull_is_true(
    hub: HubServer, small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    white = tmp_path / "white.safetensors"
    insclr.whiten("pretrained:efficientnet_lite0", small_collection, white, dim=16)
    insclr.push(white, "alice/things")
    hub.repositories["me/things"] = Repository(private=False, files=hub.repositories["alice/things"].files)
    monkeypatch.chdir(tmp_path)
    (example,) = doctest.DocTestFinder().find(insclr.pull, "pull", globs={"insclr": insclr})
    example.examples[0].want = "16\n"  # of this small model
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize(
    ("token", "broken", "repo", "expected"),
    [
        ("", {}, "alice/things", "must know who you are"),
        ("hf_stale", {}, "alice/things", "does not accept the token"),
        ("hf_bob", {}, "alice/things", "may not write to alice/things"),
        ("hf_alice", {"/objects/": 403}, "alice/things", "may not write to alice/things"),
        ("hf_alice", {"/commit/": 500}, "alice/things", r"busy or broken \(status 500\)"),
        ("hf_alice", {"/validate-yaml": 400}, "alice/things", "broken for a test|metadata"),
        ("hf_alice", {}, "things", "'things' is not the name of a repository: write USER/NAME"),
        ("hf_alice", {}, "alice/th ings", "not the name of a repository"),
        ("hf_alice", {}, "alice/a--b", "not the name of a repository"),
    ],
)
def test_a_push_that_fails_gives_the_reason_in_one_sentence(
    hub: HubServer,
    small_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    token: str,
    broken: dict[str, int],
    repo: str,
    expected: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    hub.broken = broken
    monkeypatch.setattr("time.sleep", lambda _: None)  # the client asks a broken hub again
    status, out, err = call(capsys, "push", small_model, repo)
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1, err
    with pytest.raises(UserError, match=expected):
        insclr.push(small_model, repo)
    assert all(not repository.files for repository in hub.repositories.values())


def test_what_is_not_ours_to_share_is_refused(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="pretrained:efficientnet_lite0 is no model file"):
        insclr.push("pretrained:efficientnet_lite0", "alice/things")
    with pytest.raises(UserError, match="There is no model"):
        insclr.push(tmp_path / "nowhere", "alice/things")
    assert hub.asked == []


@pytest.mark.parametrize(
    ("spoilt", "expected"),
    [
        ("absent", "There is no model repository alice/things, or it is private"),
        ("bobs", "There is no model repository bob/things, or it is private"),
        ("empty", "alice/things holds no model.safetensors"),
        ("foreign", "alice/things/model.safetensors is not an InsCLR model"),
        ("cut", "alice/things/model.safetensors is not a whole model file"),
        ("changed", "alice/things/model.safetensors was changed after it was written"),
        ("short", "The download was cut short"),
        ("revision", "has no such revision"),
        ("folder", "is a folder"),
        ("offline", "HF_HUB_OFFLINE is set"),
        ("unreachable", "The hub cannot be reached"),
    ],
)
def test_a_pull_that_fails_gives_the_reason_and_changes_nothing(
    hub: HubServer,
    small_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spoilt: str,
    expected: str,
) -> None:
    whole = small_model.read_bytes()
    repo = "bob/things" if spoilt == "bobs" else "alice/things"
    content = {
        "empty": None,
        "foreign": whole.replace(b"insclr-2", b"insclr-?"),
        "cut": whole[:-1000],
        "changed": whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:],
    }.get(spoilt, whole)
    if spoilt != "absent":
        files = {"README.md": b"# things"} | ({} if content is None else {"model.safetensors": content})
        hub.repositories[repo] = Repository(private=True, files=files)
    hub.cut = 1000 if spoilt == "short" else 0
    if spoilt == "offline":
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        getattr(huggingface_hub.utils, "reset_sessions", lambda: None)()
    if spoilt == "unreachable":
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    (old := tmp_path / "out" / "model.safetensors").parent.mkdir()
    old.write_bytes(b"what was there")
    out = old.parent if spoilt == "folder" else old
    revision = ["--revision", "v9"] if spoilt == "revision" else []
    status, shown, err = call(capsys, "pull", repo, "--out", out, *revision)
    assert (status, shown) == (2, "")
    assert expected in err
    assert len(err.strip().splitlines()) == 1, err
    assert str(tmp_path / "hub-cache") not in err
    assert [file.read_bytes() for file in old.parent.iterdir()] == [b"what was there"]


def test_the_commands_find_the_hub_by_its_own_variables(
    hub: HubServer, small_model: Path, tmp_path: Path
) -> None:
    """In a process of its own, as a user has it: HF_ENDPOINT and a login kept in a file."""
    (home := tmp_path / "home").mkdir()
    (home / "token").write_text("hf_alice")
    env = {key: value for key, value in os.environ.items() if key not in ("HF_TOKEN", "HF_TOKEN_PATH")}
    env |= {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "insclr", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=env)

    pushed = run("push", small_model, "alice/things")
    assert (pushed.returncode, pushed.stderr) == (0, "")
    out = tmp_path / "m.safetensors"
    pulled = run("pull", "alice/things", "--out", out)
    assert (pulled.returncode, pulled.stderr) == (0, "")
    assert out.read_bytes() == small_model.read_bytes()
    absent = run("pull", "alice/absent", "--out", tmp_path / "absent.safetensors")
    assert absent.returncode == 2
    assert absent.stderr.startswith("insclr: There is no model repository alice/absent")
    assert not (tmp_path / "absent.safetensors").exists()
