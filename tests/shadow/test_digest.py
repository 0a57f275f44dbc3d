from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.shadow.digest import (
    CHAIN_START,
    chain,
    naive_tensor_hash,
    state_digest,
    tensor_hash,
    tensor_hashes,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Any bits at all, NaNs and infinities among them."""
    generator = torch.Generator().manual_seed(seed)
    count = math.prod(shape) * dtype.itemsize
    raw = torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).view(shape)


def flipped(tensor: torch.Tensor, bit: int) -> torch.Tensor:
    raw = tensor.reshape(-1).view(torch.uint8).clone()
    raw[bit // 8] ^= 1 << (bit % 8)
    return raw.view(tensor.dtype).view(tensor.shape)


@settings(max_examples=200, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    seed=st.integers(0, 2**31),
    place=st.floats(0, 1, exclude_max=True),
)
def test_every_flipped_bit_gives_another_hash(
    dtype: torch.dtype, shape: list[int], seed: int, place: float
) -> None:
    tensor = random_bits(tuple(shape), dtype, seed)
    bit = int(place * tensor.nbytes * 8)
    assert tensor_hash(flipped(tensor, bit)) != tensor_hash(tensor)


def test_each_single_bit_of_a_block_counts() -> None:
    tensor = random_bits((17, 3), torch.bfloat16, 1)
    hashes = {tensor_hash(flipped(tensor, bit)) for bit in range(tensor.nbytes * 8)}
    assert len(hashes | {tensor_hash(tensor)}) == tensor.nbytes * 8 + 1


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 60), min_size=1, max_size=3),
    seed=st.integers(0, 2**31),
)
def test_against_the_plain_twin(dtype: torch.dtype, shape: list[int], seed: int) -> None:
    tensor = random_bits(tuple(shape), dtype, seed)
    assert tensor_hash(tensor) == naive_tensor_hash(tensor)


def test_against_the_plain_twin_over_many_passes() -> None:
    tensor = random_bits((3, 1024, 1024), torch.float32, 5)
    assert tensor_hash(tensor) == naive_tensor_hash(tensor)


def test_swapped_blocks_and_swapped_words_are_seen() -> None:
    tensor = random_bits((4, 1024), torch.float32, 2)
    rows = tensor[[1, 0, 2, 3]]
    words = tensor.clone()
    words[0, [5, 9]] = tensor[0, [9, 5]]
    assert len({tensor_hash(t) for t in (tensor, rows, words)}) == 3


def test_minus_zero_and_nan_payloads_are_bits_too() -> None:
    def one(bits: int) -> torch.Tensor:
        return (
            torch.tensor([struct.unpack("<i", struct.pack("<I", bits))[0]])
            .int()
            .view(torch.float32)
        )

    patterns = [0x0000_0000, 0x8000_0000, 0x7FC0_0000, 0x7FC0_0001, 0xFFC0_0000]
    assert len({tensor_hash(one(bits)) for bits in patterns}) == len(patterns)


def test_shape_and_dtype_count() -> None:
    zeros = torch.zeros(4, 6)
    hashes = {tensor_hash(t) for t in (zeros, zeros.view(6, 4), zeros[:3], zeros.bfloat16())}
    assert len(hashes) == 4


def test_only_the_values_seen_through_a_view_count() -> None:
    wide = random_bits((8, 33), torch.bfloat16, 3)
    for view in (wide[1:, 1:], wide.t(), wide.reshape(-1)[1:]):
        assert tensor_hash(view) == tensor_hash(view.clone()) == naive_tensor_hash(view)


def test_many_at_once_are_the_same_as_one_by_one() -> None:
    several = [random_bits((n, 7), torch.bfloat16, n) for n in range(1, 9)]
    assert tensor_hashes(several) == [tensor_hash(tensor) for tensor in several]
    assert tensor_hashes([]) == []


def test_known_values_stay() -> None:
    """A change here makes journaled digests worthless: raise ``LAYOUT`` with it."""
    counted = torch.arange(5000, dtype=torch.float32)
    assert tensor_hash(counted).hex() == "ec6f36f3428bc19fe9bb9f7132ec80f5"
    link = chain(CHAIN_START, tensor_hash(counted), bytes(8))
    digest = state_digest(link, recurrent=counted[:12], conv=counted[:5].bfloat16(), position=512)
    assert digest == "2379affe1a4701506b688f8800880943"


def test_the_digest_depends_on_chain_state_and_position() -> None:
    a, b = torch.zeros(4), torch.ones(4)

    def made(
        link: bytes = CHAIN_START,
        recurrent: torch.Tensor = a,
        conv: torch.Tensor = a,
        position: int = 0,
    ) -> str:
        return state_digest(link, recurrent=recurrent, conv=conv, position=position)

    other = chain(CHAIN_START, tensor_hash(b), b"")
    made_all = [made(), made(other), made(recurrent=b), made(conv=b), made(position=64)]
    assert len(set(made_all)) == len(made_all)


def test_a_chain_tells_pages_ids_and_order_apart() -> None:
    def link(*parts: tuple[bytes, bytes]) -> bytes:
        value = CHAIN_START
        for page, ids in parts:
            value = chain(value, page, ids)
        return value

    p, q = bytes(16), bytes([1] * 16)
    links = [
        link((p, b"0000")),
        link((q, b"0000")),
        link((p, b"0001")),
        link((p, b"0000"), (q, b"0000")),
        link((q, b"0000"), (p, b"0000")),
    ]
    assert len(set(links)) == len(links)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
@pytest.mark.parametrize("dtype", DTYPES)
def test_cuda_and_the_cpu_agree(dtype: torch.dtype) -> None:
    for shape in ((6, 2, 2, 512, 256), (18, 16, 128, 128), (18, 6144, 3), (5,)):
        tensor = random_bits(shape, dtype, 4)
        assert tensor_hash(tensor.cuda()) == tensor_hash(tensor) == naive_tensor_hash(tensor)
