"""Download a shared model, check it, and only then put it in place."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from insclr.errors import UserError
from insclr.files import whole_file
from insclr.model.stored import MODEL_NAME
from insclr.sharing.hub import download, require_repository

if TYPE_CHECKING:
    from insclr.model.model_file import Model


def pull(repo: str, out: str | Path, *, revision: str = "") -> "Model":
    """Download the model of the repository USER/NAME of the Hugging Face hub to the file `out`.

    It appears there only if it is whole, has the digest of its own record, and its tensors are those of its recipe.
    `revision` is a branch, a tag or a commit; empty = the newest.

    >>> insclr.pull("me/things", "things.safetensors").network.dim
    512
    """
    require_repository(repo)
    out = Path(out)
    if out.is_dir():
        raise UserError(f"{out} is a folder: give the name of the file to write, such as {out / MODEL_NAME}.")
    from insclr.model.model_file import load_model

    with tempfile.TemporaryDirectory() as folder:
        fetched = download(repo, MODEL_NAME, Path(folder), revision or None)
        try:
            model = load_model(fetched)
        except UserError as error:  # names the repository, not this copy
            reason = str(error).replace(str(fetched), f"{repo}/{MODEL_NAME}")
            raise UserError(f"Nothing was written. {reason}") from error
        with whole_file(out) as scratch:
            shutil.copyfile(fetched, scratch)
    return replace(model, source=str(out.absolute()))
