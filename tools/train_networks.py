"""Train the networks of the embedded benchmark: the base, then its fine-tunes, two at a time.

    python tools/fetch.py && python tools/build_cifar6.py     # CIFAR-10 as .data/cifar10.npz
    python tools/train_networks.py                            # runs/NAME/, results/training/logs/NAME.csv

Each run is one `idness train` command, printed before it starts. Stop it at any time and start it again: finished runs
are passed over, and a stopped one goes on from its last checkpoint to the same bits.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LOGS = REPOSITORY / "results" / "training" / "logs"
# In two stages, since the first ended a little below 92 % test accuracy.
BASE = {
    "base-stage1": "--method plain --epochs 18 --lr 0.15 --weight-decay 5e-4 --warmup 2 --set checkpoint_every=115",
    "base": "--method plain --epochs 8 --lr 0.05 --weight-decay 5e-4 --seed 1",
}
STARTS = {"base-stage1": "", "base": "runs/base-stage1/weights.safetensors"}
# The rows that are not fine-tunes in their papers get ISH's recipe, so that all start and end alike.
RECIPE = "--epochs 10 --lr 0.003 --weight-decay 5e-6 --set nesterov=True --set milestones=()"
TUNES = {
    "plain-0": "--method plain --seed 0",
    "ish-0": "--method ish --seed 0",
    "plain-1": "--method plain --seed 1",
    "ish-1": "--method ish --seed 1",
    "plain-2": "--method plain --seed 2",
    "ish-2": "--method ish --seed 2",
    "ish-prune-0": "--method ish --set prune=True --seed 0",
    "logitnorm-0": f"--method logitnorm {RECIPE} --seed 0",
    "regmixup-0": f"--method regmixup {RECIPE} --seed 0",
}
# All training rows at three seeds, one epoch each: at ten AugMix alone would take hours.
SHORT = f"{RECIPE} --epochs 1 --batch-size 128 --warmup 0"
ROWS = ("plain", "logitnorm", "confbranch", "cider", "augmix", "regmixup")
TUNES |= {f"{row}-short-{seed}": f"--method {row} {SHORT} --seed {seed}" for row in ROWS for seed in range(3)}


def command(name: str, options: str, threads: int) -> list[str]:
    """Write one run as a command."""
    init = STARTS.get(name, "runs/base/weights.safetensors")
    start = ["--init", init] if init else []
    fixed = ["idness", "train", "--data", "cifar6", "--arch", "small_resnet", "--out", f"runs/{name}"]
    return [*fixed, *start, *options.split(), "--threads", str(threads)]


def run(name: str, options: str, threads: int) -> None:
    """Do one run, unless it is done, and keep its log."""
    folder = REPOSITORY / "runs" / name
    if not (folder / "weights.safetensors").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        words = command(name, options, threads)
        print(" ".join(words), flush=True)
        # Waiting threads that spin take the core from those that work, when the machine is shared.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": str(threads)}
        # Memory that is kept need not be cleared by the kernel at every layer: a fifth of the time.
        environment |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        with (folder / "output.txt").open("a") as output:
            subprocess.run(words, cwd=REPOSITORY, env=environment, stderr=output, stdout=output, check=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(folder / "log.csv", LOGS / f"{name}.csv")
    print(f"{name}: done", flush=True)


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description="Train the networks of the embedded benchmark.")
    parser.add_argument("--only", nargs="*", choices=[*BASE, *TUNES], help="these runs; all if not given")
    parser.add_argument("--jobs", type=int, default=2, help="fine-tunes at the same time, one thread each")
    given = parser.parse_args()
    chosen = given.only or [*BASE, *TUNES]
    for name in [name for name in BASE if name in chosen]:
        run(name, BASE[name], threads=os.cpu_count() or 1)
    with ThreadPoolExecutor(given.jobs) as pool:
        for done in [pool.submit(run, name, TUNES[name], 1) for name in chosen if name in TUNES]:
            done.result()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
