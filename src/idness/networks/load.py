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
from idness.networks.architectures import BACKBONE, LAST, NETWORKS, ProjectedNetwork, build, is_projected, small_resnet
from idness.networks.run_folder import WEIGHTS, located
from idness.networks.split import final_linear

FORMS = (
    "torchvision:NAME, torchvision:NAME:WEIGHTS, timm:NAME, path/to/file.py:FUNCTION or"
    " path/to/file.py:FUNCTION(argument=value), small_resnet, tiny_resnet, a folder that idness train wrote"
    + "".join(f", {embedded.NAME}:{name}" for name in embedded.NETWORKS)
)
PREFIXES = ("module.", "_orig_mod.", "model.")
"""Prefixes of wrappers; removed if every parameter name has one and the network's own names do not."""


def load_model(spec: str, weights: str | Path | None = None) -> nn.Module:
    """Load a network by name, in evaluation mode.

    Args:
        spec: `torchvision:resnet50`, `torchvision:resnet50:IMAGENET1K_V1` for exactly these weights,
            `timm:vit_base_patch16_224`, `path/to/file.py:function`, with arguments as in
            `path/to/file.py:function(width=2)`, a folder written by `idness train`, one of our architectures, or an
            embedded network.
        weights: a safetensors file or a checkpoint; `none` leaves the network untrained. Without it, torchvision, timm and
            embedded networks have their pretrained weights and a run folder its own. Weights for another number of
            classes replace the final layer.

    Returns:
        The network.

    Raises:
        ModelError: if there is no such network, or the weights do not fit it.
    """
    spec, weights = located(spec, weights)
    script = Script.named(spec)
    source, _, name = spec.partition(":") if ":" in spec else ("", "", spec)
    makers: dict[str, Callable[[str, bool], nn.Module]] = {
        "": _own,
        "torchvision": _torchvision,
        "timm": _timm,
        embedded.NAME: _embedded,
    }
    if script is not None:
        model = _from_file(script)
    elif source in makers and name:
        model = makers[source](name, weights is None)
    else:
        raise ModelError(f"a model is written as {FORMS}; got {spec!r}")
    if weights is not None and str(weights) != "none":
        state = read_weights(weights)
        if is_projected(state) and not is_projected(model.state_dict()):
            model = _with_projection(model, state)
        _load_state(model, state, weights)
    return model.eval()


def load_for_training(
    spec: str, classes: int, init: str = "", seed: int = 0, *, example: Tensor | None = None
) -> nn.Module:
    """Make a network for these classes; one with another number of outputs gets a new final layer.

    Args:
        spec: `small_resnet`, `torchvision:NAME`, `timm:NAME`, or `path/to/file.py:FUNCTION`, also with arguments.
        classes: the number of classes.
        init: a weights file or the folder of a run; `pretrained` for the network's own weights, or exactly which, as in
            `torchvision:resnet50:IMAGENET1K_V1`; empty for none.
        seed: the seed of the initial weights.
        example: a batch of images, for a network that takes no other size.
    """
    torch.manual_seed(seed)
    exact = init.startswith(("torchvision:", "timm:"))
    if exact and init.split(":")[:2] != spec.split(":")[:2]:
        raise ModelError(f"init={init!r} names weights of another network than {spec!r}; name the same one")
    if exact:
        model = load_model(init)
    else:
        model = load_model(spec, "none" if init != "pretrained" else None) if ":" in spec else build(spec, classes)
    if init and init != "pretrained" and not exact:
        load_weights(model, Path(init) / WEIGHTS if Path(init).is_dir() else init)
    inner, name, linear = final_linear(model, example=example)
    if linear.out_features != classes:
        inner.set_submodule(name, nn.Linear(linear.in_features, classes, linear.bias is not None))
    return model


def load_weights(model: nn.Module, path: str | Path) -> nn.Module:
    """Load weights from a safetensors file or a checkpoint into a network; every name and shape must match."""
    return _load_state(model, read_weights(path), path)


def _load_state(model: nn.Module, state: dict[str, Tensor], path: str | Path) -> nn.Module:
    wanted = set(model.state_dict())
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in state) and not all(name.startswith(prefix) for name in wanted):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    _fit_heads(model, state)
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        detail = str(error).strip().splitlines()[-1].strip()
        raise ModelError(
            f"{path}: its weights do not fit {type(model).__name__} ({detail}); is it of another network?"
        ) from error
    # Old checkpoints lack BatchNorm's counters, which evaluation does not use.
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        raise ModelError(
            f"{path}: its weights do not fit {type(model).__name__}: {len(missing)} missing ({', '.join(missing[:2])}),"
            f" {len(unexpected)} unknown ({', '.join(unexpected[:2])}); is it of another network?"
        )
    return model


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read a weights file, unwrapping `state_dict` and the like; pickled code in it is refused, not run."""
    file = Path(path)
    if not file.is_file():
        raise ModelError(f"no weights at {file}; pass a .safetensors file or a checkpoint")
    try:
        loaded = load_file(file) if file.suffix == ".safetensors" else _read_checkpoint(file)
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
    items = loaded.items() if isinstance(loaded, Mapping) else ()
    state = {name: value for name, value in items if isinstance(value, Tensor)}
    if not state:
        raise ModelError(f"{file}: holds no tensors by name; save the network's state_dict()")
    return state


def _read_checkpoint(file: Path) -> Any:
    with warnings.catch_warnings():
        # torch warns of uncommon pickle protocols; what it cannot read safely it refuses anyway.
        warnings.simplefilter("ignore", UserWarning)
        return torch.load(file, map_location="cpu", weights_only=True)


def _with_projection(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Put CIDER's projection around a network whose weights have one."""
    _fit_heads(
        model, {name.removeprefix(BACKBONE): value for name, value in state.items() if name.startswith(BACKBONE)}
    )
    classes, width = state[LAST].shape
    return ProjectedNetwork(model, final_linear(model)[2], classes, width)


def _fit_heads(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give linear layers as many outputs as their weights have, for a network that was tuned to other classes."""
    for name, module in list(model.named_modules()):
        weight = state.get(f"{name}.weight")
        if not name or type(module) is not nn.Linear or weight is None or weight.ndim != 2:
            continue
        if weight.shape[1] == module.in_features and len(weight) != module.out_features:
            fitting = nn.Linear(module.in_features, len(weight), module.bias is not None)
            model.set_submodule(name, fitting.to(module.weight))


def _own(name: str, pretrained: bool) -> nn.Module:
    if name not in NETWORKS:
        raise ModelError(f"a model is written as {FORMS}; got {name!r}")
    if pretrained:
        raise ModelError(f"{name}: has no pretrained weights; pass weights=, the folder of its run, or weights='none'")
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
    return _fetched(f"torchvision:{name}", lambda: models.get_model(name, weights=wanted))


def _timm(name: str, pretrained: bool) -> nn.Module:
    timm = needed("timm", f"timm:{name}", "models", ModelError)
    if not timm.is_model(name.partition(".")[0]):
        raise unknown_name("timm model", name, timm.list_models())
    return _fetched(f"timm:{name}", lambda: timm.create_model(name, pretrained=pretrained))


def _embedded(name: str, pretrained: bool) -> nn.Module:
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


def _fetched(what: str, make: Callable[[], nn.Module]) -> nn.Module:
    try:
        return make()
    except OSError as error:
        raise ModelError(
            f"{what}: its pretrained weights could not be downloaded ({error}); pass a file as weights=, or weights='none'"
        ) from error
