"""A loaded model: configuration, parameters, tokenizer, and the programs compiled for it so far."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax

from skipjax.config import ModelConfig
from skipjax.decoder import Execution, Params, execution_of
from skipjax.recorded import Recorded

if TYPE_CHECKING:
    from skipjax.tokenizer import Tokenizer


@dataclasses.dataclass(eq=False)
class LanguageModel:
    """What `sj.load` returns and `sj.generate` takes.

    Attributes:
      config: static description of the decoder; `config.num_layers` is its depth.
      params: pytree of arrays, see `skipjax.decoder`; every floating array has the dtype chosen at load.
      tokenizer: None if the checkpoint has none (prompts are then lists of token ids).
      recorded: what the weights were trained for, or None if the checkpoint does not say.
      programs: compiled programs by static key, filled by generation; they hold no request's state.
      warned: methods that the user has been told these weights were not trained for.
    """

    config: ModelConfig
    params: Params = dataclasses.field(repr=False)
    tokenizer: Tokenizer | None = None
    recorded: Recorded | None = None
    programs: dict[Any, Any] = dataclasses.field(default_factory=dict, repr=False)
    warned: set[Any] = dataclasses.field(default_factory=set, repr=False)

    @property
    def execution(self) -> Execution:
        """How ranges of layers are run: "unrolled" (default on CPU) or "scanned" (default on TPU and GPU)."""
        return execution_of(self.params)

    @property
    def dtype(self) -> Any:
        return self.params["ends"]["tokens"].dtype

    @property
    def trained_exits(self) -> tuple[int, ...]:
        """After how many layers there are exits whose tokens were trained: with the weights, or by a norm or adapter of
        their own (a classifier says only when to leave)."""
        recorded = () if self.recorded is None else self.recorded.exit_layers
        heads = self.config.exit_heads
        own = heads.layers if heads is not None and (heads.norm or heads.adapter_rank) else ()
        return tuple(sorted({*recorded, *own}))

    @property
    def num_parameters(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))


def checked_model(lm: LanguageModel) -> LanguageModel:
    """Raises ValueError if `lm` is something else, such as the name of a model that was not loaded."""
    if not isinstance(lm, LanguageModel):
        raise ValueError(f"lm must be a model from skipjax.load(...), got {lm!r:.80}")
    return lm
