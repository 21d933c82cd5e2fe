"""Which values a chat template asks for by name. Templates are Jinja's, with what Transformers adds to it.

Invariant: a name of its own that changes what it writes is never refused; a template that can't be read here refuses
none.
"""

from collections.abc import Collection, Mapping
from typing import Any

from rollmux.checks import one_of
from rollmux.errors import InvalidSpec, Problem

CLOCK = "strftime_now"
# What is given to each template, by us or by Transformers.
GIVEN = {"messages", "add_generation_prompt", "raise_exception", CLOCK}
_PLACE = "job.task.template"
_ASKS_WHETHER = {"defined", "undefined", "none", "default", "d"}


def require_known(values: Mapping[str, Any], template: str | None, given: Collection[str]) -> None:
    """InvalidSpec where the template asks for no such value. `given`: what the tokenizer gives it, too."""
    if template is None:
        problem = Problem(_PLACE, dict(values), "left out: the model has no chat template", "take another model")
        raise InvalidSpec("job", (problem,))
    asked = asked_by(template)
    if asked is None:
        return
    shown = sorted(name for name, is_shown in asked.items() if is_shown and name not in given)
    none = "nothing: the model's chat template asks for no value", "leave it out"
    unknown = [name for name in values if name not in asked or name in given]
    problems = [Problem(f"{_PLACE}.{n}", values[n], *(one_of(shown, n) if shown else none)) for n in unknown]
    if problems:
        raise InvalidSpec("job", tuple(problems))


def asked_by(template: str) -> dict[str, bool] | None:
    """All names that it may look up and that not everybody gives it; None where that can't be seen.

    With each whether it is one to be told: what a template sets itself, and never asks whether it is there, may be
    looked up where it was not set, and hardly ever is.
    """
    from jinja2 import TemplateError, meta, nodes  # noqa: PLC0415 - scoring functions are loaded without it
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
        read = known.parse(template)
    except TemplateError:
        return None
    found = meta.find_undeclared_variables(read) - GIVEN - set(known.globals)
    own = {each.name for each in read.find_all(nodes.Name) if each.ctx == "store"}
    tests = (each for each in read.find_all((nodes.Test, nodes.Filter)) if each.name in _ASKS_WHETHER)
    asked = {each.node.name for each in tests if isinstance(each.node, nodes.Name)}
    return {name: name not in own or name in asked for name in found}
