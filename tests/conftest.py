"""Settings of every test: strict JAX on the CPU, no network, and one disk cache of compiled programs."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".pytest_cache"

# By environment, so that programs which tests start in processes of their own run under the same rules.
assert "jax" not in sys.modules, "jax reads its environment when imported, which has happened already"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ |= {
    # Nearly all the time of these tests goes into compiling tiny programs, half of that into optimising machine code.
    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0",
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    # Shared by pytest-xdist's workers and by later runs. A size limit makes jax lock the directory, without which a
    # worker could read what another is still writing; those that compile in under a tenth of a second are too many
    # to keep. One from the cache still counts as a compilation in jax.monitoring ("backend_compile_duration").
    "JAX_COMPILATION_CACHE_DIR": str(CACHE / "jax"),
    "JAX_COMPILATION_CACHE_MAX_SIZE": str(2**30),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    "HF_HOME": str(CACHE / "huggingface"),
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder "shared" beside the checkout, with real models, data and reference cases; not part of the project."""
    path = ROOT.parent / "shared"
    if not path.is_dir():
        pytest.skip("needs the folder 'shared' beside the checkout")
    return path
