"""The cost of HTTP: images per second with 32 clients compared with the bare network: python benchmarks/serving.py

There are three kinds of processes, as in production: the server, the clients, and the bare network (which runs alone, at
each batch size, on prepared tensors). Server and bare network use the same single core and one thread for the network, so
that everything else the server does is measured too; the clients use another core. Rounds alternate, so that
other load affects both. Each client waits for the response before its next request, with one JPEG per request.

In addition to the ratio of images per second, the ratio of CPU seconds per image is reported, which other programs hardly affect. A
single client, whose requests find the server idle, shows the latency of a response compared with one pass of one image.
"""

from __future__ import annotations

import http.client
import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from ratios import ONE_THREAD, report

CLIENTS, ROUNDS, SECONDS, WANTED, IDLE = 32, 3, 8.0, 0.85, 1.3
ENGINE = "onnxruntime"
"""The engine on both sides: the fastest one in the extras that most users install."""
CORES = sorted(os.sched_getaffinity(0))
SIZES = (1, 2, 4, 8, 16, 32)
NETWORKS = {
    "ResNet-50, 224 x 224": ("torchvision:resnet50", 224, True),
    "MobileNetV2, 224 x 224": ("torchvision:mobilenet_v2", 224, False),
}

MAKE = """
import sys, torch
from idness.guard import Guard
from idness.data import preprocessing_for
from idness.networks.load import load_model
torch.manual_seed(0)
model = load_model(sys.argv[1], "none").train()
with torch.no_grad():  # batch norm learns what comes, or the features of random weights would all be about zero
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    model(torch.randn(8, 3, 224, 224))
model.eval()
guard = Guard(model, "scale", preprocessing=preprocessing_for(model, sys.argv[1]), spec=sys.argv[1])
guard.calibrate([torch.randn(20, 3, 224, 224)]).save(sys.argv[2], bundle=True)
"""

BARE = """
import sys, time, torch
from idness.networks.engines import EngineRunner
from idness.networks.split import SplitModel
from idness.networks.load import load_model
model = load_model(sys.argv[1], "none").to(memory_format=torch.channels_last)
images = torch.randn(32, 3, int(sys.argv[2]), int(sys.argv[2]))
split = SplitModel(model, example=images[:2])
run = EngineRunner(sys.argv[3], 20_000)
run.run(split, images[:8])
print(run.chosen.used, flush=True)
for line in sys.stdin:
    size, seconds = int(line.split()[0]), float(line.split()[1])
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        run.run(split, images[:size])
        done += size
    print(done, time.perf_counter() - started, flush=True)
"""


def jpegs(count: int = 48) -> list[bytes]:
    """Return JPEGs of the usual size of ImageNet images: embedded images, enlarged, which compress like photographs."""
    from idness.data import embedded

    rng, found = np.random.default_rng(0), []
    for pixels in embedded.load("id_test").images[:count]:
        buffer = io.BytesIO()
        picture = Image.fromarray(pixels).resize((500, 375), Image.Resampling.BICUBIC)
        noisy = np.clip(np.asarray(picture, np.int16) + rng.normal(0, 6, (375, 500, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(buffer, "JPEG", quality=90)
        found.append(buffer.getvalue())
    return found


def load(port: int, pictures: list[bytes], seconds: float, count: int) -> tuple[float, list[float]]:
    """Send requests from many clients until time is up; return the images per second, and the seconds of each response."""
    end, taken, lock = time.perf_counter() + seconds, [], threading.Lock()

    def client(number: int) -> None:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        turn, own = number, []
        while time.perf_counter() < end:
            started = time.perf_counter()
            link.request("POST", "/v1/score", pictures[turn % len(pictures)], {"Content-Type": "image/jpeg"})
            answer = link.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            own.append(time.perf_counter() - started)
            turn += count
        with lock:
            taken.extend(own)

    started = time.perf_counter()
    threads = [threading.Thread(target=client, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(taken) / (time.perf_counter() - started), taken


def on_one_core(command: list[str], **options: Any) -> subprocess.Popen[str]:
    """Start a process on the first core, with one thread for the network."""
    process = subprocess.Popen(command, text=True, env=os.environ | ONE_THREAD, **options)
    os.sched_setaffinity(process.pid, CORES[:1])  # before it starts any thread
    return process


class Bare:
    """The bare network, in a separate process that sleeps between runs."""

    def __init__(self, spec: str, side: int) -> None:
        command = [sys.executable, "-c", BARE, spec, str(side), ENGINE]
        self.process = on_one_core(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.engine = self._line()

    def run(self, size: int, seconds: float) -> tuple[int, float]:
        """Run batches until time is up; return the number of images and the seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{size} {seconds}\n")
        self.process.stdin.flush()
        images, taken = self._line().split()
        return int(images), float(taken)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, over all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve(folder: Path) -> tuple[subprocess.Popen[str], int]:
    words = ["serve", str(folder), "--port", "0", "--engine", ENGINE]
    command = [sys.executable, "-c", "from idness.cli import run; run()", *words]
    process = on_one_core(command, stderr=subprocess.PIPE)
    assert process.stderr is not None
    line = process.stderr.readline()
    port = int(line.split("127.0.0.1:")[1].split()[0])
    while True:
        link = http.client.HTTPConnection("127.0.0.1", port)
        link.request("GET", "/readyz")
        if link.getresponse().status == 200:
            return process, port
        time.sleep(0.2)


def measure(name: str, spec: str, side: int, wanted: float | None, pictures: list[bytes]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", MAKE, spec, folder], check=True)
        server, port = serve(Path(folder))
        bare = Bare(spec, side)
        try:
            by_size = {size: bare.run(size, SECONDS / 4) for size in SIZES}
            best = max(by_size, key=lambda size: by_size[size][0] / by_size[size][1])
            load(port, pictures, 2.0, CLIENTS)
            alone, served, taken, images = [], [], [], 0
            spent = {"bare": cpu_seconds(bare.process.pid), "served": cpu_seconds(server.pid)}
            for _ in range(ROUNDS):
                count, elapsed = bare.run(best, SECONDS)
                alone.append(count / elapsed)
                images += count
                rate, seconds = load(port, pictures, SECONDS, CLIENTS)
                served.append(rate)
                taken += seconds
            before = cpu_seconds(bare.process.pid), cpu_seconds(server.pid)
            per_bare = (before[0] - spent["bare"]) / images
            per_served = (before[1] - spent["served"]) / len(taken)
            # One request at a time: the cost of a response beyond one forward pass of one image.
            singles, elapsed = bare.run(1, SECONDS)
            alone_cpu = (cpu_seconds(bare.process.pid) - before[0]) / singles
            _, lone = load(port, pictures, SECONDS, 1)
            idle_cpu = (cpu_seconds(server.pid) - before[1]) / len(lone)
        finally:
            bare.close()
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    row: dict[str, object] = {
        "what": f"{name}: served / bare, {CLIENTS} clients",
        "ratio": median(served) / median(alone),
        "spread of turns": max(max(turns) / min(turns) for turns in (served, alone)),
        "ratio of CPU s": per_bare / per_served,
        "bare CPU ms": 1e3 * per_bare,
        "served CPU ms": 1e3 * per_served,
        "engine": bare.engine,
        "idle: latency of a request / of one pass": median(lone) * singles / elapsed,
        "idle: CPU of a request / of one pass": idle_cpu / alone_cpu,
        "idle wanted": IDLE,
        "bare images/s": median(alone),
        "best batch": best,
        "served images/s": median(served),
        "median ms": 1e3 * float(np.median(taken)),
        "p99 ms": 1e3 * float(np.percentile(taken, 99)),
        "load average": os.getloadavg()[0],
    }
    return row | ({"wanted": wanted} if wanted else {})


def main() -> None:
    chosen = [name for name in NETWORKS if not sys.argv[1:] or any(word in name for word in sys.argv[1:])]
    os.sched_setaffinity(0, CORES[-1:])
    pictures = jpegs()
    rows = [
        measure(name, spec, side, WANTED if judged else None, pictures)
        for name, (spec, side, judged) in NETWORKS.items()
        if name in chosen
    ]
    report("serving", "Serving against the bare network", rows)


if __name__ == "__main__":
    main()
