"""The one place that starts git.

A user's configuration changes git's output in many ways (prefixes, context lines, signatures, hooks, editors,
quoting), and so does the environment if pyggml is started from a git hook. Every run here names its repository,
pins its configuration and scrubs its environment, so that the same input gives the same bytes everywhere. Data in
and out is `bytes`: patches are not text.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyggml.errors import PyggmlError

OLDEST_GIT = (2, 38)
"""2.38 brought `git merge-tree --write-tree`, which every merge here uses."""

_PINNED = {
    "advice.detachedHead": "false",
    "apply.ignoreWhitespace": "no",
    "apply.whitespace": "nowarn",
    "commit.gpgSign": "false",
    "core.abbrev": "12",
    "core.attributesFile": os.devnull,
    "core.autocrlf": "false",
    "core.bigFileThreshold": "512m",
    "core.compression": "1",
    "core.excludesFile": os.devnull,
    "core.fileMode": "true",
    "core.fsmonitor": "false",
    "core.fsync": "objects,reference",
    "core.hooksPath": os.devnull,
    "core.ignoreCase": "false",
    "core.logAllRefUpdates": "true",
    "core.pager": "cat",
    "core.protectHFS": "true",
    "core.protectNTFS": "false",
    "core.quotePath": "false",
    "core.safecrlf": "false",
    "core.splitIndex": "false",
    "core.untrackedCache": "false",
    "core.whitespace": "",
    "diff.algorithm": "myers",
    "diff.context": "3",
    "diff.indentHeuristic": "true",
    "diff.interHunkContext": "0",
    "diff.mnemonicPrefix": "false",
    "diff.noprefix": "false",
    "diff.orderFile": os.devnull,
    "diff.relative": "false",
    "diff.renameLimit": "1000",
    "diff.renames": "true",
    "diff.suppressBlankEmpty": "false",
    "gc.auto": "0",
    "i18n.commitEncoding": "UTF-8",
    "i18n.logOutputEncoding": "UTF-8",
    "mailinfo.scissors": "false",
    "maintenance.auto": "false",
    "merge.conflictStyle": "merge",
    "merge.directoryRenames": "false",
    "merge.renameLimit": "7000",
    "merge.renames": "true",
    "merge.renormalize": "false",
    "merge.verifySignatures": "false",
    "safe.directory": "*",
    "submodule.recurse": "false",
    "user.useConfigOnly": "false",
}
PIN_ARGS = tuple(arg for key, value in _PINNED.items() for arg in ("-c", f"{key}={value}"))

DIFF_FORMAT = (
    "--full-index",
    "--binary",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--unified=3",
    "--inter-hunk-context=0",
    "--diff-algorithm=myers",
    "--indent-heuristic",
)
"""The options for every command that prints a diff: the same bytes everywhere."""

_KEPT_FROM_ENVIRONMENT = ("GIT_SSL_", "GIT_SSH", "GIT_PROXY_", "GIT_HTTP_", "GIT_ASKPASS", "GIT_EXEC_PATH")


class GitError(PyggmlError):
    """git exited with a status that the caller did not expect."""

    def __init__(self, args: Sequence[str], status: int, stderr: bytes) -> None:
        text = stderr.decode("utf-8", "replace").strip()
        verb = next((arg for arg in args if not arg.startswith("-")), "git")
        hint = None
        if "No space left on device" in text or "unable to write" in text:
            hint = "The disk seems to be full: make room and run the same command again."
        elif "Permission denied" in text:
            hint = "Get write access to it (or become its owner), then run the same command again."
        lines = [line for line in text.splitlines() if line.strip()]
        reason = "; ".join(lines[-2:]) if lines else f"exit status {status}"
        super().__init__(f"git {verb}: {reason}", hint)
        self.status = status
        self.stderr = text


def scrubbed_environment(
    extra: Mapping[str, str] | None = None, *, user_config: bool = False
) -> dict[str, str]:
    """The environment for a git process, without any `GIT_*` variable except those for network access.

    With `user_config` the user's own configuration files apply (proxies, credentials, `insteadOf`, name and
    e-mail).
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith(_KEPT_FROM_ENVIRONMENT)
    }
    env.update(
        LC_ALL="C", LANGUAGE="C", TZ="UTC", GIT_TERMINAL_PROMPT="0", GIT_EDITOR="false", GIT_PAGER="cat"
    )
    if not user_config:
        env.update(GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_SYSTEM=os.devnull, GIT_CONFIG_NOSYSTEM="1")
        env.update(GIT_ATTR_NOSYSTEM="1")
    if extra:
        env.update(extra)
    return env


@dataclass(frozen=True)
class Git:
    """One repository, named explicitly, with an optional private index.

    Attributes:
        git_dir: the repository itself (`…/.git`).
        work_tree: the directory whose files it tracks; None if no command needs one.
        index: an index file other than the repository's own.
    """

    git_dir: Path
    work_tree: Path | None = None
    index: Path | None = None

    def with_index(self, index: Path) -> Git:
        """The same repository with `index` as its index file."""
        return replace(self, index=index)

    def run(
        self,
        *args: str,
        stdin: bytes | None = None,
        ok: Sequence[int] = (0,),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> bytes:
        """Run `git *args` and return its standard output.

        Raises:
            GitError: the exit status is not one of `ok`.
            PyggmlError: there is no git.
        """
        return self.status(*args, stdin=stdin, ok=ok, env=env, cwd=cwd)[1]

    def status(
        self,
        *args: str,
        stdin: bytes | None = None,
        ok: Sequence[int] = (0, 1),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> tuple[int, bytes]:
        """As `run`, for commands whose exit status is an answer: (exit status, standard output)."""
        extra = {"GIT_DIR": str(self.git_dir.absolute())}
        if self.work_tree is not None:
            extra["GIT_WORK_TREE"] = str(self.work_tree.absolute())
        if self.index is not None:
            extra["GIT_INDEX_FILE"] = str(self.index.absolute())
        extra.update(env or {})
        where = cwd or self.work_tree
        done = _start(["git", *PIN_ARGS, *args], stdin, scrubbed_environment(extra), where)
        if done.returncode not in ok:
            raise GitError(args, done.returncode, done.stderr)
        return done.returncode, done.stdout

    def text(self, *args: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None) -> str:
        """As `run`, decoded (undecodable bytes become surrogates) and without the last newline."""
        return self.run(*args, stdin=stdin, env=env).decode("utf-8", "surrogateescape").removesuffix("\n")

    def resolve(self, name: str) -> str | None:
        """The object id that `name` stands for, or None."""
        status, out = self.status("rev-parse", "--verify", "--quiet", "--end-of-options", name)
        return out.decode().strip() if status == 0 else None


def run_outside(
    *args: str,
    cwd: Path | None = None,
    user_config: bool = False,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
) -> bytes:
    """Run a git command that needs no repository of ours (`init`, `ls-remote`, `mailinfo`).

    Raises:
        GitError: git failed.
    """
    pinned = () if user_config else PIN_ARGS
    done = _start(["git", *pinned, *args], stdin, scrubbed_environment(env, user_config=user_config), cwd)
    if done.returncode != 0:
        raise GitError(args, done.returncode, done.stderr)
    return done.stdout


def _start(
    command: list[str], stdin: bytes | None, env: dict[str, str], cwd: Path | None
) -> subprocess.CompletedProcess[bytes]:
    where = cwd if cwd is not None and cwd.is_dir() else None
    try:
        return subprocess.run(
            command,
            input=stdin if stdin is not None else b"",
            capture_output=True,
            env=env,
            cwd=where,
            check=False,
        )
    except FileNotFoundError as error:
        raise PyggmlError(
            "git is not on PATH", "Install git 2.38 or newer and run the command again."
        ) from error


def require_git() -> None:
    """Refuse a git that is too old for the series.

    Raises:
        PyggmlError: there is no git, or it is older than `OLDEST_GIT`.
    """
    version = git_version()
    if version < OLDEST_GIT:
        raise PyggmlError(
            f"git {'.'.join(map(str, version))} is too old",
            "Install git 2.38 or newer and run the command again.",
        )


def git_version() -> tuple[int, ...]:
    """The version of the git on PATH, e.g. (2, 39, 5).

    Raises:
        PyggmlError: there is no git.
    """
    words = run_outside("version").decode("ascii", "replace").split()
    return tuple(int(part) for part in words[2].split(".") if part.isdigit())
