"""Finding a model's directory: a local one, or a repository of the Hugging Face Hub downloaded into its cache."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NoReturn

from skipjax.tensor_files import WEIGHT_FILES

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

TIMEOUT = 10  # seconds to wait for the hub's answer to what a repository holds

# Everything but weights that loading reads.
_SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "skipjax.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
)


def resolve(name_or_path: str | os.PathLike[str]) -> Path:
    """The directory of a model, downloaded first where it is a hub id ("owner/name") and no directory.

    Raises:
      FileNotFoundError: neither a directory nor a repository that can be reached.
      ValueError: a file instead of a directory, a repository that needs a login, or one without weights to read.
    """
    name = os.fspath(name_or_path)
    path = Path(name).expanduser()
    if name and path.is_dir():  # an empty path would be the current directory
        return path
    if name and path.exists():
        raise ValueError(f"path must be a directory, got the file {name!r}")
    if not _HUB_ID.fullmatch(name):
        raise FileNotFoundError(
            f"path must be a model directory or a Hugging Face Hub id such as 'facebook/opt-125m', got {name!r}, where "
            f"there is no directory"
        )
    return _download(name)


def _download(name: str) -> Path:
    import huggingface_hub

    try:
        # Not list_repo_files: offline, that retries for half a minute.
        siblings = huggingface_hub.HfApi().model_info(name, timeout=TIMEOUT).siblings or []
    except Exception as error:  # the hub's own errors, and those of whichever HTTP library it uses
        return _from_cache(name, error)
    weights = _weight_patterns(name, {sibling.rfilename for sibling in siblings})
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=[*_SMALL_FILES, *weights]))
    except Exception as error:
        _explain(name, error)


def _weight_patterns(name: str, files: set[str]) -> list[str]:
    """Patterns for the weights of one form only: many repositories hold the same weights several times."""
    for single in WEIGHT_FILES:
        if single in files:
            return [single]
        if f"{single}.index.json" in files:
            stem, _, ending = single.rpartition(".")
            return [f"{single}.index.json", f"{stem}-*-of-*.{ending}"]
    raise ValueError(f"hub repository {name!r} must hold {' or '.join(WEIGHT_FILES)}, or an index of shards")


def _from_cache(name: str, error: Exception) -> Path:
    """What an earlier download left, where the hub cannot be asked."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    if isinstance(error, RepositoryNotFoundError):
        _explain(name, error)
    try:
        return Path(snapshot_download(name, local_files_only=True))
    except Exception:  # nothing there, or a damaged cache: what went wrong first is the better explanation
        _explain(name, error)


def _explain(name: str, error: Exception) -> NoReturn:
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        raise ValueError(
            f"hub repository {name!r} is gated: accept its terms on https://huggingface.co/{name} and log in with "
            f"`hf auth login`, or give the path of a local copy"
        ) from error
    if isinstance(error, RepositoryNotFoundError):
        raise FileNotFoundError(
            f"{name!r} is neither a directory here nor a repository on the Hugging Face Hub (a private one needs "
            f"`hf auth login`)"
        ) from error
    kind = "answered with an error" if isinstance(error, HfHubHTTPError) else "cannot be reached"
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    raise FileNotFoundError(
        f"{name!r} is not a directory here and the Hugging Face Hub {kind} ({reason}); give the path of a local model "
        f"directory, or try again online"
    ) from error
