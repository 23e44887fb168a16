"""The zoo: small models with the real geometry of published ones.

Heads, KV heads, head sizes, rotated parts, groups, states and experts are those of a published model; width, vocabulary
and depth are small. Each is made of one of upstream's tiny models: its metadata with other numbers, the tensors that
llama.cpp itself wants for that, and weights drawn as in pyggml.models.scaled_weights.

Only routers are not drawn. Among hundreds of experts, two are always so close that the last bit decides which of them a
token takes, and then its logits are others. Here the first number of every token is the same, no layer adds to it, and
routers look at it alone: which experts are taken, and in which order, is certain.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError, UsageError
from pyggml.files import replacing
from pyggml.upstream.progress import Progress, silent

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFWriter
    from numpy.typing import NDArray

    from pyggml.builder.record import Build

TABLE = Path(__file__).with_name("zoo.toml")
_VERSION = 4
_LAYERS = 4
_MANY = 8
_WIDTHS = {"embedding_length": 64, "feed_forward_length": 128, "context_length": 1024}
_EXPERT_WIDTHS = {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 32}
_ROUTER = re.compile(r"blk\.\d+\.ffn_gate_inp\.weight")
_FIRST_NUMBER = 4.0
"""Of every token's embedding, in models with a router."""
_ADDS = re.compile(r"blk\.\d+\.(attn_output|ffn_down\w*|ssm_out|shortconv\.out_proj)\.weight")
"""What a layer adds to a token comes out of these."""
_ASK = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pyggml.models.zoo import tell_tensors; tell_tensors(*sys.argv[2:])"
)


@dataclass(frozen=True)
class ZooModel:
    """A published model's geometry: an entry of zoo.toml.

    Attributes:
        name: of the small model; also its file's.
        source: where the numbers are published.
        checked: they were compared with that source, or a copy of it; otherwise they are from memory.
        tiny: the tiny model of upstream's that it is made of.
        heads, kv_heads, head_size, v_size, rotated: per layer; v_size and rotated are head_size unless given.
        experts, experts_used: 0 without experts.
        embd: width, where the architecture wants another one.
        narrow: heads are this many times narrower than the published ones, where the width of the model is their
            product; 1 for the real size.
        layers: 4 unless the architecture wants more.
        keys: more metadata, without the architecture's name.
    """

    name: str
    source: str
    checked: bool
    tiny: str
    heads: int
    kv_heads: int
    head_size: int
    v_size: int = 0
    rotated: int = 0
    experts: int = 0
    experts_used: int = 0
    embd: int = 0
    narrow: int = 1
    layers: int = _LAYERS
    keys: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def values(self) -> dict[str, Any]:
        """Its metadata, without the architecture's name; what the tiny model lacks is left out later."""
        size = self.head_size // self.narrow
        v_size = (self.v_size or self.head_size) // self.narrow
        rotated = (self.rotated or self.head_size) // self.narrow
        values: dict[str, Any] = {
            **_WIDTHS,
            "block_count": self.layers,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": size,
            "attention.value_length": v_size,
            "attention.key_length_swa": size,
            "attention.value_length_swa": v_size,
            "rope.dimension_count": rotated,
            "rope.dimension_count_swa": rotated,
            "rope.scaling.original_context_length": _WIDTHS["context_length"],
        }
        if self.embd or self.narrow > 1:
            values["embedding_length"] = self.embd or self.heads * size
        if self.experts:
            values |= {
                "expert_count": self.experts,
                "expert_used_count": self.experts_used,
                **_EXPERT_WIDTHS,
            }
        return {**values, **self.keys}


@cache
def zoo() -> tuple[ZooModel, ...]:
    """All models of the zoo.

    Raises:
        PyggmlError: the table is not valid.
    """
    import tomllib

    known = {each.name.replace("_", "-"): each.name for each in fields(ZooModel)}
    models: list[ZooModel] = []
    for entry in tomllib.loads(TABLE.read_text("utf-8"))["model"]:
        try:
            models.append(ZooModel(**{known[name]: value for name, value in entry.items()}))
        except (KeyError, TypeError) as error:
            raise PyggmlError(f"{TABLE}: {entry.get('name')}: {error}", "Correct that entry.") from error
    return tuple(models)


def select_models(regex: str | None) -> tuple[ZooModel, ...]:
    """The models whose name, or whose tiny model's, matches a regular expression; all without one.

    Raises:
        UsageError: it is not one, or nothing matches.
    """
    if regex is None:
        return zoo()
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise UsageError(f"{regex!r} is not a regular expression: {error}") from error
    chosen = tuple(model for model in zoo() if pattern.search(model.name) or pattern.search(model.tiny))
    if not chosen:
        raise UsageError(
            f"no model of the zoo matches {regex!r}",
            f"There are: {', '.join(model.name for model in zoo())}.",
        )
    return chosen


def zoo_models(
    build: Build, models: Sequence[ZooModel], place: Path | None = None, report: Progress = silent
) -> list[Path]:
    """The files of these models, written unless they are there.

    Args:
        place: keep them here; by default with the build's other models.

    Raises:
        PyggmlError: this upstream has no such tiny model, or refuses a geometry; or a file cannot be written.
    """
    place = (place or build.directory / "models" / "zoo").absolute()
    place.mkdir(parents=True, exist_ok=True)
    tiny = _tiny(build, models, place.parent, report)
    files = {model: place / f"{model.name}.gguf" for model in models}
    missing: dict[ZooModel, str] = {}
    for model, path in files.items():
        if model.tiny not in tiny:
            raise PyggmlError(
                f"{model.name} of the zoo is made of {model.tiny}, which this upstream does not write",
                "Leave it out: --arch REGEX chooses models.",
            )
        key = _key(model, tiny[model.tiny])
        if not path.is_file() or _text(path.with_suffix(".key")) != key:
            missing[model] = key
    for number, (model, key) in enumerate(missing.items(), 1):
        report(f"writing {model.name}", number, len(missing))
        header = place / f".{model.name}.header"
        _write(header, metadata(model, tiny[model.tiny]), ())
        try:
            tensors = _ask(build, header)
        finally:
            header.unlink(missing_ok=True)
        _write(files[model], metadata(model, tiny[model.tiny]), tensors)
        files[model].with_suffix(".key").write_text(key, "utf-8")
    return list(files.values())


def _tiny(build: Build, models: Sequence[ZooModel], place: Path, report: Progress) -> dict[str, Path]:
    """The tiny models that these are made of, by name; for many of them, all there are."""
    from pyggml.models.tiny import tiny_models

    archs = sorted({model.tiny.rpartition("-")[0] for model in models})
    regex = f"^({'|'.join(archs)})$" if len(archs) > 1 else archs[0]
    made = tiny_models(build, None if len(archs) > _MANY else regex, place=place, report=report)
    return {path.stem: path for path in made.files}


Metadata = dict[str, tuple[Any, list[Any]]]
"""Key to value and gguf types."""
Tensors = Sequence[tuple[str, Sequence[int], str]]
"""Name, ne (the innermost first) and type of each tensor."""


def metadata(model: ZooModel, tiny: Path) -> Metadata:
    """The metadata of a tiny model, with the numbers of a published one.

    What a tiny model says of each layer is repeated for the other layers; a 0 there, for a layer without attention,
    stays.

    Raises:
        PyggmlError: the tiny model is not a GGUF file, or lacks a key that the entry names.
    """
    import gguf

    try:
        reader = gguf.GGUFReader(tiny)
        was: Metadata = {
            name: (each.contents(), list(each.types))
            for name, each in reader.fields.items()
            if not name.startswith("GGUF.") and each.types and each.types[-1] != gguf.GGUFValueType.ARRAY
        }
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise PyggmlError(
            f"cannot read {tiny}: {error}", "Write the tiny models again: pyggml model tiny"
        ) from error
    arch = was["general.architecture"][0]
    layers = was[f"{arch}.block_count"][0]
    made = {
        name: ([value[at % layers] for at in range(model.layers)], types)
        if isinstance(value, list) and len(value) == layers and name.startswith(arch)
        else (value, types)
        for name, (value, types) in was.items()
    }
    values = model.values()
    for name in model.keys:
        if f"{arch}.{name}" not in made:
            raise PyggmlError(f"{model.name} of the zoo: {model.tiny} has no {name}", f"Correct {TABLE}.")
    for name, value in values.items():
        full = f"{arch}.{name}"
        if full not in made or (name in _EXPERT_WIDTHS and not made[full][0]):
            continue
        old, types = made[full]
        if isinstance(old, list) and not isinstance(value, list):
            made[full] = [value if one else 0 for one in old], types
        elif isinstance(value, list) and not isinstance(old, list):
            made[full] = value, [gguf.GGUFValueType.ARRAY, *types]
        else:
            made[full] = value, types
    # Not the model's: llama.cpp looks for `phi-3` and the like in it, and then for tokens of theirs.
    made["general.name"] = ("zoo", [gguf.GGUFValueType.STRING])
    return made


def weights(name: str, size: Sequence[int], routed: bool = False) -> NDArray[np.float32]:
    """Weights of a tensor, the same everywhere; see pyggml.models.make.weights.

    Args:
        routed: of a model with a router.
    """
    import math

    import numpy as np

    from pyggml.models.scaled_weights import scaled

    count = math.prod(size)
    bits = np.random.PCG64(np.random.SeedSequence([1, zlib.crc32(name.encode())]))
    raw = bits.random_raw((count + 1) // 2).astype("<u8").view("<u4")[:count]
    unit = ((raw >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - 1) * np.float32(math.sqrt(3))
    made: NDArray[np.float32] = scaled(name, unit.reshape(size), 1.0)
    if routed and name == "token_embd.weight":
        made[:, 0] = _FIRST_NUMBER
    if routed and name == "output.weight":
        made[:, 0] = 0
    if routed and _ADDS.fullmatch(name):
        made[..., 0, :] = 0
    if routed and _ROUTER.fullmatch(name):
        made[:] = 0
        made[:, 0] = np.argsort(unit[: size[0]]) / np.float32(size[0])
    return made


def tell_tensors(directory: str, header: str) -> None:
    """Print as JSON which tensors llama.cpp wants for a file of metadata; in a process of its own."""
    from pyggml.llama.library import library
    from pyggml.llama.log_capture import LogCapture
    from pyggml.native.load import build_in, load

    load(build_in(Path(directory)))
    bindings = library()
    ffi, lib = bindings.ffi, bindings.lib
    tensors: dict[str, tuple[str, list[int], str]] = {}

    def note(raw: Any) -> None:
        name = ffi.string(raw.name).decode()
        ne = list(raw.ne)[: lib.ggml_n_dims(raw)]
        tensors[name] = name, ne, ffi.string(lib.ggml_type_name(raw.type)).decode()

    params = lib.llama_model_default_params()
    params.devices = devices = ffi.new("ggml_backend_dev_t[]", [ffi.NULL])
    callback = bindings.callbacks.make("fill", note)
    options = ffi.new("struct gguf_init_params *", {"no_alloc": True})
    metadata = lib.gguf_init_from_file(os.fsencode(header), options[0])
    with LogCapture() as log:
        model = bindings.guarded(
            lib.llama_model_init_from_user, metadata, callback.pointer, callback.data, params
        )
    del devices
    if model == ffi.NULL:
        print(json.dumps({"refused": log.reason()}))
        return
    print(json.dumps({"tensors": list(tensors.values())}))


def _ask(build: Build, header: Path) -> Tensors:
    """The tensors that llama.cpp wants, asked in a child that may die."""
    from pyggml.processes import run_lines

    lines: list[str] = []
    command = [sys.executable, "-c", _ASK, json.dumps(sys.path), build.directory, header]
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1", "PYGGML_CUDA": "0"}
    status = run_lines([str(word) for word in command], lines.append, environment)
    answer = json.loads(lines[-1]) if status == 0 and lines else {}
    if "tensors" not in answer:
        why = answer.get("refused") or (lines[-1].strip() if lines else f"exit status {status}")
        raise PyggmlError(
            f"llama.cpp does not take the geometry of {header.stem.removeprefix('.')}: {why}",
            f"Correct its entry in {TABLE}.",
        )
    return [(name, ne, kind) for name, ne, kind in answer["tensors"]]


def _write(path: Path, values: Metadata, tensors: Tensors) -> None:
    import gguf

    writer = gguf.GGUFWriter(None, values["general.architecture"][0])
    try:
        with replacing(path) as temporary:
            _add(writer, values)
            routed = any(_ROUTER.fullmatch(name) for name, _, _ in tensors)
            for name, ne, kind in tensors:
                if kind != "f32":
                    raise PyggmlError(f"{name} of {path.name} is {kind}, and the zoo has f32 only")
                writer.add_tensor(name, weights(name, list(reversed(ne)), routed))
            writer.write_header_to_file(temporary)
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
    except OSError as error:
        raise PyggmlError(f"cannot write {path}: {error.strerror or error}", "Free some space.") from error
    finally:
        writer.close()


def _add(writer: GGUFWriter, values: Metadata) -> None:
    for name, (value, types) in values.items():
        if name != "general.architecture":
            sub_type = types[1] if len(types) > 1 else None
            writer.add_key_value(name, value, types[0], sub_type)


def _key(model: ZooModel, tiny: Path) -> str:
    """Changes with everything that the file is made of."""
    stat = tiny.stat()
    values = sorted(model.values().items())
    text = repr((_VERSION, values, str(tiny), stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(text.encode()).hexdigest()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""
