"""Who may call, and as whom. Tokens are kept as hashes; a job's own token follows from a secret and is kept nowhere.

Invariant (I12): a caller whose token is not known is nobody, and nobody may do anything.
"""

import fcntl
import hmac
import json
import logging
import os
import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path

from rollmux.errors import InvalidSpec, Problem, RollmuxError

log = logging.getLogger("rollmux")
audit = logging.getLogger("rollmux.audit")

# The files in a controller's folder that let callers in.
PRIVATE_FILES = ("admin.token", "secret", "tokens.json")
MOST_REMEMBERED = 20_000
LONGEST_NAME = 200
DAY_S = 24 * 3600.0
LONGEST_S = 36_500 * DAY_S

# What is known of each token, by its hash.
Entries = dict[str, dict[str, object]]
_FIELDS = {"name", "role", "tenant", "expires"}
# The expiry of an entry that is no admin's token any more: it is kept for the name alone, which no tenant is to have.
_REVOKED = 0.0


class Role(Enum):
    """What a caller may do: everything, all with its own jobs, or speak for one job."""

    ADMIN = "admin"
    TENANT = "tenant"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls. `tenant` is empty for an admin, `job` for all but a job."""

    role: Role
    name: str
    tenant: str = ""
    job: str = ""

    @property
    def sees(self) -> str | None:
        """The tenant whose jobs the caller may see; None: everybody's."""
        return None if self.role is Role.ADMIN else self.tenant


class TokenExists(RollmuxError):
    """There is a token of this name."""


class TokensUnreadable(RollmuxError):
    """The file that holds the tokens is damaged, or is not this user's to read."""


class Tokens:
    """The tokens of one controller, in its folder: other programs of the same user may add and remove some."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self.path, self._clock = folder / "tokens.json", clock
        self._secret_path = folder / "secret"
        self._secret = _secret(self._secret_path)
        self._seen: tuple[int, int] = (0, 0)
        self._told: tuple[int, int] = (0, 0)  # the damaged file that the log tells of already
        self._jobs: dict[str, Caller] = {}  # jobs' tokens that were found good, so that not every call checks them anew
        self._known: Entries = {}
        self._has_looked = False

    def caller(self, token: str) -> Caller | None:
        """Whose token this is, if anybody's."""
        if token.startswith("job."):
            return self._jobs.get(token) or self._job(token)
        self._refresh()
        found = self._known.get(_hash(token))  # how long this takes does not tell how much of a guess is right
        if found is None or _expired(found, self._clock()):
            return None
        return Caller(Role(found["role"]), str(found["name"]), str(found["tenant"]))

    def of_job(self, job_id: str, tenant: str) -> str:
        """The token of a job's own processes."""
        claim = json.dumps([job_id, tenant]).encode().hex()
        return f"job.{claim}.{self._sign(claim)}"

    def create(self, name: str, role: Role, tenant: str = "", lasts_s: float | None = None) -> str:
        """A new token. It is shown once: only its hash is kept."""
        _require_sound(name, tenant if role is Role.TENANT else name, lasts_s)
        with self._alone():
            known = _lasting(self._known, self._clock())
            if any(each["name"] == name for each in _good(known).values()):
                raise TokenExists(f"there is a token {name!r}: revoke it first, or choose another name")
            if role is Role.TENANT and any(_is_admin(each) and each["name"] == tenant for each in known.values()):
                raise TokenExists(f"{tenant!r} is or was an admin, whose jobs are nobody else's: choose another tenant")
            if role is Role.ADMIN and any(each["tenant"] == name for each in known.values()):
                raise TokenExists(f"there are tokens of the tenant {name!r}: choose another name for an admin")
            token = f"rollmux_{secrets.token_urlsafe(32)}"
            expires = None if lasts_s is None else self._clock() + lasts_s
            entry: dict[str, object] = {"name": name, "role": role.value, "tenant": tenant, "expires": expires}
            self._write({**known, _hash(token): entry})
        return token

    def revoke(self, name: str) -> bool:
        """Revokes a token, and says whether there was one. No tenant can get an admin's name, which jobs may bear."""
        with self._alone():
            found = {key for key, each in _good(self._known).items() if each["name"] == name}
            self._write(_lasting(_without(self._known, found), self._clock()))
        return bool(found)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Inside, `_known` is what the file says, and no other program changes the file."""
        with self._secret_path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._refresh(strictly=True)
            yield

    def names(self) -> list[dict[str, object]]:
        self._refresh(strictly=True)
        return list(_good(self._known).values())

    def _job(self, token: str) -> Caller | None:
        _, _, rest = token.partition(".")
        claim, _, signature = rest.partition(".")
        if not hmac.compare_digest(self._sign(claim).encode(), signature.encode()):
            return None
        job_id, tenant = json.loads(bytes.fromhex(claim))
        if len(self._jobs) >= MOST_REMEMBERED:
            self._jobs.clear()
        self._jobs[token] = caller = Caller(Role.JOB, f"job {job_id}", tenant, job_id)
        return caller

    def _sign(self, claim: str) -> str:
        return hmac.new(self._secret, claim.encode(), sha256).hexdigest()

    def _refresh(self, strictly: bool = False) -> None:
        """Takes over what the file says. If it can't be read, what was known stays; if `strictly`, this raises."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            self._learn({}, (0, 0))
            return
        seen = (found.st_mtime_ns, found.st_ino)
        if seen != self._seen:
            try:
                known = _entries(self.path)
            except TokensUnreadable as error:
                if strictly or self._seen == (0, 0):
                    raise
                if seen != self._told:
                    log.error("%s; until then those that were known hold", error)
                self._told = seen
                return
            self._learn(known, seen)

    def _learn(self, known: Entries, seen: tuple[int, int]) -> None:
        if self._has_looked:
            _note(_good(self._known), _good(known), self._clock())
        self._known, self._seen, self._has_looked = known, seen, True

    def _write(self, known: Entries) -> None:
        write_private(self.path, json.dumps(known, indent=1).encode())
        self._known = known


def _entries(path: Path) -> Entries:
    """What a file of tokens holds."""
    try:
        found: Entries = json.loads(path.read_text(encoding="utf-8"))
        whole = all(each.keys() == _FIELDS and Role(each["role"]) for each in found.values())
    except OSError as error:
        remedy = "give it to the user that the controller runs as"
        raise TokensUnreadable(f"{path} can't be read ({error.strerror}): {remedy}") from error
    except (ValueError, AttributeError, TypeError):
        whole = False
    if not whole:
        raise TokensUnreadable(f"{path} is damaged: put back what it was, or remove it and make new tokens")
    return found


def _good(known: Entries) -> Entries:
    """The tokens that have not been revoked."""
    return {key: each for key, each in known.items() if each["expires"] != _REVOKED}


def _without(known: Entries, gone: Collection[str]) -> Entries:
    """The entries without those that are gone. The names of admins stay, each once, however many tokens it had."""
    entries = [known[key] for key in gone]
    names = {f"revoked {each['name']}": {**each, "expires": _REVOKED} for each in entries if _is_admin(each)}
    return {key: each for key, each in known.items() if key not in gone} | names


def _lasting(known: Entries, now: float) -> Entries:
    """The entries without the tokens that have run out: nobody needs those any more."""
    return _without(known, {key for key, each in _good(known).items() if _expired(each, now)})


def _note(before: Entries, after: Entries, now: float) -> None:
    """Writes each change to the audit log: other programs may have changed the file that this one looks at."""
    for change, some, others in (("made", after, before), ("revoked", before, after)):
        for key in some.keys() - others.keys():
            entry = some[key]
            how = "ran out" if change == "revoked" and _expired(entry, now) else change
            fields = {"token": entry["name"], "role": entry["role"], "tenant": entry["tenant"], "change": how}
            audit.info("token", extra={"fields": fields})


def _require_sound(name: str, tenant: str, lasts_s: float | None) -> None:
    """Raises InvalidSpec unless the names are fit for journals and logs, and the token lasts for a possible time."""
    problems = [
        Problem(path, value, f"1 to {LONGEST_NAME} printable characters", "choose another")
        for path, value in {"name": name, "tenant": tenant}.items()
        if not (value.isprintable() and 0 < len(value) <= LONGEST_NAME)
    ]
    if lasts_s is not None and not 0 < lasts_s <= LONGEST_S:
        limit = f"above 0, and at most {LONGEST_S / DAY_S:.0f}"
        problems.append(Problem("days", lasts_s / DAY_S, limit, "leave it out"))
    if problems:
        raise InvalidSpec("token", tuple(problems))


def _is_admin(entry: dict[str, object]) -> bool:
    return entry["role"] == Role.ADMIN.value


def _hash(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def _expired(entry: dict[str, object], now: float) -> bool:
    expires = entry["expires"]
    return isinstance(expires, int | float) and expires <= now


def _secret(path: Path) -> bytes:
    """The folder's secret, made by the first program that needs it, also if several come at once."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not path.exists():
            write_private(path, secrets.token_bytes(32))
    finally:
        os.close(folder)
    return path.read_bytes()


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner can read: all of it or nothing. What root writes is the folder's owner's, as
    whom the controller runs."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            if os.geteuid() == 0:
                about = path.parent.stat()
                with suppress(OSError):  # not every file system lets root give files away
                    os.fchown(file.fileno(), about.st_uid, about.st_gid)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        error.filename = str(path)  # the error of a full disk names no file
        raise
