"""Loads networks by name, and weights without ever running a pickle."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from idness.core.errors import ModelError, ScriptError, unknown_name
from idness.core.extras import needed
from idness.core.scripts import Script
from idness.data import embedded
from idness.networks.runs import located

FORMS = (
    "torchvision:NAME, torchvision:NAME:WEIGHTS, timm:NAME, path/to/file.py:FUNCTION or"
    " path/to/file.py:FUNCTION(argument=value), small_resnet, tiny_resnet, a folder that idness train wrote"
    + "".join(f", {embedded.NAME}:{name}" for name in embedded.NETWORKS)
)
PREFIXES = ("module.", "_orig_mod.", "model.")
"""What wrappers put before parameter names; taken off where every name has it and the network's own have not."""


def load_model(spec: str, weights: str | Path | None = None) -> nn.Module:
    """Load a network by name, in evaluation mode.

    Args:
        spec: `torchvision:resnet50`, `torchvision:resnet50:IMAGENET1K_V1` for exactly these weights,
            `timm:vit_base_patch16_224`, `path/to/file.py:function`, perhaps with arguments as in
            `path/to/file.py:function(width=2)`, the folder of a run of `idness train`, one of our architectures, or an
            embedded network.
        weights: a safetensors file or a checkpoint; `none` leaves the network as it is built. Without it torchvision,
            timm and embedded networks have their pretrained weights, a run's folder its own. Weights of another number of
            classes give the network a final layer of that number.
    """
    spec, weights = located(spec, weights)
    script = Script.named(spec)
    source, _, name = spec.partition(":") if ":" in spec else ("", "", spec)
    pretrained = weights is None
    makers: dict[str, Callable[[str, bool], nn.Module]] = {
        "": _own,
        "torchvision": _torchvision,
        "timm": _timm,
        embedded.NAME: _embedded,
    }
    if script is not None:
        model = _from_file(script)
    elif source in makers and name:
        model = makers[source](name, pretrained)
    else:
        raise ModelError(f"a model is written as {FORMS}; got {spec!r}")
    if weights is not None and str(weights) != "none":
        state = read_weights(weights)
        model = load_state(_seen_through(model, state), state, weights)
    return model.eval()


def load_weights(model: nn.Module, path: str | Path) -> nn.Module:
    """Load weights from a safetensors file or a checkpoint into a network, every name and shape matching."""
    return load_state(model, read_weights(path), path)


def load_state(model: nn.Module, state: dict[str, Tensor], path: str | Path) -> nn.Module:
    """Put weights that were read from a file into a network, every name and shape matching."""
    state = _fitting(state, set(model.state_dict()))
    _fit_heads(model, state)
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        detail = str(error).strip().splitlines()[-1].strip()
        raise ModelError(
            f"{path}: its weights do not fit {type(model).__name__} ({detail}); is it of another network?"
        ) from error
    # Counters of batch norm are absent in old checkpoints and play no part in evaluation.
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        raise ModelError(
            f"{path}: its weights do not fit {type(model).__name__}: {len(missing)} missing ({', '.join(missing[:2])}),"
            f" {len(unexpected)} unknown ({', '.join(unexpected[:2])}); is it of another network?"
        )
    return model


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read a file of weights, unwrapping `state_dict` and the like; pickled code in it is refused, not run."""
    file = Path(path)
    if not file.is_file():
        raise ModelError(f"no weights at {file}; give a .safetensors file or a checkpoint")
    try:
        loaded = _read(file)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{file}: holds pickled objects other than tensors, which could run code; save its state_dict as safetensors"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, ValueError, OSError, KeyError) as error:
        if "TorchScript" in str(error):
            raise ModelError(
                f"{file}: holds a TorchScript program, which is not run; save its state_dict as safetensors"
            ) from error
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise ModelError(f"{file}: is not a readable weights file ({reason}); is it complete?") from error
    for key in ("state_dict", "model_state_dict", "model", "net"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    state = (
        {name: value for name, value in loaded.items() if isinstance(value, Tensor)}
        if isinstance(loaded, Mapping)
        else {}
    )
    if not state:
        raise ModelError(f"{file}: holds no tensors by name; save the network's state_dict()")
    return state


def _read(file: Path) -> Any:
    if file.suffix == ".safetensors":
        return load_file(file)
    with warnings.catch_warnings():
        # torch remarks on uncommon pickle protocols; what it cannot read safely it refuses anyway.
        warnings.simplefilter("ignore", UserWarning)
        return torch.load(file, map_location="cpu", weights_only=True)


def _fitting(state: dict[str, Tensor], wanted: set[str]) -> dict[str, Tensor]:
    """Take wrappers' prefixes off parameter names until they fit."""
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in state) and not all(name.startswith(prefix) for name in wanted):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _seen_through(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Put CIDER's projection around a network whose weights have one; leave any other as it is."""
    from idness.networks.projected import BACKBONE, LAST, is_projected, projected

    if not is_projected(state) or is_projected(model.state_dict()):
        return model
    _fit_heads(
        model, {name.removeprefix(BACKBONE): value for name, value in state.items() if name.startswith(BACKBONE)}
    )
    classes, width = state[LAST].shape
    return projected(model, classes, width)


def _fit_heads(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give linear layers as many outputs as their weights have: those of a network that was tuned to other classes."""
    for name, module in list(model.named_modules()):
        weight = state.get(f"{name}.weight")
        if type(module) is not nn.Linear or weight is None or weight.ndim != 2:
            continue
        if weight.shape[1] == module.in_features and len(weight) != module.out_features:
            parent, _, child = name.rpartition(".")
            fitting = nn.Linear(module.in_features, len(weight), module.bias is not None)
            setattr(model.get_submodule(parent), child, fitting.to(module.weight))


def _own(name: str, pretrained: bool) -> nn.Module:
    from idness.networks.architectures import NETWORKS, build

    if name not in NETWORKS:
        raise ModelError(f"a model is written as {FORMS}; got {name!r}")
    if pretrained:
        raise ModelError(f"{name}: has no pretrained weights; give weights=, the folder of its run, or weights='none'")
    return build(name, len(embedded.classes()))


def _torchvision(name: str, pretrained: bool) -> nn.Module:
    models = needed("torchvision.models", f"torchvision:{name}", "models", ModelError)
    name, _, version = name.partition(":")
    if name not in models.list_models(module=models):
        raise unknown_name("torchvision model", name, models.list_models(module=models))
    versions = models.get_model_weights(name).__members__
    if version and version not in versions:
        raise unknown_name(f"weights of torchvision:{name}", version, versions)
    wanted = (version or "DEFAULT") if pretrained else None
    made: nn.Module = _fetched(f"torchvision:{name}", lambda: models.get_model(name, weights=wanted))
    return made


def _timm(name: str, pretrained: bool) -> nn.Module:
    timm = needed("timm", f"timm:{name}", "models", ModelError)
    if not timm.is_model(name.partition(".")[0]):
        raise unknown_name("timm model", name, timm.list_models())
    made: nn.Module = _fetched(f"timm:{name}", lambda: timm.create_model(name, pretrained=pretrained))
    return made


def _embedded(name: str, pretrained: bool) -> nn.Module:
    from idness.networks.architectures import small_resnet

    if name not in embedded.NETWORKS:
        raise unknown_name("embedded network", name, embedded.NETWORKS)
    weights = embedded.CIFAR6 / f"{name}.safetensors"
    return load_weights(small_resnet(), weights) if pretrained else small_resnet()


def _from_file(script: Script) -> nn.Module:
    try:
        model = script.make(nn.Module)
    except ScriptError as error:
        raise ModelError(str(error)) from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{script} must return an nn.Module, got {type(model).__name__}")
    return model


def _fetched(what: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except OSError as error:
        raise ModelError(
            f"{what}: its pretrained weights could not be fetched ({error}); give a file as weights=, or weights='none'"
        ) from error
