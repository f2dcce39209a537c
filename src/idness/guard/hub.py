"""The model card of a guard on the Hugging Face Hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from idness.core.scripts import Script
from idness.core.text import abridged
from idness.guard.conformal import false_alarm_rate
from idness.networks.hugging_face import PREFIX

if TYPE_CHECKING:
    from idness.guard.guard import Guard

LIMITS = """\
- The promise holds on average over calibration sets, and only for images from the same source as the calibration images. It says
  nothing about how many OOD images are flagged.
- An image that is not flagged may still be misclassified.
- After a change of camera, preprocessing or classes, or when `idness score` reports drift, calibrate again."""


def model_card(guard: Guard, repo_id: str) -> str:
    """Describe a guard for its page on the hub: promise, method, network, calibration and limits."""
    facts, calibration, how = guard.describe(), guard.rule().calibration, guard.preprocessing
    spec = facts["model"]["spec"] or ""
    base = f"\nbase_model: {spec.removeprefix(PREFIX)}" if spec.startswith(PREFIX) else ""
    own = "" if spec and Script.named(spec) is None else ", model=network"
    rows = "".join(f"| {recall:g} | {100 * false_alarm_rate(recall):.4g} % |\n" for recall in guard.recalls)
    low, median, high = np.quantile(calibration.scores.cpu().numpy(), (0.05, 0.5, 0.95))
    named = "" if guard.class_names is None else f": {abridged(guard.class_names, 20)}"
    each = f", at least {int(calibration.sizes.min())} for each predicted class" if calibration.per_class else ""
    shown = (
        "Thumbnails of some are part of the repository." if guard.gallery else "They are not part of the repository."
    )
    return f"""---
library_name: idness
pipeline_tag: image-classification
tags: [ood-detection, conformal]{base}
---

# {repo_id.rpartition("/")[2]}

An [idness](https://pypi.org/project/idness/) guard: it flags images that are out of distribution for an image classifier.

```python
from idness import Guard

guard = Guard.from_pretrained("{repo_id}"{own})
verdict = guard.judge("image.jpg")
```

## Promise

{guard.promise()}

| recall | false alarms at most |
|--:|--:|
{rows}
## Method and network

- method: `{guard.detector.label()}`
- network: `{spec or facts["model"]["class"]}`, {guard.split.width} features,
  {guard.split.classes} classes{named}
- preprocessing: {"unknown" if how is None else how.describe()}
- versions: {", ".join(f"{name} {version}" for name, version in facts["versions"].items())}

## Calibration data

{len(calibration):,} in-distribution images{each}. Their scores (higher is more in-distribution) have the quantiles {low:.5g} (5 %),
{median:.5g} (50 %) and {high:.5g} (95 %). {shown}

## Limits

{LIMITS}
"""
