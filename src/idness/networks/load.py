"""Loading of networks by name, of weights without unpickling code, and of the folders that `idness train` writes."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file
from torch import Tensor, nn

from idness.core.errors import IdnessError, ModelError, needed, unknown_name
from idness.core.scripts import Script, approved
from idness.core.text import shorten
from idness.data import Preprocessing, embedded
from idness.networks import architectures as ours
from idness.networks.hugging_face import PREFIX, load_hugging_face
from idness.networks.split import final_linear

FORMS = (
    "torchvision:NAME, torchvision:NAME:WEIGHTS, timm:NAME, hf:NAME, hf:FOLDER, path/to/file.py:FUNCTION or"
    " path/to/file.py:FUNCTION(argument=value), small_resnet, tiny_resnet, a folder that idness train wrote"
    + "".join(f", {benchmark}:{name}" for benchmark, names in embedded.NETWORKS.items() for name in names)
)
LOG, WEIGHTS = "log.csv", "weights.safetensors"
IMAGES, DIGESTS = "images.safetensors", "digests"
"""The file with the hashes of the training images, and the tensor in it."""
KEPT = ("arch", "classes", "mean", "std", "size", "preprocessing")
"""The metadata fields of a weights file."""
INTERPOLATION = "bicubic"
"""The interpolation with which training resizes images."""
PREFIXES = ("module.", "_orig_mod.", "model.")
"""Parameter-name prefixes of wrappers, removed if all stored names have one and the network's own names do not."""


def load_model(spec: str, weights: str | Path | None = None) -> nn.Module:
    """Load a network by name, in evaluation mode.

    Args:
        spec: `torchvision:resnet50`, `torchvision:resnet50:IMAGENET1K_V1` for exactly these weights,
            `timm:vit_base_patch16_224`, `hf:microsoft/resnet-50` or `hf:./folder` of `save_pretrained`,
            `path/to/file.py:function`, with arguments as in `path/to/file.py:function(width=2)`, a folder written by
            `idness train`, a built-in architecture, or an embedded network.
        weights: a safetensors file or a checkpoint; `none` leaves the network untrained. By default, torchvision, timm, Hugging
            Face and embedded networks have their pretrained weights, and a run folder its own. Weights for another number of
            classes replace the final layer.

    Returns:
        The network.

    Raises:
        ModelError: if there is no such network, or the weights do not match it.
        ScriptError: if the file cannot be run.
    """
    spec, weights = located_model(spec, weights)
    script = Script.named(spec)
    try:
        model = _made(spec, pretrained=weights is None) if script is None else script.make(nn.Module)
    except OSError as error:
        raise ModelError(f"{spec}: weights cannot be downloaded ({error}); pass weights=FILE or 'none'") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{script} must return an nn.Module, got {type(model).__name__}")
    if weights is not None and str(weights) != "none":
        state = read_weights(weights)
        start = ours.BACKBONE
        if {ours.PROJECTION, ours.LAST} <= state.keys() and ours.PROJECTION not in model.state_dict():
            _fit_heads(model, {k.removeprefix(start): value for k, value in state.items() if k.startswith(start)})
            model = ours.ProjectedNetwork(model, final_linear(model)[2], *state[ours.LAST].shape)
        load_weights(model, weights, state)
    return model.eval()


def _made(spec: str, *, pretrained: bool) -> nn.Module:
    """Return a network that is not defined in a user script."""
    source, _, name = spec.partition(":")
    if source == "torchvision" and name:
        models = needed("torchvision.models", spec, "models", ModelError)
        name, _, version = name.partition(":")
        if name not in models.list_models(module=models):
            raise unknown_name("torchvision model", name, models.list_models(module=models))
        versions = models.get_model_weights(name).__members__
        if version and version not in versions:
            raise unknown_name(f"weights of torchvision:{name}", version, versions)
        found: nn.Module = models.get_model(name, weights=(version or "DEFAULT") if pretrained else None)
        return found
    if source == "timm" and name:
        timm = needed("timm", spec, "models", ModelError)
        if not timm.is_model(name.partition(".")[0]):
            raise unknown_name("timm model", name, timm.list_models())
        return timm.create_model(name, pretrained=pretrained)  # type: ignore[no-any-return]
    if source == "hf" and name:
        return load_hugging_face(name, pretrained)
    if source in embedded.NETWORKS:
        if name not in embedded.NETWORKS[source]:
            raise unknown_name("embedded network", name, embedded.NETWORKS[source])
        model = ours.small_resnet() if source == "cifar6" else ours.MobileNetV2()
        weights = embedded.HOME / source / f"{name}.safetensors"
        return load_weights(model, weights, ours.unpacked(read_weights(weights))) if pretrained else model
    if spec not in ours.NETWORKS:
        raise ModelError(f"a model must be one of {FORMS}; got {spec!r}")
    if pretrained:
        raise ModelError(f"{spec}: has no pretrained weights; pass weights=, the folder of its run, or weights='none'")
    return ours.build(spec, len(embedded.classes()))


def load_for_training(
    spec: str, classes: int, init: str = "", seed: int = 0, *, example: Tensor | None = None
) -> nn.Module:
    """Return a network for these classes; the final layer is replaced if it has another number of outputs.

    `init` is a weights file, the folder of a run, `pretrained` for the network's own weights, specific ones such as
    `torchvision:resnet50:IMAGENET1K_V1`, or empty for none. `example` is a batch of images, for a network that requires their size.
    """
    torch.manual_seed(seed)
    exact = init.startswith(("torchvision:", "timm:"))
    if exact and init.split(":")[:2] != spec.split(":")[:2]:
        raise ModelError(f"init={init!r} names weights of another network than {spec!r}; use the same network")
    if exact:
        model = load_model(init)
    else:
        model = load_model(spec, "none" if init != "pretrained" else None) if ":" in spec else ours.build(spec, classes)
    if init and init != "pretrained" and not exact:
        load_weights(model, Path(init) / WEIGHTS if Path(init).is_dir() else init)
    inner, name, linear = final_linear(model, example=example)
    if linear.out_features != classes:
        inner.set_submodule(name, nn.Linear(linear.in_features, classes, linear.bias is not None))
    return model


def load_weights(model: nn.Module, path: str | Path, state: dict[str, Tensor] | None = None) -> nn.Module:
    """Load a safetensors file or a checkpoint, or its content `state`, into a network; names and shapes must match."""
    state, wanted = read_weights(path) if state is None else state, set(model.state_dict())
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in state) and not all(name.startswith(prefix) for name in wanted):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    _fit_heads(model, state)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        detail = shorten(" ".join(str(error).split()), 200)
        raise ModelError(f"{path}: weights do not match the network ({detail}); are they from another one?") from error
    return model


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a weights file, unwrapping `state_dict` and the like; pickled code is rejected, not run."""
    file = Path(path)
    if not file.is_file():
        raise ModelError(f"no weights at {file}; pass a .safetensors file or a checkpoint")
    try:
        with warnings.catch_warnings():
            # torch warns about uncommon pickle protocols, but rejects anything it cannot read safely anyway.
            warnings.simplefilter("ignore", UserWarning)
            safe = file.suffix == ".safetensors"
            loaded = load_file(file) if safe else torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise ModelError(f"{file}: is not a readable weights file ({reason}); save it as safetensors") from error
    for key in ("state_dict", "model_state_dict", "model", "net"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    items = loaded.items() if isinstance(loaded, Mapping) else ()
    state = {name: value for name, value in items if isinstance(value, Tensor)}
    if not state:
        raise ModelError(f"{file}: contains no named tensors; save the network's state_dict()")
    return state


def _fit_heads(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Resize linear layers to the number of outputs of their weights, for a network fine-tuned to other classes."""
    for name, module in list(model.named_modules()):
        weight = state.get(f"{name}.weight")
        if not name or type(module) is not nn.Linear or weight is None or weight.ndim != 2:
            continue
        if weight.shape[1] == module.in_features and len(weight) != module.out_features:
            fitting = nn.Linear(module.in_features, len(weight), module.bias is not None)
            model.set_submodule(name, fitting.to(module.weight))


# Run folders


def facts_of(weights: str | Path | None) -> tuple[str, tuple[str, ...], Preprocessing | None]:
    """Return the architecture, class names and preprocessing of a weights file; empty if `idness train` did not write it."""
    file = Path(weights or "")
    try:
        with safe_open(file, framework="pt") as opened:
            values = {name: json.loads(text) for name, text in (opened.metadata() or {}).items() if name in KEPT}
        return str(values.get("arch", "")), tuple(map(str, values.get("classes", ()))), _preprocessing(values)
    except (SafetensorError, OSError, ValueError, TypeError, IdnessError):
        return "", (), None  # of another program, or damaged, as loading the weights will report


def located_model(model: str, weights: str | Path | None = None) -> tuple[str, str | Path | None]:
    """Return the network's name and weights, resolving a run folder to those in it and the path of `hf:FOLDER` to an absolute one."""
    if model.startswith(PREFIX) and Path(model.removeprefix(PREFIX)).is_dir():
        return f"{PREFIX}{Path(model.removeprefix(PREFIX)).resolve()}", weights
    folder = Path(model)
    if not model or not folder.is_dir():
        return model, weights
    file = folder / WEIGHTS
    if not file.is_file():
        raise ModelError(f"{folder}: has no {WEIGHTS}; pass the folder of a finished run of idness train")
    found = facts_of(file)[0]
    if not found:
        raise ModelError(f"{file}: does not name its network; pass model='NAME', weights={str(file)!r}")
    return approved(found, f"the network of {folder}", f", weights={str(file)!r}"), weights or file


def trained_on(weights: str | Path | None) -> NDArray[np.uint8] | None:
    """Return the hashes of a network's training images; `None` if they are not recorded."""
    file = Path(weights or "").parent / IMAGES
    if weights is None or not file.is_file():
        return None
    try:
        found: NDArray[np.uint8] = load_arrays(file)[DIGESTS]
    except (OSError, SafetensorError, KeyError) as error:
        raise ModelError(f"{file}: is damaged ({error}); delete it to skip the check for training images") from error
    return found


def _preprocessing(values: Mapping[str, Any]) -> Preprocessing | None:
    """Return the preprocessing of a run; runs of 0.1 have mean, std and size instead. Without a size, images are not resized."""
    if "preprocessing" in values:
        return Preprocessing.from_dict(values["preprocessing"])
    if "mean" not in values or "std" not in values:
        return None
    size = values.get("size")
    resize = {} if size is None else {"resize": tuple(size), "interpolation": INTERPOLATION}
    return Preprocessing.from_dict({"mean": values["mean"], "std": values["std"], **resize})
