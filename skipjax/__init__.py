"""Early-exit decoding of language models in JAX: load a checkpoint, generate with fewer layers, see what was saved.

    import skipjax as sj
    lm = sj.load()
    out = sj.generate(lm, ["name[Aromi], food[Italian] -> "], sj.SkipDecode.for_speedup(2.0, num_layers=lm.config.num_layers))

Names are imported when first used, so that `import skipjax` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skipjax.checkpoint import save as save
    from skipjax.config import DecoderConfig as DecoderConfig
    from skipjax.config import RopeConfig as RopeConfig
    from skipjax.teacher_forcing import forward as forward
    from skipjax.generation import Generation as Generation
    from skipjax.generation import Stats as Stats
    from skipjax.generation import generate as generate
    from skipjax.generation import stream as stream
    from skipjax.huggingface import export_huggingface as export_hf
    from skipjax.language_model import LanguageModel as LanguageModel
    from skipjax.loading import load as load
    from skipjax.methods import Full as Full
    from skipjax.methods import SkipDecode as SkipDecode
    from skipjax.recorded import Recorded as Recorded
    from skipjax.sampling import Sampling as Sampling

__version__ = "0.1.0"

_HOMES = {
    "DecoderConfig": "config",
    "Full": "methods",
    "Generation": "generation",
    "LanguageModel": "language_model",
    "Recorded": "recorded",
    "RopeConfig": "config",
    "Sampling": "sampling",
    "SkipDecode": "methods",
    "Stats": "generation",
    "export_hf": "huggingface",
    "forward": "teacher_forcing",
    "generate": "generation",
    "load": "loading",
    "save": "checkpoint",
    "stream": "generation",
}
_ALIASES = {"export_hf": "export_huggingface"}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'skipjax' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"skipjax.{_HOMES[name]}"), _ALIASES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
