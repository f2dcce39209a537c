import pytest
import torch

from idness.core.checks import CHECKED, check_match
from idness.core.errors import InputError
from idness.core.types import Activations, Head


@pytest.mark.parametrize("classes", [3, CHECKED - 1, 2 * CHECKED, 1000])
def test_a_head_that_is_wrong_in_most_classes_is_refused_however_many_there_are(classes):
    rng = torch.Generator().manual_seed(0)
    head = Head(torch.randn(classes, 20, generator=rng), torch.randn(classes, generator=rng))
    features = torch.rand(5, 20, generator=rng)
    check_match("fit", "train", Activations(features, head(features)), head)
    check_match("fit", "train", Activations(features, head(features).bfloat16()), head)
    wrong = head(features)
    wrong[:, 1:-1] = wrong[:, 1:-1].flip(0)
    with pytest.raises(InputError, match="train logits must be the head's for these features"):
        check_match("fit", "train", Activations(features, wrong), head)
