"""Compiled programs that the commands keep on disk, so that the next run need not compile them again.

jax does the keeping; here is where and how much. The library leaves jax's settings to whoever imports it. What is said
to jax is said by its environment variables, which it reads when it is imported, so that --help need not import it.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

VARIABLE = "SKIPJAX_COMPILATION_CACHE"
OFF = "off"
SETTINGS = {
    "JAX_COMPILATION_CACHE_MAX_SIZE": str(2**30),  # bytes; beyond, the programs that were not used for longest go
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",  # below, reading costs about as much as compiling
}


def default_folder() -> Path:
    """The user's own: $XDG_CACHE_HOME/skipjax/compiled, or ~/.cache/skipjax/compiled."""
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "skipjax" / "compiled"


def use(choice: str | None) -> None:
    """Makes jax, which must not have been imported yet, keep compiled programs.

    Args:
      choice: a folder; `OFF` for none; or None for the one that jax's own variables name or, if they name none,
        `default_folder`. A folder named in jax's variables is left as these say.
    A folder that cannot be written to gives a warning, and nothing is kept.
    """
    if choice is None and "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    if choice == OFF:
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        return
    try:
        folder = default_folder() if choice is None else Path(choice).expanduser()
        # Programs are run as they are found: nobody else may put them there.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} may not be written to")
        _mend(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        warnings.warn(f"compiled programs are not kept, their folder cannot be used ({error})", stacklevel=2)
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder.absolute())
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


def _mend(folder: Path) -> None:
    """Removes what a process killed while it wrote has left: an entry, perhaps a part of it, without the file that says
    when it was last used. jax would neither replace it nor, once one is there, write any other."""

    def broken() -> list[Path]:
        return [
            entry
            for entry in folder.glob("*-cache")
            if not entry.with_name(entry.name.removesuffix("-cache") + "-atime").exists()
        ]

    if broken():
        from filelock import FileLock

        with FileLock(folder / ".lockfile", timeout=10):  # jax's own; now nobody is in the middle of writing
            for entry in broken():
                entry.unlink()
