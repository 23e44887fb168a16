"""`pyggml abi`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyggml.cli.common import current_project, json_option, print_json

if TYPE_CHECKING:
    from pyggml.native.abi import AbiChange


@click.group()
def abi() -> None:
    """The C interface of a build: functions, struct layouts, vtable slots, enum values."""


@abi.command()
@click.argument("variant", required=False)
@json_option
def show(variant: str | None, as_json: bool) -> None:
    """Show the interface of a build; by default the one of the work tree's pin.

    VARIANT is a variant of the project, a build directory or an abi.json file.

    \b
    Examples:
      pyggml abi show
      pyggml abi show 4df29be4f-cpu --json
    """
    document = _read(variant)
    if as_json:
        print_json(document)
        return
    click.echo(f"{document['variant']} (pin {document['pin']})")
    for section in ("functions", "structs", "vtables", "enums", "constants", "typedefs", "omitted"):
        click.echo(f"{section:<10} {len(document[section])}")
    for name, struct in document["structs"].items():
        click.echo(f"\n{name}: {struct['size']} bytes")
        for field in struct["fields"]:
            click.echo(f"  {field['offset']:>6}  {field['name']}: {field['type']}")
    for one in document["omitted"]:
        click.echo(f"\nleft out: {one['kind']} {one['name']} ({one['reason']})", nl=False)
    click.echo()


@abi.command()
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@json_option
def diff(before: str, after: str, as_json: bool) -> None:
    """Compare the interfaces of two builds.

    A and B are variants of the project, build directories or abi.json files. Lists added, removed and changed
    functions, struct fields with both offsets, vtable slots and enum values.

    Exit codes as for diff: 0 the same, 1 different, 2 one of them cannot be read.

    \b
    Examples:
      pyggml abi diff 0c1e57098-cpu b11549-cpu
      pyggml abi diff before.json 4df29be4f-cpu --json
    """
    from pyggml.native.abi import diff_abi

    a, b = _read(before), _read(after)
    changes = diff_abi(a, b)
    if as_json:
        print_json(
            {"before": a["variant"], "after": b["variant"], "changes": [asdict(one) for one in changes]}
        )
    elif changes:
        for change in changes:
            click.echo(_line(change))
    else:
        click.echo("no difference")
    if changes:
        click.get_current_context().exit(1)


def _line(change: AbiChange) -> str:
    sign = {"added": "+", "removed": "-", "changed": "~"}[change.what]
    # struct and enum are part of the name in C.
    name = (
        change.name
        if " " in change.name and change.section != "vtable"
        else f"{change.section} {change.name}"
    )
    if change.member is not None:
        name += f": {change.member}"
    values = " -> ".join(one for one in (change.before, change.after) if one is not None)
    return f"{sign} {name}: {values}"


def _read(named: str | None) -> dict[str, Any]:
    from pyggml.native.abi import read_abi

    if named is not None and Path(named).exists():
        return read_abi(Path(named))
    from pyggml.builder.record import find_build

    return read_abi(find_build(current_project(), variant=named).directory)
