"""The command line imports little at start and explains itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pyggml.cli.main import COMMANDS, cli

HEAVY = ["git", "numpy", "requests", "rich", "tomlkit", "cffi", "pypi_simple", "filelock"]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from pyggml.cli.main import cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    for name, (_, help_text) in COMMANDS.items():
        assert name in done.stdout and help_text.split()[0] in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_of_its_own(name: str) -> None:
    from click.testing import CliRunner

    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output and len(result.output.splitlines()) > 5


def test_every_patch_command_takes_json() -> None:
    from pyggml.cli.patch import patch

    for name, command in patch.commands.items():
        assert any(p.name == "as_json" for p in command.params), name
