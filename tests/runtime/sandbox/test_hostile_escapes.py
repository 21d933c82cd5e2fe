"""Code that reaches for what is not its own: files, sockets, the kernel. It gets nothing."""

import errno
import os
import platform
import shutil
import socket
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import pytest

from rollmux.runtime.sandbox import Cause, Concern, Mechanism, Program, kernel, seccomp
from rollmux.runtime.sandbox.inside import Place, _give_up_rights
from rollmux.runtime.sandbox.protections import Protections
from rollmux.runtime.sandbox.seccomp import TABLES
from tests.runtime.sandbox.world import World

# Tries each way, and prints what it got.
TRY = """
import ctypes, glob, os, socket, sys
def attempt(*ways):
    for way in ways:
        try:
            got = way()
        except OSError as error:
            continue
        print("GOT", repr(got)[:2000])
"""


def test_files_of_this_machine_are_out_of_reach(world: World, tmp_path: Path) -> None:
    world.needs(Concern.FILES)
    tmp_path.chmod(0o777)
    secret = tmp_path / "secret"
    secret.write_text("the answer is 42")
    secret.chmod(0o666)
    ended = world.run(
        TRY
        + f"""
secret = {str(secret)!r}
def through_link():
    os.symlink(secret, "link")
    return open("link").read()
def write():
    with open(secret, "w") as file:
        return file.write("overwritten")
attempt(
    lambda: open("/etc/shadow").read(),
    lambda: open("/etc/gshadow").read(),
    lambda: open(secret).read(),
    lambda: open("../" * 40 + secret).read(),
    lambda: open("/proc/1/root" + secret).read(),
    lambda: open("/proc/self/root" + secret).read(),
    lambda: open("/proc/1/cwd/../../../../.." + secret).read(),
    through_link, write,
    lambda: os.link(secret, "hard"),
    lambda: os.remove(secret),
    lambda: os.rename("link", secret),
    lambda: os.chmod(secret, 0o777),
)
"""
    )
    assert (ended.cause, ended.stdout) == (Cause.EXITED, b""), ended
    assert secret.read_text() == "the answer is 42"


@pytest.mark.parametrize(
    "how",
    [
        "os.truncate(secret, 0)",
        "os.open(shown, os.O_TRUNC)",
        "libc.open(os.fsencode(shown), os.O_TRUNC)",
        "os.open(secret, os.O_TRUNC | os.O_ACCMODE)",
    ],
)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_files_are_not_cut_off_where_landlock_of_a_kernel_before_6_2_alone_protects_them(
    version: int, how: str
) -> None:
    if kernel.landlock_version() < version or not seccomp.known_here():
        pytest.skip("this kernel has no such Landlock, or no filter")
    protections = Protections(frozenset({Mechanism.LANDLOCK, Mechanism.SECCOMP}), {}, version)
    with TemporaryDirectory(dir="/var/tmp") as folder, TemporaryDirectory(dir="/var/tmp") as another:
        (readable := Path(another, "readable")).mkdir()
        files = {"secret": Path(another, "secret"), "shown": readable / "shown"}
        for file in files.values():
            file.write_text("the answer is 42")
        pid = os.fork()
        if pid == 0:
            status = 2
            try:
                _give_up_rights(Place({}, folder, os.getuid(), protections, (str(readable),)))
                status = 0
                eval(how, {"os": os, "libc": kernel.libc, **files})
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert {file.read_text() for file in files.values()} == {"the answer is 42"}


def test_what_programs_share_is_read_only(world: World) -> None:
    world.needs(Concern.FILES)
    ended = world.run(
        TRY
        + """
library = os.path.dirname(os.__file__)
for folder in ("/", "/usr", "/usr/bin", "/etc", "/dev", "/proc", sys.prefix, sys.base_prefix, library):
    attempt(lambda: open(os.path.join(folder, "planted"), "w"), lambda: os.mkdir(os.path.join(folder, "made")))
attempt(lambda: open(os.__file__, "a"), lambda: os.remove(os.__file__))
"""
    )
    assert (ended.cause, ended.stdout) == (Cause.EXITED, b""), ended


def test_what_a_run_leaves_in_its_folder_is_gone_with_it(world: World) -> None:
    name = f"left-{uuid.uuid4()}"
    assert world.run(f"open({name!r}, 'w').write('x')").status == 0
    ended = world.run(f"import os; print(os.path.exists({name!r}), os.path.exists('/tmp/' + {name!r}))")
    assert ended.stdout == b"False False\n"
    assert not Path("/tmp", name).exists()


def test_secrets_of_other_processes_are_not_seen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.needs(Concern.FILES, Concern.PROCESSES)
    secret = f"secret-{uuid.uuid4()}"
    monkeypatch.setenv("ROLLMUX_TEST_SECRET", secret)
    parent = os.fork()
    if parent == 0:  # a process with the secret in its environment as the kernel shows it
        os.execve("/bin/sleep", ["sleep", "60"], {"TOKEN": secret})
    try:
        ended = world.run(
            TRY
            + """
for path in glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline") + glob.glob("/proc/*/task/*/environ"):
    attempt(lambda: open(path, "rb").read())
attempt(lambda: dict(os.environ), lambda: open("/proc/1/mem", "rb").read(1), lambda: os.listdir("/proc/1/fd"))
"""
        )
        assert ended.cause is Cause.EXITED
        assert secret.encode() not in ended.stdout
        assert b"TOKEN" not in ended.stdout
    finally:
        os.kill(parent, 9)
        os.waitpid(parent, 0)


def test_without_a_pid_namespace_no_process_is_shown() -> None:
    with World((Mechanism.PID_NAMESPACE,)) as shared:
        protections = shared.sandbox.protections
        if Mechanism.MOUNT_NAMESPACE not in protections.active:
            pytest.skip("without a mount namespace Landlock closes /proc")
        assert (Concern.PROCESSES in protections.uncovered) == (Mechanism.OWN_USER not in protections.active)
        ended = shared.run(
            TRY
            + f"""
attempt(lambda: open("/proc/{os.getpid()}/cmdline").read(), lambda: open("/proc/self/cmdline").read())
print(os.listdir("/proc"))
"""
        )
    assert (ended.cause, ended.stdout) == (Cause.EXITED, b"[]\n"), ended


def test_a_run_stays_the_first_to_be_killed_when_memory_runs_out() -> None:
    """Where neither Landlock nor root's rights keep it from saying otherwise."""
    with World((Mechanism.OWN_USER, Mechanism.LANDLOCK)) as bare:
        ended = bare.run("""
try:
    open("/proc/self/oom_score_adj", "w").write("0")
except OSError:
    pass
try:
    print(open("/proc/self/oom_score_adj").read().strip())
except OSError:
    print("not seen")
""")
    assert ended.stdout in (b"1000\n", b"not seen\n"), ended


def test_no_descriptor_of_the_sandbox_is_left_open(world: World) -> None:
    ended = world.run("import os\nfor n in range(4096):\n    try: os.fstat(n); print(n)\n    except OSError: pass")
    assert ended.stdout == b"0\n1\n2\n"


def test_no_socket_reaches_a_listener_next_door(world: World) -> None:
    world.needs(Concern.NETWORK)
    name = f"\0rollmux-{uuid.uuid4()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(name)
        abstract.listen()
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        ended = world.run(
            TRY
            + f"""
def connect(family, kind, address):
    made = socket.socket(family, kind)
    made.settimeout(2)
    made.connect(address)
    return made.send(b"hello")
attempt(
    lambda: connect(socket.AF_INET, socket.SOCK_STREAM, {tcp.getsockname()!r}),
    lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, {udp.getsockname()!r}),
    lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("8.8.8.8", 53)),
    lambda: connect(socket.AF_INET6, socket.SOCK_STREAM, ("::1", {tcp.getsockname()[1]})),
    lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, {name!r}),
    lambda: socket.getaddrinfo("example.com", 80),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
)
"""
        )
        assert (ended.cause, ended.stdout) == (Cause.EXITED, b""), ended
        for listener in (tcp, abstract, udp):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.recv(1) if listener is udp else listener.accept()
        udp.close()


def test_a_pair_of_sockets_reaches_no_socket_that_is_a_file() -> None:
    """Where those of the machine are seen, such as /dev/log: without a mount namespace."""
    folder = Path(mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(f"{folder}/log")
            Path(f"{folder}/log").chmod(0o777)
            with World((Mechanism.MOUNT_NAMESPACE,)) as shared:
                shared.needs(Concern.NETWORK)
                ended = shared.run(
                    TRY
                    + f"""
def send(kind):
    with socket.socketpair(socket.AF_UNIX, kind)[0] as one:
        return one.sendto(b"hello", "{folder}/log")
attempt(lambda: send(socket.SOCK_DGRAM), lambda: send(socket.SOCK_RAW))
"""
                )
            assert (ended.cause, ended.stdout) == (Cause.EXITED, b""), ended
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.recv(1)
    finally:
        shutil.rmtree(folder)


CALLS = ("ptrace", "unshare", "setns", "mount", "umount2", "chroot", "pivot_root", "socket", "bpf", "io_uring_setup",
         "keyctl", "userfaultfd", "perf_event_open", "process_vm_readv", "memfd_create", "clone3", "shmget", "reboot",
         "open_by_handle_at", "init_module")  # fmt: skip


def test_system_calls_made_directly_are_refused(world: World) -> None:
    world.needs(Concern.KERNEL)
    numbers = {name: TABLES[platform.machine()].numbers[name] for name in CALLS}
    ended = world.run(f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name, number in {numbers!r}.items():
    print(name, libc.syscall(number, 0, 0, 0, 0, 0), ctypes.get_errno())
print("new", libc.syscall(5000, 0, 0, 0), ctypes.get_errno())
namespaces = 0x10000000 | 17
print("clone", libc.syscall({TABLES[platform.machine()].numbers["clone"]}, namespaces, 0, 0, 0, 0), ctypes.get_errno())
""")
    rows = [line.split() for line in ended.stdout.decode().splitlines()]
    assert len(rows) == len(CALLS) + 2
    for name, result, reason in rows:
        absent = name in ("memfd_create", "clone3", "new")
        assert (name, result, int(reason)) == (name, "-1", errno.ENOSYS if absent else errno.EPERM)


# A call by another table. On aarch64 that takes a program of 32 bits, here one that would end with 7; where the
# processor runs none, there is no such table.
OTHER_TABLE = {
    "x86_64": "import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39); print('went on')",
    "aarch64": """
import errno, os, struct
code = struct.pack("<3I", 0xE3A07001, 0xE3A00007, 0xEF000000)  # mov r7, #1; mov r0, #7; svc #0
head = struct.pack("<4s3B9x2H5I6H", b"\\x7fELF", 1, 1, 1, 2, 40, 1, 0x10054, 52, 0, 0x05000000, 52, 32, 1, 0, 0, 0)
part = struct.pack("<8I", 1, 0, 0x10000, 0x10000, 84 + len(code), 84 + len(code), 5, 0x10000)
with open("other", "wb") as file:
    file.write(head + part + code)
os.chmod("other", 0o700)
try:
    os.execv("other", ["other"])
except OSError as error:
    print("none" if error.errno == errno.ENOEXEC else error)
""",
}


def test_the_other_table_of_system_calls_ends_the_program(world: World) -> None:
    world.needs(Concern.KERNEL)
    ended = world.run(OTHER_TABLE[platform.machine()])
    if ended.stdout == b"none\n":
        pytest.skip("this processor has no second table")
    assert (ended.cause, ended.status, ended.stdout) == (Cause.SIGNALLED, 31, b"")


def test_rights_are_not_won_back(world: World) -> None:
    world.needs(Concern.PRIVILEGE)
    ended = world.run(
        TRY
        + """
libc = ctypes.CDLL(None, use_errno=True)
attempt(lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgroups([0]), lambda: os.nice(-5))
if os.getuid() == 0 or os.geteuid() == 0: print("GOT root")
if libc.prctl(39, 0, 0, 0, 0) != 1: print("GOT new privileges")
for capability in range(41):
    if libc.prctl(23, capability, 0, 0, 0) == 1: print("GOT capability", capability)
"""
    )
    assert (ended.cause, ended.stdout) == (Cause.EXITED, b""), ended


def test_a_set_user_id_program_runs_without_its_rights(world: World) -> None:
    world.needs(Concern.PRIVILEGE)
    found = [path for path in ("/usr/bin/su", "/usr/bin/mount", "/usr/bin/passwd") if Path(path).exists()]
    if not found:
        pytest.skip("no set-user-id program here")
    shell = Program(command=("/bin/sh", "-c", f"cat /proc/self/status; {found[0]} --version > /dev/null; id -u"))
    ended = world.run(shell)
    assert ended.stdout.split()[-1] != b"0"
