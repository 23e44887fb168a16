"""`pyggml devices`."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from pyggml.cli.common import current_project, json_option, print_json, say


@click.command()
@click.option("--devices", "count", type=int, metavar="N", help="Add N virtual devices, 1 to 16.")
@click.option("--variant", metavar="NAME", help="The build; by default the active one.")
@json_option
def devices(count: int | None, variant: str | None, as_json: bool) -> None:
    """List the devices that a build sees.

    With --devices, or with PYGGML_VDEV_DEVICES or PYGGML_VDEV_NAMES in the environment, they include virtual
    devices. If there is a build with CUDA but no CUDA device, the reason is printed.

    \b
    Examples:
      pyggml devices
      pyggml devices --devices 4 --json
    """
    from pyggml.builder.record import check_instruction_set
    from pyggml.cli.run import active
    from pyggml.native.cuda import BACKEND, explain_absence
    from pyggml.native.programs import seen_devices
    from pyggml.native.vdev_config import devices_from_environment, program_environment
    from pyggml.native.vdev_library import find_vdev

    env = dict(os.environ)
    virtual = None
    if count is not None or env.get("PYGGML_VDEV_DEVICES") or env.get("PYGGML_VDEV_NAMES"):
        virtual = devices_from_environment(count=count)
    build = active(variant)
    check_instruction_set(build)
    if virtual is not None:
        env = program_environment(find_vdev(build, say), virtual, env)
    seen = seen_devices(build, env)
    no_cuda = None
    if not any(one.backend == BACKEND for one in seen):
        no_cuda = explain_absence(current_project(), build)
    if as_json:
        document = {"variant": build.record.variant, "devices": [asdict(one) for one in seen]}
        print_json({**document, "no_cuda": no_cuda})
        return
    width = max([len(one.name) for one in seen], default=4)
    for one in seen:
        memory = f"{one.memory_free / 2**20:,.0f} of {one.memory_total / 2**20:,.0f} MiB free"
        click.echo(f"{one.name:<{width}}  {one.type:<5}  {memory:<32}  {one.description}")
    if not seen:
        click.echo(f"{build.record.variant} sees no device")
    if no_cuda is not None:
        click.echo(f"no CUDA device: {no_cuda}")
