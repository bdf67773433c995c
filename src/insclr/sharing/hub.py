"""The Hugging Face hub: ask it, explain what goes wrong in one sentence, download a shared model and check it."""

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from insclr.errors import UserError
from insclr.files import whole_file
from insclr.model.stored import MODEL_NAME

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from insclr.model.model_file import Model


_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
_TIMEOUT = 20.0  # seconds for the first answer: a hub that cannot be reached is reported soon


def require_repository(name: str) -> None:
    """Refuse what cannot be the name of a repository, before anything is loaded."""
    if not _REPO.fullmatch(name) or "--" in name or ".." in name or name.endswith((".git", ".", "-")):
        raise UserError(
            f"{name!r} is not the name of a repository: write USER/NAME, of letters, digits, '-', '_' and '.'."
        )


def upload(repo: str, files: dict[str, Path | bytes], *, public: bool, message: str) -> str:
    """Commit the files to the model repository, made if it is not there; the address of the commit.

    A commit is one step: all files are there, or none.
    """
    from huggingface_hub import CommitOperationAdd, get_token
    from huggingface_hub.errors import RepositoryNotFoundError

    if get_token() is None:
        raise UserError(f"The hub must know who you are: {_LOG_IN} with a token that may write.")
    api = _api()
    with _in_one_sentence(api, repo):
        try:
            known = api.model_info(repo, timeout=_TIMEOUT)
        except RepositoryNotFoundError:
            api.create_repo(repo, private=not public)
        else:
            _require_as_open(repo, private=bool(known.private), public=public)
        added = [CommitOperationAdd(name, content) for name, content in files.items()]
        commit = api.create_commit(repo, added, commit_message=message)
    return str(commit.commit_url)


def _require_as_open(repo: str, *, private: bool, public: bool) -> None:
    """A repository that is there keeps who may read it, so it must be what was asked for."""
    if public and private:
        raise UserError(f"{repo} is there and private: leave --public out, or open it in its settings first.")
    if not public and not private:
        raise UserError(f"{repo} is there and public: pass --public, or choose another name.")


def download(repo: str, name: str, folder: Path, revision: str | None = None) -> Path:
    """The file `name` of the model repository, put into `folder`."""
    api = _api()
    with _in_one_sentence(api, repo):
        found = api.model_info(repo, revision=revision, timeout=_TIMEOUT)
        if name not in {sibling.rfilename for sibling in found.siblings or ()}:
            raise UserError(f"{repo} holds no {name}: it is no model of `insclr push`.")
        # By the commit, so that another push in between changes nothing.
        return Path(api.hf_hub_download(repo, name, revision=found.sha or revision, local_dir=folder))


def _api() -> "HfApi":
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    from insclr import __version__

    if not sys.stderr.isatty():
        disable_progress_bars()
    return HfApi(library_name="insclr", library_version=__version__)


@contextmanager
def _in_one_sentence(api: "HfApi", repo: str) -> Iterator[None]:
    """Make a UserError of whatever the hub's client raises."""
    # Its errors are those of its HTTP library, which is another one in each of its major versions.
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    try:
        yield
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None and error.filename:
            raise  # the user's own disk
        causes = [error, *([error.__cause__] if error.__cause__ else [])]
        told = (_sentence(cause, repo) for cause in reversed(causes))
        where = urlsplit(api.endpoint).hostname
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            next((sentence for sentence in told if sentence), f"The exchange with {where} failed: {reason}")
        ) from error


def _sentence(error: BaseException, repo: str) -> str:
    """What to do about an error of the hub; empty for one that is not known here."""
    from huggingface_hub import errors

    known = {
        errors.OfflineModeIsEnabled: "HF_HUB_OFFLINE is set: unset it to reach the hub.",
        errors.GatedRepoError: f"{repo} wants its terms accepted: do so on its page, with the account of your token.",
        errors.RepositoryNotFoundError: f"There is no model repository {repo}, or it is private: check the name; "
        f"{_LOG_IN} if it is yours.",
        errors.RevisionNotFoundError: f"{repo} has no such revision: give a branch, a tag or a commit of it.",
    }
    for kind, sentence in known.items():
        if isinstance(error, kind):
            return sentence
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if status == 401:
            return f"The hub does not accept the token: {_LOG_IN} with a new one."
        if status == 403:
            return (
                f"This token may not write to {repo}: use one with write access to {repo.partition('/')[0]}."
            )
        if status == 429 or status >= 500:
            return f"The hub is busy or broken (status {status}): try again later."
        return f"The hub refused ({status}): {error.server_message or 'no reason given'}"
    if "Consistency check failed" in str(error):
        return "The download was cut short: try again."
    names = {kind.__name__ for kind in type(error).__mro__}  # of whichever HTTP library
    if names & {"TransportError", "ConnectionError", "Timeout", "TimeoutError"}:
        return "The hub cannot be reached: is there a network? A model file can also be copied by hand."
    return ""


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
