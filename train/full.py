"""Ordinary fine-tuning: every layer for every token.

skipjax train full --model M --data train.csv --prompt-template "{mr} ->" --target-column ref \
    --steps 1000 --batch-size 16 --learning-rate 3e-4 --out DIR
"""

from __future__ import annotations

from . import flags


def full(
    data: flags.Data,
    prompt_template: flags.PromptTemplate,
    target_column: flags.TargetColumn,
    steps: flags.Steps,
    batch_size: flags.BatchSize,
    learning_rate: flags.LearningRate,
    out: flags.Out,
    model: flags.Model = None,
    init: flags.Init = None,
    tokenizer: flags.TokenizerFiles = None,
    split: flags.Split = "train",
    limit: flags.Limit = None,
    max_prompt_tokens: flags.MaxPromptTokens = None,
    max_target_tokens: flags.MaxTargetTokens = None,
    eval_data: flags.EvalData = None,
    eval_every: flags.EvalEvery = 500,
    eval_limit: flags.EvalLimit = 512,
    accumulate: flags.Accumulate = 1,
    optimizer: flags.Optimizer = "adamw",
    warmup_steps: flags.WarmupSteps = 0,
    schedule: flags.Schedule = "cosine",
    clip: flags.Clip = 1.0,
    weight_decay: flags.WeightDecay = 0.0,
    dtype: flags.Dtype = "float32",
    rematerialise: flags.Rematerialise = False,
    max_shapes: flags.MaxShapes = 8,
    seed: flags.Seed = 0,
    save_every: flags.SaveEvery = 500,
    log_every: flags.LogEvery = 10,
    keep: flags.Keep = 2,
    resume: flags.Resume = False,
) -> None:
    """Fine-tune with every layer for every token."""
    given = dict(locals())
    from skipjax import training

    from .build import start

    start(given, lambda config, longest: training.full_depth())
