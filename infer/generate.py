"""Continue prompts, or see the embedded models at work.

skipjax generate
skipjax generate "name[Aromi], eatType[restaurant], food[Italian] ->" --speedup 2
skipjax generate "name[Aromi], eatType[restaurant], food[Italian] ->" --method full,free --threshold 0.5
skipjax generate --model DIR --prompts-file prompts.txt --method skipdecode --speedup 3 --json
skipjax generate --prompts-file prompts.txt --method full,free --threshold 0.5 --html texts.html
skipjax generate --prompts-file many.jsonl --output answers.jsonl --batch-size 32
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Annotated, Any

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
    output: Annotated[
        Path | None,
        typer.Option(
            help="File for one JSON object per line of --prompts-file, with all its fields, such as answers.jsonl. The"
            " same command goes on where it was killed.",
            show_default=False,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Web page of all texts, each token shaded by its depth, such as texts.html.", show_default=False
        ),
    ] = None,
) -> None:
    """Continue prompts with fewer layers per token.

    For an encoder-decoder model, prompts are the sources to generate from. Several methods are set beside each other.
    Without prompts, an embedded model gets inputs it has not seen, and unless --json is given full depth is shown too.
    A terminal shades each token: green for few layers, grey for all. With --output, prompts of similar length share a
    batch, the longest first, and the answers have the order of the prompts.
    """
    from skipjax import checks, display, flags, pages, prompt_answers, prompt_files
    from skipjax.prompts import Part, occurrences_of
    from skipjax.settings import against_full

    checks.integer("--batch-size", batch_size, 1)
    if prompts and prompts_file is not None:
        raise ValueError("give prompts either as arguments or with --prompts-file, not both")
    if prompts_file is not None:
        lines = prompt_files.read_prompts(prompts_file)
    else:
        lines = prompt_files.from_arguments(prompts or [])
    if not lines and model.model is not None:
        raise ValueError('nothing to continue: give a prompt, as in skipjax generate "text" --model M')
    chosen_sampling = sampling.sampling()
    if html is not None:
        pages.check_page("--html", html)
    if output is not None:
        if prompts_file is None or as_json or html is not None:
            raise ValueError("--output goes with --prompts-file, and without --json and --html")
        prompt_answers.check(lines, output)
    lm = model.load(methods)
    settings = methods.settings(lm.config, *flags.recorded_methods(lm))
    examples = not lines
    if examples:
        lines = prompt_files.read_prompts(str(prompt_files.EMBEDDED_PROMPTS))
        settings = settings if as_json else against_full(settings)
    if (as_json or output is not None) and len(settings) > 1:
        labels = ", ".join(setting.label for setting in settings)
        flag, does = ("--json", "prints") if as_json else ("--output", "takes")
        raise ValueError(f"{flag} {does} the texts of one method, got {labels}")
    run = [setting.method for setting in settings]
    estimators = adaptive_files.begin(run)
    if output is not None:
        new = prompt_answers.answer(
            *(lm, lines, run[0], output),
            batch_size=batch_size,
            max_new_tokens=max_new_tokens,
            sampling=chosen_sampling,
            chat=chat,
            progress=True,
        )
        typer.echo(f"{output}: {len(lines)} answers, {new} of them new")
        return
    rows = prompt_files.encode_lines(lm, lines, max_new_tokens, chat=chat)
    texts, occurrences = [line.prompt for line in lines], occurrences_of(rows)
    samples: list[dict[str, Any]] = []
    for start in range(0, len(rows), batch_size):
        batch = slice(start, start + batch_size)
        in_turn = functools.partial(
            display.in_turn,
            lm,
            rows[batch],
            run,
            estimators,
            max_new_tokens=max_new_tokens,
            sampling=chosen_sampling,
            part=Part(occurrences[batch]),
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
        if html is not None:
            samples += display.shaded_texts(lm, texts[batch], [setting.label for setting in settings], outs)
    adaptive_files.end(estimators)
    if html is not None:
        pages.write_texts(samples, lm.config.num_layers, html)
