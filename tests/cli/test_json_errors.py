"""After --json, what ends a command is one JSON document on standard output; standard error stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import run_here


def error_of(*args: str, cwd: Path) -> tuple[dict[str, object], str]:
    ended = run_here(*args, cwd=cwd)
    document = json.loads(ended.out)
    assert list(document) == ["error"]
    assert document["error"]["exit_code"] == ended.code
    return document["error"], ended.err


def test_our_own_errors(tmp_path: Path) -> None:
    told, err = error_of("--project", str(tmp_path), "vendor", "list", "--json", cwd=tmp_path)
    assert told["exit_code"] == 2
    assert f"{tmp_path} is not a pyggml project" in str(told["message"])
    assert err == f"pyggml: {told['message']}\n{told['hint']}\n"


def test_wrong_usage(tmp_path: Path) -> None:
    told, err = error_of("patch", "show", "--json", cwd=tmp_path)
    assert told == {"message": "Missing argument 'WHICH'.", "hint": None, "exit_code": 2}
    assert "Usage: pyggml patch show" in err


def test_what_the_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyggml.models import packaged

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr(packaged, "get_model", denied)
    told, err = error_of("model", "get", "smollm2", "--json", cwd=tmp_path)
    assert told["message"] == "/some/file: Permission denied"
    assert str(told["hint"]).startswith("Get write access to it")
    assert err.splitlines()[0] == "pyggml: /some/file: Permission denied"


def test_without_json_nothing_is_added(tmp_path: Path) -> None:
    ended = run_here("--project", str(tmp_path), "vendor", "list", cwd=tmp_path)
    assert (ended.out, ended.code) == ("", 2)
