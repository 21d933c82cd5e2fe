"""A real HTTP server on a real socket that speaks as vLLM and SGLang do, and misbehaves when told to.

One class for both, with the routes of each (see docs/design/engine_http.md for where they are from). It is not made to
suit the engine: it keeps what is awkward in the real ones, such as calls that can't be made twice.
"""

import json
import socket
import struct
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from select import select
from time import sleep
from urllib.parse import parse_qs, urlsplit

from tests.runtime.engine_http.fake_machine import BYTES, VOCABULARY, Machine
from tests.runtime.engine_http.fake_stream import FakeStream, Hangup, Json
from tests.runtime.engine_http.faults import Faults

BROKEN_S = 0.05  # so long a connection stays over which it was told that something broke


class FakeServer:
    """A server in threads of this process."""

    def __init__(self, token_s: float = 0.0005, cumulative: bool = True, context: int = 512, folder: str = "") -> None:
        self.machine = Machine()
        self.token_s, self.cumulative, self.context, self.folder = token_s, cumulative, context, folder
        self.calls: list[str] = []
        self.bodies: list[Json] = []
        self.connections: set[socket.socket] = set()
        self.stopping = threading.Event()
        fake = self

        class Handler(_Handler):
            server_state = fake

        self._http = _Quiet(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def faults(self) -> Faults:
        return self.machine.faults

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def control_calls(self) -> list[str]:
        """What changed its life, in order."""
        noise = (
            "/health",
            "/v1/completions",
            "/generate",
            "/weight_info",
            "/model_info",
            "/server_info",
            "/get_model_info",
            "/get_server_info",
            "/v1/models",
            "/is_sleeping",
            "/metrics",
        )
        return [call for call in self.calls if not call.split(" ")[1].startswith((*noise, "/abort"))]

    def close(self) -> None:
        self.stopping.set()
        self.machine.proceed()
        self._http.shutdown()
        for connection in tuple(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._http.server_close()
        self._thread.join()


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that broke is what many tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server_state: FakeServer
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server_state.connections.add(self.connection)

    def finish(self) -> None:
        self.server_state.connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Tests print nothing."""

    def do_GET(self) -> None:
        self._serve({})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        self._serve(json.loads(raw) if raw else {})

    def _serve(self, body: Json) -> None:
        state, address = self.server_state, urlsplit(self.path)
        state.calls.append(f"{self.command} {self.path}")
        state.bodies.append(body)
        sleep(state.faults.slow_s)
        try:
            if address.path in ("/v1/completions", "/generate"):
                self._generate(body, address.path == "/generate")
                return
            query = {name: values[0] for name, values in parse_qs(address.query).items()}
            status, answer = self._control(address.path, query, body)
            if address.path in state.faults.lost_answers:
                state.faults.lost_answers.discard(address.path)
                raise Hangup
            if (late := state.faults.late_answers.pop(address.path, None)) is not None:
                late.wait(10.0)
            self._answer(status, answer)
            if status == 500:  # who asks over this connection again, and is not too late for it, gets no answer
                select([self.connection], [], [], BROKEN_S)
                self.close_connection = True
        except (Hangup, BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _answer(self, status: int, answer: Json | str) -> None:
        content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    # What is not generation.

    def _control(self, path: str, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        state = self.server_state
        machine, faults = state.machine, state.faults
        if path == "/health":
            if faults.loading > 0:
                faults.loading -= 1
                return 503, ""
            return (503 if machine.dead else 200), ""
        if machine.dead:
            return 500, {"error": machine.dead}
        route = ROUTES.get(path)
        unknown = ("/weight_info", "/update_weight_version") if faults.knows_no_version else ()
        if faults.knows_older_names:
            unknown = (*unknown, "/model_info", "/server_info")
        if faults.knows_no_models and path == "/v1/models":
            return faults.knows_no_models, {"detail": "none of yours"}
        if route is None or path in unknown:
            return 404, {"detail": "Not Found"}
        with machine.changed:
            answer: tuple[int, Json | str] = route(self, query, body)
        if path in ("/pause", "/pause_generation") and "abort" in (query.get("mode"), body.get("mode")):
            machine.drained(unread=path == "/pause")  # it answers only then
        return answer

    def _vllm_pause(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        machine = self.server_state.machine
        machine.pause(keep=query.get("mode", "abort") == "keep" and not machine.faults.knows_no_modes)
        return 200, {"status": "paused"}

    def _resume(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        self.server_state.machine.proceed()
        return 200, {"status": "resumed"}

    def _sleep(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        if query.get("level", "1") == "1" and not self.server_state.machine.asleep:
            self.server_state.machine.sleep("weights", "kv_cache")
        return 200, ""

    def _is_sleeping(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        machine = self.server_state.machine
        return 200, {"is_sleeping": machine.paused or bool(machine.asleep)}

    def _wake_up(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        machine = self.server_state.machine
        machine.wake(query["tags"])
        if not machine.asleep:
            machine.proceed()
        return 200, ""

    def _reset_prefix_cache(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        machine = self.server_state.machine
        if machine.running or machine.faults.holds_blocks > 0:
            machine.faults.holds_blocks -= 1
            return 200, {"success": False}
        machine.invalidate()
        return 200, {"success": True}

    def _invalidate(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        if self.server_state.machine.running:
            return 400, "There are running requests."
        self.server_state.machine.invalidate()
        return 200, ""

    def _collective_rpc(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        if body.get("method") != "reload_weights":
            return 500, {"detail": "no such method"}
        machine, kwargs = self.server_state.machine, body["kwargs"]
        if kwargs.get("weights_iterator") == []:  # nothing is loaded, and what was left of before is put away
            machine.torn = ""
            return 200, {"results": [None]}
        status, answer = self._updated_by_layers(kwargs["weights_path"])
        if machine.torn == machine.weights:
            machine.torn = ""  # it has ended
        return status, answer

    def _updated_by_layers(self, weights: str) -> tuple[int, Json | str]:
        """What was loaded of a layer before counts, until an end is made of it: the layer is full too early."""
        machine = self.server_state.machine
        machine.torn = f"{weights} amid {machine.torn}" if machine.torn else weights
        return self._updated(machine.torn, None)

    def _start_weight_update(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        if self.server_state.faults.transfers_nothing:
            return 500, {"detail": "weight transfer is not configured"}
        if self.server_state.machine.updating:
            return 500, {"detail": "a weight update is already active"}
        self.server_state.machine.updating = True
        return 200, {"message": "Weight update started"}

    def _update_weights(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        if not self.server_state.machine.updating:
            return 500, {"detail": "start_weight_update comes first"}
        status, answer = self._updated_by_layers(body["update_info"]["weights"])
        if status != 200 and not self.server_state.faults.keeps_session:
            self.server_state.machine.updating = False
        return status, answer

    def _finish_weight_update(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        machine = self.server_state.machine
        if not machine.updating:
            return 500, {"detail": "finish_weight_update called without a matching start_weight_update"}
        machine.updating, machine.torn = False, ""
        machine.version = body.get("weight_version", machine.version)
        return 200, {"message": "Weight update finished"}

    def _update_weight_version(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        self.server_state.machine.version = body["new_version"]
        return 200, {"success": True, "new_version": body["new_version"]}

    def _version(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        return 200, {"weight_version": self.server_state.machine.version, "model_path": self.server_state.folder}

    def _models(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        card = {"id": "served", "root": self.server_state.folder, "parent": None}
        return 200, {"data": [{"id": "adapter", "root": "/adapter", "parent": "served"}, card]}

    def _abort_requests(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        names = tuple(name.removeprefix("cmpl-").removesuffix("-0") for name in body["request_ids"])
        self.server_state.machine.abort(names)
        return 200, {"status": "aborted", "aborted": len(names)}

    def _abort_request(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        machine = self.server_state.machine
        if body.get("abort_all"):
            machine.abort((*machine.running, *machine.queue))
        elif body["rid"] in machine.running:
            machine.abort(tuple(name for name in machine.running if name.startswith(body["rid"])))
        return 200, ""

    def _pause_generation(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        machine = self.server_state.machine
        machine.pause(keep=body["mode"] != "abort")
        machine.frozen |= body["mode"] == "in_place"  # the next mode does not end it
        return 200, {"message": "Generation paused successfully.", "status": "ok"}

    def _server_info(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        if self.server_state.faults.knows_no_setup:
            return 404, {"detail": "Not Found"}
        if self.server_state.faults.setup_page:
            return 200, self.server_state.faults.setup_page
        copies = {"enable_memory_saver": True, "enable_weights_cpu_backup": not self.server_state.faults.no_copy}
        return 200, copies | ({"weight_cache_mode": "host"} if self.server_state.faults.shares_weights else {})

    def _release(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        if self.server_state.machine.asleep:
            self.server_state.machine.kill("lets go of memory twice")
        if self.server_state.faults.shares_weights:
            self.server_state.machine.kill("lets go of weights that others use")
        self.server_state.machine.sleep(*body.get("tags", BYTES))
        return 200, "null"

    def _regain(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        machine = self.server_state.machine
        for tag in body["tags"]:
            if tag not in machine.asleep:
                machine.kill(f"takes {tag} back twice")
            machine.wake(tag)
        return 200, "null"

    def _from_disk(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        if self.server_state.faults.ends_of_failing:
            self.server_state.machine.kill("reads a folder again that can't be read")
            raise Hangup
        amid = " amid a session" if self.server_state.machine.updating else ""
        return self._updated(body["model_path"] + amid, body["weight_version"])

    def _from_group(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        if not (self.server_state.machine.updating or self.server_state.faults.knows_no_session):
            return self._misused("update_weights_from_distributed without an open session")
        return self._updated(body["group_name"], body["weight_version"])

    def _begin_weight_update(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        if self.server_state.faults.knows_no_session:
            return 404, {"detail": "Not Found"}
        if self.server_state.machine.updating:
            return self._misused("a weight-update session is already open")
        self.server_state.machine.updating = True
        return 200, {"success": True, "message": "Success"}

    def _end_weight_update(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        if self.server_state.faults.knows_no_session:
            return 404, {"detail": "Not Found"}
        if not self.server_state.machine.updating:
            return self._misused("no weight-update session is open")
        self.server_state.machine.updating = False
        return 200, {"success": True, "message": "Success"}

    def _misused(self, why: str) -> tuple[int, Json | str]:
        if self.server_state.faults.asserts_session:
            self.server_state.machine.kill(why)
        return 400, {"success": False, "message": why}

    def _updated(self, weights: str, version: str | None) -> tuple[int, Json | str]:
        machine, faults = self.server_state.machine, self.server_state.faults
        if faults.update_fails > 0:
            faults.update_fails -= 1
            machine.load(f"half {weights}")
            failed = {"success": False, "message": "out of memory in the middle"}
            return (200 if faults.fails_softly else 400), failed
        machine.load(weights)
        if version is not None:
            machine.version = version
        return 200, {"success": True, "message": "Succeeded."}

    def _metrics(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        running = len(self.server_state.machine.running)
        return 200, (
            "# TYPE vllm:num_requests_running gauge\n"
            f'vllm:num_requests_running{{engine="0"}} {running}\n'
            f'vllm:num_requests_running{{engine="1"}} {running}\n'
            'vllm:num_requests_waiting{engine="0"} 2\n'
            'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
            'vllm:kv_cache_usage_perc{engine="1"} NaN\n'
            'vllm:num_preemptions_total{engine="0"} 7\n'
            'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1\n'
            "# TYPE sglang:num_running_reqs gauge\n"
            f"sglang:num_running_reqs {running}\n"
            "sglang:num_used_tokens 400\n"
            "sglang:token_usage 0.25\n"
            "sglang:max_total_num_tokens 1601\n"
            "sglang:num_retracted_reqs 3\n"
            "# TYPE sglang:num_retracted_requests_total counter\n"
            "sglang:num_retracted_requests_total 7\n"
        )

    def _loads(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        machine = self.server_state.machine
        waiting = len(machine.queue)
        load = {"dp_rank": 0, "num_running_reqs": len(machine.running), "num_waiting_reqs": waiting}
        return 200, {"loads": [load], "dp_rank_count": 1}

    def _workers(self, query: dict[str, str], body: Json) -> tuple[int, Json | str]:
        """A router's: it is one for itself."""
        return 200, {"workers": [{"id": "0", "url": self.server_state.url, "is_healthy": True}], "total": 1}

    # Generation.

    def _generate(self, body: Json, sglang: bool) -> None:
        state = self.server_state
        faults = state.faults
        if faults.refused:
            self._answer(400, {"error": {"message": faults.refused}})
            return
        if state.machine.dead or faults.unavailable > 0:
            faults.unavailable -= 1
            self._answer(503, {"error": {"message": "loading"}})
            return
        too_long = len(body["input_ids" if sglang else "prompt"]) >= state.context - 6 * sglang
        if max(body["input_ids" if sglang else "prompt"]) >= VOCABULARY and sglang:
            state.machine.kill("looks up a token that its model does not have")
            raise Hangup
        if too_long and not sglang:
            self._answer(400, {"error": {"message": "The input is longer than the model's context length."}})
            return
        if sglang and not body.get("stream"):
            self._generate_whole(body)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        most = state.context - 2 * sglang  # with the prompt
        stream = FakeStream(state.machine, self, body, sglang, state.cumulative, state.token_s, state.stopping, most)
        try:
            for event in [stream.refusal("Input length exceeds the maximum")] if too_long else stream.events():
                self._event(event)
            self._event("[DONE]")
            self._chunk(b"")
        finally:
            state.machine.end(stream.name)

    def _generate_whole(self, body: Json) -> None:
        """In one answer. SGLang looks every few seconds whether it is awaited still."""
        state = self.server_state
        stream = FakeStream(state.machine, self, body, True, True, state.token_s, state.stopping, state.context - 2)
        try:
            for event in stream.events():
                answer = event
                if self.gone():
                    raise Hangup
        finally:
            state.machine.end(stream.name)
        self._answer(200, answer)

    def _event(self, event: Json | str) -> None:
        text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
        if self.server_state.faults.garbage:
            text = "{not json"
        for _ in range(1 + self.server_state.faults.duplicates):
            self._chunk(f"data: {text}\n\n".encode())

    def gone(self) -> bool:
        """Whether whoever asked has hung up."""
        try:
            return bool(select([self.connection], [], [], 0)[0]) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def half_event(self) -> None:
        self._chunk(b'data: {"choices": [{"token_ids": [1')
        self._chunk(b"")
        raise Hangup

    def reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        raise Hangup

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


ROUTES = {
    "/pause": _Handler._vllm_pause,
    "/resume": _Handler._resume,
    "/sleep": _Handler._sleep,
    "/is_sleeping": _Handler._is_sleeping,
    "/wake_up": _Handler._wake_up,
    "/reset_prefix_cache": _Handler._reset_prefix_cache,
    "/collective_rpc": _Handler._collective_rpc,
    "/start_weight_update": _Handler._start_weight_update,
    "/update_weights": _Handler._update_weights,
    "/finish_weight_update": _Handler._finish_weight_update,
    "/update_weight_version": _Handler._update_weight_version,
    "/weight_info": _Handler._version,
    "/abort_requests": _Handler._abort_requests,
    "/metrics": _Handler._metrics,
    "/v1/models": _Handler._models,
    "/pause_generation": _Handler._pause_generation,
    "/continue_generation": _Handler._resume,
    "/release_memory_occupation": _Handler._release,
    "/resume_memory_occupation": _Handler._regain,
    "/flush_cache": _Handler._invalidate,
    "/update_weights_from_disk": _Handler._from_disk,
    "/update_weights_from_distributed": _Handler._from_group,
    "/begin_weight_update": _Handler._begin_weight_update,
    "/end_weight_update": _Handler._end_weight_update,
    "/model_info": _Handler._version,
    "/server_info": _Handler._server_info,
    "/get_model_info": _Handler._version,  # deprecated: it warns of each such call
    "/get_server_info": _Handler._server_info,
    "/abort_request": _Handler._abort_request,
    "/v1/loads": _Handler._loads,
    "/workers": _Handler._workers,
}
