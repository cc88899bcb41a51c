"""Checks that the device of this machine decodes as the CPU does, and times it.

python tests/check_device.py
python tests/check_device.py --golden GOLDEN_FOLDER --shape llama-3.2-1b

Small random models of every family decode with every method, by looping over stacked layers and layer by layer; tokens
and depths must be those of the CPU, and those of decoding without a cache. With --golden also the reference cases that
tests/test_golden.py describes. Then `skipjax bench` runs. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

import jax
import numpy as np
from tiny_models import decode_without_cache, golden_cases, random_prompts, tiny_lm

from skipjax.decoder import stack_layers
from skipjax.generation import Generation, generate
from skipjax.language_model import LanguageModel
from skipjax.loading import load
from skipjax.methods import Calm, Free, Full, Method, SkipDecode, StaticExit

LENGTHS, TOKENS = [3, 9, 14], 12
METHODS: dict[str, list[Method]] = {
    "llama": [Full(), SkipDecode(3, 2), StaticExit(2), Free(2, 0.3), Free(2, 0.3, verify="exact"), Calm(0.3)],
    "opt": [SkipDecode(3, 2), Free(2, 0.3)],
    "t5": [Full(), Free(2, 0.3), Calm(0.3)],
}
LAYER_BY_LAYER = (SkipDecode, Free)  # on a device only these, since such programs compile slowly


def differences(out: Generation, tokens: list[list[int]], depths: list[list[int]] | None) -> str:
    """What of a generation is not as expected, "" if nothing."""
    wrong = []
    for row, expected in enumerate(tokens):
        if out.tokens[row, : len(expected)].tolist() != expected:
            wrong.append(f"row {row}: tokens {out.tokens[row].tolist()}, expected {expected}")
        elif depths is not None and out.depths[row, : len(expected)].tolist() != depths[row]:
            wrong.append(f"row {row}: depths {out.depths[row].tolist()}, expected {depths[row]}")
    return "; ".join(wrong)


class Checks:
    """Prints checks as they are made and counts those that failed."""

    def __init__(self) -> None:
        self.started, self.failed = time.perf_counter(), 0

    def say(self, name: str, wrong: str) -> None:
        self.failed += bool(wrong)
        print(
            f"{time.perf_counter() - self.started:6.1f} s  {'DIFFERS' if wrong else 'ok':8}{name} {wrong}", flush=True
        )


def run(lm: LanguageModel, prompts: list[list[int]], method: Method, tokens: int = TOKENS) -> Generation:
    return generate(lm, prompts, method, max_new_tokens=tokens, stop_at_eos=False)


def check_against_cpu(checks: Checks, device: jax.Device) -> None:
    prompts = random_prompts(LENGTHS)
    for family, methods in METHODS.items():
        with jax.default_device(jax.devices("cpu")[0]):
            reference = tiny_lm(family)
            weights = jax.tree.map(np.asarray, reference.params)
        unrolled = LanguageModel(reference.config, jax.device_put(weights, device))
        scanned = LanguageModel(reference.config, stack_layers(jax.device_put(weights, device)))
        for method in methods:
            with jax.default_device(jax.devices("cpu")[0]):
                expected = run(reference, prompts, method)
            tokens, depths = expected.tokens.tolist(), expected.depths.tolist()
            checks.say(f"{family} {method}, scanned", differences(run(scanned, prompts, method), tokens, depths))
            if isinstance(method, LAYER_BY_LAYER) and family == "llama":
                checks.say(f"{family} {method}, unrolled", differences(run(unrolled, prompts, method), tokens, depths))
        full_or_skipping = methods[0]
        if isinstance(full_or_skipping, Full | SkipDecode):
            uncached = decode_without_cache(scanned, prompts, full_or_skipping, TOKENS)
            wrong = differences(run(scanned, prompts, full_or_skipping), uncached, None)
            checks.say(f"{family} {full_or_skipping}, against decoding without a cache", wrong)


def check_golden(checks: Checks, folder: Path) -> None:
    for directory in sorted(path.parent for path in folder.glob("*/golden.json")):
        cases = golden_cases(directory)
        lm = load(directory, dtype="float32", execution="scanned")
        wanted: list[tuple[Method, list[dict]]] = [(Full(), cases["full"])]
        wanted += [(SkipDecode(**case["config"]), case["rows"]) for case in cases.get("skipdecode", [])[:2]]
        wanted += [(Free(**case["config"]), case["rows"]) for case in cases.get("free", [])[:2]]
        for method, rows in wanted:
            out = run(lm, cases["prompts"], method, cases["max_new_tokens"])
            depths = [row["depths"] for row in rows] if all("depths" in row for row in rows) else None
            wrong = differences(out, [row["tokens"] for row in rows], depths)
            checks.say(f"golden {directory.name} {method}", wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", type=Path, help="folder with one directory of reference cases per family")
    parser.add_argument("--shape", default="smollm2-135m", help="for skipjax bench; none: no times are taken")
    arguments = parser.parse_args()
    if arguments.golden is not None and not any(arguments.golden.glob("*/golden.json")):
        parser.error(f"--golden {arguments.golden}: no golden.json in the directories there")
    warnings.filterwarnings("ignore", message="this checkpoint records no")
    jax.config.update("jax_default_matmul_precision", "highest")  # a GPU's float32 products may be of fewer bits
    device = jax.devices()[0]
    print(f"{device.platform}: {device.device_kind}, jax {jax.__version__}")
    checks = Checks()
    check_against_cpu(checks, device)
    if arguments.golden is not None:
        check_golden(checks, arguments.golden)
    print(f"{checks.failed} checks failed" if checks.failed else "all checks passed", flush=True)
    if arguments.shape != "none":
        from skipjax.main import app

        jax.config.update("jax_default_matmul_precision", None)
        flags = ["--speedup", "2", "--batch-size", "1,8", "--max-new-tokens", "32", "--repeats", "3"]
        app(["bench", "--shape", arguments.shape, *flags], standalone_mode=False)
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()
