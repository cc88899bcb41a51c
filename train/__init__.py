"""Training programs, installed as `skipjax.train`: they parse flags, build, and call `skipjax.training`."""

import typer

from .free import free
from .full import full
from .heads import heads
from .multi_exit import multi_exit
from .skipdecode import skipdecode
from .tokenizer import tokenizer

app = typer.Typer(help="Fine-tune a model, or train a tokenizer.", no_args_is_help=True)
for program in (full, skipdecode, free, multi_exit, heads, tokenizer):
    app.command()(program)
