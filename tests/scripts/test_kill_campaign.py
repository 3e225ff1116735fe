"""The kill campaign in small."""

import subprocess
import sys

import pytest
from helpers.paths import TESTS


@pytest.mark.slow
def test_a_few_kills():
    scenarios = [f"--scenarios={name}" for name in ("ner", "shards", "conversion")]
    command = [sys.executable, str(TESTS / "kill_campaign.py"), "--kills=6", "--seed=2", *scenarios]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "kills in 3 scenarios: all runs ended with the same files." in result.stdout
