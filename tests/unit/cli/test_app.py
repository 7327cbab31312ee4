"""The command line says what it is and what it can do."""

from __future__ import annotations

from importlib import metadata

import pytest
from typer.testing import CliRunner

from asyncopd.cli.app import app

COMMANDS = ("train", "eval", "sft", "bootstrap", "serve", "bench", "doctor")


def test_the_version_is_the_installed_one():
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output.strip()) == (0, metadata.version("asyncopd"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command):
    done = CliRunner().invoke(app, [command, "--help"])
    assert done.exit_code == 0
    assert "Usage" in done.output


def test_without_a_command_there_is_help():
    assert "train" in CliRunner().invoke(app, []).output
