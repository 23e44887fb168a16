"""`pyggml vendor`: fetches, lists, checks and adds pinned upstream sources."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click

from pyggml.cli.common import current_project, json_option, print_json, shown_progress
from pyggml.errors import UsageError


@click.group()
def vendor() -> None:
    """The pinned upstream sources.

    vendor/pins.toml lists upstream snapshots (pins); each is imported into the repository at
    vendor/UPSTREAM as one commit with known contents. Start with:

        pyggml vendor fetch
    """


@vendor.command(short_help="Import a pin, or all of them.")
@click.argument("pin", required=False)
@click.option("--all", "every", is_flag=True, help="Fetch every pin.")
@json_option
def fetch(pin: str | None, every: bool, as_json: bool) -> None:
    """Import PIN (by default the default pin), unless it is imported already.

    An sdist is downloaded from the package sources in pip's configuration and kept in the cache directory
    (or in PYGGML_CACHE_DIR); from then on no network is needed. For example:

        pyggml vendor fetch b11549
    """
    from pyggml.upstream import store
    from pyggml.upstream.pins import read_pins

    if every and pin is not None:
        raise UsageError("give either PIN or --all", "Example: pyggml vendor fetch --all")
    project = current_project()
    pins = read_pins(project)
    wanted = pins.pins if every else (pins.get(pin),)
    results = []
    with project.lock("vendor fetch"), shown_progress() as report:
        for one in wanted:
            results.append(store.fetch(project, pins, one, report))
    if as_json:
        print_json({"pins": [asdict(result) for result in results]})
        return
    for result in results:
        if not result.changed:
            click.echo(f"pin {result.pin} is already imported ({result.commit[:12]})")
            continue
        where = f", checked out in vendor/{pins.upstream}" if result.created else ""
        click.echo(f"pin {result.pin} imported as {result.commit[:12]}{where}")


@vendor.command(short_help="Choose the pin that commands work on in this checkout.")
@click.argument("pin", required=False)
@click.option("--default", "back", is_flag=True, help="Go back to the default pin of vendor/pins.toml.")
@json_option
def use(pin: str | None, back: bool, as_json: bool) -> None:
    """Make PIN the one that all commands work on, instead of typing --pin each time.

    It is remembered in this checkout alone; vendor/pins.toml and the work tree stay as they are.

    \b
    Examples:
      pyggml vendor use 0c1e57098 && pyggml patch apply
      pyggml vendor use --default
    """
    from pyggml.upstream.pins import choose_pin

    if (pin is None) is not back:
        raise UsageError("give either PIN or --default", "Example: pyggml vendor use b11549")
    project = current_project()
    with project.lock("vendor use"):
        pins = choose_pin(project, pin)
    if as_json:
        print_json({"pin": pins.default, "chosen": pins.chosen})
        return
    click.echo(
        f"commands work on pin {pins.default}{' in this checkout' if pins.chosen else ', the default'}"
    )
    click.echo("The work tree moves there with: pyggml patch apply")


@vendor.command(name="list", short_help="List the pins and whether they are fetched.")
@json_option
def list_pins(as_json: bool) -> None:
    """List the pins, oldest first, with their sources and whether they are fetched.

    * marks the pin that commands work on: the default, or the one of `pyggml vendor use`.

    Example: pyggml vendor list --json
    """
    from pyggml.upstream.pins import read_pins
    from pyggml.upstream.store import pin_states

    project = current_project()
    pins = read_pins(project)
    states = pin_states(project, pins)
    if as_json:
        rows = [
            {
                "name": one.pin.name,
                "default": one.pin.name == pins.default,
                "state": one.state,
                "base": one.commit,
                "commit": one.pin.commit,
                "tree": one.pin.tree,
                "exclude": list(one.pin.exclude),
                "source": {"kind": one.pin.source.kind, **asdict(one.pin.source)},
            }
            for one in states
        ]
        print_json({"upstream": pins.upstream, "default": pins.default, "chosen": pins.chosen, "pins": rows})
        return
    width = max((len(one.pin.name) for one in states), default=0)
    for one in states:
        mark = "*" if one.pin.name == pins.default else " "
        click.echo(f"{mark} {one.pin.name:{width}}  {one.state:11}  {one.pin.source.describe()}")
    if not states:
        click.echo("no pins yet; see how to add one with: pyggml vendor add --help")


@vendor.command(short_help="Show the vendored repository and the state of its pins.")
@json_option
def status(as_json: bool) -> None:
    """Show where the vendored repository is and the state of every pin.

    Example: pyggml vendor status
    """
    from pyggml.upstream import store
    from pyggml.upstream.pins import read_pins

    project = current_project()
    pins = read_pins(project)
    overall = store.store_status(project, pins)
    states = store.pin_states(project, pins)
    if as_json:
        print_json({**asdict(overall), "pins": {one.pin.name: one.state for one in states}})
        return
    click.echo(f"{overall.work_tree}: {overall.repository}")
    for one in states:
        detail = one.commit[:12] if one.state == "fetched" and one.commit else None
        click.echo(f"  pin {one.pin.name}: {one.state} ({detail or f'pyggml vendor fetch {one.pin.name}'})")


@vendor.command(short_help="Check imported pins against vendor/pins.toml.")
@click.argument("pin", required=False)
@json_option
def verify(pin: str | None, as_json: bool) -> None:
    """Check that PIN (by default every fetched pin) is imported as recorded and complete.

    The work tree is not checked: `pyggml patch status` does that. For example:

        pyggml vendor verify 4df29be4f
    """
    from pyggml.upstream import store
    from pyggml.upstream.pins import read_pins

    project = current_project()
    pins = read_pins(project)
    if pin is not None:
        wanted = [pins.get(pin)]
    else:
        wanted = [one.pin for one in store.pin_states(project, pins) if one.state != "not fetched"]
        wanted = wanted or [pins.get(None)]
    checked = {one.name: store.verify(project, pins, one) for one in wanted}
    if as_json:
        print_json({"verified": checked})
        return
    for name, commit in checked.items():
        click.echo(f"pin {name}: {commit[:12]} is complete and as recorded")


@vendor.command(short_help="Pin a new upstream snapshot.")
@click.argument("name", required=False)
@click.option("--sdist", metavar="PROJECT==VERSION", help="A source distribution in a package index.")
@click.option("--git", "url", metavar="URL", help="A git repository; needs --commit.")
@click.option("--archive", type=click.Path(path_type=Path), help="A tar or zip archive on this machine.")
@click.option("--directory", type=click.Path(path_type=Path), help="A directory on this machine.")
@click.option("--commit", metavar="SHA", help="Upstream's commit id, all 40 digits.")
@click.option(
    "--subdir",
    default="",
    help="Take only this directory (below an archive's top directory); otherwise the one with upstream's name.",
)
@click.option("--exclude", multiple=True, metavar="PATH", help="Leave this path out; may be repeated.")
@click.option("--default", "make_default", is_flag=True, help="Make it the default pin.")
@json_option
def add(
    name: str | None,
    sdist: str | None,
    url: str | None,
    archive: Path | None,
    directory: Path | None,
    commit: str | None,
    subdir: str,
    exclude: tuple[str, ...],
    make_default: bool,
    as_json: bool,
) -> None:
    """Pin a new upstream snapshot as NAME: import it and add it to vendor/pins.toml.

    In a package, upstream's tree is found by its name, and NAME is read from what the package carries: the
    commit of a git directory, or the build number in the package's version. For example, an sdist, and a commit
    of a fork:

    \b
        pyggml vendor add --sdist xllamacpp==2026.10.11549 --exclude docs --exclude models
        pyggml vendor add mine --git https://example.org/fork.git --commit 0123...cdef
    """
    from pyggml.upstream import new_pin
    from pyggml.upstream.pins import ArchiveSource, SdistSource, Source

    given = [option for option in (sdist, url, archive, directory) if option is not None]
    if len(given) != 1:
        raise UsageError(
            "give exactly one of --sdist, --git, --archive and --directory", "See: pyggml vendor add --help"
        )
    if directory is not None and subdir:
        raise UsageError(
            "--subdir cannot be used with --directory", "Pass the inner directory to --directory instead."
        )
    if url is not None and commit is None:
        raise UsageError("--git needs --commit SHA", "Find the commit with: git ls-remote URL")
    if name is None and (url is not None or directory is not None):
        raise UsageError("the pin needs a name", "Example: pyggml vendor add NAME --git URL --commit SHA")
    project = current_project()
    new_pin.check_new_pin(project, name, commit, exclude, subdir)
    notes: tuple[str, ...] = ()
    with project.lock("vendor add"), shown_progress() as report:
        if sdist is not None:
            source: Source = new_pin.sdist_source(sdist, subdir, report)
        elif url is not None:
            source = new_pin.git_source(url, subdir)
        elif archive is not None:
            source = new_pin.archive_source(project, archive, subdir, report)
        else:
            assert directory is not None  # noqa: S101
            source = new_pin.directory_source(project, directory)
        if isinstance(source, SdistSource | ArchiveSource):
            new, notes = new_pin.carried_pin(project, source, name, commit, exclude, report)
            new = replace(new, make_default=make_default)
        else:
            assert name is not None  # noqa: S101
            new = new_pin.NewPin(name, source, commit, exclude, make_default)
        pin, result = new_pin.add_pin(project, new, report)
    if as_json:
        told = {"pin": pin.name, "commit": result.commit, "tree": pin.tree, "created": result.created}
        print_json({**told, "upstream_commit": pin.commit, "notes": list(notes)})
        return
    for note in notes:
        click.echo(note, err=True)
    click.echo(f"pin {pin.name} added: tree {pin.tree[:12]}, imported as {result.commit[:12]}")
