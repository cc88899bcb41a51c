"""Scores a model's texts on a data set, at full depth and with fewer layers.

    skipjax evaluate --model M --data testset_w_refs.csv --prompt-template "{mr} ->" --target-column ref \\
        --speedup 2 3 5 --out results
    skipjax evaluate --model M --data testset_w_refs.csv --prompt-template "{mr} ->" --target-column ref \\
        --method free calm --shallow-layers 3 --threshold 0.3 0.5 0.9 --adaptive
    skipjax evaluate --model M --data xquad.en.json --prompt-template "{context} {question}" --target-column answers \\
        --metric f1 exact_match --speedup 2 3 --recommend 0.99
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skipjax.flag_groups import Data, Split, with_flags
from skipjax.flags import MethodFlags, ModelFlags, SamplingFlags


@with_flags()
def evaluate(
    *,
    data: Data,
    prompt_template: Annotated[
        str, typer.Option(help='Prompt, or source, with {column} fields, for example "{mr} ->".')
    ],
    target_column: Annotated[
        str,
        typer.Option(
            help="Column with the reference, a list of them, or SQuAD's answers; rows with the same prompt are"
            " references of one input."
        ),
    ],
    model: ModelFlags,
    split: Split = "test",
    limit: Annotated[int | None, typer.Option(help="Use only the first different prompts.", show_default="all")] = None,
    methods: MethodFlags,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="rougeL, rouge1, rouge2, bleu, chrf, exact_match, f1, perplexity (of full and skipdecode) or"
            " bertscore; several: rougeL,bleu.",
            show_default="rougeL,rouge1,rouge2,bleu,chrf",
        ),
    ] = None,
    bertscore_model: Annotated[
        Path | None,
        typer.Option(help="Directory of the encoder for bertscore, such as roberta-large.", show_default=False),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Prompts per batch.")] = 16,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate at most.")] = 64,
    sampling: SamplingFlags,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory for tables, samples and pictures, and for what is done so far: the same command goes on.",
            show_default="only print",
        ),
    ] = None,
    recommend: Annotated[
        float | None,
        typer.Option(
            help="Make the fastest setting that keeps this share of the ROUGE-L of full depth, such as 0.99, the"
            " default of the checkpoint of --model.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Quality and cost with fewer layers.

    Full depth is always run as the yardstick. Flags that take several values may be given them after each other, as in
    --speedup 2 3 5. With --out, an evaluation that was interrupted goes on where it stopped.
    """
    from skipjax import checks, evaluation, evaluation_report, flags, metrics
    from skipjax.settings import words

    chosen_sampling = sampling.sampling()
    methods.candidates()  # a mistake in the flags shows before anything is read
    names = list(dict.fromkeys(words(metric or []))) or list(metrics.DEFAULT)
    evaluation.check_metrics(names, bertscore_model)
    if recommend is not None:
        checks.real("--recommend", recommend, 0.0, 1.0)
        _check_checkpoint(model)
    if out is not None:
        evaluation_report.check_out(out)
    if out is not None and not evaluation_report.can_draw():
        typer.echo("pictures will not be drawn: matplotlib is not installed, pip install 'skipjax[plot]' brings it")
    inputs = evaluation.read_inputs(data, prompt_template, target_column, split=split, limit=limit)
    lm = model.load(methods)
    evaluated = evaluation.evaluate(
        lm,
        inputs,
        methods.settings(lm.config, *flags.recorded_methods(lm)),
        metric_names=names,
        bertscore_model=bertscore_model,
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        sampling=chosen_sampling,
        log=None if out is None else out / "progress.jsonl",
        progress=True,
    )
    references = sum(len(entry.references) for entry in inputs)
    typer.echo(f"{len(inputs)} inputs, {references} references")
    typer.echo(evaluation_report.table(evaluated))
    if out is not None:
        written = evaluation_report.write(evaluated, out)
        typer.echo(f"wrote {', '.join(written)} to {out}")
    if recommend is not None:
        from skipjax import checkpoint

        best = evaluated.fastest(recommend)
        checkpoint.recommend(str(model.model), best.setting.method.resolve(max_new_tokens))
        typer.echo(
            f"recommended: {best.setting.label}, {best.share_of_full:.1%} of full depth's ROUGE-L at"
            f" {best.speedup:.2f}x; {model.model} now decodes so by default"
        )


def _check_checkpoint(model: ModelFlags) -> None:
    """Raises ValueError unless the model is a checkpoint of skipjax on this machine, where a method can be recorded."""
    from skipjax import loading

    if model.heads is not None:
        raise ValueError("--recommend goes without --heads: the exits are no part of the checkpoint of --model")
    if model.model is None:
        raise ValueError("--recommend needs --model, a checkpoint of skipjax to write into; the embedded model is none")
    if not loading.is_checkpoint(Path(model.model)):
        raise ValueError(
            f"--recommend writes into a checkpoint of skipjax, and --model {model.model} is none:"
            f" skipjax convert {model.model} DIR makes one"
        )
