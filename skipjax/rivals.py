"""What benchmarks set skipjax against: the same weights and prompts in transformers and torch."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from skipjax.huggingface import export_hf
from skipjax.language_model import LanguageModel

LOOKUP_TOKENS = 10  # drafted at a time by prompt lookup, as in the documentation of transformers


@dataclasses.dataclass(frozen=True)
class Rival:
    """A way in which transformers generates greedily.

    Attributes:
      label: for tables, the first word "transformers".
      arguments: of its `generate`; none is ordinary decoding.
    """

    label: str
    arguments: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As `Setting.to_json`."""
        return {"method": self.label, "speedup": None, "confidence": None, "arguments": dict(self.arguments)}


ORDINARY = Rival("transformers")


class Transformers:
    """A model in transformers and torch, on the accelerator if JAX runs on one and torch can use it.

    Args:
      lm: the weights; they go through a temporary directory and keep their dtype.
    Raises:
      ValueError: torch is not installed, or `export_hf` cannot write the model.
    """

    def __init__(self, lm: LanguageModel) -> None:
        check_installed()
        import torch
        import transformers

        self._torch, self._transformers = torch, transformers
        self._has_encoder = lm.config.encoder_layers is not None
        self._drafts_early = lm.config.family == "llama"
        self._num_layers = lm.config.num_layers
        kind: Any = transformers.AutoModelForSeq2SeqLM if self._has_encoder else transformers.AutoModelForCausalLM
        accelerated = jax.default_backend() == "gpu" and torch.cuda.is_available()
        self._device = torch.device("cuda" if accelerated else "cpu")
        torch.set_num_threads(cores())
        with tempfile.TemporaryDirectory() as folder, _quiet(transformers):
            export_hf(lm, Path(folder) / "model")
            dtype = getattr(torch, np.dtype(lm.dtype).name)
            self._model = kind.from_pretrained(Path(folder) / "model", dtype=dtype).eval().to(self._device)
        # Without an end of sequence, texts have their full length.
        self._model.generation_config = transformers.GenerationConfig(
            do_sample=False, pad_token_id=lm.config.pad_id or 0, decoder_start_token_id=lm.config.start_id
        )

    def environment(self) -> dict[str, Any]:
        """Versions and threads, which its numbers depend on."""
        versions = {"transformers": self._transformers.__version__, "torch": self._torch.__version__}
        return {**versions, "torch_threads": self._torch.get_num_threads()}

    def rivals(self, batch_size: int, draft_layers: int | None) -> list[Rival]:
        """What can be run: ordinary decoding and, since transformers drafts tokens for one row only, at batch size 1
        prompt lookup and, where the model's code can leave early (Llama), drafts by its first `draft_layers` layers,
        half of them if None. Both keep the text of ordinary decoding."""
        if batch_size > 1:
            return [ORDINARY]
        drafts = [Rival("transformers lookup", {"prompt_lookup_num_tokens": LOOKUP_TOKENS})]
        layers = max(self._num_layers // 2, 1) if draft_layers is None else draft_layers
        if self._drafts_early and layers < self._num_layers:
            drafts.append(Rival(f"transformers exit {layers}", {"assistant_early_exit": layers}))
        return [ORDINARY, *drafts]

    def generate(self, rival: Rival, prompts: np.ndarray, max_new_tokens: int) -> tuple[np.ndarray, float]:
        """Generates greedily to the full length.

        Args:
          prompts: int [B, P], or sources.
        Returns:
          tokens int32 [B, max_new_tokens] without the prompt, and the seconds it took.
        """
        torch = self._torch
        ids = torch.from_numpy(prompts.astype(np.int64)).to(self._device)
        arguments: dict[str, Any] = dict(rival.arguments)
        if self._has_encoder:
            # Left to itself, transformers gives the decoder's cache as many layers as the encoder has.
            empty = self._transformers.DynamicCache
            arguments["cache"] = self._transformers.EncoderDecoderCache(empty(), empty())
        with torch.inference_mode(), _quiet(self._transformers):
            started = time.perf_counter()
            out = self._model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, **arguments
            )
            tokens = out[:, -max_new_tokens:].cpu().numpy().astype(np.int32)  # waits for an accelerator
            return tokens, time.perf_counter() - started


def check_installed() -> None:
    """Raises ValueError if there is no torch to compare with."""
    if importlib.util.find_spec("torch") is None:
        raise ValueError("--against transformers needs torch, which is not installed: pip install torch brings it")


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without the progress bars and warnings of transformers, which are about arguments that it passes on itself."""
    log = transformers.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(logging.ERROR)
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
