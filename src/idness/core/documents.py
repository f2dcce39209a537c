"""The file formats of idness: versioned JSON, and safetensors files that the JSON names together with their hashes."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from idness.core.errors import StoreError
from idness.core.files import atomic_write, sha256_of
from idness.core.text import shorten

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
CHECKSUM = "checksum"
_PLAIN = methodcaller("item")  # converts NumPy and torch scalars


@dataclass(frozen=True, kw_only=True)
class Document(Generic[T]):
    """A JSON file format: reads and writes such files and the files that they name.

    `content` is a dataclass or a TypedDict, whose types are checked. `version` is stored in the field `key`; newer versions are rejected.
    `absent` and `remedy` are the advice for a missing and a damaged file. A `sealed` file contains a hash of its own content.
    """

    content: type[T]
    version: int
    key: str = "format"
    absent: str
    remedy: str
    sealed: bool = False
    finite: bool = True

    def read(self, path: str | os.PathLike[str]) -> T:
        """Return the content of a file."""
        return self.parse(self.bytes_of(Path(path)), path)

    def parse(self, text: str | bytes, name: object) -> T:
        """Return the content of a file's text; `name` is shown in errors."""
        try:
            values = json.loads(text)
            # File names may contain lone surrogates, which the json module accepts and pydantic rejects.
            plain = json.dumps(values, ensure_ascii=False, allow_nan=not self.finite).encode(errors="replace")
        except (ValueError, RecursionError) as error:
            raise self.damaged(name, f"not JSON: {error}") from error
        version = values.get(self.key) if isinstance(values, dict) else None
        if type(version) is not int or version < 1:
            raise self.damaged(name, f"{self.key} must be a whole number of at least 1")
        if version > self.version:
            raise StoreError(f"{name}: {self.key} {version} is newer than {self.version}; update idness")
        if self.sealed and values.pop(CHECKSUM, None) != checksum(values):
            raise self.damaged(name, "its checksum does not match its content")
        try:
            return self._adapter.validate_json(plain, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            got = "" if first["type"] == "missing" else f", got {first['input']!r}"
            raise self.damaged(name, f"{'.'.join(map(str, first['loc']))}: {first['msg']}{got}") from error

    def text(self, values: T | Mapping[str, Any]) -> str:
        """Return the text of a file."""
        plain: Mapping[str, Any] = dataclasses.asdict(values) if dataclasses.is_dataclass(values) else values  # type: ignore[arg-type, assignment]
        content = {self.key: self.version, **plain}
        if self.sealed:
            content[CHECKSUM] = checksum(content)
        return json.dumps(content, indent=1, allow_nan=not self.finite, default=_PLAIN) + "\n"

    def write(self, path: Path, values: T | Mapping[str, Any]) -> Path:
        """Write a file atomically and return its path."""
        return atomic_write(path, self.text(values))

    def bytes_of(self, path: Path, sha256: str | None = None) -> bytes:
        """Return the bytes of the JSON file or of a file that it names, and check the hash if given."""
        try:
            if not path.is_file():  # reading a pipe or a device might never end
                lacks = f": contains no {path.name}" if path.parent.exists() else " does not exist"
                raise StoreError(f"{path.parent}{lacks}; {self.absent}")
            found = path.read_bytes()
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror or error}; {self.remedy}") from error
        if sha256 is not None and sha256_of(found) != sha256:
            raise self.damaged(path, "its sha256 does not match the saved one")
        return found

    def tensors(self, path: Path, sha256: str | None = None) -> dict[str, Tensor]:
        """Return the tensors of a safetensors file that the document names, and check the hash if given."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        content = self.bytes_of(path, sha256)
        try:
            tensors: dict[str, Tensor] = load(content)
        except SafetensorError as error:
            raise self.damaged(path, str(error)) from error
        return tensors

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        return TypeAdapter(self.content)

    def damaged(self, name: object, why: str) -> StoreError:
        """Return the error for a damaged file."""
        return StoreError(f"{name}: is damaged ({shorten(why, 200)}); {self.remedy}")


def packed(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return named tensors or arrays as the bytes of a safetensors file; its metadata is sorted by name."""
    import torch
    from safetensors.torch import save

    # Copied, because safetensors rejects shared memory (tied weights) and non-contiguous tensors (channels_last).
    plain = {name: torch.as_tensor(value).detach().cpu().contiguous().clone() for name, value in tensors.items()}
    content: bytes = save(plain, None if metadata is None else dict(metadata))
    if metadata is None:
        return content
    # safetensors writes metadata in random order; sorting it makes equal content equal bytes.
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text + content[end:]


def checksum(values: Mapping[str, Any]) -> str:
    """Return a hash of plain values, independent of the order of keys."""
    return sha256_of(json.dumps(values, sort_keys=True, default=_PLAIN))
