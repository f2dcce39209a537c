"""Networks of every kind are taken, and left as they were, or refused; the table in the documentation says so of each."""

from __future__ import annotations

import pytest
import torch

from idness.networks.head_search import answers
from idness.networks.modules import module_fingerprint
from idness.networks.split import SplitModel
from tests.networks.zoo import COLUMNS, PAGE, Network, images_for, judged, line, made, zoo

ROWS = [row for row in PAGE.read_text().partition(line(COLUMNS))[2].splitlines() if row.startswith("| ")]
ZOO = zoo()


def test_the_table_lists_all_of_them():
    assert [row.split(" | ")[:2] for row in ROWS] == [[f"| {each.family}", each.name] for each in ZOO]
    assert len(ZOO) > 72


@pytest.mark.parametrize("network", ZOO, ids=lambda network: network.id)
def test_the_table_is_right_and_features_and_head_explain_the_output(network: Network):
    row = judged(network)
    assert line(row) in ROWS, "run python -m tests.networks.zoo"
    if row[2] == "refused":
        return
    model = made(network).eval()
    images = images_for(model)
    with torch.no_grad():
        before = answers(model(images))
    state = module_fingerprint(model)
    split = SplitModel(model)
    acts = split.split(images)
    again = split.head(acts.features)
    torch.testing.assert_close(again, acts.logits, rtol=1e-4, atol=1e-4 * float(acts.logits.abs().max()) + 1e-7)
    with torch.no_grad():
        after = answers(model(images))
    assert module_fingerprint(model) == state
    assert all(torch.equal(after[name], before[name]) for name in before)
