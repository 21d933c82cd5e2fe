"""The block of docs/operating.md in a real nginx, before a controller: jobs, and the stream, while both come and go."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

import rollmux
from tests.ports import free_port
from tests.service.serving import PAIR, RULES, job, served

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or ""
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operating.md"
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
STEPS = 4

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not NGINX, reason="nginx is not installed")]


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A certificate with its key, in one file that everybody here trusts."""
    found = tmp_path / "both.pem"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    words = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names, "-keyout", found, "-out")
    subprocess.run([*words, tmp_path / "one.pem"], check=True, capture_output=True)
    found.write_bytes(found.read_bytes() + (tmp_path / "one.pem").read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(found))
    return found


@contextmanager
def nginx(folder: Path, port: int, certificate: Path, behind: str) -> Iterator[subprocess.Popen[bytes]]:
    """As long as the block lasts."""
    found = re.search(r"```nginx\n(.*?)```", DOCUMENT.read_text(), re.S)
    assert found is not None
    server = re.sub(r"/etc/ssl/rollmux\.\w+", str(certificate), found[1])
    server = server.replace(" 443 ", f" {port} ").replace("http://127.0.0.1:8421", behind)
    places = "".join(f"{name}_temp_path {folder}/{name};\n" for name in TEMPORARY)
    file = folder / "nginx.conf"
    file.write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/errors;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{places}{server}}}\n"
    )
    process = subprocess.Popen([NGINX, "-c", file, "-e", folder / "errors"])
    try:
        until = time.monotonic() + 20.0
        while time.monotonic() < until:
            try:
                httpx.get(f"https://localhost:{port}/healthz")
                break
            except httpx.TransportError:
                assert process.poll() is None, (folder / "errors").read_text()
                time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait(20)


def test_a_job_goes_on_while_nginx_and_the_controller_behind_it_come_and_go(tmp_path: Path, trusted: Path) -> None:
    port, inner, worked = free_port(), free_port(), list[tuple[str, int]]()
    url, controller = f"https://localhost:{port}", partial(served, tmp_path / "controller", PAIR, RULES, port=inner)
    before = partial(nginx, tmp_path, port, trusted, f"http://127.0.0.1:{inner}")
    with ExitStack() as first, ExitStack() as second, ExitStack() as proxy:
        token = first.enter_context(controller()).admin
        proxy.enter_context(before())
        with rollmux.connect(url, token, job("a", iterations=STEPS)) as mux:
            for step in mux.steps(STEPS):
                with mux.phase("rollout"):
                    worked.append(("rollout", step))
                    if step == 1:
                        proxy.close()
                        proxy.enter_context(before())
                with mux.phase("train"):
                    worked.append(("train", step))
                    if step == 2:
                        first.close()
                        second.enter_context(controller())
        assert worked == [(kind, step) for step in range(STEPS) for kind in ("rollout", "train")]


def test_the_stream_is_handed_on_as_it_comes(tmp_path: Path, trusted: Path) -> None:
    port = free_port()
    with served(tmp_path / "controller", PAIR) as there, nginx(tmp_path, port, trusted, there.service.url):
        headers = {"Authorization": f"Bearer {there.admin}"}
        with httpx.stream("GET", f"https://localhost:{port}/v1/events?after=1", headers=headers, timeout=5.0) as answer:
            came = answer.iter_lines()
            there.post("/v1/jobs", job("a"))
            assert any('"submitted"' in line for line in came)
