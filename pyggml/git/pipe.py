"""git processes that are written to and read from while they run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from typing import IO

from pyggml.errors import PyggmlError
from pyggml.git.runner import PIN_ARGS, Git, GitError, scrubbed_environment


@contextlib.contextmanager
def piped(git: Git, *args: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Run `git *args`; yields its standard input and its standard output.

    Standard input is closed at the end. An exception kills the process first, so that it never takes what it
    got so far for all of its input.

    Raises:
        GitError: it exited with an error; this is raised even if writing to it failed first.
        PyggmlError: there is no git.
    """
    env = scrubbed_environment({"GIT_DIR": str(git.git_dir.absolute())})
    with tempfile.TemporaryFile() as stderr:
        try:
            process = subprocess.Popen(
                ["git", *PIN_ARGS, *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=env,
                bufsize=1 << 20,
            )
        except FileNotFoundError as error:
            raise PyggmlError(
                "git is not on PATH", "Install git 2.38 or newer and run the command again."
            ) from error
        assert process.stdin is not None and process.stdout is not None  # noqa: S101
        try:
            yield process.stdin, process.stdout
            process.stdin.close()
        except BrokenPipeError:
            pass
        except BaseException:
            process.kill()
            raise
        finally:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.stdout.close()
            status = process.wait()
        if status != 0:
            stderr.seek(0, os.SEEK_SET)
            raise GitError(args, status, stderr.read())
