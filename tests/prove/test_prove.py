"""Verdicts of `patch prove`, and that the user's tree is never touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from series_helpers import Sandbox


def state_proofs(box: Sandbox, **proofs: tuple[list[str], str]) -> None:
    """Write proof (names of tests) and fails-with of each patch into series.toml."""
    path = box.patches / "series.toml"
    head, *entries = path.read_text().split("[[patch]]")
    for index, entry in enumerate(entries):
        name = entry.split('name = "', 1)[1].split('"')[0]
        nodes, reason = proofs.get(name, ([], ""))
        listed = ", ".join(f'"proofs/test_up.py::{node}"' for node in nodes)
        text = entry.replace("proof = []", f"proof = [{listed}]")
        entries[index] = text.replace("tree =", f'fails-with = "{reason}"\ntree =') if reason else text
    path.write_text("[[patch]]".join([head, *entries]))


def verdicts(box: Sandbox, *args: str, code: int = 1) -> dict[str, tuple[str, str]]:
    done = box.pyggml("patch", "prove", "--no-build", "--json", *args)
    assert done.code == code, done.out + done.err
    return {row["name"]: (row["verdict"], row["detail"]) for row in done.json["patches"]}


def test_all_proven_and_the_users_tree_is_left_alone(box: Sandbox) -> None:
    state_proofs(
        box,
        first=(["test_one"], "one is wrong"),
        middle=(["test_always"], ""),
        second=(["test_two"], "two is wrong"),
    )
    box.write("README.md", "edited\n")
    before = box.state()
    found = verdicts(box)
    assert found["first"] == ("proven", "one is wrong") and found["second"] == ("proven", "two is wrong")
    assert found["middle"][0] == "not needed any more"
    assert box.state() == before
    assert verdicts(box, "first", "3", code=0).keys() == {"first", "second"}


def refused(box: Sandbox, *args: str) -> str:
    """As `Sandbox.refused`, for a command that tells its progress before."""
    done = box.pyggml(*args)
    assert done.code == 1 and "Traceback" not in done.err
    return done.err


CASES = {
    "another reason": ((["test_one"], "two is wrong"), "wrong reason", "one is wrong"),
    "one of two passes without": ((["test_one", "test_always"], ""), "wrong reason", "test_always passes"),
    "fails with it": ((["test_never"], ""), "broken", "never"),
    "not there": ((["test_nothing"], ""), "broken", "no such test"),
    "skipped": ((["test_skipped"], ""), "unproven", "no reason to run"),
    "no proof": (([], ""), "unproven", "no proof is named"),
    "dies without it": ((["test_dies"], "assertion in C"), "proven", "assertion in C"),
    "an error in a fixture is no reason": ((["test_fixture"], ""), "wrong reason", "the fixture needs one"),
    "unless it is the stated one": ((["test_fixture"], "fixture needs"), "proven", "fixture needs"),
    "no reason stated": ((["test_one"], ""), "proven", "it fails with"),
    "does not hold on the top": ((["test_one", "test_only_below"], ""), "broken", "on the top"),
}


@pytest.mark.parametrize("case", CASES)
def test_verdicts(box: Sandbox, case: str) -> None:
    proof, verdict, detail = CASES[case]
    state_proofs(box, first=proof)
    found = verdicts(box, "first", code=0 if verdict == "proven" else 1)["first"]
    assert found[0] == verdict and detail in found[1], found


def test_a_reason_that_is_no_regular_expression_is_refused(box: Sandbox) -> None:
    state_proofs(box, first=(["test_one"], "(one"))
    assert "not a regular expression" in box.refused("patch", "prove")


def test_the_reason_survives_what_rewrites_the_listing(box: Sandbox) -> None:
    state_proofs(box, first=(["test_one"], "one is wrong"))
    box.ok("patch", "rename", "middle", "between")
    box.ok("patch", "edit", "first")
    box.ok("patch", "continue")
    assert 'fails-with = "one is wrong"' in (box.patches / "series.toml").read_text()


def test_with_a_build_only_what_a_step_touches_is_compiled(box: Sandbox) -> None:
    state_proofs(box, first=(["test_one"], "one is wrong"), second=(["test_two"], "two is wrong"))
    done = box.pyggml("patch", "prove", "1", "3", "--json")
    assert done.code == 0, done.out + done.err
    steps = [int(line.split()[1]) for line in done.err.splitlines() if line.startswith("built ")]
    # The bare pin in whole; then main.c and the link; patch 2 touches nothing that is compiled.
    assert steps == [2, 2, 0, 2]
    assert [row["verdict"] for row in done.json["patches"]] == ["proven", "proven"]


def test_a_stack_that_does_not_build(box: Sandbox) -> None:
    box.ok("patch", "edit", "first")
    box.replace("main.c", "int main(void) {\n", "int main(void) {\n    int x = nothing;\n")
    box.ok("patch", "continue")
    state_proofs(box, first=(["test_one"], ""), middle=(["test_two"], ""))
    done = box.pyggml("patch", "prove", "1", "2", "--json")
    assert done.code == 1
    rows = done.json["patches"]
    assert rows[0]["verdict"] == "broken" and "it does not build" in rows[0]["detail"]
    assert "nothing" in rows[0]["detail"]
    assert rows[1]["verdict"] == "broken"


def test_killed_and_interrupted_in_the_middle(box: Sandbox) -> None:
    state_proofs(box, first=(["test_one"], "one is wrong"), second=(["test_two"], "two is wrong"))
    slow = box.root / "proofs/conftest.py"
    slow.write_text("import time\ntime.sleep(5)\n")
    before = box.state()
    for number in (signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen(
            [sys.executable, "-m", "pyggml", "patch", "prove", "--no-build"],
            cwd=box.root,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 30
        while not (box.root / ".pyggml/prove/one/vendor/up/main.c").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(process.pid, number)
        assert process.wait(timeout=30) != 0
        assert box.state() == before
    slow.unlink()
    assert verdicts(box, "1", "3", code=0)["second"][0] == "proven"


def test_a_build_that_is_stopped_ends_the_proving(box: Sandbox) -> None:
    from pyggml.processes import UserInterruptError
    from pyggml.prove.run import prove_series
    from pyggml.series.worktree.workspace import open_workspace

    class Stopped:
        asked = 0

        def at(self, head: str, tree: str) -> dict[str, str]:
            self.asked += 1
            raise UserInterruptError("stopped")

    state_proofs(box, first=(["test_one"], "one is wrong"), second=(["test_two"], "two is wrong"))
    bench = Stopped()
    with pytest.raises(UserInterruptError):
        prove_series(open_workspace(box.project, None), bench)
    assert bench.asked == 1


def test_two_at_once(box: Sandbox) -> None:
    from pyggml.errors import PyggmlError
    from pyggml.prove.bench import bench_lock

    with (
        bench_lock(box.project, "test"),
        pytest.raises(PyggmlError, match="another prove"),
        bench_lock(box.project, "patch prove"),
    ):
        pass


def test_bisect_finds_the_patch(box: Sandbox) -> None:
    command = ["sh", "-c", 'grep -q "^y" "$PYGGML_SOURCE/README.md"']
    done = box.ok("patch", "bisect", "--no-build", "--json", "--", *command)
    found = done.json
    assert (found["number"], found["name"], found["before"], found["after"]) == (2, "middle", 1, 0)
    assert [probe["applied"] for probe in found["probes"]] == [0, 3, 1, 2]
    told = refused(box, "patch", "bisect", "--no-build", "--", "true")
    assert "both on the bare pin and on all 3 patches" in told
    told = refused(box, "patch", "bisect", "--no-build", "--", "no-such-program")
    assert "cannot start no-such-program" in told


def test_bisect_with_a_build_finds_its_programs_on_the_path(box: Sandbox) -> None:
    done = box.ok("patch", "bisect", "--", "sh", "-c", 'test-alloc | grep -q "two 2"')
    assert "patch 3, second" in done.out


def test_a_rebase_stops_at_the_first_patch_that_does_not_build(box: Sandbox) -> None:
    """Upstream gave main() a second name for its result: the text merges, the compiler refuses."""
    from pyggml.upstream.new_pin import NewPin, add_pin, directory_source

    box.ok("patch", "edit", "second")
    box.replace("main.c", "    return 0;\n", "    int code = 0;\n    return code;\n")
    box.ok("patch", "continue")
    source = box.root.parent / "newer"
    source.mkdir()
    for name in ("CMakeLists.txt", "README.md", "main.c"):
        text = (box.root.parent / "upstream" / name).read_text()
        (source / name).write_text(
            text.replace("#include", "extern int code(void);\n#define code code()\n#include")
        )
    with box.project.lock("test"):
        add_pin(box.project, NewPin("two", directory_source(box.project, source), make_default=False))
    done = box.pyggml("patch", "rebase", "--onto", "two", "--compile", "--json")
    assert done.code == 3, done.out + done.err
    dossier = done.json["dossier"]
    assert (dossier["kind"], dossier["patch"]) == ("build", "second")
    assert [patch["name"] for patch in done.json["patches"]] == ["first", "middle"]
    assert "main.c" in dossier["note"]
    private = box.root / ".pyggml/rebase/two/tree/main.c"
    private.write_text(
        private.read_text().replace("int code = 0;", "int it = 0;").replace("return code", "return it")
    )
    found = box.ok("patch", "rebase", "--continue", "--json").json
    assert [patch["resolution"] for patch in found["patches"]] == [None, None, "replayed"]
    assert box.status()["state"] == "applied"
