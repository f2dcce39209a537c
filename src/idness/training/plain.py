"""The plain extended fine-tune: the control that every other row is compared with."""

from __future__ import annotations

from idness.training.objective import Objective, method


@method("plain")
class Plain(Objective):
    """Train on with the plain cross-entropy, as long as the others."""

    # ISH's recipe, so that the two differ in one thing only.
    recipe = {"epochs": 10, "lr": 0.003, "weight_decay": 5e-6}
