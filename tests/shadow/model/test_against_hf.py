"""The forward against transformers' Qwen3.5: layers, logits, KV rows, both states."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shadow_reader.shadow.model.load import load_model
from shadow_reader.shadow.model.qwen35 import Qwen35
from tests.shadow.model.oracle import (
    VOCAB,
    Recorder,
    add_draft_head,
    assert_same,
    distance,
    multimodal_oracle,
    read_hf,
    read_ours,
    text_oracle,
)

IDS = torch.randint(0, VOCAB, (700,), generator=torch.Generator().manual_seed(7))

WITHIN = 2e-5
"""What float32 rounding may add up to through eight layers; one wrong term is 1e-2."""

CUTS = {
    "one pass": [700],
    "uneven": [1, 63, 64, 65, 2, 3, 130, 300, 72],
    "pages": [128, 128, 128, 128, 128, 60],
}


def ours(folder: Path, dtype: torch.dtype = torch.float32) -> Qwen35:
    return load_model(str(folder), device="cpu", dtype=dtype)


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS.keys())
def test_against_hf_published_layout(
    cuts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = multimodal_oracle()
    hf.save_pretrained(tmp_path)
    add_draft_head(tmp_path)
    recorder = Recorder(monkeypatch)
    mine = read_ours(ours(tmp_path), IDS, cuts, recorder)
    assert_same(mine, read_hf(hf, IDS, cuts), within=WITHIN)


def test_against_hf_each_layer_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = multimodal_oracle(seed=4)
    hf.save_pretrained(tmp_path)
    theirs = read_hf(hf, IDS, [700])
    recorder = Recorder(monkeypatch)
    recorder.inputs = torch.cat((torch.zeros_like(theirs.layers[:1]), theirs.layers[:-1]))
    mine = read_ours(ours(tmp_path), IDS, [700], recorder)
    for index, (out, wanted) in enumerate(zip(mine.layers, theirs.layers, strict=True)):
        assert distance(out, wanted) < 2e-6, f"layer {index}"


def test_against_hf_token_by_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = multimodal_oracle(seed=1)
    hf.save_pretrained(tmp_path)
    cuts = [1] * 130
    recorder = Recorder(monkeypatch)
    mine = read_ours(ours(tmp_path), IDS[:130], cuts, recorder)
    assert_same(mine, read_hf(hf, IDS[:130], cuts), within=WITHIN)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("values", [2, 4, 6])
def test_against_hf_text_only(
    tied: bool, values: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = text_oracle(tie_word_embeddings=tied, linear_num_value_heads=values)
    hf.save_pretrained(tmp_path)
    recorder = Recorder(monkeypatch)
    cuts = [300, 17, 200]
    mine = read_ours(ours(tmp_path), IDS[:517], cuts, recorder)
    assert_same(mine, read_hf(hf, IDS[:517], cuts), within=WITHIN)


def test_against_hf_sharded_and_untied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = multimodal_oracle(seed=2, tie_word_embeddings=False)
    hf.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    recorder = Recorder(monkeypatch)
    mine = read_ours(ours(tmp_path), IDS[:200], [200], recorder)
    assert_same(mine, read_hf(hf, IDS[:200], [200]), within=WITHIN)


def test_against_hf_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = multimodal_oracle(seed=3).to(torch.bfloat16)
    hf.save_pretrained(tmp_path)
    recorder = Recorder(monkeypatch)
    cuts = [128, 5, 67]
    mine = read_ours(ours(tmp_path, torch.bfloat16), IDS[:200], cuts, recorder)
    theirs = read_hf(hf, IDS[:200], cuts)
    exact = read_hf(hf.float(), IDS[:200], cuts)
    assert mine.logits.dtype == torch.float32
    assert mine.rows.dtype == mine.conv.dtype == torch.bfloat16
    assert mine.recurrent.dtype == torch.float32
    # Rounding noise is of transformers' own size or smaller, seen from float32 on both sides.
    for name in ("layers", "logits", "rows", "recurrent"):
        want = getattr(exact, name).float()
        noise = (getattr(theirs, name).float() - want).square().mean().sqrt()
        error = (getattr(mine, name).float() - want).square().mean().sqrt()
        assert error <= 1.1 * noise, f"{name}: {error} against {noise}"
