"""Speed of scoring from cached activations, against the public formulations: python benchmarks/kernels.py"""

from __future__ import annotations

import as_command  # noqa: F401

# isort: split
from typing import Any

import faiss
import numpy as np
import torch
from sklearn import metrics as sklearn_metrics

import public
from idness import metrics
from idness.core.types import Activations, Head
from idness.detectors import kernels
from idness.detectors.detector import fit_many, score_many
from idness.methods import DICE, GEN, KNN, RMDS, Scale
from ratios import interleaved, report

ROWS, WIDTH, CLASSES = 4096, 2048, 1000
PERCENTILES = [50.0, 55.0, 60.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0]


def main() -> None:
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    relu = torch.randn(ROWS, WIDTH, generator=rng).clamp(min=0)
    positive = torch.rand(ROWS, WIDTH, generator=rng) + 0.01
    head = Head(torch.randn(CLASSES, WIDTH, generator=rng) / WIDTH**0.5, torch.randn(CLASSES, generator=rng))
    rows = [*ratio_rows("ReLU-like", relu), *ratio_rows("positive", positive), *scale_rows(relu, head)]
    rows += [*gen_rows(relu, head), *dice_rows(relu, head), *rmds_rows(rng), *knn_rows(rng), *metric_rows()]
    limit = interleaved({"sum": lambda: relu.sum(1), "ratio": lambda: kernels.scale_ratio(relu, 85.0)})
    notes = [
        f"One pass features.sum(1) is the limit: the scale ratio takes {limit['ratio'] / limit['sum']:.1f} times as long."
    ]
    report("kernels", "Scoring from cached activations, one thread, float32", rows, notes)


def row(work: str, times: dict[str, float], wanted: float) -> dict[str, Any]:
    ratio = times["public"] / times["ours"]
    return {
        "work": work,
        "public ms": times["public"] * 1e3,
        "ours ms": times["ours"] * 1e3,
        "ratio": ratio,
        "wanted": wanted,
    }


def ratio_rows(kind: str, features: torch.Tensor) -> list[dict[str, Any]]:
    torch.testing.assert_close(kernels.scale_ratio(features, 85.0), public.scale_ratio(features, 85.0))
    ways = {"public": lambda: public.scale_ratio(features, 85.0), "ours": lambda: kernels.scale_ratio(features, 85.0)}
    return [row(f"scale ratio r, {kind} rows", interleaved(ways), 8.0)]


def scale_rows(features: torch.Tensor, head: Head) -> list[dict[str, Any]]:
    acts = Activations(features, head(features))
    one = Scale(percentile=85.0).fit(head)
    sweep = [Scale(percentile=p) for p in PERCENTILES]
    fit_many(sweep, head)
    torch.testing.assert_close(
        one.score(acts), public.scale_energy(features, head.weight, head.offset, 85.0), rtol=1e-4, atol=1e-3
    )

    def ten_passes() -> list[torch.Tensor]:
        return [public.scale_energy(features, head.weight, head.offset, p) for p in PERCENTILES]

    single = interleaved(
        {
            "public": lambda: public.scale_energy(features, head.weight, head.offset, 85.0),
            "ours": lambda: one.score(acts),
        }
    )
    many = interleaved({"public": ten_passes, "ours": lambda: score_many(sweep, acts)}, repeats=3)
    return [row("SCALE energy, C=1000", single, 6.0), row("SCALE sweep, 10 percentiles", many, 25.0)]


def gen_rows(features: torch.Tensor, head: Head) -> list[dict[str, Any]]:
    acts = Activations(features[:1024], head(features[:1024]))
    grid = GEN().variants()
    fit_many(grid, head)

    def one_by_one() -> list[torch.Tensor]:
        return [public.gen_score(acts.logits, variant.gamma, variant.m) for variant in grid]

    return [
        row(
            "GEN, grid of 42 options",
            interleaved({"public": one_by_one, "ours": lambda: score_many(grid, acts)}, 3),
            1.0,
        )
    ]


def dice_rows(features: torch.Tensor, head: Head) -> list[dict[str, Any]]:
    acts = Activations(features[:64], head(features[:64]))
    detector = DICE().fit(head, acts)
    ways = {
        "public": lambda: public.dice_energy(acts.features, detector.weight_, head.offset),
        "ours": lambda: detector.score(acts),
    }
    return [row("DICE, 64 images", interleaved(ways, 3), 1.0)]


def rmds_rows(rng: torch.Generator) -> list[dict[str, Any]]:
    classes, width = 200, 512
    labels = torch.arange(4000) % classes
    means = torch.randn(classes, width, generator=rng)
    train = (means[labels] + torch.randn(4000, width, generator=rng)).clamp(min=0)
    head = Head(torch.randn(classes, width, generator=rng))
    detector = RMDS().fit(head, Activations(train, head(train), labels))
    found = torch.stack([train[labels == c].mean(0) for c in range(classes)])
    precision = torch.linalg.inv(torch.cov((train - found[labels]).T, correction=0))
    background = torch.linalg.inv(torch.cov(train.T, correction=0))
    acts = Activations(train[:1000], head(train[:1000]))
    loop = (acts.features, found, precision, train.mean(0), background)
    torch.testing.assert_close(detector.score(acts), public.rmds_score(*loop), rtol=1e-2, atol=0.5)
    ways = {"public": lambda: public.rmds_score(*loop), "ours": lambda: detector.score(acts)}
    return [row("RMDS, D=512, C=200", interleaved(ways, 3), 1.0)]


def knn_rows(rng: torch.Generator) -> list[dict[str, Any]]:
    bank, queries = (torch.nn.functional.normalize(torch.rand(n, 512, generator=rng), dim=1) for n in (50_000, 1000))
    index = faiss.IndexFlatL2(512)
    index.add(bank.numpy())
    head = Head(torch.eye(512)[:2])
    detector = KNN(k=50).fit(head, Activations(bank, head(bank)))
    acts = Activations(queries, head(queries))
    theirs = -index.search(queries.numpy(), 50)[0][:, -1]
    np.testing.assert_allclose(detector.score(acts).numpy(), theirs, atol=2e-5)
    ways = {"public": lambda: index.search(queries.numpy(), 50), "ours": lambda: detector.score(acts)}
    return [row("KNN 50,000 x 512, k=50, against faiss IndexFlatL2", interleaved(ways, 5), 3.0)]


def metric_rows() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    ids, oods = rng.normal(1, 1, 1_280_000), rng.normal(0, 1, 100_000)

    def by_sklearn() -> dict[str, float]:
        inside, scores = np.r_[np.ones(len(ids)), np.zeros(len(oods))], np.r_[ids, oods]
        fpr, tpr, _ = sklearn_metrics.roc_curve(1 - inside, -scores)
        fpr_in, tpr_in, _ = sklearn_metrics.roc_curve(inside, scores)
        precision_in, recall_in, _ = sklearn_metrics.precision_recall_curve(inside, scores)
        precision_out, recall_out, _ = sklearn_metrics.precision_recall_curve(1 - inside, -scores)
        return {
            "auroc": sklearn_metrics.auc(fpr, tpr),
            "fpr_at_id_recall": fpr_in[np.argmax(tpr_in >= 0.95)],
            "fpr_at_ood_recall": fpr[np.argmax(tpr >= 0.95)],
            "aupr_in": sklearn_metrics.auc(recall_in, precision_in),
            "aupr_out": sklearn_metrics.auc(recall_out, precision_out),
        }

    ours, theirs = metrics.all_metrics(ids, oods), by_sklearn()
    assert all(abs(ours[name] - theirs[name]) < 1e-4 for name in ours), (ours, theirs)
    ways = {"public": by_sklearn, "ours": lambda: metrics.all_metrics(ids, oods)}
    return [row("five metrics, 1,280,000 + 100,000 scores, against scikit-learn", interleaved(ways, 3), 7.0)]


if __name__ == "__main__":
    main()
