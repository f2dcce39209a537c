import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from idness.core.types import Activations
from idness.methods import NECO


@pytest.mark.parametrize("variance", [30.0, 90.0, 99.0])
@pytest.mark.parametrize("times", ["logit", "nothing"])
def test_it_is_the_share_of_length_in_the_principal_space(world, variance, times):
    scaler = StandardScaler().fit(world.train.features.double().numpy())
    pca = PCA().fit(scaler.transform(world.train.features.double().numpy()))
    dim, held = 0, 0.0
    while 100 * held < variance:
        held += pca.explained_variance_ratio_[dim]
        dim += 1
    detector = NECO(variance=variance, times=times).fit(world.head, world.train)
    assert detector.axes_.shape[1] == dim
    for place, score in enumerate(detector.score(world.test).tolist()):
        standard = scaler.transform(world.test.features[place : place + 1].double().numpy())
        expected = np.linalg.norm(pca.transform(standard)[0, :dim]) / np.linalg.norm(standard)
        if times == "logit":
            expected *= max(world.test.logits[place].tolist())
        assert score == pytest.approx(expected, rel=1e-4)


def test_features_that_never_change_and_single_images_do_no_harm(world):
    features = world.train.features.clone()
    features[:, :30] = 0.25
    flat = Activations(features, world.head(features))
    assert NECO().fit(world.head, flat[:1]).score(world.test).isfinite().all()
    # They still count when an image is measured: a change in them lies outside the principal space.
    detector = NECO(times="nothing").fit(world.head, flat)
    moved = features.clone()
    moved[:, 0] += 5
    assert (detector.score(Activations(moved, world.head(moved))) < detector.score(flat)).all()
