"""The pytest plugin: `isolated` and `expects_abort` tests run in a process of their own, plus fixtures.

It is loaded into every pytest run of an environment that has pyggml, so it imports nothing heavy.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator
from typing import Any

import pytest

pytest_plugins = ("pyggml.testing.fixtures",)

NO_ISOLATION = "--pyggml-no-isolation"
DEFAULT_TIMEOUT = 60.0
"""Seconds."""

_REACHING = (pytest.exit.Exception, KeyboardInterrupt)
_numbers = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("pyggml").addoption(
        NO_ISOLATION,
        action="store_true",
        default=False,
        help="run isolated tests in this process, for a debugger; an abort then ends the whole run",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"isolated(timeout={DEFAULT_TIMEOUT:g}): run the test in a process of its own, so that an abort, a "
        "crash or a hang fails only this test; timeout in seconds from the start of its setup, None for none",
    )
    config.addinivalue_line(
        "markers",
        "expects_abort(match=None): the isolated test passes only if it aborts and the regular expression "
        "matches somewhere in the text of the failed assertion",
    )
    if config.option.pyggml_no_isolation:
        from pyggml.testing.expectation import listen

        # Nothing is left to judge the abort, but the way to it can be debugged.
        listen(lambda expected: None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    mark = item.get_closest_marker("expects_abort")
    if mark is None:
        return (yield)
    from pyggml.testing.expectation import expects_abort

    with expects_abort(*mark.args, **mark.kwargs):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not _isolates(item):
        return None
    from pyggml.testing import process, reports

    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    ended: list[process.EndedProcess] = []

    def run() -> list[pytest.TestReport]:
        timeout = _timeout(item)
        ended.append(process.run(_job(item, timeout)))
        reports.warn(item, ended[0])
        return reports.reports_of(item, ended[0], timeout)

    call = pytest.CallInfo.from_call(run, "setup", reraise=_REACHING)
    told = [_report(item, call)] if call.excinfo else call.result
    leaving = pytest.CallInfo.from_call(
        # Earlier tests of this process may have left fixtures that the next test does not share.
        lambda: item.session._setupstate.teardown_exact(nextitem),
        "teardown",
        reraise=_REACHING,
    )
    if leaving.excinfo and not call.excinfo:
        told.pop()
    if leaving.excinfo or call.excinfo:
        told.append(_report(item, leaving))
    for report in told:
        if report.failed and item.config.option.usepdb:
            report.sections.append(("isolated test", f"Debug it here with: {NO_ISOLATION} --pdb"))
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    for message in ended[0].messages if ended else ():
        if message["kind"] == "exit":
            pytest.exit(message["text"])
    return True


def _report(item: pytest.Item, call: pytest.CallInfo[Any]) -> pytest.TestReport:
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    return report


def _isolates(item: pytest.Item) -> bool:
    if not any(item.get_closest_marker(name) for name in ("isolated", "expects_abort")):
        return False
    if item.get_closest_marker("skip"):
        return False  # pytest skips it; that takes no process
    options = item.config.option
    if options.pyggml_no_isolation or options.setuponly or options.setupplan:
        return False
    from pyggml.testing.child import CHILD

    return CHILD not in item.config.stash


def _timeout(item: pytest.Item) -> float | None:
    mark = item.get_closest_marker("isolated")
    timeout = DEFAULT_TIMEOUT
    if mark is not None:
        if mark.args or mark.kwargs.keys() - {"timeout"}:
            pytest.fail("isolated takes timeout=SECONDS and nothing else", pytrace=False)
        timeout = mark.kwargs.get("timeout", timeout)
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        pytest.fail(f"the timeout must be a number of seconds, not {timeout!r}", pytrace=False)
    return timeout


def _job(item: pytest.Item, timeout: float | None) -> Any:
    from pyggml.testing.process import IsolatedJob

    config = item.config
    target = str(item.path)
    if isinstance(item, pytest.Function):
        # By collecting the one function, pytest need not expand the parameters of all the others.
        within = [node.name for node in item.listchain() if isinstance(node, pytest.Class)]
        target = "::".join((target, *within, item.originalname))
    factory = getattr(config, "_tmp_path_factory", None)
    worker = None
    if hasattr(config, "workerinput"):
        import execnet

        worker = execnet.dumps(config.workerinput).hex()
    return IsolatedJob(
        arguments=[str(argument) for argument in config.invocation_params.args],
        directory=config.invocation_params.dir,
        target=target,
        parent=item.parent.nodeid if item.parent else "",
        name=item.name,
        timeout=timeout,
        basetemp=None if factory is None else str(factory.getbasetemp() / f"isolated-{next(_numbers)}"),
        worker=worker,
        inherit=config.option.capture == "no",
    )
