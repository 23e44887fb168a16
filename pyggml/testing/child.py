"""The isolated test's process: its parent's pytest run with this one test, reporting what happens."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Generator
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

from pyggml.testing import expectation
from pyggml.testing.process import read_text
from pyggml.testing.reports import to_document

CHILD = pytest.StashKey[bool]()
"""In the configuration's stash if the run is such a process."""

# Options that are the parent's alone, set where the plugin that owns them is there.
OPTIONS: dict[str, Any] = {
    "maxfail": 0,
    "usepdb": False,
    "trace": False,
    "keyword": "",
    "markexpr": "",
    "deselect": None,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "cacheclear": False,
    "stepwise": False,
    "setupshow": False,
    "xmlpath": None,
    "log_file_mode": "a",
    "pastebin": None,
    "numprocesses": None,
    "maxprocesses": None,
    "dist": "no",
    "distload": False,
    "tx": [],
    "looponfail": False,
    "htmlpath": None,
    "report_log": None,
    "json_report": False,
}
_DROPPED = ("lfplugin", "nfplugin", "faulthandler")


class IsolatedRun:
    """A plugin that runs the one test out of what is collected and reports, one JSON document per line:

    `{"kind": "start"}`, the test begins; `{"kind": "phase", "when": ..., "written": {output: bytes}}`,
    setup, call or teardown begins; `{"kind": "report", "report": ...}`; `{"kind": "warning", ...}`;
    `{"kind": "expect", "expect": {"match": regex or None} or None}`, an abort is expected, or no longer;
    `{"kind": "problem", "text": ...}`, the test cannot be run; `{"kind": "exit", "text": ...}`, the whole
    run is to end.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._told: int = job["told"]
        self._outputs: dict[str, int] = job["outputs"]

    def tell(self, kind: str, **content: Any) -> None:
        document = json.dumps({"kind": kind, **content}, default=str)
        os.write(self._told, document.encode("utf-8", "surrogatepass") + b"\n")

    def expect(self, expected: expectation.ExpectedAbort | None) -> None:
        self.tell("expect", expect=None if expected is None else {"match": expected.match})

    def _written(self) -> dict[str, int]:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError):
                stream.flush()
        return {name: os.fstat(descriptor).st_size for name, descriptor in self._outputs.items()}

    @pytest.hookimpl(wrapper=True)
    def pytest_cmdline_parse(self) -> Generator[None, pytest.Config, pytest.Config]:
        config = yield
        for name, value in OPTIONS.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)
        config.option.basetemp = self._job["basetemp"]
        config.args = [self._job["target"]]
        config.stash[CHILD] = True
        if self._job["worker"] is not None:
            import execnet

            config.workerinput = execnet.loads(bytes.fromhex(self._job["worker"]))  # type: ignore[attr-defined]
            config.workeroutput = {}  # type: ignore[attr-defined]
        return config

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        for name in _DROPPED:
            if config.pluginmanager.has_plugin(name):
                config.pluginmanager.unregister(name=name)
        # Comparisons ask the reporter for colours, so there must be one.
        if config.pluginmanager.has_plugin("terminalreporter"):
            config.pluginmanager.unregister(name="terminalreporter")
            nowhere = TerminalReporter(config, io.StringIO())
            config.pluginmanager.register(_Silent(nowhere), "terminalreporter")
        faulthandler.enable(self._job["fault"])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        wanted = (self._job["parent"], self._job["name"])
        matching = [item for item in items if item.parent and (item.parent.nodeid, item.name) == wanted]
        if items and not matching:
            self.tell("problem", text=f"collecting {self._job['target']} again did not give this test")
        items[:] = matching[:1]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tell("problem", text=f"collecting it failed:\n{report.longreprtext}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        # Otherwise each of the five garbage collections that pytest makes at the end goes through all of pytest.
        gc.freeze()
        if self._job["timeout"] is not None:
            faulthandler.dump_traceback_later(self._job["timeout"], exit=True, file=self._job["fault"])
        log = logging.StreamHandler(os.fdopen(os.dup(self._outputs["log"]), "w", encoding="utf-8"))
        log.setFormatter(logging.Formatter("%(levelname)-8s %(name)s:%(filename)s:%(lineno)d %(message)s"))
        logging.getLogger().addHandler(log)
        self.tell("start")
        try:
            return (yield)
        finally:
            logging.getLogger().removeHandler(log)
            log.stream.close()

    def _phase(self, item: pytest.Item, when: str) -> Generator[None, object, object]:
        before = self._written()
        self.tell("phase", when=when, written=before)
        try:
            return (yield)
        finally:
            self._written()
            for name, descriptor in self._outputs.items():
                # pytest itself captures the log.
                text = read_text(descriptor, before[name]) if name != "log" else ""
                if text:
                    item.add_report_section(when, name, text)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._phase(item, "setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._phase(item, "call"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._phase(item, "teardown"))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tell("report", report=to_document(self._config, report))

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._config = session.config

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        if when == "runtest":
            category = warning_message.category
            self.tell(
                "warning",
                text=str(warning_message.message),
                module=category.__module__,
                category=category.__name__,
                file=warning_message.filename,
                line=warning_message.lineno,
                location=location,
            )

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self.tell("exit", text=str(excinfo.value) or type(excinfo.value).__name__)


class _Silent:
    """A reporter without pytest's hooks; its summary at the end alone would take a second."""

    def __init__(self, reporter: TerminalReporter) -> None:
        self._reporter = reporter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reporter, name)


def run(job: dict[str, Any]) -> int:
    """Run the job's test. Returns: the exit status of pytest."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        # Otherwise what C prints just before it dies is lost with its buffer.
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)
    arguments = list(job["arguments"])
    # The outputs are files already; what pytest captures would be lost with the process.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    # pyggml is imported before pytest could rewrite its asserts; it has none that tests should see.
    quiet = "ignore:Module already imported so cannot be rewritten; pyggml"
    arguments[end:end] = ["--capture=no", "-W", quiet]
    plugin = IsolatedRun(job)
    expectation.listen(plugin.expect)
    return int(pytest.main(arguments, plugins=[plugin]))
