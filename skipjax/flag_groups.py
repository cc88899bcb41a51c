"""Flags that several programs have, declared once: single ones, and how groups of them become those of a command.

A group is a dataclass with one field per flag.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

Data = Annotated[
    str, typer.Option(help="A .csv, .tsv, .json, .jsonl or .parquet file (also .gz), or the name of a hub data set.")
]
PromptTemplate = Annotated[str, typer.Option(help='Prompt with {column} fields, for example "{mr} ->".')]
TargetColumn = Annotated[str, typer.Option(help="Column with the text to generate.")]
Split = Annotated[str, typer.Option(help="Split of a hub data set.")]
Limit = Annotated[int | None, typer.Option(help="Use only the first rows.", show_default="all")]


class GridCommand(TyperCommand):
    """A command without arguments of its own, whose flags that may be repeated take every word up to the next flag:
    --speedup 1 2 3 is --speedup 1 --speedup 2 --speedup 3."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        several = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        spread: list[str] = []
        flag, first = None, False  # the flag that takes the words that come, and whether it has had none yet
        for word in args:
            if word.startswith("-") and not _is_number(word):
                name, equals, _ = word.partition("=")
                flag, first = name if name in several else None, not equals
            elif flag is not None and not first:
                spread.append(flag)
            else:
                first = False
            spread.append(word)
        return super().parse_args(ctx, spread)


def _is_number(word: str) -> bool:
    """Also of several, comma-separated: -1,0.5."""
    try:
        return bool([float(part) for part in word.split(",")])
    except ValueError:
        return False


def with_flags(
    *, without: Collection[str] = (), **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a command of a program some of whose arguments are groups of flags.

    In place of such an argument the command has the group's flags, each with the type, help and default of its field.
    Those that must be given come first. `defaults` replaces defaults of fields. Fields named in `without` become no
    flags: they have a default and keep it.
    """

    def decorate(program: Callable[..., None]) -> Callable[..., None]:
        groups: dict[str, tuple[Any, list[str]]] = {}
        parameters: list[inspect.Parameter] = []
        for argument in inspect.signature(program, eval_str=True).parameters.values():
            group = argument.annotation
            if not dataclasses.is_dataclass(group):
                parameters.append(argument.replace(kind=inspect.Parameter.KEYWORD_ONLY))
                continue
            flags = _flags(group, without, defaults)
            groups[argument.name] = group, [flag.name for flag in flags]
            parameters += flags
        parameters.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)

        @functools.wraps(program)
        def command(**given: Any) -> None:
            made = {name: group(**{flag: given.pop(flag) for flag in own}) for name, (group, own) in groups.items()}
            program(**made, **given)

        setattr(command, "__signature__", inspect.Signature(parameters))  # noqa: B010
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def _flags(group: Any, without: Collection[str], defaults: dict[str, Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    flags = []
    for field in dataclasses.fields(group):
        if field.name in without:
            continue
        default = defaults.get(field.name, field.default)
        flags.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if default is dataclasses.MISSING else default,
                annotation=hints[field.name],
            )
        )
    return flags
