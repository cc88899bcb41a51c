"""Decoding methods: small frozen dataclasses, hashable, that say how deep to decode.

A method knows no model family. It turns into a `Strategy` (`skipjax.decoding`), the static part that programs are
compiled for, and `MethodNumbers`, the dynamic part that may change from call to call.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from skipjax import checks
from skipjax.config import ModelConfig
from skipjax.plan import Plan, fewer_depths, plan_from_depths
from skipjax.schedules import SHAPES, depth_at

if TYPE_CHECKING:
    from skipjax.confidence import Confidence
    from skipjax.decoding.request import MethodNumbers
    from skipjax.decoding.strategy import Strategy


@runtime_checkable
class Method(Protocol):
    """What generation needs to know of a method."""

    def check(self, config: ModelConfig) -> None:
        """Raises ValueError if a model cannot run this method."""

    def resolve(self, max_new_tokens: int) -> Method:
        """The method with every length filled in: it no longer depends on the token budget."""

    def static(self) -> Method:
        """The resolved method without its dynamic numbers: equal where two share a program."""

    def numbers(self) -> MethodNumbers:
        """Its dynamic numbers."""

    def strategy(self, num_layers: int, room: int) -> Strategy:
        """The strategy that generates up to `room` tokens. Needs a resolved method."""

    def exit_layers(self, num_layers: int) -> tuple[int, ...]:
        """After how many layers tokens may leave before the last."""

    def target_speedup(self, num_layers: int) -> float:
        """Layers of the full model over the depth the method aims at: the midpoint of a schedule's two depths, or the
        shallow layers where tokens exit by confidence, which all of them would have to do."""


def checked(method: Method | None, config: ModelConfig) -> Method:
    """The method, `Full()` for None. Raises ValueError if it is none, or not one for a model of `config`."""
    if method is None:
        return Full()
    if isinstance(method, type) or not isinstance(method, Method):
        raise ValueError(f"method must be a decoding method such as Full() or SkipDecode(...), got {method!r}")
    method.check(config)
    return method


class _Base:
    """What most methods answer alike: no lengths to fill in, no exits, no dynamic numbers, nothing to object to."""

    def check(self, config: ModelConfig) -> None:
        """Raises ValueError if a model cannot run this method."""

    def resolve(self, max_new_tokens: int) -> Self:
        return self

    def static(self) -> Self:
        return self

    def numbers(self) -> MethodNumbers:
        from skipjax.decoding.request import MethodNumbers

        return MethodNumbers.of()

    def exit_layers(self, num_layers: int) -> tuple[int, ...]:
        return ()


def _scheduled(plan: Plan, exit_layer: int, exits_at_once: bool = False) -> Strategy:
    from skipjax.decoding.scheduled import Scheduled

    return Scheduled(plan, exit_layer, exits_at_once)


@dataclasses.dataclass(frozen=True)
class Full(_Base):
    """Every layer for every token: ordinary decoding, the yardstick of all others."""

    def strategy(self, num_layers: int, room: int) -> Strategy:
        return _scheduled(self.plan(num_layers, room - 1), num_layers)

    def plan(self, num_layers: int, steps: int) -> Plan:
        """The plan of `steps` decode steps."""
        return plan_from_depths([num_layers] * steps, num_layers, 0)

    def target_speedup(self, num_layers: int) -> float:
        return 1.0


@dataclasses.dataclass(frozen=True)
class SkipDecode(_Base):
    """One depth per decode step for the whole batch, falling as generation goes on (arXiv 2307.02628, section 3).

    A token of depth d runs the bottom `warmup_layers` and the top d - warmup_layers layers; the prompt runs all. (For
    an encoder-decoder model the decoder's prompt is its start token; the encoder always runs whole.)

    Attributes:
      max_depth: most layers of a decode step (warm-up layers counted in), at most the model's number of layers.
      min_depth: fewest layers; at least warmup_layers + 1, since the last layer always runs.
      warmup_layers: bottom layers that always run; 1 in every published configuration.
      horizon: decode steps over which the depth falls; None follows `max_new_tokens`, so a new budget is a new program.
      shape: how it falls from max_depth at step 0 to min_depth from step `horizon` on, a key of
        `skipjax.schedules.SHAPES`: "linear" (the paper's), "cosine", "step"; or "constant", the midpoint of the two.
      max_segments: None, or at most how many different depths the schedule may have; each is a loop to compile, and
        unrolled layers make those slow to compile. Neighbouring depths are joined at the largest of them, so that no
        step runs fewer layers than the schedule says, and so that over the horizon the fewest layers are added: the
        realised speed-up falls a little short. 1 is max_depth throughout.
    """

    max_depth: int
    min_depth: int
    warmup_layers: int = 1
    horizon: int | None = None
    shape: str = "linear"
    max_segments: int | None = None

    def __post_init__(self) -> None:
        checks.integer("warmup_layers", self.warmup_layers, 0)
        checks.integer("min_depth", self.min_depth, self.warmup_layers + 1)
        checks.integer("max_depth", self.max_depth, self.min_depth)
        if self.horizon is not None:
            checks.integer("horizon", self.horizon, 1)
        checks.choice("shape", self.shape, SHAPES)
        if self.max_segments is not None:
            checks.integer("max_segments", self.max_segments, 1)

    @classmethod
    def for_speedup(
        cls,
        speedup: float,
        *,
        num_layers: int,
        warmup_layers: int = 1,
        horizon: int | None = None,
        shape: str = "linear",
        max_segments: int | None = None,
    ) -> SkipDecode:
        """The depths for a target speed-up of `speedup`, by the rule behind all published configurations.

        The midpoint of the depths is num_layers / speedup and max_depth / min_depth falls from 2 at 2x to 1.5 at 5x;
        max_depth is rounded up, min_depth to the nearest. 24 layers: 2x is 16/8, 5x is 6/4; 32 layers: 22/11, 14/8
        (3x), 10/6 (4x), 8/5. A speed-up of 1 is full depth.
        Raises ValueError if fewer than warmup_layers + 1 layers would be left.
        """
        checks.integer("num_layers", num_layers, 2)
        checks.integer("warmup_layers", warmup_layers, 0, num_layers - 1)
        checks.real("speedup", speedup, 1.0)
        midpoint = num_layers / speedup
        ratio = min(max(2 - (speedup - 2) / 6, 1.5), 2.0)
        max_depth = min(math.ceil(2 * midpoint * ratio / (1 + ratio) - 1e-9), num_layers)
        min_depth = min(math.floor(2 * midpoint - 2 * midpoint * ratio / (1 + ratio) + 0.5), max_depth)
        if max_depth == num_layers:  # a mild speed-up: the rule's max_depth does not fit, the midpoint still holds
            min_depth = min(math.floor(2 * midpoint - num_layers + 0.5), num_layers)
        if min_depth < warmup_layers + 1:
            fewest = warmup_layers + 1
            raise ValueError(
                f"speedup {speedup:g} leaves {min_depth} of {num_layers} layers at the end, but {fewest} always run"
                f" (warm-up and last): ask for a smaller speedup"
            )
        return cls(max_depth, min_depth, warmup_layers, horizon, shape, max_segments)

    def check(self, config: ModelConfig) -> None:
        if self.max_depth > config.num_layers:
            raise ValueError(f"max_depth must be at most the model's {config.num_layers} layers, got {self.max_depth}")

    def resolve(self, max_new_tokens: int) -> SkipDecode:
        return self if self.horizon is not None else dataclasses.replace(self, horizon=max_new_tokens)

    def strategy(self, num_layers: int, room: int) -> Strategy:
        return _scheduled(self.plan(num_layers, room - 1), num_layers)

    def plan(self, num_layers: int, steps: int) -> Plan:
        """The plan of `steps` decode steps. Needs a resolved method."""
        assert self.horizon is not None, "resolve the method first"
        # Up to the horizon whatever the steps, so that the depth of a step does not depend on how many there are.
        depths = [
            depth_at(step, self.max_depth, self.min_depth, self.horizon, self.shape) for step in range(self.horizon + 1)
        ]
        if self.max_segments is not None:
            depths = fewer_depths(depths, self.max_segments)
        depths += depths[-1:] * (steps - len(depths))
        return plan_from_depths(depths[:steps], num_layers, self.warmup_layers)

    def target_speedup(self, num_layers: int) -> float:
        return num_layers / ((self.max_depth + self.min_depth) / 2)


def _check_confidence(name: str, layers: tuple[int, ...], config: ModelConfig) -> None:
    """Raises ValueError unless a model has what a confidence looks at after each of `layers`."""
    heads = config.exit_heads
    trained = () if heads is None or not heads.classifier else heads.layers
    missing = [layer for layer in layers if layer not in trained]
    if missing and _confidence(name).needs_classifier:
        raise ValueError(
            f"confidence {name!r} needs a trained classifier after layer {missing[0]}, this model has"
            f" {'them after ' + ', '.join(map(str, trained)) if trained else 'none'} (skipjax train heads --classifier)"
        )


def _confidence(name: str) -> Confidence:
    from skipjax.confidence import confidence_named  # here, since it brings jax, and --help is to be quick

    return confidence_named(name)


@dataclasses.dataclass(frozen=True)
class StaticExit(_Base):
    """Every token leaves after the same number of layers; a baseline.

    A decoder-only model's prompt runs all layers and gives token 0; the start token of an encoder-decoder model is an
    ordinary step.

    Attributes:
      depth: layers per token, at most the model's number of layers.
    """

    depth: int

    def __post_init__(self) -> None:
        checks.integer("depth", self.depth, 1)

    def check(self, config: ModelConfig) -> None:
        if self.depth > config.num_layers:
            raise ValueError(f"depth must be at most the model's {config.num_layers} layers, got {self.depth}")

    def plan(self, num_layers: int, steps: int) -> Plan:
        """The plan of `steps` decode steps: the bottom layers only."""
        return plan_from_depths([self.depth] * steps, num_layers, self.depth)

    def strategy(self, num_layers: int, room: int) -> Strategy:
        return _scheduled(self.plan(num_layers, room - 1), self.depth, True)

    def exit_layers(self, num_layers: int) -> tuple[int, ...]:
        return (self.depth,) if self.depth < num_layers else ()

    def target_speedup(self, num_layers: int) -> float:
        return num_layers / self.depth


@dataclasses.dataclass(frozen=True)
class Free(_Base):
    """Confident tokens leave after the shallow layers; their deep layers run later, in one pass together with the next
    token that needs them (FREE, arXiv 2310.05424, sections 3.1 to 3.4).

    It saves time, not arithmetic: every position still meets all layers, but many at once, which costs little more than
    one. Batches of any size: a row's tokens are those it would have alone.

    Attributes:
      shallow_layers: L_S, after which tokens may leave.
      threshold: a token leaves if its confidence is strictly above. 1 never lets one go, a value below the confidence's
        range all. Dynamic.
      confidence: how sure an exit is, a name in `skipjax.confidence.CONFIDENCES`: "margin" (the paper's), "top1",
        "entropy", "cosine" or "classifier".
      buffer_size: positions that may wait for the deep layers; a full buffer is passed on. Changes no token.
      rollback: None, or the largest -log p under the deep model, in nats, that an exited token may have: when a row
        next needs the deep layers, the first token above it is replaced by the deep model's and those after it are
        taken back, as in the published code. Tokens after a row's last such pass stay as they are. Dynamic.
      verify: None, or "exact": every token is compared with the deep model's and replaced where it differs, so that the
        text is that of `Full()`, token for token, also when sampling with the same seed.
      adaptive: the threshold comes from an `AdaptiveThreshold`, which learns from each text how well confidence
        predicts agreement (section 3.4); give it to `generate` as `adaptive_threshold`. `threshold` is not used then.
    """

    shallow_layers: int
    threshold: float = 0.9
    confidence: str = "margin"
    buffer_size: int = 8
    rollback: float | None = None
    verify: str | None = None
    adaptive: bool = False

    def __post_init__(self) -> None:
        checks.integer("shallow_layers", self.shallow_layers, 1)
        checks.real("threshold", self.threshold, -math.inf)
        _confidence(self.confidence)
        checks.integer("buffer_size", self.buffer_size, 1, 256)
        if self.rollback is not None:
            checks.real("rollback", self.rollback, 0.0, allow_infinite=True)
        if self.verify not in (None, "exact"):
            raise ValueError(f"verify must be None or 'exact', got {self.verify!r}")
        if self.rollback is not None and self.verify is not None:
            raise ValueError("give either rollback or verify, not both: each decides which tokens are taken back")
        if not isinstance(self.adaptive, bool):
            raise ValueError(f"adaptive must be True or False, got {self.adaptive!r}")

    def check(self, config: ModelConfig) -> None:
        if self.shallow_layers >= config.num_layers:
            raise ValueError(
                f"shallow_layers must be below the model's {config.num_layers} layers, got {self.shallow_layers}"
            )
        _check_confidence(self.confidence, self.exit_layers(config.num_layers), config)

    def static(self) -> Free:
        return dataclasses.replace(self, threshold=0.0, rollback=None if self.rollback is None else 0.0)

    def numbers(self) -> MethodNumbers:
        from skipjax.decoding.request import MethodNumbers

        return MethodNumbers.of(threshold=self.threshold, rollback=self.rollback or 0.0)

    def strategy(self, num_layers: int, room: int) -> Strategy:
        from skipjax.decoding.free import FreeDecoding

        return FreeDecoding(
            num_layers=num_layers,
            shallow_layers=self.shallow_layers,
            confidence=_confidence(self.confidence),
            buffer_size=self.buffer_size,
            room=room,
            rolls_back="different" if self.verify else "never" if self.rollback is None else "unlikely",
            compares=self.adaptive,
        )

    def exit_layers(self, num_layers: int) -> tuple[int, ...]:
        return (self.shallow_layers,)

    def target_speedup(self, num_layers: int) -> float:
        return num_layers / self.shallow_layers


@dataclasses.dataclass(frozen=True)
class Calm(_Base):
    """A token leaves after the first layer whose confidence is high enough (CALM, arXiv 2207.07061); a baseline.

    The keys and values that the skipped layers would have made are projected from the state it left with. Each row of a
    batch leaves at its own layer; a step ends when the last one has.

    Attributes:
      threshold: a token leaves if its confidence is strictly above; dynamic.
      min_depth: layers that always run.
      decay: None for a constant threshold t, else the temperature of 0.9 t + 0.1 t exp(-decay * step / max_new_tokens);
        dynamic.
      confidence: as in `Free`.
    """

    threshold: float
    min_depth: int = 1
    decay: float | None = None
    confidence: str = "margin"

    def __post_init__(self) -> None:
        checks.real("threshold", self.threshold, -math.inf)
        checks.integer("min_depth", self.min_depth, 1)
        if self.decay is not None:
            checks.real("decay", self.decay, 0.0)
        _confidence(self.confidence)

    def check(self, config: ModelConfig) -> None:
        if self.min_depth > config.num_layers:
            raise ValueError(f"min_depth must be at most the model's {config.num_layers} layers, got {self.min_depth}")
        _check_confidence(self.confidence, self.exit_layers(config.num_layers), config)

    def static(self) -> Calm:
        return dataclasses.replace(self, threshold=0.0, decay=None)

    def numbers(self) -> MethodNumbers:
        from skipjax.decoding.request import MethodNumbers

        return MethodNumbers.of(threshold=self.threshold, decay=self.decay or 0.0)

    def strategy(self, num_layers: int, room: int) -> Strategy:
        from skipjax.decoding.calm import CalmDecoding

        return CalmDecoding(num_layers, self.min_depth, _confidence(self.confidence), room)

    def exit_layers(self, num_layers: int) -> tuple[int, ...]:
        return tuple(range(self.min_depth, num_layers))

    def target_speedup(self, num_layers: int) -> float:
        return num_layers / self.min_depth


METHODS: dict[str, type[Method]] = {
    "full": Full,
    "skipdecode": SkipDecode,
    "free": Free,
    "static-exit": StaticExit,
    "calm": Calm,
}
"""Methods by the names that flags and checkpoints have for them."""


def name_of(method: Method) -> str:
    """The key of `METHODS` for a method."""
    return next(name for name, kind in METHODS.items() if type(method) is kind)
