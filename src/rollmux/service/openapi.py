"""The description of the HTTP interface in OpenAPI, made from the table of routes and the types of jobs and calls."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from rollmux import __version__
from rollmux.mux.job import JobSpec
from rollmux.protocol import job_file
from rollmux.protocol.messages import Refusal
from rollmux.service.routes import EVERYBODY, OWNERS, Route

# What a job's launcher needs: in a job's file it stands beside the job itself.
_WORDS = {"type": "array", "items": {"type": "string"}, "maxItems": job_file.MAX_ENTRIES}
_COUNT = {"type": "integer", "minimum": 1, "maximum": job_file.MAX_PROCESSES, "default": 1}
_RUN: dict[str, Any] = {
    "command": {**_WORDS, "default": []},
    "env": {"type": "object", "additionalProperties": {"type": "string"}, "default": {}},
    "folder": {"type": "string", "default": ""},
    "processes": _COUNT,
    "ranks_per_process": _COUNT,
}

_ERRORS = {
    "400": "The body can't be read",
    "401": "Who calls is not known",
    "403": "The caller may not do this",
    "404": "There is no such job for this caller",
    "409": "This can't be now; a repeat won't help",
    "413": "The body is too large",
    "422": "The job can't be taken, for all these problems",
    "429": "Too many calls",
    "503": "Nothing can be changed now; try again later",
}


def description(routes: Sequence[Route]) -> dict[str, Any]:
    """All routes, with the shapes of what they take and give."""
    kinds = [kind for route in routes for kind in (route.takes, route.gives) if kind not in (None, dict)]
    names = list(dict.fromkeys([*kinds, Refusal, JobSpec]))
    schemas, parts = msgspec.json.schema_components(names, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(names, schemas, strict=True))
    schema_of[dict] = schema_of[JobSpec]
    _as_in_files(parts)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    paths["/metrics"] = {"get": _figures(schema_of[Refusal])}
    return {
        "openapi": "3.1.0",
        "info": {"title": "RollMux controller", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": parts,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _as_in_files(parts: dict[str, Any]) -> None:
    """A job is submitted as in its file: by the words and units of that, with what its launcher needs."""
    job, phase = parts[JobSpec.__name__], parts["PhaseSpec"]
    mine, its = job["properties"], phase["properties"]
    mine |= {"name": mine.pop("id"), **_RUN}
    its |= {gb: {"type": "number", "default": 0.0} for name, gb in job_file.IN_GB.items() if its.pop(name)}
    job["required"] = list(job_file.NEEDED)
    for part, says in ((job, "A job, as in its file."), (phase, "One kind of phase. Memory is GB per node.")):
        part["description"], part["additionalProperties"] = says, False


def _figures(refusal: Any) -> dict[str, Any]:
    return {
        "summary": "Figures for Prometheus",
        "operationId": "figures",
        "responses": {
            "200": {"description": "The figures", "content": {"text/plain": {"schema": {"type": "string"}}}},
            **{code: {"description": _ERRORS[code], **_json(refusal)} for code in ("401", "403", "429")},
        },
        "security": [{"token": sorted(role.value for role in OWNERS)}],
    }


def _operation(route: Route, schema_of: dict[type, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.says,
        "operationId": route.answer.__name__,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", route.path)
        ]
        + [
            {"name": name, "in": "query", "description": says, "schema": {"type": "integer", "minimum": 0}}
            for name, says in route.asks
        ],
        "responses": {"200": {"description": "The answer", **_gives(route, schema_of[route.gives])}}
        | {code: {"description": text, **_json(schema_of[Refusal])} for code, text in _ERRORS.items()},
    }
    if route.who is not EVERYBODY:
        operation["security"] = [{"token": sorted(role.value for role in route.who)}]
    if route.takes is not None:
        operation["requestBody"] = {"required": True, **_json(schema_of[route.takes])}
    return operation


def _gives(route: Route, schema: Any) -> dict[str, Any]:
    """One answer; or server-sent events, each with one of these as its data and its `seq` as its id."""
    return {"content": {"text/event-stream": {"schema": schema}}} if route.streams else _json(schema)


def _json(schema: Any) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}
