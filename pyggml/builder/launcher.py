"""The script that starts the compilers of a build: through a compiler cache where there is one.

CMake is given the script instead of the cache, so a cache can come and go without a new configuration and without
compiling everything again: only the script changes.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from pyggml.files import write_atomic

FILE = "pyggml-compile"


def write_launcher(directory: Path, source: Path, cache: Path | None) -> None:
    """Write the script of the build in `directory`, if it is not there already.

    ccache is told which directory holds both the tree and the build (`base_dir`), so it recognises what was compiled
    in another clone. A setting in the user's environment wins.
    """
    lines = ["#!/bin/sh", "# Written by pyggml for each build."]
    if cache is not None:
        base, program = os.path.commonpath([source, directory]), shlex.quote(str(cache))
        if base != os.path.sep:
            lines.append(f'[ -n "$CCACHE_BASEDIR" ] || export CCACHE_BASEDIR={shlex.quote(base)}')
        lines.append(f'[ -x {program} ] && exec {program} "$@"')
    content = os.fsencode("\n".join([*lines, 'exec "$@"', ""]))
    script = directory / FILE
    if not script.is_file() or script.read_bytes() != content:
        write_atomic(script, content)
    script.chmod(0o755)
