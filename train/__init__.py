"""Training programs, installed as `skipjax.train`: they parse flags, build, and call `skipjax.training`."""

import typer

from .full import full
from .skipdecode import skipdecode
from .tokenizer import tokenizer

app = typer.Typer(help="Fine-tune a model, or train a tokenizer.", no_args_is_help=True)
for program in (full, skipdecode, tokenizer):
    app.command()(program)
