"""Who calls: both sides show that they know the token, and neither ever says it.

Invariant: nothing that the caller names is acted on before its proof was compared, in constant time. The proof answers
a challenge of the listener's, so one that was overheard opens nothing. What follows it is neither secret nor sealed.
"""

import hmac
import secrets

import msgspec

from rollmux.checks import Checks
from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.errors import Refused
from rollmux.runtime.sync.wire import MAX_GREETING_BYTES, Challenge, Hello, Proof, Refusal, Welcome

MIN_TOKEN = 16


def checked_token(token: str) -> bytes:
    """A token that is long enough not to be guessed."""
    if len(token) < MIN_TOKEN:
        found, limit = f"{len(token)} characters", f"at least {MIN_TOKEN} characters"
        raise Checks("sync").refusal("token", found, limit, "take secrets.token_hex()")
    return token.encode()


def admit(channel: Channel, token: bytes) -> Hello:
    """The listener's side, until it knows who calls. `welcome` or `turn_away` must follow."""
    challenge = Challenge(secrets.token_hex(16))
    channel.say(challenge)
    hello = channel.hear(Hello, limit=MAX_GREETING_BYTES)
    proof = channel.hear(Proof, limit=MAX_GREETING_BYTES)
    if not hmac.compare_digest(proof.mac.encode(), _mac(token, "caller", challenge, hello).encode()):
        raise Refused("the caller has another token: give all ranks the same")
    return hello


def welcome(channel: Channel, token: bytes, hello: Hello, done: bool = False) -> None:
    channel.say(Welcome(_mac(token, "listener", Challenge(hello.nonce), hello), done))


def turn_away(channel: Channel, reason: str) -> None:
    # The name of a folder may have bytes that are no text, and can't be sent.
    channel.say(Refusal(reason.encode(errors="backslashreplace").decode()))


def knock(channel: Channel, token: bytes, hello: Hello) -> bool:
    """The caller's side; afterwards both know each other. False: the attempt was committed already."""
    challenge = channel.hear(Challenge, limit=MAX_GREETING_BYTES)
    channel.say(hello)
    channel.say(Proof(_mac(token, "caller", challenge, hello)))
    answer = channel.hear(Welcome, limit=MAX_GREETING_BYTES)
    expected = _mac(token, "listener", Challenge(hello.nonce), hello)
    if not hmac.compare_digest(answer.mac.encode(), expected.encode()):
        raise Refused("the listener has another token: give all ranks the same")
    return not answer.done


def nonce() -> str:
    return secrets.token_hex(16)


def _mac(token: bytes, who: str, challenge: Challenge, hello: Hello) -> str:
    content = msgspec.json.encode([who, challenge.nonce, hello])
    return hmac.digest(token, content, "sha256").hex()
