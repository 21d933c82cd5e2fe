"""A folder that lacks weights is not taken for a model, though servers take it: where anybody can see what is in it."""

import json
from pathlib import Path

import pytest

from rollmux.runtime.engine.errors import UpdateRefused
from rollmux.runtime.engine.http import ServerFailed
from rollmux.runtime.engine.http.whole import names_in, require_whole
from tests.runtime.engine_http.fake_machine import greedy
from tests.runtime.engine_http.rigs import BOTH, PROMPT, request, rig, run

NAMES = ("model.embed.weight", "model.layers.0.mlp.weight", "model.layers.1.mlp.weight", "lm_head.weight")


def write(folder: Path, *shards: tuple[str, ...], index: bool = False) -> str:
    folder.mkdir()
    where = dict[str, str]()
    for n, names in enumerate(shards):
        header = json.dumps({"__metadata__": {"format": "pt"}} | {name: {"dtype": "F32"} for name in names}).encode()
        (folder / f"model-{n}.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
        where |= dict.fromkeys(names, f"model-{n}.safetensors")
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return str(folder)


def test_names_are_those_of_all_files_that_a_server_would_read(tmp_path: Path) -> None:
    assert names_in(write(tmp_path / "one", NAMES)) == set(NAMES)
    shards = write(tmp_path / "shards", NAMES[:2], NAMES[2:], index=True)
    write(tmp_path / "left", ("adapter.weight",))
    (tmp_path / "left" / "model-0.safetensors").rename(tmp_path / "shards" / "consolidated.safetensors")
    assert names_in(shards) == set(NAMES)
    (tmp_path / "shards" / "model-1.safetensors").unlink()  # as the writing of the next one leaves it
    assert names_in(shards) == set(NAMES[:2])


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 8, (2).to_bytes(8, "little") + b"[", (2).to_bytes(8, "little") + b"42", b"\0" * 8]
)
def test_what_can_not_be_read_is_left_to_the_server_to_refuse(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path / "damaged", NAMES)
    (tmp_path / "damaged" / "model-9.safetensors").write_bytes(content)
    assert names_in(folder) == frozenset()
    assert require_whole(folder, frozenset(NAMES)) == frozenset()
    (tmp_path / "damaged" / "model.safetensors.index.json").write_text("[]")
    assert names_in(folder) == names_in("/nowhere") == names_in(str(tmp_path)) == frozenset()


def test_what_is_one_with_another_need_not_be_there(tmp_path: Path) -> None:
    tied = write(tmp_path / "tied", NAMES[:3])
    assert require_whole(tied, frozenset(NAMES)) == set(NAMES[:3])
    with pytest.raises(UpdateRefused, match=r"lacks 3 of the model's 4 weights \(model.embed.weight, .*\), and"):
        require_whole(write(tmp_path / "most", NAMES[3:]), frozenset(NAMES))


@BOTH
def test_a_folder_that_lacks_weights_is_refused_and_changes_nothing(dialect: str, tmp_path: Path) -> None:
    own, lacks, other = tmp_path / "own", tmp_path / "lacks", tmp_path / "other"
    write(lacks, (NAMES[0], NAMES[2]))
    with rig(dialect, folder=write(own, NAMES)) as it:
        started = len(it.server.control_calls())
        with pytest.raises(UpdateRefused, match=r"lacks 1 of the model's 4 weights \(model.layers.0.mlp.weight\)"):
            it.engine.update(1, {"path": str(lacks)})
        assert it.server.control_calls()[started:] == []
        assert (it.engine.version, run(it.engine, request()).response.tokens) == (0, greedy("base", PROMPT, 12))
        it.engine.update(1, {"path": write(other, (*NAMES, "more"))})
        assert run(it.engine, request("more")).response.tokens == greedy(str(other), PROMPT, 12)


@BOTH
def test_of_a_server_whose_own_folder_nobody_sees_the_first_one_that_it_took_is_the_measure(
    dialect: str, tmp_path: Path
) -> None:
    first, lacks = write(tmp_path / "first", NAMES), write(tmp_path / "lacks", NAMES[1:])
    with rig(dialect, folder="somebody/model") as it:
        it.server.faults.update_fails = 1
        with pytest.raises(ServerFailed, match="in the middle"):
            it.engine.update(1, {"path": lacks})  # not taken, and so no measure
        it.engine.update(2, {"path": first})
        it.engine.resume()
        it.engine.update(3, {"path": "/only/there"})
        with pytest.raises(UpdateRefused, match="lacks 1 of the model's 4"):
            it.engine.update(4, {"path": lacks})
        assert run(it.engine, request()).response.tokens == greedy("/only/there", PROMPT, 12)


def test_a_server_that_does_not_tell_what_it_was_started_with_takes_any_folder(tmp_path: Path) -> None:
    with rig("vllm") as it:
        it.server.faults.knows_no_models = True
        it.engine.update(1, {"path": write(tmp_path / "any", NAMES[:1])})
        assert it.engine.version == 1
