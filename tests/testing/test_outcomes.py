"""An isolated test that does not die is like any other."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.testing.conftest import Inner

pytest_plugins = ["pytester"]


def test_outcomes_come_back(inner: Inner) -> None:
    result = inner(
        """
@pytest.mark.isolated
class TestAll:
    def test_pass(self): pass
    def test_fail(self): assert [1, 2] == [1, 3]
    def test_skip(self): pytest.skip("not now")
    @pytest.mark.xfail(reason="known")
    def test_xfail(self): assert False
    @pytest.mark.xfail(reason="fixed")
    def test_xpass(self): pass
    @pytest.mark.xfail(strict=True, reason="fixed")
    def test_strict(self): pass
""",
        "-ra",
    )
    result.assert_outcomes(passed=1, failed=2, skipped=1, xfailed=1, xpassed=1)
    result.stdout.fnmatch_lines(
        [
            "E *assert [[]1, 2] == [[]1, 3]",
            "E *At index 1 diff: 2 != 3",
            "SKIPPED * not now",
            "XFAIL test_inner.py::TestAll::test_xfail - known",
            "XPASS test_inner.py::TestAll::test_xpass - fixed",
        ]
    )


def test_fixtures_and_parameters(inner: Inner, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
import pytest

@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    path = tmp_path_factory.mktemp("shared") / "file"
    path.write_text("content")
    yield path
"""
    )
    result = inner(
        """
@pytest.mark.isolated
@pytest.mark.parametrize("text", ["a::b", "[x]", "two words", "ü"])
def test_it(text, shared, tmp_path, monkeypatch, capfd, request):
    assert shared.read_text() == "content"
    assert text in ("a::b", "[x]", "two words", "ü") and tmp_path.is_dir()
    os.write(1, b"seen")
    assert capfd.readouterr().out == "seen"
""",
        "-v",
    )
    result.assert_outcomes(passed=4)


def test_it_runs_elsewhere_and_only_once(inner: Inner, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    source = f"""
@pytest.mark.isolated
def test_it(tmp_path):
    with open({str(note)!r}, "a") as file:
        file.write(f"{{os.getpid()}} {{os.getppid()}}\\n")
"""
    inner(source).assert_outcomes(passed=1)
    ((child, parent),) = re.findall(r"(\d+) (\d+)", note.read_text())
    note.unlink()
    inner(source, "--pyggml-no-isolation").assert_outcomes(passed=1)
    ((here, _),) = re.findall(r"(\d+) (\d+)", note.read_text())
    assert (parent, child) == (here, child) != (here, here)


def test_options_and_settings_hold_there_too(inner: Inner, pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\naddopts = --level=ini --strict-markers\nfilterwarnings =\n  error\n"
        "strict_config = true\nfaulthandler_timeout = 100\nmarkers =\n  slow: is slow\n"
    )
    pytester.makeconftest(
        "def pytest_addoption(parser):\n    parser.addoption('--level')\n    parser.addini('x', 'y')\n"
    )
    result = inner(
        """
import warnings

@pytest.mark.slow
@pytest.mark.isolated
def test_it(pytestconfig):
    assert pytestconfig.getoption("level") == "line"
    assert pytestconfig.getini("x") == "overridden"
    with pytest.raises(UserWarning):
        warnings.warn("raised", UserWarning)
""",
        "--level=line",
        "-o",
        "x=overridden",
        "-m",
        "slow",
        "-k",
        "it",
        "--maxfail=1",
        "--cache-clear",
    )
    result.assert_outcomes(passed=1)


def test_first_failure_stops_and_next_run_begins_there(inner: Inner) -> None:
    source = """
@pytest.mark.isolated
def test_a(): pass
@pytest.mark.isolated
def test_b(): os.abort()
@pytest.mark.isolated
def test_c(): pass
"""
    inner(source, "-x").assert_outcomes(passed=1, failed=1)
    inner(source, "--lf").assert_outcomes(failed=1)


def test_xml_and_durations(inner: Inner, pytester: pytest.Pytester) -> None:
    result = inner(
        """
@pytest.mark.isolated
def test_good(record_property):
    record_property("bytes", 42)
    time.sleep(0.3)
@pytest.mark.isolated
def test_bad(): os.abort()
""",
        "--junitxml=out.xml",
        "--durations=0",
    )
    result.stdout.re_match_lines([r"0\.\d+s call +test_inner.py::test_good"])
    suite = ElementTree.parse(pytester.path / "out.xml").getroot()[0]  # noqa: S314
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert set(cases) == {"test_good", "test_bad"}
    found = cases["test_good"].find("properties/property")
    assert found is not None
    assert found.attrib == {"name": "bytes", "value": "42"}
    failure = cases["test_bad"].find("failure")
    assert failure is not None
    assert "SIGABRT" in failure.get("message", "")


def test_parallel(inner: Inner) -> None:
    pytest.importorskip("xdist", reason="needs pytest-xdist")
    result = inner(
        """
@pytest.mark.isolated
@pytest.mark.parametrize("number", range(4))
def test_it(number, worker_id, tmp_path):
    assert worker_id in ("gw0", "gw1") and worker_id in str(tmp_path)
    if number == 2:
        os.abort()
""",
        "-n2",
        apart=True,
    )
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        ["E   the process was killed by SIGABRT (aborted)", "test_inner.py:9: SIGABRT"]
    )


def test_output_is_shown_at_once_without_capture(inner: Inner) -> None:
    result = inner(
        """
@pytest.mark.isolated
def test_it():
    print("shown at once")
""",
        "-s",
        apart=True,
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*shown at once*"])


def test_output_of_a_passing_test_stays_with_it(inner: Inner) -> None:
    source = """
@pytest.mark.isolated
def test_it():
    print("kept")
"""
    inner(source).stdout.no_fnmatch_line("*kept*")
    inner(source, "-rP").stdout.fnmatch_lines(["*Captured stdout call*", "kept"])


def test_warnings_come_back(inner: Inner) -> None:
    result = inner(
        """
import warnings

@pytest.mark.isolated
def test_it():
    warnings.warn("beware", DeprecationWarning)
"""
    )
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*DeprecationWarning: beware"])


def test_fixtures_of_the_run_itself_end_in_time(inner: Inner, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_inner2="def test_later():\n    pass\n",
    )
    result = inner(
        """
@pytest.fixture(scope="module")
def resource():
    yield
    raise ValueError("teardown of the module")

def test_first(resource): pass

@pytest.mark.isolated
def test_second(): pass
""",
    )
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(
        ["*ERROR at teardown of test_second*", "E*ValueError: teardown of the module"]
    )


def test_the_whole_run_can_be_ended(inner: Inner) -> None:
    result = inner(
        """
@pytest.mark.isolated
def test_a(): pytest.exit("enough")
def test_b(): pass
"""
    )
    result.assert_outcomes()
    result.stdout.fnmatch_lines(["*Exit: enough*"])


def test_a_file_that_cannot_be_collected_there(inner: Inner) -> None:
    result = inner(
        """
if "PYGGML_ABORT_FD" in os.environ:
    raise RuntimeError("only here")

@pytest.mark.isolated
def test_it(): pass
"""
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*collecting it failed*", "*RuntimeError: only here*"])


def test_unittest_classes(inner: Inner) -> None:
    result = inner(
        """
import unittest

@pytest.mark.isolated
class TestOld(unittest.TestCase):
    def test_good(self): self.assertEqual(1, 1)
    def test_bad(self): os.abort()
"""
    )
    result.assert_outcomes(passed=1, failed=1)


def test_a_debugger_is_not_offered_in_vain(inner: Inner) -> None:
    result = inner(
        """
@pytest.mark.isolated
def test_it(): assert False
""",
        "--pdb",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Debug it here with: --pyggml-no-isolation --pdb"])


def test_the_plugin_alone_loads_neither_numpy_nor_bindings() -> None:
    import subprocess
    import sys

    code = "import pyggml.testing.plugin, pyggml.testing.fixtures, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"numpy", "cffi", "pyggml.native", "pyggml.testing.process", "ctypes"}
