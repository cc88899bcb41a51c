"""What the commands start with: few imports, and compiled programs of earlier runs; and how large programs are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import tiny_config

from skipjax import compilation_cache, decoder, programs
from skipjax.decoding.request import MethodNumbers, Request
from skipjax.methods import Full, SkipDecode
from skipjax.sampling import Sampling, SamplingNumbers

HEAVY = {"jax", "flax", "orbax", "transformers", "torch", "datasets", "tokenizers", "matplotlib", "numpy", "filelock"}

# Runs the command given as arguments, then prints which of the modules named in it were imported, and jax's settings.
SCRIPT = """
import atexit, json, sys
from skipjax import main

def tell():
    if "jax" in sys.modules:
        import jax
        settings = [jax.config.jax_compilation_cache_dir, jax.config.jax_enable_compilation_cache]
        settings += [jax.config.jax_compilation_cache_max_size]
    else:
        settings = None
    print(json.dumps([sorted(name for name in sys.modules if "." not in name), settings]))

atexit.register(tell)
sys.argv[0] = "skipjax"
main.main()
"""


def command(*arguments: str, **variables: str) -> tuple[list[str], list[str], list, str]:
    """Lines of standard output, modules imported, jax's settings (None if not imported), and standard error."""
    unwanted = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE", compilation_cache.VARIABLE)
    environment = {name: value for name, value in os.environ.items() if name not in unwanted} | variables
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    *lines, last = done.stdout.splitlines()
    modules, settings = json.loads(last)
    return lines, modules, settings, done.stderr


@pytest.mark.parametrize("arguments", [("--help",), ("generate", "--help"), ("train", "skipdecode", "--help")])
def test_help_imports_nothing_heavy(arguments, tmp_path):
    lines, modules, _, err = command(*arguments, XDG_CACHE_HOME=str(tmp_path))
    assert any("Options:" in line for line in lines)
    assert not HEAVY & set(modules)
    assert err == ""


def test_a_second_run_compiles_nothing_and_says_the_same(tmp_path):
    arguments = ["generate", "name[Aromi] ->", "--method", "full", "--max-new-tokens", "2", "--json"]
    folder = tmp_path / "skipjax" / "compiled"
    first, modules, settings, _ = command(*arguments, XDG_CACHE_HOME=str(tmp_path))
    assert not {"orbax", "transformers", "torch", "datasets", "matplotlib"} & set(modules)
    assert settings == [str(folder), True, 2**30]
    assert folder.stat().st_mode & 0o777 == 0o700
    entries = {path.name: path.stat().st_mtime_ns for path in folder.glob("*-cache")}
    assert {name.split("-")[0] for name in entries} >= {"jit_prefill", "jit_decode"}
    # As of a process killed while writing: it has to be written anew, and all others to be read.
    (damaged,) = folder.glob("jit_prefill-*-cache")
    damaged.write_bytes(damaged.read_bytes()[:100])
    damaged.with_name(damaged.name.removesuffix("cache") + "atime").unlink()
    second, _, _, err = command(*arguments, XDG_CACHE_HOME=str(tmp_path))
    assert (second, err) == (first, "")
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*-cache")}
    assert {name for name in after if after[name] != entries.get(name)} == {damaged.name}


def test_the_folder_is_the_users_choice(monkeypatch, tmp_path, recwarn):
    def chosen(choice: str | None, **variables: str) -> tuple[str | None, str | None, str | None]:
        names = ("JAX_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_MAX_SIZE", "JAX_ENABLE_COMPILATION_CACHE")
        for name in (*names, *compilation_cache.SETTINGS):
            monkeypatch.setenv(name, "")  # so that what is set here is unset after the test
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        compilation_cache.use(choice)
        folder, size, enabled = map(os.environ.get, names)
        return folder, size, enabled

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    default = str(tmp_path / "xdg" / "skipjax" / "compiled")
    assert chosen(None) == (default, str(2**30), None)
    assert chosen(None, JAX_COMPILATION_CACHE_MAX_SIZE="5") == (default, "5", None)
    assert chosen(None, JAX_COMPILATION_CACHE_DIR="theirs") == ("theirs", None, None)
    assert chosen("off", JAX_COMPILATION_CACHE_DIR="theirs") == ("theirs", None, "false")
    named = str(tmp_path / "named" / "here")
    assert chosen(named, JAX_COMPILATION_CACHE_DIR="theirs") == (named, str(2**30), None)
    assert Path(named).is_dir()
    assert not recwarn
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="compiled programs are not kept, their folder cannot be used .*file"):
        assert chosen(str(tmp_path / "file")) == (None, None, "false")


def lowered_size(num_layers: int, method: Full | SkipDecode) -> int:
    """Characters of both programs of a generation, scanned."""
    config, tokens = tiny_config(num_layers=num_layers), 24
    params = decoder.abstract_params(config, execution="scanned")
    ones = np.ones(2, np.int32)
    sampling = Sampling()
    numbers = SamplingNumbers(
        *(np.float32(sampling.temperature), np.float32(sampling.top_p), np.int32(0), np.uint32(0)),
        *(ones.astype(np.uint32), ones.astype(np.uint32)),
    )
    one = np.int32(1)
    request = Request(ones, one, numbers, MethodNumbers.of(), np.asarray([2], np.int32), one, one)
    strategy = method.resolve(tokens).strategy(num_layers, tokens)
    prompts = jax.ShapeDtypeStruct((2, 8), jnp.int32)
    prefill = programs.prefill.lower(config, strategy, params, prompts, request)
    decode = programs.decode.lower(config, strategy, 8, params, *prefill.out_info, request, one)
    return len(prefill.as_text()) + len(decode.as_text())


@pytest.mark.parametrize(
    ("few", "many"),
    [(Full(), Full()), (SkipDecode(6, 4, max_segments=3), SkipDecode(48, 32, max_segments=3))],
    ids=["full", "skipdecode"],
)
def test_scanned_programs_do_not_grow_with_the_layers(few, many):
    """Compile time follows: one block per range of layers, however many layers there are."""
    assert lowered_size(64, many) < 1.1 * lowered_size(8, few)


def test_fewer_segments_make_a_smaller_program():
    sizes = [lowered_size(24, SkipDecode(16, 8, max_segments=most)) for most in (1, 3, None)]
    assert sizes[0] < sizes[1] < sizes[2]
