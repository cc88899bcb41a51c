"""Flags of the inference programs: which model, which methods, how to sample. Cheap to import, as --help needs it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipjax import checks
from skipjax.methods import METHODS, Free, Full, Method, SkipDecode, name_of
from skipjax.settings import FULL, Setting, numbers, words

if TYPE_CHECKING:
    from skipjax.adaptive import AdaptiveThreshold
    from skipjax.config import ModelConfig
    from skipjax.language_model import LanguageModel
    from skipjax.sampling import Sampling

TAKES: dict[str, tuple[str, ...]] = {
    "full": (),
    "skipdecode": ("speedup", "max_depth", "min_depth", "warmup_layers", "horizon", "max_segments"),
    "free": ("shallow_layers", "threshold", "adaptive", "confidence", "buffer_size", "rollback", "verify"),
    "static-exit": ("depth",),
    "calm": ("threshold", "min_depth", "decay", "confidence"),
}
"""The flags of each method."""

EXITING = ("free", "static-exit", "calm")
"""Methods for which the embedded model is the encoder-decoder one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodFlags:
    """How deep to decode. Flags that take several values make one setting each."""

    method: Annotated[
        list[str] | None,
        typer.Option(
            help="full, skipdecode, free, static-exit or calm; several: free,calm. Each takes the flags it knows.",
            show_default="the one the flags belong to, else the one the model was trained for",
        ),
    ] = None
    speedup: Annotated[
        list[str] | None,
        typer.Option(help="skipdecode: target speed-up, which sets the depths; several: 2,3,5.", show_default=False),
    ] = None
    max_depth: Annotated[
        int | None, typer.Option(help="skipdecode: layers of the first decode step.", show_default=False)
    ] = None
    min_depth: Annotated[
        int | None,
        typer.Option(help="skipdecode: layers from the horizon on. calm: layers that always run.", show_default=False),
    ] = None
    warmup_layers: Annotated[
        int | None,
        typer.Option(help="skipdecode: bottom layers that always run.", show_default="the checkpoint's, or 1"),
    ] = None
    horizon: Annotated[
        int | None,
        typer.Option(
            help="skipdecode: decode steps over which the depth falls.",
            show_default="the checkpoint's, or --max-new-tokens",
        ),
    ] = None
    max_segments: Annotated[
        int | None,
        typer.Option(
            help="skipdecode: at most so many different depths, which compiles faster.",
            show_default="the checkpoint's, or all",
        ),
    ] = None
    shallow_layers: Annotated[
        int | None,
        typer.Option(help="free: layers after which tokens may leave.", show_default="the checkpoint's"),
    ] = None
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            help="free, calm: confidence above which a token leaves; several: 0.3,0.9.",
            show_default="free: the checkpoint's, or 0.9",
        ),
    ] = None
    adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive", help="free: learn the threshold from text to text, one setting more than --threshold gives."
        ),
    ] = False
    confidence: Annotated[
        str | None,
        typer.Option(
            help="free, calm: margin, top1, entropy, cosine or classifier.",
            show_default="the checkpoint's, or margin",
        ),
    ] = None
    buffer_size: Annotated[
        int | None,
        typer.Option(help="free: tokens that may wait for the deep layers.", show_default="the checkpoint's, or 8"),
    ] = None
    rollback: Annotated[
        float | None,
        typer.Option(
            help="free: take back exited tokens whose -log p in the full model is above this.", show_default="none"
        ),
    ] = None
    verify: Annotated[
        str | None,
        typer.Option(
            help='free: "exact" takes back every token that is not the full model\'s, in each setting of free.',
            show_default="none",
        ),
    ] = None
    depth: Annotated[
        list[str] | None, typer.Option(help="static-exit: layers per token; several: 3,6.", show_default=False)
    ] = None
    decay: Annotated[
        float | None, typer.Option(help="calm: how fast the threshold falls along a text.", show_default="constant")
    ] = None

    def given(self) -> dict[str, Any]:
        """The flags that were given, besides --method, by name: of those that take several, the list of numbers."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "method"}
        values = {name: value for name, value in values.items() if not (value is None or value is False or value == [])}
        for name, kind in (("speedup", float), ("threshold", float), ("depth", int)):
            if name in values:
                values[name] = numbers(_flag(name), values[name], kind)
        return values

    def candidates(self) -> list[str]:
        """The methods of --method or, without it, each that takes all the flags given; none if no flag was given.

        Raises ValueError if there is no such method, or if a flag belongs to none of them.
        """
        given = self.given()
        if not self.method:
            fitting = [name for name, takes in TAKES.items() if given and given.keys() <= set(takes)]
            if given and not fitting:
                belong = " and ".join(f"{_flag(name)} ({_either(_takers(name))})" for name in given)
                raise ValueError(f"no method takes all these flags: {belong}; --method names several, as in free,calm")
            return fitting
        chosen = list(dict.fromkeys(checks.choice("--method", name, METHODS) for name in words(self.method)))
        for name in given:
            if not set(_takers(name)) & set(chosen):
                takers = _either(_takers(name))
                raise ValueError(f"{_flag(name)} goes with --method {takers}, not with {_either(chosen)}")
        return chosen

    def embedded(self) -> str:
        """Which embedded model serves the methods asked for. Raises ValueError as `candidates`."""
        exiting = [name in EXITING for name in self.candidates()]
        return "embedded-t5" if exiting and (any(exiting) if self.method else all(exiting)) else "embedded"

    def settings(self, config: ModelConfig, *recorded: Method) -> list[Setting]:
        """What is asked for of a model of `config` whose checkpoint records methods, the preferred one first: at least
        one setting, without repetition.

        Without any flag that is the preferred method itself (full depth if there is none). A flag that may hold several
        values gives one setting for each; `adaptive` gives one more, or the only one where no threshold is given. What
        is left out comes from the first of `recorded` that is of the same kind. A speed-up of 1 is full depth.
        Raises ValueError for flags that contradict each other, say too little, or do not fit the model.
        """
        known = {name_of(method): method for method in reversed(recorded)}
        names = self._names([name_of(method) for method in recorded])
        if not names:
            settings = [Setting(recorded[0] if recorded else Full())]
        else:
            settings = [one for name in names for one in self._settings_of(name, names, config, known.get(name))]
        for setting in settings:
            setting.method.check(config)
        return list(dict.fromkeys(FULL if isinstance(one.method, Full) else one for one in settings))

    def _names(self, recorded: Sequence[str]) -> list[str]:
        candidates = self.candidates()
        if self.method or len(candidates) < 2:
            return candidates
        for name in recorded:
            if name in candidates:
                return [name]
        flags = ", ".join(map(_flag, self.given()))
        raise ValueError(f"--method must say whether {flags} means {_either(candidates)}")

    def _settings_of(
        self, name: str, names: list[str], config: ModelConfig, recorded: Method | None
    ) -> Iterable[Setting]:
        given = {flag: value for flag, value in self.given().items() if flag in TAKES[name]}
        if name == "skipdecode" and "calm" in names and "speedup" in given:
            given.pop("min_depth", None)  # it is CALM's, since the speed-up says SkipDecode's
        if name == "free" and given.pop("adaptive", False):
            thresholds = given.pop("threshold", [])
            grid = [{**given, "threshold": one} for one in thresholds] + [{**given, "adaptive": True}]
        else:
            several = {flag: value for flag, value in given.items() if isinstance(value, list)}
            grid = [
                {**given, **dict(zip(several, values, strict=True))} for values in itertools.product(*several.values())
            ]
        for values in grid:
            speedup = values.get("speedup")
            method = method_from_flags(name, values, num_layers=config.num_layers, recorded=recorded)
            yield FULL if speedup == 1 else Setting(method, speedup)


def method_from_flags(
    name: str, values: Mapping[str, Any], *, num_layers: int, recorded: Method | None = None
) -> Method:
    """The method of a name, with one value for each flag given.

    What is left out comes from `recorded` where that is a method of this kind, else it is the method's own default. The
    depths of a "skipdecode" come from "speedup", or from "max_depth" and "min_depth" together.
    Raises ValueError for values that contradict each other or say too little.
    """
    kind: Any = METHODS[name]
    known = {field.name: getattr(recorded, field.name) for field in dataclasses.fields(kind) if type(recorded) is kind}
    overruled = {
        "threshold": ("adaptive",),
        "verify": ("rollback",),
        "rollback": ("verify",),
        "speedup": ("max_depth", "min_depth"),
        "max_depth": ("min_depth",),
        "min_depth": ("max_depth",) if kind is SkipDecode else (),
    }
    for flag in values:
        for other in overruled.get(flag, ()):
            known.pop(other, None)
    arguments = {**known, **values}
    if kind is SkipDecode and "speedup" in values:
        if "max_depth" in values or "min_depth" in values:
            raise ValueError("give either --speedup or --max-depth and --min-depth, not both")
        return SkipDecode.for_speedup(arguments.pop("speedup"), num_layers=num_layers, **arguments)
    needed = [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    missing = [_flag(argument) for argument in needed if argument not in arguments]
    if missing and kind is SkipDecode:
        raise ValueError("--method skipdecode needs --speedup, or both --max-depth and --min-depth")
    if missing:
        raise ValueError(f"--method {name} needs {' and '.join(missing)}")
    return kind(**arguments)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Which model, and in which form."""

    model: Annotated[
        str | None,
        typer.Option(
            help="Hugging Face directory or hub id, a skipjax directory, embedded or embedded-t5.",
            show_default="embedded; embedded-t5 for free, static-exit and calm",
        ),
    ] = None
    heads: Annotated[
        Path | None, typer.Option(help="Exits for the model, from skipjax train heads.", show_default=False)
    ] = None
    dtype: Annotated[str, typer.Option(help="Of the weights: float32, bfloat16, float16 or auto.")] = "auto"
    execution: Annotated[str, typer.Option(help="How layers are run: unrolled, scanned or auto.")] = "auto"

    def load(self, methods: MethodFlags) -> LanguageModel:
        """The model; where none is named, the embedded one that serves the methods."""
        import skipjax

        embedded = methods.embedded()  # before anything is loaded, since it checks the flags
        path = embedded if self.model is None else self.model
        return skipjax.load(path, dtype=self.dtype, execution=self.execution, heads=self.heads)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """How tokens are chosen."""

    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0
    top_p: Annotated[float, typer.Option(help="Keep the most probable tokens up to this sum; 1 keeps all.")] = 1.0
    top_k: Annotated[int, typer.Option(help="Keep this many of the most probable tokens; 0 keeps all.")] = 0
    seed: Annotated[int, typer.Option(help="Of the random draws.")] = 0

    def sampling(self) -> Sampling:
        import skipjax

        return skipjax.Sampling(self.temperature, self.top_p, self.top_k, self.seed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveFlags:
    """Where an adaptive threshold comes from and goes to."""

    adaptive_state: Annotated[
        Path | None,
        typer.Option(
            help="With --adaptive: file with what earlier runs learnt, read if it exists, and written.",
            show_default=False,
        ),
    ] = None
    threshold_plot: Annotated[
        Path | None,
        typer.Option(help="With --adaptive: picture of what was learnt, such as plot.png.", show_default=False),
    ] = None

    def begin(self, methods: Sequence[Method]) -> list[AdaptiveThreshold | None]:
        """For each method the estimator to start from, None for those that are not adaptive.

        Raises ValueError or OSError if there is none to keep, or if the files cannot be read or written.
        """
        from skipjax.adaptive import AdaptiveThreshold

        adaptive = [isinstance(method, Free) and method.adaptive for method in methods]
        for name in ("adaptive_state", "threshold_plot"):
            if getattr(self, name) is not None and not any(adaptive):
                raise ValueError(f"{_flag(name)} goes with --method free --adaptive")
        estimator, path = AdaptiveThreshold(), self.adaptive_state
        if path is not None and not path.absolute().parent.is_dir():
            raise FileNotFoundError(f"--adaptive-state {path}: no such directory")
        if path is not None and path.exists():
            estimator = AdaptiveThreshold.load(path)
        if self.threshold_plot is not None:
            estimator.plot(self.threshold_plot)  # a picture that cannot be written shows before the run
        return [estimator if learns else None for learns in adaptive]

    def end(self, estimators: Iterable[AdaptiveThreshold | None]) -> None:
        """Writes what the adaptive method learnt."""
        for estimator in estimators:
            if estimator is not None and self.adaptive_state is not None:
                estimator.save(self.adaptive_state)
            if estimator is not None and self.threshold_plot is not None:
                estimator.plot(self.threshold_plot)


def recorded_methods(lm: LanguageModel) -> tuple[Method, ...]:
    """What the checkpoint recommends, and what it was trained for, as far as it says."""
    return () if lm.recorded is None else lm.recorded.preferred


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _takers(flag: str) -> list[str]:
    return [name for name, takes in TAKES.items() if flag in takes]


def _either(names: list[str]) -> str:
    return " or ".join(names)
