"""Early-exit decoding of language models in JAX: load a checkpoint, generate with fewer layers, see what was saved.

    import skipjax as sj
    lm = sj.load()
    method = sj.SkipDecode.for_speedup(2.0, num_layers=lm.config.num_layers, horizon=48)
    out = sj.generate(lm, ["name[Aromi], food[Italian] ->"], method)

Names are imported when first used, so that `import skipjax` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "AdaptiveThreshold",
    "Calm",
    "ExitHeads",
    "Free",
    "Full",
    "Generation",
    "LanguageModel",
    "ModelConfig",
    "Recorded",
    "RelativePositions",
    "RopeConfig",
    "Sampling",
    "SkipDecode",
    "StaticExit",
    "Stats",
    "__version__",
    "export_hf",
    "forward",
    "generate",
    "load",
    "save",
    "stream",
]

if TYPE_CHECKING:
    from skipjax.adaptive import AdaptiveThreshold
    from skipjax.checkpoint import save
    from skipjax.config import ExitHeads, ModelConfig, RelativePositions, RopeConfig
    from skipjax.generation import Generation, Stats, generate, stream
    from skipjax.huggingface import export_hf
    from skipjax.language_model import LanguageModel
    from skipjax.loading import load
    from skipjax.methods import Calm, Free, Full, SkipDecode, StaticExit
    from skipjax.recorded import Recorded
    from skipjax.sampling import Sampling
    from skipjax.teacher_forcing import forward
else:
    _HOMES = {
        "AdaptiveThreshold": "adaptive",
        "Calm": "methods",
        "ExitHeads": "config",
        "Free": "methods",
        "Full": "methods",
        "Generation": "generation",
        "LanguageModel": "language_model",
        "ModelConfig": "config",
        "Recorded": "recorded",
        "RelativePositions": "config",
        "RopeConfig": "config",
        "Sampling": "sampling",
        "SkipDecode": "methods",
        "StaticExit": "methods",
        "Stats": "generation",
        "export_hf": "huggingface",
        "forward": "teacher_forcing",
        "generate": "generation",
        "load": "loading",
        "save": "checkpoint",
        "stream": "generation",
    }

    def __getattr__(name):
        import importlib

        if name not in _HOMES:
            raise AttributeError(f"module 'skipjax' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"skipjax.{_HOMES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted(__all__)
