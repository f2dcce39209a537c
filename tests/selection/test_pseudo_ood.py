from __future__ import annotations

import torch

from idness.selection.pseudo_ood import shuffled_tiles


def test_tiles_are_moved_whole_and_none_is_lost() -> None:
    images = torch.arange(2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
    mixed = shuffled_tiles(images)
    assert mixed.shape == images.shape
    assert not torch.equal(mixed, images)
    for before, after in zip(images, mixed, strict=True):
        tiles = {tile_bytes(before, row, column) for row in range(8) for column in range(8)}
        assert {tile_bytes(after, row, column) for row in range(8) for column in range(8)} == tiles
    assert not torch.equal(mixed[0] - images[0].min(), mixed[1] - images[1].min())  # each in its own order


def tile_bytes(image: torch.Tensor, row: int, column: int) -> bytes:
    return image[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].contiguous().numpy().tobytes()


def test_the_order_is_the_same_every_time() -> None:
    images = torch.randn(3, 3, 30, 37)
    assert torch.equal(shuffled_tiles(images), shuffled_tiles(images))
    assert not torch.equal(shuffled_tiles(images), shuffled_tiles(images, seed=1))
    assert shuffled_tiles(images).shape == (3, 3, 24, 32)
    assert torch.equal(shuffled_tiles(images[:, :, :5]), images[:, :, :5])
