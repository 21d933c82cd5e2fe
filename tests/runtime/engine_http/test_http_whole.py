"""A folder that lacks weights is not taken for a model, though servers take it: where anybody can see what is in it."""

import json
from pathlib import Path

import pytest

from rollmux.runtime.engine.errors import UpdateRefused
from rollmux.runtime.engine.http import ServerFailed
from rollmux.runtime.engine.http.whole import CONFIG, INDEX, Shapes, require_whole, vocabulary_in, weights_in
from tests.runtime.engine.models import tiny
from tests.runtime.engine_http.fake_machine import greedy
from tests.runtime.engine_http.fake_server import FakeServer
from tests.runtime.engine_http.rigs import BOTH, PROMPT, request, rig, run

NAMES = ("model.embed.weight", "model.layers.0.mlp.weight", "model.layers.1.mlp.weight", "lm_head.weight")


ADAPTER = "adapter_model.safetensors"


def write(folder: Path, *shards: tuple[str, ...], index: bool = False, width: int = 2) -> str:
    folder.mkdir()
    where = dict[str, str]()
    for n, names in enumerate(shards):
        size = 4 * width
        told = {
            name: {"dtype": "F32", "shape": [width], "data_offsets": [place * size, (place + 1) * size]}
            for place, name in enumerate(names)
        }
        header = json.dumps({"__metadata__": {"format": "pt"}} | told).encode()
        content = len(header).to_bytes(8, "little") + header + bytes(size * len(names))
        (folder / f"model-{n}.safetensors").write_bytes(content)
        where |= dict.fromkeys(names, f"model-{n}.safetensors")
    if index:
        (folder / INDEX).write_text(json.dumps({"weight_map": where}))
    return str(folder)


def shapes(*names: str) -> Shapes:
    return dict.fromkeys(names, (2,))


def test_weights_are_those_of_all_files_that_a_server_would_read(tmp_path: Path) -> None:
    assert weights_in(write(tmp_path / "one", NAMES)) == shapes(*NAMES)
    shards = write(tmp_path / "shards", NAMES[:2], NAMES[2:], index=True)
    write(tmp_path / "left", ("adapter.weight",))
    (tmp_path / "left" / "model-0.safetensors").rename(tmp_path / "shards" / "consolidated.safetensors")
    assert weights_in(shards) == shapes(*NAMES)
    assert weights_in("/nowhere") == weights_in(str(tmp_path)) == weights_in("somebody/model") == {}


@pytest.mark.parametrize("name", ["consolidated.safetensors", "consolidated-00001-of-00002.safetensors", ADAPTER])
def test_what_lies_beside_the_weights_under_names_of_its_own_is_no_measure(tmp_path: Path, name: str) -> None:
    own, other = write(tmp_path / "own", NAMES), write(tmp_path / "other", ("layers.0.wq.weight",))
    (tmp_path / "other" / "model-0.safetensors").rename(tmp_path / "own" / name)
    assert weights_in(own) == shapes(*NAMES)
    assert weights_in(other) == {}


def test_what_real_libraries_write_is_read(tmp_path: Path) -> None:
    model = tiny()
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert weights_in(str(tmp_path)) == {name: tuple(each.shape) for name, each in model.named_parameters()}


@pytest.mark.parametrize("content", ["", "[", "[]", "{}", '{"vocab_size": "5"}', '{"vocab_size": 0, "text_config": 3}'])
def test_a_configuration_that_tells_no_vocabulary_is_none(tmp_path: Path, content: str) -> None:
    assert vocabulary_in(str(tmp_path)) is None
    (tmp_path / CONFIG).write_text(content)
    assert vocabulary_in(str(tmp_path)) is None


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 8, (2).to_bytes(8, "little") + b"[", (2).to_bytes(8, "little") + b"42", b"\0" * 8]
)
def test_a_folder_that_is_damaged_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path / "damaged", NAMES)
    (tmp_path / "damaged" / "model-9.safetensors").write_bytes(content)
    with pytest.raises(UpdateRefused, match=r"can't be read as safetensors: .*: write it anew"):
        require_whole(folder, {})


def test_a_folder_whose_writing_was_broken_off_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "broken", NAMES, index=True)
    file = tmp_path / "broken" / "model-0.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(UpdateRefused, match=rf"model-0.safetensors is to have {len(whole)} bytes, and has"):
        require_whole(folder, shapes(*NAMES))
    file.write_bytes(whole)
    assert require_whole(folder, shapes(*NAMES)) == shapes(*NAMES)
    (tmp_path / "broken" / INDEX).write_text("[]")
    with pytest.raises(UpdateRefused, match="can't be read as safetensors"):
        require_whole(folder, shapes(*NAMES))


@pytest.mark.parametrize("left", [0, 1])
def test_a_folder_without_a_file_that_its_index_names_is_refused_whatever_it_is_compared_with(
    left: int, tmp_path: Path
) -> None:
    folder = write(tmp_path / "part", NAMES[:2], NAMES[2:], index=True)
    for number in range(left, 2):
        (tmp_path / "part" / f"model-{number}.safetensors").unlink()
    with pytest.raises(UpdateRefused, match=rf"names {4 - 2 * left} weights that no file has \(.*: write it anew"):
        require_whole(folder, {})


def test_what_is_one_with_another_need_not_be_there(tmp_path: Path) -> None:
    tied = write(tmp_path / "tied", NAMES[:3])
    assert require_whole(tied, shapes(*NAMES)) == shapes(*NAMES[:3])
    with pytest.raises(UpdateRefused, match=r"lacks 3 of the model's 4 weights \(model.embed.weight, .*\), and"):
        require_whole(write(tmp_path / "most", NAMES[3:]), shapes(*NAMES))


@BOTH
def test_a_folder_that_lacks_weights_is_refused_and_changes_nothing(dialect: str, tmp_path: Path) -> None:
    own, lacks, other = tmp_path / "own", tmp_path / "lacks", tmp_path / "other"
    write(lacks, (NAMES[0], NAMES[2]))
    with rig(dialect, folder=write(own, NAMES)) as it:
        started = len(it.server.control_calls())
        with pytest.raises(UpdateRefused, match=r"lacks 1 of the model's 4 weights \(model.layers.0.mlp.weight\)"):
            it.engine.update(1, {"path": str(lacks)})
        with pytest.raises(UpdateRefused, match=r"another model: .*, \.\.\. of another shape, \[3\], not \[2\]"):
            it.engine.update(1, {"path": write(tmp_path / "wide", NAMES, width=3)})
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


@pytest.mark.parametrize("status", [403, 404])
def test_a_server_that_does_not_tell_what_it_was_started_with_takes_any_folder(tmp_path: Path, status: int) -> None:
    def silent(server: FakeServer) -> None:
        server.faults.knows_no_models = status

    with rig("vllm", prepare=silent) as it:
        it.engine.update(1, {"path": write(tmp_path / "any", NAMES[:1])})
        assert it.engine.version == 1
