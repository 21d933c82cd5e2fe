"""Which values a chat template asks for by name. Templates are Jinja's, with the additions of Transformers.

Invariant: a name is never refused if its value changes what the template writes; if a template can't be read here, no
name is refused.
"""

from collections.abc import Collection, Mapping
from typing import Any

from rollmux.checks import one_of
from rollmux.errors import InvalidSpec, Problem

CLOCK = "strftime_now"
# Names that each template is given, by us or by Transformers.
GIVEN = {"messages", "add_generation_prompt", "raise_exception", CLOCK}
_PLACE = "job.task.template"
_ASKS_WHETHER = {"defined", "undefined", "none", "default", "d"}


def require_known(values: Mapping[str, Any], template: str | None, given: Collection[str]) -> None:
    """InvalidSpec if the template does not ask for one of the values. `given` are names that the tokenizer gives it."""
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
    """All names that the template may look up and is not given anyway; None if the template can't be read.

    The value says whether to show the name to users: a name that the template sets itself, and never tests for, is
    hardly ever looked up before it is set.
    """
    from jinja2 import TemplateError, meta, nodes  # noqa: PLC0415 - scoring functions load without it
    from jinja2.ext import Extension  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    class Generation(Extension):
        """Transformers' own tag, around the model's turns."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's own form

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
