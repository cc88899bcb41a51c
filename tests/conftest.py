"""Settings of every test: strict JAX on the CPU, programs that compile fast, no network."""

import builtins
import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

# By environment, so that programs which tests start in processes of their own run under the same rules.
assert "jax" not in sys.modules, "jax reads its environment when imported, which has happened already"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Nearly all the time of these tests goes into compiling tiny programs. Without optimising machine code it is half of
# that, and a quarter where LLVM modules are neither emitted through MLIR nor split for parallel compilation.
FAST_COMPILES = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
os.environ |= {
    "XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *FAST_COMPILES]),
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "SKIPJAX_COMPILATION_CACHE": "off",
    "HF_HOME": str(ROOT / ".pytest_cache" / "huggingface"),
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


@pytest.fixture
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without matplotlib."""
    real_import = builtins.__import__

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
