"""Model folders: what is read from them, and everything that makes one refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shadow_reader.errors import ModelError
from shadow_reader.shadow.model.hash_cache import FILE
from shadow_reader.shadow.model.load import load_model
from tests.shadow.model.oracle import add_draft_head, multimodal_oracle, text_oracle

SINGLE = "model.safetensors"
NORM = "model.language_model.norm.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    multimodal_oracle().save_pretrained(folder)
    add_draft_head(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    for name in (SINGLE, "config.json"):
        (tmp_path / name).write_bytes((saved / name).read_bytes())
    return tmp_path


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / SINGLE)
    edit(tensors)
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / SINGLE)


def refused(folder: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        load_model(str(folder), device="cpu")
    return caught.value


def test_one_error_lists_everything_that_differs(folder: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.language_model.layers.0.mlp.down_proj.weight"]
        del tensors[NORM]
        tensors["model.language_model.layers.0.mlp.extra.weight"] = torch.ones(2)
        name = "model.language_model.layers.3.self_attn.q_proj.weight"
        tensors[name] = tensors[name][:-1]

    change(folder, edit)
    error = refused(folder)
    assert error.details["missing"] == ["layers.0.mlp.down_proj.weight", "norm.weight"]
    assert error.details["extra"] == ["model.language_model.layers.0.mlp.extra.weight"]
    assert error.details["misshapen"] == [
        "model.language_model.layers.3.self_attn.q_proj.weight [255, 48], not [256, 48]"
    ]
    for told in ("2 missing", "norm.weight", "mlp.extra.weight", "[255, 48], not [256, 48]"):
        assert told in error.message


def test_a_tensor_under_two_names_is_refused(folder: Path) -> None:
    change(folder, lambda tensors: tensors.update({"model.norm.weight": tensors[NORM].clone()}))
    assert len(refused(folder).details["doubled"]) == 1


def test_integer_weights_are_refused(folder: Path) -> None:
    change(folder, lambda tensors: tensors.update({NORM: tensors[NORM].to(torch.int8)}))
    assert "I8" in refused(folder).message


def test_another_shape_than_the_config_says(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["intermediate_size"] = 81
    (folder / "config.json").write_text(json.dumps(config))
    assert len(refused(folder).details["misshapen"]) == 3 * 8


def test_another_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "qwen3_vl"
    (folder / "config.json").write_text(json.dumps(config))
    assert "qwen3_vl" in refused(folder).message


@pytest.mark.parametrize("kept", [0, 4, 200, -1])
def test_a_truncated_file(folder: Path, kept: int) -> None:
    whole = (folder / SINGLE).read_bytes()
    (folder / SINGLE).write_bytes(whole[:kept])
    assert SINGLE in refused(folder).message


def test_garbage_instead_of_weights(folder: Path) -> None:
    (folder / SINGLE).write_bytes(b"\x93NUMPY" * 1000)
    assert SINGLE in refused(folder).message


def test_missing_parts(folder: Path, tmp_path: Path) -> None:
    assert "no model folder" in refused(tmp_path / "absent").message
    (folder / SINGLE).unlink()
    assert "holds neither" in refused(folder).message
    (folder / "config.json").unlink()
    assert "config.json" in refused(folder).message


def test_an_index_that_does_not_fit(tmp_path: Path) -> None:
    text_oracle().save_pretrained(tmp_path, max_shard_size="100KB")
    index = tmp_path / "model.safetensors.index.json"
    plain = index.read_bytes()
    load_model(str(tmp_path), device="cpu")

    for broken, told in (
        (b"{", "cannot be read"),
        (b"[]", "no weight_map"),
        (b'{"weight_map": {}}', "no weight_map"),
        (b'{"weight_map": {"a": 1}}', "not names to names"),
        (b'{"weight_map": {"a": "../a.safetensors"}}', "outside the folder"),
        (b'{"weight_map": {"a": "absent.safetensors"}}', "absent.safetensors"),
    ):
        index.write_bytes(broken)
        assert told in refused(tmp_path).message

    index.write_bytes(plain)
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    names = list(load_file(shard))
    shard.unlink()
    assert shard.name in refused(tmp_path).message
    save_file({"model.norm.weight": torch.ones(48)}, shard)
    error = refused(tmp_path)
    assert set(error.details["missing"]) == {n.removeprefix("model.") for n in names} - {
        "norm.weight"
    }


def test_a_separate_head_must_agree_with_tied_embeddings(folder: Path) -> None:
    embed = "model.language_model.embed_tokens.weight"
    plain = load_model(str(folder), device="cpu").weights_hash
    change(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[embed].clone()}))
    assert load_model(str(folder), device="cpu").weights_hash == plain
    change(folder, lambda tensors: tensors["lm_head.weight"].mul_(2))
    assert "tie_word_embeddings" in refused(folder).message


def test_hash_is_of_the_weights_not_of_their_packing(tmp_path: Path) -> None:
    hashes = set()
    for name, shard in (("one", "1GB"), ("many", "100KB")):
        text_oracle().save_pretrained(tmp_path / name, max_shard_size=shard)
        hashes.add(load_model(str(tmp_path / name), device="cpu").weights_hash)
    both = multimodal_oracle()
    both.model.language_model.load_state_dict(text_oracle().model.state_dict())
    both.save_pretrained(tmp_path / "both")
    hashes.add(load_model(str(tmp_path / "both"), device="cpu").weights_hash)
    assert len(hashes) == 1
    bfloat16 = load_model(str(tmp_path / "one"), device="cpu", dtype=torch.bfloat16)
    assert bfloat16.weights_hash in hashes


def test_hash_sees_one_bit_and_the_configuration(folder: Path) -> None:
    plain = load_model(str(folder), device="cpu").weights_hash

    def flip(tensors: dict[str, torch.Tensor]) -> None:
        tensors[NORM].view(torch.int32)[0] ^= 1

    change(folder, flip)
    flipped = load_model(str(folder), device="cpu").weights_hash
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["rope_parameters"]["rope_theta"] = 10_000
    (folder / "config.json").write_text(json.dumps(config))
    turned = load_model(str(folder), device="cpu").weights_hash
    assert len({plain, flipped, turned}) == 3


def test_hash_is_remembered_by_size_and_time(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "deep"

    def load() -> str:
        return load_model(str(folder), device="cpu", cache_dir=cache).weights_hash

    plain = load()
    kept = json.loads((cache / FILE).read_text())
    assert list(kept.values()) == [plain]
    (cache / FILE).write_text(json.dumps(dict.fromkeys(kept, "remembered")))
    assert load() == "remembered"
    change(folder, lambda tensors: tensors[NORM].mul_(2))
    assert load() not in ("remembered", plain)
    (cache / FILE).write_text("not json")
    assert load() not in ("remembered", plain)


def test_a_cache_that_cannot_be_written_is_told(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cache"):
        load_model(str(folder), device="cpu", cache_dir=tmp_path / "file")


@pytest.mark.parametrize("device", ["nonsense", "meta", "cpu:x"])
def test_a_wrong_device_is_a_model_error(device: str) -> None:
    with pytest.raises(ModelError, match="device"):
        load_model("random:tiny", device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_no_cuda_here() -> None:
    with pytest.raises(ModelError, match="no CUDA"):
        load_model("random:tiny", device="cuda")
