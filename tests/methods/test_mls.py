from idness.methods import MLS


def test_it_is_the_largest_logit(world):
    scores = MLS().fit(world.head).score(world.test)
    assert scores.tolist() == [max(row) for row in world.test.logits.tolist()]
