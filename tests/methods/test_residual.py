import torch

from idness.core.types import Activations
from idness.methods import Residual


def test_only_what_training_images_do_not_show_lowers_the_score(world):
    """The formula is re-derived beside ViM's, in test_vim."""
    detector = Residual().fit(world.head, world.train)
    outside = detector.space_[:, 0].float()
    inside = torch.linalg.svd(detector.space_.T, full_matrices=True).Vh[-1].float()
    base = detector.origin_.float().unsqueeze(0)

    def score(features):
        return detector.score(Activations(features, world.head(features))).item()

    assert abs(score(base + 100 * inside)) < 1e-3
    assert abs(score(base + 100 * outside) + 100) < 1e-3
