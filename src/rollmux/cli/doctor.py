"""`rollmux doctor`: what is wrong with this machine, the folder, the journal or the controller, and what helps."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

import typer
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text as Styled

from rollmux import __version__
from rollmux.cli.options import AsJson, Folder, JournalUrl, Port, Token, Url, folder_of
from rollmux.cli.outputs import show
from rollmux.cli.remote import CallRefused, Remote, Unknown, elsewhere, remote
from rollmux.protocol.views import ClusterView, Health, Standing
from rollmux.service.checkup.finding import Finding, Level, fail, ok, warn

# Leases do not depend on the other machine's clock; tokens that run out, and people who read two logs, do.
SKEW_S, LARGE_SKEW_S = 2.0, 300.0
ANSWER_S = 10.0
SAME_VERSION = "same version"
_LOCAL = ("127.0.0.1", "::1", "localhost")
_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def doctor(
    port: Port = 8421,
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
    folder: Folder = None,
    journal: JournalUrl = "",
) -> None:
    """Check this machine, the controller's folder and the controller. The exit status is 1 if something can't work."""
    from rollmux.service.checkup.folder import folder as folder_checks  # noqa: PLC0415  others start faster without
    from rollmux.service.checkup.journal_server import journal_server  # noqa: PLC0415
    from rollmux.service.checkup.machine import machine  # noqa: PLC0415

    of_controller = list(_controller(url, token, folder))
    answers = any(each.check == SAME_VERSION for each in of_controller)
    findings = [*machine("127.0.0.1", 0 if answers else port)]
    if said := elsewhere(url, folder):
        findings.append(ok("folder", f"not looked at: {url} is {said}; --folder names one to look at"))
    else:
        findings += folder_checks(folder_of(folder))
    findings += [*([journal_server(journal)] if journal else []), *of_controller]
    failed = sum(each.level is Level.FAIL for each in findings)
    data = {"ok": not failed, "findings": [asdict(each) | {"level": each.level.value} for each in findings]}
    show(data, as_json, _table(findings), _verdict(findings))
    if failed:
        raise typer.Exit(1)


def _controller(url: str, token: str, folder: Path | None) -> Iterator[Finding]:
    try:
        there = remote(url, token, folder, timeout_s=ANSWER_S, starting_s=0.0)
    except Unknown:
        yield ok("controller", "none is known here; `rollmux serve` starts one")
        return
    except typer.BadParameter as error:
        yield fail("controller", str(error), "mend --url, --token or --folder, or ROLLMUX_URL, _TOKEN or _FOLDER")
        return
    try:
        began = time.time()
        health = there.get(Health, "/healthz")
        ended = time.time()
    except CallRefused as error:
        yield fail("controller", str(error), "start one with `rollmux serve`, or mend --url, the network or a firewall")
        return
    yield _standing(there, health)
    yield _version(health)
    yield _skew(health, (began + ended) / 2, (ended - began) / 2)
    if health.state is not Standing.STARTING:
        yield _token(there)
    parts = urlsplit(there.url)
    if parts.scheme == "http" and parts.hostname not in _LOCAL:
        advice = "serve with --certificate and --key, or through a proxy that speaks TLS"
        yield warn("TLS", f"tokens go to {parts.hostname} for everybody on the way to read", advice)


def _standing(there: Remote, health: Health) -> Finding:
    match health.state:
        case Standing.READY:
            return ok("controller", f"{there.url} is ready, at record {health.seq}")
        case Standing.BROKEN:
            return fail("controller", f"{there.url} changes nothing any more: {health.broken}", "mend that first")
    return warn("controller", f"{there.url} is {health.state.value}", "wait a moment, then look again")


def _version(health: Health) -> Finding:
    found = f"the controller is {health.version}, this is {__version__}"
    if health.version == __version__:
        return ok(SAME_VERSION, found)
    advice = f"install RollMux {health.version}, here and where jobs run"
    if health.version.split(".")[:2] == __version__.split(".")[:2]:
        return warn(SAME_VERSION, found, advice)
    return fail(SAME_VERSION, found, advice)


def _skew(health: Health, here: float, doubt_s: float) -> Finding:
    if not health.unix_s:
        return warn("same time", "the controller does not say what time it has", "update it")
    skew_s = abs(health.unix_s - here)
    found = f"{skew_s:.1f} s between the controller's clock and this one"
    if skew_s <= SKEW_S + doubt_s:
        return ok("same time", found)
    advice = "let both machines follow a time server: chronyc tracking"
    return (fail if skew_s > LARGE_SKEW_S else warn)("same time", found, advice)


def _token(there: Remote) -> Finding:
    if not there.token:
        return warn("token", "none is given", "set ROLLMUX_TOKEN, or run this where the controller's folder is")
    try:
        jobs = len(there.get(ClusterView, "/v1/cluster").jobs)
    except CallRefused as error:
        return fail("token", str(error), "have an admin run `rollmux token create NAME`, and set ROLLMUX_TOKEN")
    return ok("token", f"is good; it shows {jobs} jobs")


def _table(findings: list[Finding]) -> Table:
    table = Table(box=SIMPLE, pad_edge=False, show_header=False)
    for column in ("level", "check"):
        table.add_column(column, no_wrap=True)
    table.add_column("found", overflow="fold")
    for each in findings:
        said = Styled(each.found)
        if each.advice:
            said.append(f"\n→ {each.advice}", style="bold")
        table.add_row(Styled(each.level.value, style=_COLOURS[each.level]), each.check, said)
    return table


def _verdict(findings: list[Finding]) -> str:
    failed, warned = (sum(each.level is level for each in findings) for level in (Level.FAIL, Level.WARN))
    if not failed and not warned:
        return f"All {len(findings)} checks are fine."
    return f"Of {len(findings)} checks {failed} fail and {warned} warn."
