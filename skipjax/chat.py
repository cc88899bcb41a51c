"""Rendering chat templates, which are Jinja programs shipped with checkpoints, so they run in Jinja's sandbox.

The environment offers what transformers offers to templates. Source: transformers 5, utils/chat_template_utils.py.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here it only gives its content."""

    tags = {"generation"}  # noqa: RUF012 (declared by jinja2)

    def parse(self, parser: Any) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    # Jinja's own filter escapes HTML, which models have not been trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


@functools.lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_now)
    return environment.from_string(template)


def render(template: str, messages: Sequence[Any], special_tokens: Mapping[str, str]) -> str:
    """The text of a conversation with the opening of the assistant's next turn.

    Args:
      template: Jinja source.
      messages: at least one object with "role" and "content".
      special_tokens: values for names such as bos_token.
    Raises:
      ValueError: messages of another form, or the template fails on them.
    """
    if not messages or not all(isinstance(message, Mapping) and "role" in message for message in messages):
        raise ValueError(f"messages must be a non-empty list of objects with 'role' and 'content', got {messages!r}")
    # Round trip through JSON: a template sees plain values only, never objects with methods.
    try:
        plain = json.loads(json.dumps(list(messages)))
    except TypeError:
        raise ValueError("messages must hold JSON values only") from None
    plain = [{name: value for name, value in message.items() if value is not None} for message in plain]
    try:
        return _compiled(template).render(
            messages=plain, tools=None, documents=None, add_generation_prompt=True, **special_tokens
        )
    except (jinja2.TemplateError, TypeError) as error:
        raise ValueError(f"the checkpoint's chat template refuses these messages: {error}") from None
