"""Checkpoints appear whole or not at all; a directory is never used twice by mistake."""

from __future__ import annotations

import json
import os

import pytest

from asyncopd.config.root import TrainConfig
from asyncopd.errors import UserError
from asyncopd.runtime.run_directory import RunDirectory

CONFIG = TrainConfig.model_validate(
    {"student": {"model": "a"}, "teacher": {"model": "b"}, "environment": {"use": "calculator"}}
)


def test_a_new_directory_describes_itself(tmp_path):
    directory = RunDirectory(tmp_path / "run with space")
    directory.check_new()
    directory.create(CONFIG)
    assert "torch" in json.loads(directory.environment.read_text())["packages"]
    assert directory.config.read_text().startswith("run:")


def test_a_directory_that_holds_a_run_is_refused(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.journal.write_text("")
    with pytest.raises(UserError, match="--resume"):
        directory.check_new()


def test_a_directory_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        RunDirectory(tmp_path / "file" / "run").check_new()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot be written"):
        RunDirectory(tmp_path / "run").check_new()


def test_a_checkpoint_that_fails_half_way_does_not_count(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.create(CONFIG)
    with directory.new_checkpoint(20) as path:
        (path / "weights").write_text("20")
    with pytest.raises(OSError, match="full"), directory.new_checkpoint(40) as path:
        (path / "weights").write_text("4")
        raise OSError("full")
    assert directory.latest_checkpoint().name == "step-20"


def test_the_last_two_checkpoints_are_kept_and_the_highest_counts(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.create(CONFIG)
    for step in (5, 90, 100):
        with directory.new_checkpoint(step) as path:
            (path / "weights").write_text(str(step))
    assert sorted(path.name for path in directory.checkpoints.iterdir()) == ["step-100", "step-90"]
    assert directory.latest_checkpoint().name == "step-100"
