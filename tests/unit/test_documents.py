"""Pages that are written by a script are as the script writes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_configuration_page_is_up_to_date():
    command = [sys.executable, str(ROOT / "scripts" / "document_configuration.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
