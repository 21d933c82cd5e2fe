"""Which values a chat template asks for by name. Templates are Jinja's, with what Transformers adds to it.

Invariant: a name that changes what is written is never refused; a template that can't be read here refuses none.
"""

from collections.abc import Collection, Mapping
from typing import Any

from rollmux.checks import one_of
from rollmux.errors import InvalidSpec, Problem

CLOCK = "strftime_now"
# What is given to each template, by us or by Transformers.
GIVEN = {"messages", "add_generation_prompt", "raise_exception", CLOCK}
_PLACE = "job.task.template"


def require_known(values: Mapping[str, Any], template: str | None, given: Collection[str]) -> None:
    """InvalidSpec where the template asks for no such value. `given`: what the tokenizer gives it, too."""
    if template is None:
        problem = Problem(_PLACE, dict(values), "left out: the model has no chat template", "take another model")
        raise InvalidSpec("job", (problem,))
    asked = asked_by(template)
    if asked is None:
        return
    known = sorted(asked - {*given})
    none = "nothing: the model's chat template asks for no value", "leave it out"
    unknown = [name for name in values if name not in known]
    problems = [Problem(f"{_PLACE}.{n}", values[n], *(one_of(known, n) if known else none)) for n in unknown]
    if problems:
        raise InvalidSpec("job", tuple(problems))


def asked_by(template: str) -> set[str] | None:
    """The names of all that it may look up and not everybody gives it. None where that can't be seen."""
    from jinja2 import TemplateError, meta  # noqa: PLC0415 - scoring functions are loaded without it
    from jinja2.ext import Extension  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    class Generation(Extension):
        """Transformers' own tag: what a model says stands in it."""

        tags = {"generation"}  # noqa: RUF012 - as Jinja has it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    known = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols", Generation])
    try:
        found = meta.find_undeclared_variables(known.parse(template))
    except TemplateError:
        return None
    return found - GIVEN - set(known.globals)
