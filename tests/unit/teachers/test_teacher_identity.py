"""No two teachers share an identity, and reading a model twice costs nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncopd.config.teacher import TeacherSection
from asyncopd.errors import UserError
from asyncopd_teachers import identity
from asyncopd_teachers.torch import TorchTeacher


def name(directory: Path, **options: object) -> str:
    return TorchTeacher(directory, TeacherSection(model="x", **options), threads=1, tools=[]).identity


def test_weights_dtype_and_template_are_part_of_the_identity(checkpoint: Callable[[int], Path], tmp_path: Path) -> None:
    template = tmp_path / "other.jinja"
    template.write_text("{{ messages }}")
    names = {
        name(checkpoint(0)),
        name(checkpoint(2)),
        name(checkpoint(0), dtype="bfloat16"),
        name(checkpoint(0), chat_template=str(template)),
    }
    assert len(names) == 4


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"])
def test_any_file_of_the_model_changes_the_identity(
    file: str, checkpoint: Callable[[int], Path], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint(0), copy)
    assert identity.checkpoint_hash(copy) == identity.checkpoint_hash(checkpoint(0))
    content = bytearray((copy / file).read_bytes())
    content[-1] ^= 1
    (copy / file).write_bytes(content)
    status = (copy / file).stat()
    os.utime(copy / file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert identity.checkpoint_hash(copy) != identity.checkpoint_hash(checkpoint(0))


def test_an_unchanged_file_is_read_once(checkpoint: Callable[[int], Path]) -> None:
    identity.checkpoint_hash(checkpoint(0))
    misses = identity._content_hash.cache_info().misses
    identity.checkpoint_hash(checkpoint(0))
    assert identity._content_hash.cache_info().misses == misses


def test_options_are_refused(checkpoint: Callable[[int], Path]) -> None:
    with pytest.raises(UserError, match="got depth"):
        name(checkpoint(0), options={"depth": 3})
