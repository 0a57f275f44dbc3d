"""Milliseconds per 512-id chunk by depth: this reader, transformers, and the machine's floor.

    python -m bench.read --model random:tiny --device cpu --depths 0,4096,16384 \
        --against transformers --json

Both sides hold the same random weights and the same rows in one process and are timed in
alternating pairs; figures are medians. Deep pasts are filled with random rows, which cost what
read ones cost. transformers runs its sdpa attention into its own cache, without its head.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from bench.machine import Rates, measure_rates, this_machine, time_ms
from shadow_reader.shadow.model.config import ModelConfig
from shadow_reader.shadow.model.load import load_model
from shadow_reader.shadow.model.qwen35 import Qwen35, RecurrentState
from shadow_reader.shadow.model.random_weights import RandomWeights

CHUNK = 512


@dataclass(frozen=True, slots=True)
class Row:
    """One depth: this reader, the floor, transformers (None if not asked for)."""

    depth: int
    ms: float
    floor_ms: float
    hf_ms: float | None
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Past:
    """Random rows and state at a depth, the same for both sides."""

    ids: torch.Tensor
    depth: int
    pages: list[torch.Tensor]
    state: RecurrentState


def main(arguments: list[str] | None = None) -> None:
    """Parse, measure, print: the table last, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="random:tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--depths", default="0,4096,16384", help="ids already read, by commas")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--against", choices=["transformers"])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)

    model = load_model(args.model, device=args.device)
    oracle = transformers_model(args.model, model) if args.against else None
    rates = measure_rates(model.device, model.dtype)
    depths = [int(depth) for depth in args.depths.split(",")]
    times = [measure(model, oracle, depth, args.pairs) for depth in depths]
    rates = rates.best(measure_rates(model.device, model.dtype))
    rows = [row(model, depth, rates, *found) for depth, found in zip(depths, times, strict=True)]
    machine = this_machine(args.device)
    if args.json:
        head = {"model": args.model, "dtype": str(model.dtype), "chunk": CHUNK}
        body = {"machine": machine.to_json(), "rates": asdict(rates), "pairs": args.pairs}
        print(json.dumps(head | body | {"rows": [asdict(row) for row in rows]}))
    else:
        print(machine.line())
        print(f"{args.model} {model.dtype}, {CHUNK}-id chunk, medians of {args.pairs} pairs")
        print_table(rows)


def measure(
    model: Qwen35, oracle: Any | None, depth: int, pairs: int
) -> tuple[float, float | None]:
    """Median ms of one chunk at ``depth``, ours and theirs, alternating who goes first."""
    past = random_past(model, depth)
    sides: list[Callable[[], object]] = [lambda: read(model, past)]
    if oracle is not None:
        sides.append(transformers_reader(oracle, past))
    for side in sides * 2:
        side()
    times: list[list[float]] = [[] for _ in sides]
    for pair in range(pairs):
        order = range(len(sides)) if pair % 2 else reversed(range(len(sides)))
        for which in order:
            times[which].append(time_ms(sides[which], model.device))
    return median(times[0]), median(times[1]) if oracle is not None else None


def row(model: Qwen35, depth: int, rates: Rates, ms: float, hf_ms: float | None) -> Row:
    """One line of the table."""
    ratio = hf_ms / ms if hf_ms is not None else None
    return Row(depth, ms, floor_ms(model, depth, rates), hf_ms, ratio)


def read(model: Qwen35, past: Past) -> object:
    """One chunk of this reader."""
    return model.forward(past.ids, position=past.depth, past=past.pages, state=past.state)


def random_past(model: Qwen35, depth: int) -> Past:
    """Rows in pages of one chunk, as a session keeps them, and a state of plausible size."""
    config, device = model.config, model.device
    generator = torch.Generator().manual_seed(depth)
    ids = torch.randint(0, config.vocab, (CHUNK,), generator=generator).to(device)
    pages = []
    for start in range(0, depth, CHUNK):
        rows = min(CHUNK, depth - start)
        shape = config.full_layers, 2, config.kv_heads, rows, config.head_dim
        pages.append(torch.randn(shape, generator=generator).to(device, model.dtype))
    empty = model.empty_state()
    state = RecurrentState(
        (torch.randn(empty.recurrent.shape, generator=generator) * 0.1).to(device),
        torch.randn(empty.conv.shape, generator=generator).to(device, model.dtype),
    )
    return Past(ids, depth, pages, state if depth else empty)


def floor_ms(model: Qwen35, depth: int, rates: Rates, n: int = CHUNK) -> float:
    """Time the products alone of ``n`` ids, or the bytes alone, would take at measured rates."""
    config = model.config
    weights = model.weight_bytes - config.vocab * config.hidden * model.dtype.itemsize
    dense = 2 * n * weights / model.dtype.itemsize
    scores = config.full_layers * 4 * n * (depth + n / 2) * config.heads * config.head_dim
    state = config.linear_key_dim * config.linear_value_dim
    delta = config.linear_layers * config.linear_value_heads * n * 6 * state
    moved = weights + config.row_bytes(model.dtype.itemsize) * (depth + n)
    moved += 2 * config.state_bytes(model.dtype.itemsize)
    return max((dense + scores + delta) / rates.flops, moved / rates.bytes) * 1e3


def transformers_model(spec: str, model: Qwen35) -> Any:
    """transformers' text model with the same random weights, device and dtype."""
    from transformers import Qwen3_5ForCausalLM
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

    config = Qwen3_5TextConfig(**transformers_settings(model.config))
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        oracle = Qwen3_5ForCausalLM(config).model
    oracle = oracle.to_empty(device="cpu")
    oracle.rotary_emb = type(oracle.rotary_emb)(config)
    with ThreadPoolExecutor() as pool:
        tensors = dict(RandomWeights(spec, pool).tensors())
    oracle.load_state_dict(tensors, strict=True, assign=True)
    return oracle.to(model.device, model.dtype).eval()


def transformers_settings(config: ModelConfig) -> dict[str, Any]:
    """The shape in transformers' words."""
    return {
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "layer_types": list(config.layer_types),
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "linear_num_key_heads": config.linear_key_heads,
        "linear_num_value_heads": config.linear_value_heads,
        "linear_key_head_dim": config.linear_key_dim,
        "linear_value_head_dim": config.linear_value_dim,
        "linear_conv_kernel_dim": config.conv_kernel,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": config.rotary_dim / config.head_dim,
        },
    }


def transformers_reader(oracle: Any, past: Past) -> Callable[[], object]:
    """One chunk of transformers on the same past; its cache is set back before each call."""
    import inspect

    from transformers import DynamicCache

    names = inspect.signature(oracle.forward).parameters
    argument = "cache" if "cache" in names else "past_key_values"
    cache = DynamicCache(config=oracle.config)
    call = {"input_ids": past.ids[None], "use_cache": True, argument: cache}
    with torch.inference_mode():
        oracle(**call)
    rows = torch.cat(past.pages, dim=3) if past.pages else None
    kinds = oracle.config.layer_types
    full = [cache.layers[i] for i, kind in enumerate(kinds) if kind == "full_attention"]
    linear = [cache.layers[i] for i, kind in enumerate(kinds) if kind == "linear_attention"]

    @torch.inference_mode()
    def run() -> object:
        for index, layer in enumerate(full):
            empty = layer.keys[:, :, :0]
            layer.keys = rows[index, 0][None] if rows is not None else empty
            layer.values = rows[index, 1][None] if rows is not None else empty
        for index, layer in enumerate(linear):
            layer.recurrent_states[0].copy_(past.state.recurrent[index])
            layer.conv_states[0][0, :, 1:].copy_(past.state.conv[index])
        return oracle(**call)

    return run


def print_table(rows: list[Row]) -> None:
    """Depth, ours, floor, transformers, ratio."""
    print(f"{'depth':>8} {'ms':>10} {'floor ms':>10} {'hf ms':>10} {'ratio':>7}")
    for each in rows:
        hf = f"{each.hf_ms:10.2f} {each.ratio:7.2f}" if each.hf_ms else f"{'-':>10} {'-':>7}"
        print(f"{each.depth:>8} {each.ms:10.2f} {each.floor_ms:10.2f} {hf}")


if __name__ == "__main__":
    main()
