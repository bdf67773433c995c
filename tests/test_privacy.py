"""Nothing of a collection leaves the machine."""

import socket
from pathlib import Path

import pytest

from helpers.called import status_of


def test_no_command_opens_a_connection(
    small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []
    connect = socket.socket.connect

    def refuse(self: socket.socket, address: object) -> None:
        if self.family == socket.AF_UNIX:  # how workers talk to their parent
            connect(self, address)  # type: ignore[arg-type]
            return
        tried.append(address)
        raise OSError("no connections in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **_: refuse(socket.socket(), address))
    model, store = "pretrained:efficientnet_lite0", tmp_path / "store"
    for arguments in (
        ("check", small_collection),
        ("index", model, small_collection, "--store", store),
        ("search", store, small_collection / "thing0-0.png"),
        ("duplicates", store),
        ("cluster", store, "--out", tmp_path / "clusters"),
        ("embed", model, small_collection, "--out", tmp_path / "d.npz"),
        ("whiten", model, small_collection, "--out", tmp_path / "w.safetensors", "--dim", "16"),
        ("push", tmp_path / "w.safetensors", "me/things", "--dry-run"),
    ):
        assert status_of(*arguments) == 0, arguments
    assert tried == []
