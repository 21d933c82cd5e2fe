"""Whatever is sent or written: an answer, and never a fault of the controller; what is refused leaves nothing (F7)."""

import pytest

from tests.service.fuzz import BLOCK, blocks, fuzz, summary

MILLION = range(1_000_000 // BLOCK)


def test_no_case_of_a_few_thousand_is_too_much() -> None:
    found = fuzz(0, 3_000)
    assert found.wrong == []
    answers = {int(what.rpartition(" ")[2]) for what in found.seen if what[-3:].isdecimal()}
    assert answers >= {200, 400, 401, 404, 409, 413, 422}
    taken = sum(times for what, times in found.seen.items() if what.endswith(" 200"))
    assert taken > 500  # not all of it is nonsense


@pytest.mark.slow
def test_no_case_of_a_million_is_too_much(capsys: pytest.CaptureFixture[str]) -> None:
    wrong: list[str] = []
    for cases, _, wrong in blocks(MILLION):
        if cases % 100_000 == 0:
            with capsys.disabled():
                print(f"\n{summary(cases, wrong)}", end="")
    assert not wrong, "\n".join(wrong[:20])
