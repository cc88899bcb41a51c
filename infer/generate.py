"""Continue prompts, or see the embedded models at work.

skipjax generate
skipjax generate "name[Aromi], eatType[restaurant], food[Italian] ->" --speedup 2
skipjax generate "name[Aromi], eatType[restaurant], food[Italian] ->" --method full,free --threshold 0.5
skipjax generate --model DIR --prompts-file prompts.txt --method skipdecode --speedup 3 --json
"""

from __future__ import annotations

import functools
import json
from typing import Annotated

import typer

from skipjax.flag_groups import with_flags
from skipjax.flags import AdaptiveFlags, MethodFlags, ModelFlags, SamplingFlags


@with_flags()
def generate(
    *,
    prompts: Annotated[list[str] | None, typer.Argument(help="Texts to continue.", show_default=False)] = None,
    model: ModelFlags,
    methods: MethodFlags,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate at most, per prompt.")] = 64,
    sampling: SamplingFlags,
    adaptive_files: AdaptiveFlags,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt into the checkpoint's chat template.")] = False,
    prompts_file: Annotated[
        str | None, typer.Option(help='File of prompts, one a line (.jsonl: "prompt"); - is standard input.')
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Prompts to decode together.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per prompt.")] = False,
) -> None:
    """Continue prompts with fewer layers per token.

    For an encoder-decoder model, prompts are the sources to generate from. Several methods are set beside each other.
    Without prompts, an embedded model gets inputs it has not seen, and unless --json is given full depth is shown too.
    A terminal shades each token: green for few layers, grey for all.
    """
    from skipjax import checks, display, flags, prompt_files
    from skipjax.settings import against_full

    checks.integer("--batch-size", batch_size, 1)
    if prompts and prompts_file is not None:
        raise ValueError("give prompts either as arguments or with --prompts-file, not both")
    texts = prompt_files.read_prompts(prompts_file) if prompts_file is not None else list(prompts or [])
    if not texts and model.model is not None:
        raise ValueError('nothing to continue: give a prompt, as in skipjax generate "text" --model M')
    chosen_sampling = sampling.sampling()
    lm = model.load(methods)
    settings = methods.settings(lm.config, flags.recorded_method(lm))
    examples = not texts
    if examples:
        texts = prompt_files.read_prompts(str(prompt_files.EMBEDDED_PROMPTS))
        settings = settings if as_json else against_full(settings)
    if as_json and len(settings) > 1:
        labels = ", ".join(setting.label for setting in settings)
        raise ValueError(f"--json prints the texts of one method, got {labels}")
    run = [setting.method for setting in settings]
    estimators = adaptive_files.begin(run)
    rows = [prompt_files.chat_tokens(lm, text) for text in texts] if chat else texts
    for start in range(0, len(texts), batch_size):
        batch = slice(start, start + batch_size)
        in_turn = functools.partial(
            display.in_turn,
            lm,
            rows[batch],
            run,
            estimators,
            max_new_tokens=max_new_tokens,
            sampling=chosen_sampling,
        )
        if as_json:
            outs = list(in_turn())
            for record in display.records(texts[batch], outs[0]):
                typer.echo(json.dumps(record, ensure_ascii=False))
        else:
            outs = display.show(lm, texts[batch], run, in_turn(), typer.echo)
            if examples and len(run) > 1:
                outs = display.timed(lm, in_turn)  # a text takes well under a second
            typer.echo(display.costs(lm, run, outs))
        estimators = [out.adaptive_threshold for out in outs]
    adaptive_files.end(estimators)
