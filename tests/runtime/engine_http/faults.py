"""The documented ways in which a server misbehaves. What has a count happens so often, then no more.

Sources: the end of docs/design/engine_http.md.
"""

from dataclasses import dataclass, field
from threading import Event


@dataclass(slots=True)
class Faults:
    # Of streams; places are tokens of the attempt.
    unavailable: int = 0  # so many times 503 in place of a stream
    refused: str = ""  # 400 in place of each stream
    resets: int = 0  # the connection is reset
    truncations: int = 0  # half an event, then an end as if all were well
    drops: int = 0  # one event is never sent
    stalls: int = 0  # nothing more comes, and the connection stays
    aborts: int = 0  # the server aborts it by itself
    errors: int = 0  # an error in place of an event
    at: int = 3  # after so many tokens, for all of these
    forgets: bool = False  # after a reset it is another server, with the weights it was started with
    duplicates: bool = False  # each event comes twice
    ends_apart: bool = False  # its end comes in an event of its own, which is never sent
    miscount: int = 0  # the count is off by so much
    logprobs: str = ""  # "none": left out; "null": there, but empty; "nan": not a number
    other_version_at: int | None = None  # from there on, tokens come of other weights
    not_a_number_at: int | None = None  # SGLang: a stop token is written in the place of what is no number
    garbage: bool = False  # what is sent is not JSON
    foreign_stop_at: int | None = None  # it stops at a token of its own
    short_limit: int | None = None  # its own limit is shorter than the request's
    truncates_prompt: bool = False
    room: int = 1_000_000  # so many run at a time, the others wait in its queue
    counts_no_prompt: bool = False  # SGLang of today says nothing of the prompt of what is ended there, an older one 0
    turns_away: int = 0  # SGLang with --max-queued-requests: so many times its queue is full
    # Of its life.
    loading: int = 0  # so many times 503 when asked for its health
    holds_bytes: int = 0  # asleep it keeps so much more
    frees_after_s: float = 0.0  # it answers first and frees later
    leak_bytes: int = 0  # gained with each sleep
    gibberish: bool = False  # woken, its weights are damaged
    holds_blocks: int = 0  # vLLM: so many times its cache is not reset, which its answer of 200 says
    update_fails: int = 0  # so many times, in the middle
    fails_softly: bool = False  # ... and answers 200
    ends_of_failing: bool = False  # ... or SGLang ends: to undo it, it reads the same folder again
    keeps_bytes: int = 0  # what new weights came through is kept until the next sleep
    keeps_session: bool = False  # an older vLLM: an update that failed in the middle is still under way
    transfers_nothing: bool = False  # vLLM without --weight-transfer-config
    knows_no_session: bool = False  # an older SGLang: weights just come
    asserts_session: bool = False  # SGLang of about 0.5.14 ends where today's refuses what is out of order
    lost_answers: set[str] = field(default_factory=set)  # done, but the answer to the next one is lost
    late_answers: dict[str, Event] = field(default_factory=dict)  # done, but the answer to the next one waits for this
    slow_s: float = 0.0  # each answer takes so long
    knows_no_version: bool = False  # an older server
    knows_no_modes: bool = False  # an older vLLM: each pause aborts
    knows_no_models: int = 0  # ... or one behind a gateway of its own: with this status
    knows_older_names: bool = False  # an older SGLang: it has `/get_model_info` and `/get_server_info` alone
    no_copy: bool = False  # SGLang, started without a copy of its weights on the host
    shares_weights: bool = False  # ... or with weights that others use, so that a sleep ends it
    setup_page: str = ""  # ... what it tells of that, where it is something else
    knows_no_setup: bool = False  # ... or as one that does not tell how it was started

    def strikes(self, name: str, place: int) -> bool:
        """Whether this happens here; if it does, there is one less to come."""
        left: int = getattr(self, name)
        if left <= 0 or place != self.at:
            return False
        setattr(self, name, left - 1)
        return True
