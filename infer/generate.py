"""Continue prompts, or see the embedded model at work.

skipjax generate
skipjax generate "name[Aromi], eatType[restaurant], food[Italian] ->" --speedup 2
skipjax generate --model DIR --prompts-file prompts.txt --method skipdecode --speedup 3 --json
"""

from __future__ import annotations

import json
from typing import Annotated

import typer


def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="Texts to continue.", show_default=False)] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Directory (Hugging Face or skipjax) or hub id; the embedded model if left out."),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="full or skipdecode; the checkpoint's own if left out.", show_default=False)
    ] = None,
    speedup: Annotated[float | None, typer.Option(help="Target speed-up, which sets the depths.")] = None,
    max_depth: Annotated[int | None, typer.Option(help="Layers of the first decode step.")] = None,
    min_depth: Annotated[int | None, typer.Option(help="Layers from the horizon on.")] = None,
    warmup_layers: Annotated[
        int | None, typer.Option(help="Bottom layers that always run.", show_default="the checkpoint's, or 1")
    ] = None,
    horizon: Annotated[
        int | None,
        typer.Option(
            help="Decode steps over which the depth falls.", show_default="the checkpoint's, or --max-new-tokens"
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate at most, per prompt.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep the most probable tokens up to this share; 1 keeps all.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep the k most probable tokens; 0 keeps all.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the random draws.")] = 0,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt into the checkpoint's chat template.")] = False,
    prompts_file: Annotated[
        str | None, typer.Option(help='File of prompts, one a line (.jsonl: "prompt"); - is standard input.')
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Prompts to decode together.")] = 8,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    execution: Annotated[str, typer.Option(help="How layers run: auto, unrolled or scanned.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per prompt.")] = False,
) -> None:
    """Continue prompts with fewer layers per token.

    Without prompts, the embedded model continues inputs it has not seen, at full depth and at its own schedule, or with
    --method, --speedup or --json at that alone. A terminal shades each token: green for few layers, grey
    for all.
    """
    import skipjax as sj
    from skipjax import checks, display, flags
    from skipjax.methods import Method

    checks.integer("--batch-size", batch_size, 1)
    if prompts and prompts_file is not None:
        raise ValueError("give prompts either as arguments or with --prompts-file, not both")
    texts = flags.read_prompts(prompts_file) if prompts_file is not None else list(prompts or [])
    if not texts and model is not None:
        raise ValueError('nothing to continue: give a prompt, as in skipjax generate "text" --model M')
    sampling = sj.Sampling(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
    lm = sj.load(model, dtype=dtype, execution=execution)
    chosen = flags.method_from_flags(
        method,
        num_layers=lm.config.num_layers,
        recorded=flags.recorded_method(lm),
        speedup=speedup,
        max_depth=max_depth,
        min_depth=min_depth,
        warmup_layers=warmup_layers,
        horizon=horizon,
    )
    methods: list[Method] = [chosen]
    if not texts:
        texts = flags.read_prompts(str(flags.EMBEDDED_PROMPTS))
        if method is None and chosen == flags.recorded_method(lm) and not as_json:
            methods = [sj.Full(), chosen]
    rows = [flags.chat_tokens(lm, text) for text in texts] if chat else texts
    for start in range(0, len(texts), batch_size):
        batch = slice(start, start + batch_size)
        outs = display.timed(lm, rows[batch], methods, max_new_tokens=max_new_tokens, sampling=sampling)
        if as_json:
            for record in display.records(texts[batch], outs[0]):
                typer.echo(json.dumps(record, ensure_ascii=False))
        else:
            typer.echo(display.report(lm, texts[batch], methods, outs))
