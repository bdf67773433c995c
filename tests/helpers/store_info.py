"""What the tests' empty stores say of themselves."""

from pathlib import Path

from insclr.store import StoreInfo

INFO = StoreInfo(model="run/model.safetensors", fingerprint="f" * 64, dim=8, root=Path("/pictures"))
