"""Checkpoints appear whole or not at all; a directory is never used twice by mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncopd.config.loading import load
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


def test_other_directories_among_the_checkpoints_do_not_count(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.create(CONFIG)
    with directory.new_checkpoint(5) as path:
        (path / "weights").write_text("5")
    (directory.checkpoints / "step-five").mkdir()
    (directory.checkpoints / ".step-7.partial").mkdir()
    assert directory.latest_checkpoint().name == "step-5"
    directory.tidy()
    assert sorted(path.name for path in directory.checkpoints.iterdir()) == ["step-5", "step-five"]


def test_a_directory_has_one_process_at_a_time(tmp_path):
    code = (
        "import sys; from pathlib import Path; from asyncopd.runtime.run_directory import RunDirectory\n"
        "with RunDirectory(Path(sys.argv[1])).locked(): print('had')"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with RunDirectory(tmp_path).locked():
        other = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "another process is at this run" in other.stderr
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "had\n"


@pytest.mark.parametrize(
    ("field", "value"), [("run.steps", 61), ("run.seed", 1), ("scheduler.batch_size", 8), ("learner.optimizer.lr", 1.0)]
)
def test_what_decides_what_is_learned_cannot_change_at_resume(tmp_path, field, value):
    directory = RunDirectory(tmp_path)
    directory.create(CONFIG)
    directory.journal.touch()
    with pytest.raises(UserError, match=rf"{field} {value}: the run in .* began with"):
        directory.check_resumable(_with(field, value))


@pytest.mark.parametrize(
    ("field", "value"), [("run.dir", "elsewhere"), ("runtime.watchdog_s", 5.0), ("scoring.timeout_s", 5.0)]
)
def test_where_and_how_long_may_change_at_resume(tmp_path, field, value):
    directory = RunDirectory(tmp_path)
    directory.create(CONFIG)
    directory.journal.touch()
    directory.check_resumable(_with(field, value))


def test_the_configuration_of_a_run_directory_means_that_run_wherever_it_lies(tmp_path):
    directory = RunDirectory(tmp_path / "moved")
    directory.create(_with("run.dir", "where/it/was"))
    config = load(directory.config, (), TrainConfig)
    assert RunDirectory.meant(directory.config, (), config.run).path == directory.path
    assert RunDirectory.meant(directory.config, ["run.dir=new"], _with("run.dir", "new").run).path == Path("new")


def _with(dotted, value):
    data = CONFIG.model_dump(mode="json")
    *sections, field = dotted.split(".")
    section = data
    for name in sections:
        section = section[name]
    section[field] = value
    return TrainConfig.model_validate(data)
