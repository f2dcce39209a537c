"""How a benchmark is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from idness.core.checks import check_count, check_fraction
from idness.networks.open import ModelOptions
from idness.selection.search import Method


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Says how a benchmark is run; what is run is the benchmark's and the network's.

    Args:
        data: the folder at which relative paths begin.
        weights: a file with the network's weights.
        layer: the name of the final linear layer, where it should not be searched.
        multi_label: whether an image may get several labels, or none, where the network does not show it.
        methods: the rows to compare: texts such as `scale`, `scale(percentile=95)` or `my_file.py:MyDetector`, classes of
            detectors, whose options are searched, and detectors; all that need one pass of the network if empty.
        precision: fp32, bf16 or auto.
        engine: what runs the network: eager, compiled, onnxruntime, openvino, or auto.
        batch_size: how many images the network sees at once; what suits it if not given.
        workers: the number of threads that decode images; all cores by default.
        threads: the number of threads of the network and of decoding together; all cores by default.
        cache: the folder of the feature store.
        device: where the network runs; auto takes a GPU where there is one.
        recall: at which false-positive rates are taken.
        seed: of the error bars' bootstrap.
        partial: whether sets that are not there are left out.
        any_accuracy: whether to go on with a network that is right about labelled ID images no more often than by chance.
        command: the command line, for the record.
    """

    data: str | Path | None = None
    weights: str | Path | None = None
    layer: str | None = None
    multi_label: bool | None = None
    methods: Sequence[Method] = ()
    precision: str = "fp32"
    engine: str = "auto"
    batch_size: int | None = None
    workers: int | None = None
    threads: int | None = None
    cache: str | Path | None = None
    device: str = "auto"
    recall: float = 0.95
    seed: int = 0
    partial: bool = False
    any_accuracy: bool = False
    command: str = ""

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_count(self, "batch_size")
        check_fraction(self, "recall", self.recall)

    def model_options(self, model: str | nn.Module | ModelOptions) -> ModelOptions:
        """Return the network's options; a `ModelOptions` is returned as it is."""
        if isinstance(model, ModelOptions):
            return model
        return ModelOptions(
            model,
            self.weights,
            layer=self.layer,
            multi_label=self.multi_label,
            precision=self.precision,
            engine=self.engine,
            device=self.device,
            threads=self.threads,
        )
