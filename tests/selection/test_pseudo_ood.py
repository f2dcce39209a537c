from __future__ import annotations

import pytest
import torch

from idness.selection.pseudo_ood import KINDS, edges, mosaic


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (32, 20), (224, 224), (5, 3), (1, 1)])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_every_kind_takes_images_of_any_size(size: tuple[int, int], channels: int) -> None:
    images = torch.rand(3, channels, *size)
    before = images.clone()
    for make in KINDS.values():
        made = make(images, 0)
        assert made.shape == images.shape
        assert float(made.min()) >= 0
        assert float(made.max()) <= 1
    assert torch.equal(images, before)


def test_a_mosaic_repeats_a_piece_of_its_own_image_the_same_for_a_seed() -> None:
    images = torch.arange(2 * 64).reshape(2, 1, 8, 8) / 128
    assert torch.equal(mosaic(images), mosaic(images))
    assert not torch.equal(mosaic(images), mosaic(images, seed=1))
    for image, made in zip(images[:, 0], mosaic(images)[:, 0], strict=True):
        piece = made[:2, :2]
        assert all(torch.equal(made[y : y + 2, x : x + 2], piece) for y in range(0, 8, 2) for x in range(0, 8, 2))
        windows = image.unfold(0, 2, 1).unfold(1, 2, 1).reshape(-1, 2, 2)
        assert any(torch.equal(piece, window) for window in windows)


def test_inverted_and_turned_undo_themselves() -> None:
    images = torch.rand(2, 3, 6, 4)
    for kind in ("inverted", "turned"):
        torch.testing.assert_close(KINDS[kind](KINDS[kind](images, 0), 0), images)
    assert KINDS["inverted"](torch.tensor([0.0, 0.25, 1.0]), 0).tolist() == [1.0, 0.75, 0.0]
    assert torch.equal(KINDS["turned"](images, 0)[0, 0, 0, 0], images[0, 0, -1, -1])


def test_edges_are_white_where_brightness_changes_and_black_elsewhere() -> None:
    images = torch.zeros(1, 3, 32, 32)
    images[:, :, :, 16:] = 1
    drawn = edges(images)[0, 0]
    assert float(drawn[:, 15:17].min()) == 1
    assert float(drawn[:, :14].max()) == 0
    assert float(drawn[:, 18:].max()) == 0
    assert float(edges(torch.full((1, 3, 32, 32), 0.5)).max()) == 0


def test_faint_edges_are_left_out() -> None:
    """Of noise, which is edges all over, the strongest fifth is drawn."""
    drawn = edges(torch.rand(4, 3, 40, 40, generator=torch.Generator().manual_seed(0)))
    assert float((drawn > 0).float().mean()) == pytest.approx(0.2, abs=0.01)
