"""Rebase the quilt series of one Debian source package onto another version, and compare with what that one has.

Usage: python tools/compare_series.py OLDER.dsc NEWER.dsc [--work DIRECTORY]

Get the two with `apt-get source --download-only NAME=VERSION`. The older series is imported on the older upstream
and rebased with `pyggml patch rebase`. Where it stops, the newer package decides: a patch that it still has is
resolved with its own version, one that it no longer has is skipped. A line for each patch of the older series
shows the verdict of the rebase next to what the newer package has: the file is identical, refreshed (it adds and
removes the same lines elsewhere), adapted (other lines) or dropped. `<-` marks what came out differently. In the
end the tree is compared with that of the newer package's versions of the same patches, and that of the whole newer
series with what `dpkg-source -x` unpacks. Exit status 1 if a patch that both have came out differently.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyggml.series.patchfile.diff import parse_diff
from pyggml.series.patchfile.foreign import read_foreign
from pyggml.series.patchfile.hunks import changed_runs
from pyggml.series.stack.series_file import slug

STOPPED = 3


@dataclass(frozen=True)
class Package:
    """One source package, unpacked: the upstream archive and its series.

    Attributes:
        pin: the upstream version as a pin's name.
        dsc: None if it is no package of Debian's.
        files: name in pyggml's series to the file in debian/patches, in order.
    """

    title: str
    pin: str
    dsc: Path | None
    upstream: Path
    series: Path
    files: dict[str, Path]


@dataclass
class Project:
    """A pyggml project and its command line."""

    root: Path
    work_tree: Path = field(init=False)

    def __post_init__(self) -> None:
        self.run("init", "--empty", str(self.root), cwd=self.root.parent)
        pins = self.root / "vendor" / "pins.toml"
        pins.write_text(re.sub(r'(?m)^upstream = "[^"]*"', 'upstream = "source"', pins.read_text()))
        self.work_tree = self.root / "vendor" / "source"

    def run(self, *args: str, cwd: Path | None = None, ok: tuple[int, ...] = (0,)) -> tuple[int, str]:
        """Exit status and standard output; what went to standard error is passed on if it failed."""
        done = subprocess.run(
            [sys.executable, "-m", "pyggml", *args], cwd=cwd or self.root, capture_output=True, text=True
        )
        if done.returncode not in ok:
            sys.exit(f"pyggml {' '.join(args)}: exit status {done.returncode}\n{done.stderr}")
        return done.returncode, done.stdout

    def pin(self, package: Package, *options: str) -> None:
        self.run("vendor", "add", package.pin, "--archive", str(package.upstream), *options)

    def patches(self, pin: str) -> dict[str, bytes]:
        """Name to content of the patch files, in order."""
        return {
            path.name[5:-6]: path.read_bytes()
            for path in sorted((self.root / "patches" / pin).glob("*.patch"))
        }

    def tree(self) -> str:
        return git(self.work_tree, "rev-parse", "HEAD^{tree}")


def git(where: Path, *args: str, stdin: bytes | None = None) -> str:
    done = subprocess.run(["git", *args], cwd=where, input=stdin, capture_output=True)
    if done.returncode:
        raise RuntimeError(done.stderr.decode("utf-8", "replace"))
    return done.stdout.decode("utf-8", "surrogateescape").strip()


def unpack(dsc: Path, work: Path) -> Package:
    """Check the files of a .dsc (format 3.0, quilt) and unpack its series."""
    text = dsc.read_text("utf-8")
    name, version = (re.search(rf"(?m)^{key}: (\S+)$", text)[1] for key in ("Source", "Version"))
    listed = re.search(r"(?m)^Checksums-Sha256:\n((?: .*\n)+)", text)[1]
    sums = {words[2]: words[0] for words in map(str.split, listed.splitlines())}
    archives = {}
    for file, wanted in sums.items():
        kind = re.search(r"\.(orig|debian)\.tar\.\w+$", file)
        if kind:
            archives[kind[1]] = dsc.with_name(file)
            if hashlib.sha256(archives[kind[1]].read_bytes()).hexdigest() != wanted:
                sys.exit(f"{file}: not the file that {dsc.name} names")
    place = work / f"debian-{version.partition(':')[2] or version}"
    with tarfile.open(archives["debian"]) as tar:
        tar.extractall(place, filter="data")
    series = place / "debian" / "patches"
    files: dict[str, Path] = {}
    for patch in read_foreign((series,)):
        files[slug(patch.title, files)] = Path(patch.label)
    upstream = re.sub(r"^\d+:|-[^-]*$", "", version)
    return Package(
        f"{name} {version}", re.sub(r"[^\w.-]", "_", upstream), dsc, archives["orig"], series, files
    )


def change(data: bytes) -> Counter[tuple[object, ...]]:
    """What a patch removes and adds, wherever."""
    return Counter((run.path, run.removed, run.added) for run in changed_runs(parse_diff(data)))


def rebase(
    project: Project, theirs: dict[str, bytes], onto: str
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rebase to the end.

    Returns:
        the patches of the last report, and for each at which it stopped, why.
    """
    stops: dict[str, str] = {}
    args = ["--onto", onto]
    while True:
        code, out = project.run("patch", "rebase", *args, "--json", ok=(0, STOPPED))
        document = json.loads(out)
        if code == 0:
            return document["patches"], stops
        stop = document["dossier"]
        name, kind = stop["patch"], stop["kind"]
        if name in stops and kind != "confirm":
            sys.exit(f"{name}: stopped again: {kind}: {stop['note']}")
        there = len(stop["upstream_hunks"])
        words = f"{kind} ({there} of {stop['hunks']} hunks are upstream)" if there else kind
        stops[name] = words if name not in stops else f"{stops[name]}, {kind}"
        if kind == "confirm":
            args = ["--continue", "--confirm"]
        elif name not in theirs:
            args = ["--skip", "--reason", "the newer package does without it"]
        else:
            args = ["--continue", *resolve(Path(stop["worktree"]), theirs[name])]
            if args == ["--continue", "fails"]:
                stops[name] += ", and the newer package's version does not apply"
                args = [
                    "--skip",
                    "--reason",
                    "the newer package's version does not apply without its new patches",
                ]


def resolve(tree: Path, patch: bytes) -> list[str]:
    """Put the newer package's version of the patch into the worktree; options for --continue."""
    before = indexed(tree)
    git(tree, "read-tree", "--reset", "-u", "HEAD")
    try:
        git(tree, "apply", "--index", "-", stdin=patch)
    except RuntimeError:
        return ["fails"]
    return [word for path in sorted(before - indexed(tree)) for word in ("--remove", path)]


def indexed(tree: Path) -> set[str]:
    """The paths in the index, those that conflict included."""
    return set(git(tree, "-c", "core.quotePath=false", "ls-files").splitlines())


def compared(
    older: Package, newer: Package, name: str, ours: bytes | None, theirs: bytes | None
) -> tuple[str, bool]:
    """What the newer package did to the file, and whether the rebase came to the same."""
    if theirs is None:
        return "dropped", ours is None
    old, new = older.files[name].read_bytes(), newer.files[name].read_bytes()
    words = "identical" if old == new else "refreshed" if change(old) == change(new) else "adapted"
    return words, ours is not None and change(ours) == change(theirs)


def kept_only(newer: Package, names: list[str], work: Path) -> Path:
    """The newer series with the patches `names` alone."""
    place = work / "kept"
    shutil.copytree(newer.series, place)
    files = [str(path.relative_to(newer.series)) for name, path in newer.files.items() if name in names]
    lines = [
        line
        for line in (place / "series").read_text().splitlines()
        if line.split()[:1] and line.split()[0] in files
    ]
    (place / "series").write_text("".join(f"{line}\n" for line in lines))
    return place


def differing(a: Project, b: Project) -> list[str]:
    """The paths whose content differs between what two projects have applied."""
    listed = []
    for project in (a, b):
        rows = git(project.work_tree, "-c", "core.quotePath=false", "ls-tree", "-r", "HEAD").splitlines()
        listed.append({path: meta for meta, _, path in (row.partition("\t") for row in rows)})
    return sorted(
        path for path in listed[0].keys() | listed[1].keys() if listed[0].get(path) != listed[1].get(path)
    )


def dpkg_tree(package: Package, work: Path) -> str | None:
    """The tree of `dpkg-source -x`, without debian/; None where there is no dpkg-source or no .dsc."""
    if package.dsc is None or shutil.which("dpkg-source") is None:
        return None
    place = work / "unpacked"
    subprocess.run(
        ["dpkg-source", "--no-check", "-x", str(package.dsc), str(place)], check=True, capture_output=True
    )
    for directory in ("debian", ".pc"):
        shutil.rmtree(place / directory, ignore_errors=True)
    git(work, "init", "-q", str(place))
    (place / ".git" / "info" / "attributes").write_text("* -text -filter -ident\n")
    git(place, "-c", "core.autocrlf=false", "add", "-A", "-f", ".")
    return git(place, "write-tree")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("older", type=Path)
    parser.add_argument("newer", type=Path)
    parser.add_argument("--work", type=Path, help="keep everything in this new directory")
    options = parser.parse_args()
    for dsc in (options.older, options.newer):
        if not dsc.is_file() or "Format: 3.0 (quilt)" not in dsc.read_text("utf-8", "replace"):
            parser.error(f"{dsc}: not the .dsc of a source package of format 3.0 (quilt)")
    if options.work is not None:
        if options.work.exists():
            parser.error(f"{options.work} exists: name a directory that does not")
        options.work.mkdir(parents=True)
        return compare(options.older.resolve(), options.newer.resolve(), options.work.resolve())
    with tempfile.TemporaryDirectory(prefix="pyggml-series-") as scratch:
        return compare(options.older.resolve(), options.newer.resolve(), Path(scratch))


def compare(older: Path, newer: Path, work: Path) -> int:
    return report(unpack(older, work), unpack(newer, work), work)


def report(older: Package, newer: Package, work: Path) -> int:
    project = Project(work / "project")
    project.pin(older, "--default")
    project.pin(newer)
    project.run("patch", "import", str(older.series))
    whole = Project(work / "newer")
    whole.pin(newer, "--default")
    whole.run("patch", "import", str(newer.series))
    theirs = whole.patches(newer.pin)
    patches, stops = rebase(project, theirs, newer.pin)
    ours = project.patches(newer.pin)
    print(f"{older.title} ({len(older.files)} patches) onto {newer.title} ({len(newer.files)})\n")
    rows = []
    agreed = True
    for patch in patches:
        name = patch["name"]
        words, same = compared(older, newer, name, ours.get(name), theirs.get(name))
        verdict = patch["summary"] if patch["verdict"] != "skipped" else stops[name]
        rows.append((str(patch["number"]), name, verdict, words, "" if same else "<-"))
        agreed = agreed and (same or theirs.get(name) is None)
    for row in (("", "patch", "rebase", "newer package", ""), *rows):
        print(f"{row[0]:>3}  {row[1]:<54}  {row[2]:<46}  {row[3]:<28} {row[4]}".rstrip())
    counts = Counter((row[2].split(" (")[0], row[3]) for row in rows)
    print()
    for (verdict, words), count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:4d}  {verdict:<24} {words}")
    print()
    extra = [row[1] for row in rows if row[4] and theirs.get(row[1]) is None]
    for name in extra:
        code, _ = project.run("patch", "drop", name, ok=(0, 1, STOPPED))
        if code:
            print(f"without {name}, which the newer package dropped, the others conflict")
            return 1
    kept = [name for name in newer.files if name in older.files]
    alone = Project(work / "alone")
    alone.pin(newer, "--default")
    code, _ = alone.run("patch", "import", str(kept_only(newer, kept, work)), ok=(0, 1))
    told = f"the tree of the {len(kept)} patches that both have"
    if code:
        print(f"{told}: the newer package's do not apply without its new patches")
    else:
        equal = alone.tree() == project.tree()
        paths = differing(project, alone)
        where = f"differs in {', '.join(paths[:6])}{' …' if len(paths) > 6 else ''}"
        print(f"{told}: {'the same' if equal else where} ({project.tree()[:12]}, {alone.tree()[:12]})")
        agreed = agreed and equal
    unpacked = dpkg_tree(newer, work)
    if unpacked is not None:
        told = "the same" if unpacked == whole.tree() else f"differs ({unpacked[:12]})"
        print(f"the newer series imported, against `dpkg-source -x`: {told} ({whole.tree()[:12]})")
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
