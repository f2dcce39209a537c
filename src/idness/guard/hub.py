"""Guards on the Hugging Face Hub: a repository with the guard's files and a model card."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from idness.core.errors import StoreError, needed
from idness.core.files import atomic_write
from idness.core.scripts import Script
from idness.core.text import abridged
from idness.guard.conformal import false_alarm_rate
from idness.guard.storage import MANIFEST, describe
from idness.networks.hugging_face import PREFIX

if TYPE_CHECKING:
    from idness.guard.guard import Guard

CARD = "README.md"
FILES = ("tensors-*.safetensors", "weights-*.safetensors")
"""The files of a guard beside its manifest, which are named by their content."""
LIMITS = """\
- The promise holds on average over calibration sets, and only for images from the same source as the calibration images. It says
  nothing about how many OOD images are flagged.
- An image that is not flagged may still be misclassified.
- After a change of camera, preprocessing or classes, or when `idness score` reports drift, calibrate again."""


def push_guard(guard: Guard, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
    """Upload a guard with its network's weights and a model card; return the address of the commit."""
    hub = needed("huggingface_hub", "push_to_hub", "hf", StoreError)
    spec = guard.spec or ""
    local = spec.removeprefix(PREFIX)
    if spec.startswith(PREFIX) and Path(local).is_dir():
        raise StoreError(
            f"push_to_hub: the network is the local folder {local}; push it first and calibrate with {PREFIX}NAME"
        )
    with tempfile.TemporaryDirectory() as name:
        folder = guard.save(Path(name) / "guard", bundle=True)
        atomic_write(folder / CARD, model_card(guard, repo_id))
        try:
            hub.create_repo(repo_id, exist_ok=True, private=private, token=token)
            done = hub.upload_folder(
                repo_id=repo_id,
                folder_path=str(folder),
                commit_message="Upload guard",
                delete_patterns=list(FILES),  # those of an earlier guard
                token=token,
            )
        except _failures() as error:
            raise _failed(repo_id, "uploaded", error) from error
    return str(done)


def fetch_guard(repo_id: str, *, revision: str | None = None, token: str | None = None) -> Path:
    """Return the folder of a guard: itself if it is one, else the copy of a repository of the hub in its cache."""
    if Path(repo_id).is_dir():
        return Path(repo_id)
    hub = needed("huggingface_hub", "from_pretrained", "hf", StoreError)
    try:
        return Path(
            hub.snapshot_download(repo_id, revision=revision, token=token, allow_patterns=[MANIFEST, "*.safetensors"])
        )
    except _failures() as error:
        raise _failed(repo_id, "downloaded", error) from error


def model_card(guard: Guard, repo_id: str) -> str:
    """Describe a guard for its page on the hub: promise, method, network, calibration and limits."""
    facts, calibration, how = describe(guard), guard.rule().calibration, guard.preprocessing
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


def _failures() -> tuple[type[Exception], ...]:
    """Return what the hub's library raises: also errors of its HTTP library, which need not be an `OSError`."""
    errors = needed("huggingface_hub.errors", "the hub", "hf", StoreError)
    return OSError, ValueError, *(kind for kind in errors.HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")


def _failed(repo_id: str, what: str, error: Exception) -> StoreError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return StoreError(f"{repo_id}: could not be {what} ({reason}); check its name, your connection and `hf auth login`")
