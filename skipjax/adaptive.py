"""FREE's adaptive threshold: when to trust the shallow layers, learnt while decoding from pairs that cost nothing.

Whenever the deep layers catch up on buffered positions, each of these gives a pair: x, the confidence of the shallow
layers there, and y, whether the deep layers choose the same token. Two Beta components are fitted to the pairs, one for
disagreement (index 0 everywhere) and one for agreement (index 1), and the threshold is the smallest confidence of a
coarse grid where agreement is likely enough. Source: FREE (arXiv 2310.05424), the adaptive threshold estimator, and
its official code where the two differ. Everything here runs on the host, between sequences.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skipjax import checks
from skipjax.json_files import read_json, write_json
from skipjax.pictures import new_figure, save_figure, tidy

FIRST_THRESHOLD = 0.9
"""The threshold before the first fit."""

INITIAL_A, INITIAL_B = (1.0, 2.0), (2.0, 1.0)
"""The components before the first fit: Beta(1, 2) for disagreement, Beta(2, 1) for agreement."""

BLENDS = ("hard", "soft")

_GRID = np.linspace(0.3, 0.9, 10)
_CLIP = 1e-4  # a Beta density may be infinite at 0 and 1
_OTHER = 0.00049975  # what a labelled pair still counts for the other component
_LIKELIHOOD_SHARE = 0.8
_FORMAT = "skipjax adaptive threshold"


def weighted_beta_moments(x: ArrayLike, w: ArrayLike) -> tuple[float, float]:
    """The Beta distribution (a, b) with the weighted mean m and variance v of a sample.

    a = m (m (1 - m) / v - 1) and b = a (1 - m) / m. Worked: x = (.2, .4, .9) with w = (1, 1, 2) gives a = .9157895,
    b = .6105263.

    Args:
      x: numbers in (0, 1), [n].
      w: weights of at least 0, [n].
    Returns:
      Python floats; NaN for both if all the x that have weight are equal, since then v = 0.
    Raises:
      ValueError: the two are not flat and equally long, or a weight is negative or not finite.
    """
    x, w = _flat("x", x), _flat("w", w)
    if len(x) != len(w):
        raise ValueError(f"x and w must be equally long, got {len(x)} and {len(w)}")
    if not (np.isfinite(w) & (w >= 0)).all():
        raise ValueError("w must hold finite numbers of at least 0")
    if not _vary(x[w > 0]):
        return math.nan, math.nan  # by a test, since rounding can make the variance of equal numbers positive
    mean = np.average(x, weights=w)
    variance = np.average((x - mean) ** 2, weights=w)
    a = mean * (mean * (1 - mean) / variance - 1)
    return float(a), float(a * (1 - mean) / mean)


def fit_components(
    confidences: ArrayLike,
    agreements: ArrayLike,
    *,
    blend: str = "hard",
    a: tuple[float, float] = INITIAL_A,
    b: tuple[float, float] = INITIAL_B,
) -> tuple[tuple[float, float], tuple[float, float]]:
    """One fit of the two components: each takes the weighted moments of all pairs, clipped to [0.0001, 0.9999].

    A pair's weights on the two components (its responsibilities) sum to 1:
      "hard", what FREE's code executes: 0.99950025 on the component of its label, 0.00049975 on the other. The
        components before do not matter.
      "soft", what the code intended, and then overwrote: 0.8 times the posterior of each component given x (under the
        components before, equally likely a priori) plus 0.2 on that of its label. One fit is one step of expectation
        maximisation, so the components settle over several.

    Worked, hard: x = (.1, .2, .35, .5, .6, .95, .9, .85, .97, .7) with y = (0, 0, 0, 0, 1, 1, 1, 1, 1, 0) gives
    a = (1.5186136, 5.0699369), b = (2.5830661, .8684393), whose threshold is .6333333.

    Args:
      confidences: of the shallow layers, [n].
      agreements: whether the deep layers choose the same token, bool (or 0 and 1) [n].
      blend: "hard" or "soft".
      a, b: the components before, each (disagreement, agreement).
    Returns:
      (a, b), each (disagreement, agreement). As in FREE's code no guard is applied: NaN where all confidences are
      equal; two equal components, whose threshold is the lowest, where all pairs agree or none does ("hard").
      `AdaptiveThreshold` guards against both.
    Raises:
      ValueError: an argument is none of the above.
    """
    checks.choice("blend", blend, BLENDS)
    x, labels = _pairs(confidences, agreements)
    x = np.clip(x, _CLIP, 1 - _CLIP)
    if blend == "hard":
        agree = np.where(labels, 1 - _OTHER, _OTHER)
    else:
        if not _sound(a, b):
            raise ValueError(f"a and b must be tuples of two positive finite numbers, got {a!r} and {b!r}")
        agree = _LIKELIHOOD_SHARE * _posterior(x, a, b, 1) + (1 - _LIKELIHOOD_SHARE) * labels
    (a0, b0), (a1, b1) = weighted_beta_moments(x, 1 - agree), weighted_beta_moments(x, agree)
    return (a0, a1), (b0, b1)


def threshold_of(a: tuple[float, float], b: tuple[float, float], zeta: float = 0.4) -> float:
    """The smallest of 10 even steps from 0.3 to 0.9 at which the upper component's posterior is above zeta.

    The upper component is the one with the larger mean, whatever its label; both are equally likely a priori. The
    threshold is 0.3 if all steps qualify, and 0.9 if none does or a number of a or b is not positive and finite.
    Worked: for the initial components, Beta(1, 2) and Beta(2, 1), the posterior at x is x; so it is 0.4333333.

    Args:
      a, b: the components, each (disagreement, agreement).
      zeta: from 0 to 1.
    Raises:
      ValueError: zeta is none of that.
    """
    checks.real("zeta", zeta, 0.0, 1.0)
    if not _sound(a, b):
        return float(_GRID[-1])
    enough = _posterior(_GRID, a, b, _upper(a, b)) > zeta
    return float(_GRID[np.argmax(enough)] if enough.any() else _GRID[-1])


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AdaptiveThreshold:
    """The estimator's whole state; `after` a sequence it is a new one. Two are equal if all their values are.

    The threshold is refitted to all pairs so far whenever a sequence ends, whether or not this one gave pairs, until
    `max_fits` fits were done. Later pairs are kept but change nothing.

    FREE's code also fits samples that cannot tell the components apart: a single pair or equal confidences give it NaN
    and so 0.9, and if all pairs agree, or none does, it takes the lowest threshold, 0.3. Here the last sound threshold
    stays instead, 0.9 at first, until both classes hold at least two different confidences, after clipping to
    [0.0001, 0.9999]; so it does where a fit gives an a or b that is not positive and finite. Such attempts do not
    count as fits; `reason` tells them.

    Attributes:
      blend: "hard" (as FREE's code) or "soft" (as intended), see `fit_components`.
      max_fits: the most fits, at least 1; FREE's code does 300.
      zeta: how likely agreement must be, from 0 to 1, see `threshold_of`.
      confidences: of the shallow layers, all pairs so far, float32 [n], read-only.
      agreements: whether the deep layers chose the same token, bool [n], read-only.
      fits: the number of fits done.
      a, b: the two components, each (disagreement, agreement).
    """

    blend: str = "hard"
    max_fits: int = 300
    zeta: float = 0.4
    confidences: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.float32), repr=False)
    agreements: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.bool_), repr=False)
    fits: int = 0
    a: tuple[float, float] = INITIAL_A
    b: tuple[float, float] = INITIAL_B

    def __post_init__(self) -> None:
        checks.choice("blend", self.blend, BLENDS)
        max_fits, fits = checks.integer("max_fits", self.max_fits, 1), checks.integer("fits", self.fits, 0)
        zeta = checks.real("zeta", self.zeta, 0.0, 1.0)
        if not _sound(self.a, self.b):
            raise ValueError(f"a and b must be tuples of two positive finite numbers, got {self.a!r} and {self.b!r}")
        confidences, agreements = _pairs(self.confidences, self.agreements)
        confidences = confidences.astype(np.float32)
        confidences.flags.writeable = agreements.flags.writeable = False
        # Plain numbers, whatever kind came, and copies of the arrays: what is kept can be saved and does not change.
        kept = {"max_fits": max_fits, "fits": fits, "zeta": zeta, "confidences": confidences, "agreements": agreements}
        for name, value in kept.items():
            object.__setattr__(self, name, value)

    @functools.cached_property
    def threshold(self) -> float:
        """The confidence above which a token may leave early: 0.9 before the first fit, then that of the components."""
        return threshold_of(self.a, self.b, self.zeta) if self.fitted else FIRST_THRESHOLD

    @property
    def fitted(self) -> bool:
        """Whether any fit was done: otherwise the threshold is still the first one."""
        return self.fits > 0

    @property
    def reason(self) -> str:
        """Where the threshold comes from, for people: "fit 12 of at most 300", "no fit yet: there are no pairs"."""
        if self.fitted:
            return f"fit {self.fits} of at most {self.max_fits}"
        if not len(self.confidences):
            return "no fit yet: there are no pairs"
        for label, verb in ((True, "agree"), (False, "disagree")):
            if not self._varied(label):
                return f"no fit yet: the pairs that {verb} hold fewer than two different confidences"
        return "no fit yet: the pairs so far give no sound components"

    def after(self, confidences: ArrayLike, agreements: ArrayLike) -> AdaptiveThreshold:
        """The state after one more finished sequence, refitted to its pairs and all before.

        Args:
          confidences: the shallow layers' at the sequence's pairs, in order, [n]; n may be 0.
          agreements: whether the deep layers chose the same token there, bool (or 0 and 1) [n].
        Raises:
          ValueError: the two are not flat and equally long, a confidence is no number from -1 to 1 (as a softmax or a
            cosine gives), or an agreement is neither 0 nor 1.
        """
        new_confidences, new_agreements = _pairs(confidences, agreements)
        grown = dataclasses.replace(
            self,
            confidences=np.concatenate([self.confidences, new_confidences]),
            agreements=np.concatenate([self.agreements, new_agreements]),
        )
        if self.fits >= self.max_fits or not (grown._varied(True) and grown._varied(False)):
            return grown
        a, b = fit_components(grown.confidences, grown.agreements, blend=self.blend, a=self.a, b=self.b)
        return dataclasses.replace(grown, fits=self.fits + 1, a=a, b=b) if _sound(a, b) else grown

    def after_batch(self, rows: Iterable[tuple[ArrayLike, ArrayLike]]) -> AdaptiveThreshold:
        """The state after the rows of a batch, each one's (confidences, agreements): `after` of each row in order."""
        state = self
        for confidences, agreements in rows:
            state = state.after(confidences, agreements)
        return state

    def save(self, path: str | Path) -> None:
        """Writes the state as JSON, to the last bit."""
        state = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        lists = {"confidences": self.confidences.tolist(), "agreements": self.agreements.astype(int).tolist()}
        write_json(Path(path), {"format": _FORMAT, **state, **lists})

    @classmethod
    def load(cls, path: str | Path) -> AdaptiveThreshold:
        """Reads what `save` wrote.

        Raises FileNotFoundError if there is no file, ValueError, naming it, if it holds anything else.
        """
        path = Path(path)
        state = read_json(path)
        names = {field.name for field in dataclasses.fields(cls)}
        if state.pop("format", None) != _FORMAT or state.keys() != names:
            raise ValueError(f"{path}: not an adaptive threshold that this version of skipjax saved")
        try:
            state["a"], state["b"] = tuple(state["a"]), tuple(state["b"])
            return cls(**state)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: damaged ({error})") from None

    def plot(self, path: str | Path) -> None:
        """Draws the pairs, the components and how the threshold follows from them; the path's suffix says the format.

        Raises ValueError if matplotlib is not installed or does not know the format, or there is no such folder.
        """
        figure = new_figure(8, 7)
        figure.suptitle(f"Adaptive threshold {self.threshold:.3f}\n{self.reason}", fontsize="medium")
        upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 2))
        self._plot_components(upper)
        self._plot_posterior(lower)
        for axes in (upper, lower):
            axes.axvline(self.threshold, color="black", linewidth=1.5, label=f"threshold {self.threshold:.3f}")
            tidy(axes)
        upper.legend(loc="upper left", bbox_to_anchor=(0, -0.03), ncols=3, fontsize="small", frameon=False)
        lower.legend(loc="best", fontsize="small")
        lower.set(xlabel="confidence of the shallow layers, x", xlim=(0, 1))
        save_figure(figure, path)

    def _plot_components(self, axes: Any) -> None:
        """The histogram of each class and its component's density, with the infinite ends of densities cut off."""
        x = np.linspace(0.001, 0.999, 999)
        edges = np.linspace(0, 1, 21)
        highest = 0.0
        for label, verb, colour in ((0, "disagree", "tab:orange"), (1, "agree", "tab:blue")):
            sample = np.clip(self.confidences[self.agreements == label], 0, 1)
            heights = np.histogram(sample, edges)[0] / max(len(sample), 1) * (len(edges) - 1)
            axes.stairs(heights, edges, fill=True, color=colour, alpha=0.35, label=f"pairs that {verb} ({len(sample)})")
            density = np.exp(_log_density(x, self.a[label], self.b[label]))
            name = f"Beta({self.a[label]:.3g}, {self.b[label]:.3g}), {verb}ment"
            axes.plot(x, density, color=colour, linewidth=2, label=name)
            highest = max(highest, heights.max(), density[25:-25].max())
        axes.set(ylabel="density", ylim=(0, 1.1 * highest))

    def _plot_posterior(self, axes: Any) -> None:
        """The posterior q(x), the grid it is read at, and zeta."""
        component = _upper(self.a, self.b)
        x = np.linspace(_CLIP, 1 - _CLIP, 999)
        axes.plot(x, _posterior(x, self.a, self.b, component), color="tab:green", linewidth=2, label="q(x)")
        axes.plot(_GRID, _posterior(_GRID, self.a, self.b, component), "o", color="tab:green", label="thresholds tried")
        axes.axhline(self.zeta, color="tab:red", linestyle="--", label=f"zeta {self.zeta:g}")
        axes.set(ylabel=f"posterior of {('dis', '')[component]}agreement, q", ylim=(-0.03, 1.03))

    def _varied(self, label: bool) -> bool:
        return _vary(np.clip(self.confidences[self.agreements == label].astype(np.float64), _CLIP, 1 - _CLIP))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AdaptiveThreshold):
            return NotImplemented
        return (
            self._scalars() == other._scalars()
            and np.array_equal(self.confidences, other.confidences)
            and np.array_equal(self.agreements, other.agreements)
        )

    def __hash__(self) -> int:
        return hash((self._scalars(), len(self.confidences)))

    def _scalars(self) -> tuple[object, ...]:
        return self.blend, self.max_fits, self.zeta, self.fits, self.a, self.b


def _log_density(x: np.ndarray, a: float, b: float) -> np.ndarray:
    """Log density of Beta(a, b), float64 like x in (0, 1)."""
    return (a - 1) * np.log(x) + (b - 1) * np.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)


def _posterior(x: np.ndarray, a: tuple[float, float], b: tuple[float, float], component: int) -> np.ndarray:
    """The posterior of one of two equally likely components at x; by logarithms, so it never divides zero by zero."""
    other = 1 - component
    difference = _log_density(x, a[component], b[component]) - _log_density(x, a[other], b[other])
    return 0.5 * (1 + np.tanh(0.5 * difference))


def _upper(a: tuple[float, float], b: tuple[float, float]) -> int:
    """The component with the larger mean; agreement (1) if they are equal."""
    return int(a[1] / (a[1] + b[1]) >= a[0] / (a[0] + b[0]))


def _vary(x: np.ndarray) -> bool:
    """Whether x holds at least two distinct values."""
    return len(x) > 0 and bool(x.min() < x.max())


def _sound(a: Any, b: Any) -> bool:
    """Whether a and b are two positive finite numbers each, small enough for their gamma function's logarithm."""
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in (a, b)):
        return False
    numbers = (*a, *b)
    return all(isinstance(n, (int, float)) and not isinstance(n, bool) and 0 < n < 1e300 for n in numbers)


def _flat(name: str, values: Any) -> np.ndarray:
    """A float64 copy [n] of one-dimensional numbers."""
    try:
        array = np.asarray(values)
        if array.ndim != 1 or array.dtype.kind in "cmMOSU":
            raise TypeError
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a flat sequence of numbers, got {type(values).__name__}") from None


def _pairs(confidences: Any, agreements: Any) -> tuple[np.ndarray, np.ndarray]:
    """Checked copies: confidences float64 [n], agreements bool [n]."""
    x, y = _flat("confidences", confidences), _flat("agreements", agreements)
    if len(x) != len(y):
        raise ValueError(f"confidences and agreements must be equally long, got {len(x)} and {len(y)}")
    bad = (y != 0) & (y != 1)
    if bad.any():
        raise ValueError(f"agreements must be 0 or 1, got {y[bad][0]:g}")
    # A softmax gives 0 to 1, a cosine -1 to 1, and rounding a little more.
    bad = ~(np.abs(x) <= 1.001)
    if bad.any() or np.asarray(confidences).dtype == np.bool_:
        got = f"{x[bad][0]:g}" if bad.any() else "truth values"
        raise ValueError(f"confidences must be numbers from -1 to 1, got {got}")
    return x, y.astype(np.bool_)
