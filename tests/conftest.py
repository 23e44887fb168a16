"""How the project's own tests are run: on the build that stands, in as many processes as there are cores.

Native tests need a built llama.cpp. They take the one that is there and never move the work tree; only where nothing
is built yet, the default pin is fetched, patched and built first. `--prepare` does that in any case, and
PYGGML_TESTS_PIN names another pin for it. A test with `@pytest.mark.patch("NAME")` is skipped if that patch is not in
the build; a proof in series.toml needs its patch without saying so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyggml.errors import PyggmlError
from tests.kill_points import SEED
from tests.tested_build import (
    PIN,
    PREPARED,
    find_tested_build,
    make_build,
    refresh_bindings,
    remember,
    remembered,
)

# A run that only finds out whether there are native tests ends with this.
ASKED, NATIVE = "PYGGML_TESTS_ASKED", 77


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pyggml's own tests")
    group.addoption(
        "--prepare",
        action="store_true",
        help="fetch, apply the whole series and build before the native tests",
    )
    group.addoption(
        "--kill-seed",
        type=int,
        metavar="N",
        help="which third of the kill points to take; slow tests take all",
    )
    group.addoption(
        "--walks", type=int, default=50, metavar="N", help="how many random walks to take (a slow test)"
    )
    group.addoption(
        "--contexts", type=int, default=100, metavar="N", help="how many random contexts to try (a slow test)"
    )
    group.addoption(
        "--operations",
        type=int,
        default=40,
        metavar="N",
        help="how many random sequences of memory operations (a slow test)",
    )
    group.addoption(
        "--context-seed", type=int, default=0, metavar="N", help="the number of the first of both"
    )
    group.addoption("--walk-seed", type=int, default=0, metavar="N", help="which random walks")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One process for single files and tests, so that they start at once and print; and for a GPU, which is one."""
    single = all(Path(arg.partition("::")[0]).suffix == ".py" for arg in config.args)
    return 0 if single or config.option.markexpr == "gpu" or ASKED in os.environ else None


def pytest_configure(config: pytest.Config) -> None:
    seed = config.option.kill_seed
    # Workers and isolated tests have to take the same points.
    if seed is not None or SEED not in os.environ:
        os.environ[SEED] = str(int(time.time()) % 3 if seed is None else seed)


def pytest_report_header(config: pytest.Config) -> list[str]:
    build = (
        "a build that is made before the first native test"
        if must_make_build(config)
        else find_tested_build()
    )
    return [f"pyggml: testing {build}", f"kill points: --kill-seed {os.environ[SEED]}"]


def pytest_sessionstart(session: pytest.Session) -> None:
    """With several workers, it is the process that starts them that makes the build: it alone can say so."""
    config = session.config
    distributed = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if distributed and (not must_make_build(config) or has_native_tests(config)):
        see_to_the_build(config)


def pytest_collection_finish(session: pytest.Session) -> None:
    native = [item for item in session.items if item.get_closest_marker("native")]
    if os.environ.get(ASKED):
        pytest.exit("asked", returncode=NATIVE if native else 0)
    if not native or session.config.option.collectonly:
        return
    see_to_the_build(session.config)
    build = remembered()
    if build is None:
        return
    for item in native:
        names = [name for mark in item.iter_markers("patch") for name in mark.args]
        lacking = [name for name in names if name in build.missing]
        lacking += build.proofs.get(item.nodeid.partition("[")[0], ())
        if lacking:
            item.add_marker(
                pytest.mark.skip(reason=f"the build is without {', '.join(dict.fromkeys(lacking))}")
            )


def must_make_build(config: pytest.Config) -> bool:
    return config.option.prepare or PIN in os.environ or find_tested_build() is None


def has_native_tests(config: pytest.Config) -> bool:
    """Whether these arguments select a test that needs the build."""
    command = [sys.executable, "-m", "pytest", *config.invocation_params.args, "--collect-only", "-q", "-n0"]
    done = subprocess.run(
        command, cwd=config.invocation_params.dir, env={**os.environ, ASKED: "1"}, capture_output=True
    )
    return done.returncode == NATIVE


def see_to_the_build(config: pytest.Config) -> None:
    """Once in a run: find the build that stands, or make one."""
    if os.environ.get(PREPARED):
        return
    os.environ[PREPARED] = "1"
    reporter = config.pluginmanager.get_plugin("terminalreporter")

    def say(text: str) -> None:
        reporter.write_line(text)
        sys.stdout.flush()

    try:
        if must_make_build(config):
            make_build(say, apply=config.option.prepare or PIN in os.environ)
        build = find_tested_build()
        if build is not None and not build.changed:
            refresh_bindings(say)
    except PyggmlError as error:
        pytest.exit(f"the native tests cannot be prepared: {error}", returncode=1)
    if build is not None:
        remember(build)
