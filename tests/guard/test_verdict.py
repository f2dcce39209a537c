from __future__ import annotations

import torch

from idness.guard import Verdict


def verdict(*p_values: float, reasons: dict[int, str] | None = None) -> Verdict:
    count = len(p_values)
    return Verdict(
        torch.zeros(count, dtype=torch.long),
        torch.zeros(count),
        torch.tensor(p_values),
        torch.zeros(count, dtype=torch.bool),
        reasons=reasons or {},
    )


def test_a_p_value_equal_to_the_rate_is_flagged_though_it_is_rounded() -> None:
    assert float(torch.tensor(1 / 20)) > 0.05  # as float32
    assert verdict(1 / 20, 1 / 19).at(0.95).tolist() == [True, False]


def test_an_image_without_a_score_is_flagged_at_any_recall() -> None:
    assert verdict(1 / 21, 1 / 21, reasons={1: "its features are not finite"}).at(0.999).tolist() == [False, True]
