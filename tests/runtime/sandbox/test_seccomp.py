"""The filter, run by an interpreter of the kernel's little language, and its numbers against the kernel's headers."""

import re
import struct
from pathlib import Path

import pytest

from rollmux.runtime.sandbox.seccomp import TABLES, Table, filter_program

ALLOW, KILL, EPERM, ENOSYS, ENOTSUP = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026, 0x0005005F
UNIX_STREAMS = 1, 1  # what a call for a pair of sockets wants
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


def verdict(
    table: Table,
    number: int,
    *arguments: int,
    architecture: int | None = None,
    socket_pairs: bool = True,
    truncate: bool = True,
) -> int:
    """What the filter says of a call."""
    chosen = table.architecture if architecture is None else architecture
    data = struct.pack("=IIQ6Q", number, chosen, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    lines = list(struct.iter_unpack("=HBBI", filter_program(table, socket_pairs, truncate)))
    loaded = place = 0
    while True:
        code, if_true, if_false, value = lines[place]
        place += 1
        if code == 0x20:
            loaded = struct.unpack_from("=I", data, value)[0]
        elif code == 0x54:
            loaded &= value
        elif code == 0x06:
            return int(value)
        else:
            true = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
            place += if_true if true else if_false


@pytest.mark.parametrize("machine", TABLES)
def test_each_call_that_is_named_is_refused_and_its_neighbours_are_not(machine: str) -> None:
    table = TABLES[machine]
    judged = ("clone", "ioctl", "mmap", "prctl", "prlimit64", "setrlimit", "socketpair", "truncate", "open", "openat")
    special = {table.numbers[name] for name in (*judged, "openat2") if name in table.numbers}
    absent = {table.numbers[name] for name in ("clone3", "memfd_create", "memfd_secret")} | {444, 445, 446}
    attributes = {table.numbers[name] for name in ("setxattr", "lsetxattr", "fsetxattr")}
    refused = set(table.numbers.values()) - special
    reasons = dict.fromkeys(refused, EPERM) | dict.fromkeys(absent, ENOSYS) | dict.fromkeys(attributes, ENOTSUP)
    for number in range(451):
        assert verdict(table, number, *UNIX_STREAMS) == reasons.get(number, ALLOW), number


@pytest.mark.parametrize("machine", TABLES)
def test_what_is_newer_is_as_if_the_kernel_had_none(machine: str) -> None:
    for number in (451, 500, 100_000):
        assert verdict(TABLES[machine], number) == ENOSYS


@pytest.mark.parametrize("machine", TABLES)
def test_other_tables_end_the_program(machine: str) -> None:
    assert verdict(TABLES[machine], 0, architecture=0x40000003) == KILL
    assert verdict(TABLES[machine], 0x40000000) == KILL


@pytest.mark.parametrize("machine", TABLES)
def test_a_process_is_cloned_but_no_namespace(machine: str) -> None:
    table = TABLES[machine]
    clone = table.numbers["clone"]
    assert verdict(table, clone, 17) == ALLOW
    assert verdict(table, clone, 0x3D0F00) == ALLOW  # a thread
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(table, clone, 17 | flag) == EPERM


@pytest.mark.parametrize("machine", TABLES)
def test_pairs_of_sockets_are_refused_where_nobody_counts_them(machine: str) -> None:
    table = TABLES[machine]
    assert verdict(table, table.numbers["socketpair"], *UNIX_STREAMS) == ALLOW
    assert verdict(table, table.numbers["socketpair"], *UNIX_STREAMS, socket_pairs=False) == EPERM


@pytest.mark.parametrize("machine", TABLES)
def test_of_a_pair_of_sockets_none_can_send_elsewhere(machine: str) -> None:
    table = TABLES[machine]
    close_on_exec, not_blocking = 0x80000, 0x800
    for family in range(46):
        for kind in range(8):
            connected = family == 1 and kind in (1, 5)
            for flags in (0, close_on_exec, close_on_exec | not_blocking):
                said = verdict(table, table.numbers["socketpair"], family, kind | flags)
                assert said == (ALLOW if connected else EPERM), (family, kind)


@pytest.mark.parametrize("machine", TABLES)
def test_a_terminal_takes_no_words_put_into_its_mouth(machine: str) -> None:
    table = TABLES[machine]
    assert verdict(table, table.numbers["ioctl"], 0, 0x5412) == EPERM
    assert verdict(table, table.numbers["ioctl"], 0, 0x5412 | 1 << 32) == EPERM
    assert verdict(table, table.numbers["ioctl"], 0, 0x5401) == ALLOW


@pytest.mark.parametrize("machine", TABLES)
def test_what_keeps_the_machine_from_dumping_a_core_can_not_be_undone(machine: str) -> None:
    numbers, core, files = TABLES[machine].numbers, 4, 7
    for kind, new, expected in ((core, 1 << 12, EPERM), (core, 1 << 40, EPERM), (core, 0, ALLOW), (files, 1, ALLOW)):
        assert verdict(TABLES[machine], numbers["prlimit64"], 0, kind, new) == expected
    assert verdict(TABLES[machine], numbers["setrlimit"], core) == EPERM
    assert verdict(TABLES[machine], numbers["setrlimit"], files) == ALLOW


@pytest.mark.parametrize("machine", TABLES)
def test_an_option_of_prctl_that_nobody_here_has_judged_is_as_if_the_kernel_had_none(machine: str) -> None:
    prctl, einval = TABLES[machine].numbers["prctl"], 0x00050016
    set_name, keys, set_area, set_tracer = 15, 61, 0x53564D41, 0x59616D61
    assert {verdict(TABLES[machine], prctl, each) for each in (set_name, keys, set_area, set_tracer)} == {ALLOW}
    share_of_core, futex_hash = 62, 78
    assert {verdict(TABLES[machine], prctl, each) for each in (share_of_core, futex_hash, 500)} == {einval}


@pytest.mark.parametrize("machine", TABLES)
def test_no_memory_is_taken_that_counts_as_nobodys(machine: str) -> None:
    table = TABLES[machine]
    mmap, shared, private, fixed, anonymous, huge_pages = table.numbers["mmap"], 0x1, 0x2, 0x10, 0x20, 0x40000
    for how in (private | anonymous, private | fixed | anonymous, private, shared, shared | fixed):
        assert verdict(table, mmap, 0, 4096, 3, how) == ALLOW
    for how in (shared | anonymous, shared | fixed | anonymous, shared | anonymous | 1 << 32):
        assert verdict(table, mmap, 0, 4096, 3, how) == EPERM
    for size in (0, 21 << 26, 30 << 26):
        assert verdict(table, mmap, 0, 1 << 30, 3, private | anonymous | huge_pages | size) == EPERM


@pytest.mark.parametrize("machine", TABLES)
def test_what_is_not_opened_to_be_written_is_not_cut_off(machine: str) -> None:
    numbers, cut_off = TABLES[machine].numbers, 0x200
    for number, before in [(numbers[name], flags) for name, flags in (("open", 1), ("openat", 2)) if name in numbers]:
        for mode, expected in enumerate((EPERM, ALLOW, ALLOW, EPERM)):
            how = (*(0,) * before, mode | cut_off)
            assert verdict(TABLES[machine], number, *how, truncate=False) == expected
            assert verdict(TABLES[machine], number, *how) == ALLOW
            assert verdict(TABLES[machine], number, *(0,) * before, mode, truncate=False) == ALLOW


@pytest.mark.parametrize("machine", TABLES)
def test_the_numbers_are_the_kernels(machine: str) -> None:
    header = HEADERS[machine]
    if not header.exists():
        pytest.skip(f"no {header} here")
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", header.read_text(), re.M)
    theirs = {name: int(number) for name, number in found}
    assert {name: theirs[name] for name in TABLES[machine].numbers} == TABLES[machine].numbers
