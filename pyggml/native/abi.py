"""The binary interface of a tree as data, and the differences between two."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyggml.errors import UsageError
from pyggml.native.declarations import Declarations

FORMAT = 1
FILE = "abi.json"
SECTIONS = ("functions", "structs", "vtables", "enums", "constants", "typedefs")


@dataclass(frozen=True)
class AbiChange:
    """One difference.

    Attributes:
        section: one of SECTIONS, in the singular (`function`, `struct`, `vtable`, `enum`, ...).
        name: of the function, struct, ...
        what: `added`, `removed` or `changed`.
        member: the field, slot or enumerator that differs, or None for the thing as a whole.
        before, after: offsets, types or values in words; None where there are none.
    """

    section: str
    name: str
    what: str
    member: str | None
    before: str | None
    after: str | None


def describe(declarations: Declarations, variant: str, pin: str) -> dict[str, Any]:
    """The interface as a JSON document: functions, struct layouts, vtable slots, enums, constants.

    Sizes and offsets are those of this machine's C ABI, computed by cffi from the declarations; the
    compiled extension checks each of them against the headers when it is loaded.
    """
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(declarations.text)
    structs = {name: _struct(ffi, ffi.typeof(name)) for name in declarations.structs}
    return {
        "format": FORMAT,
        "variant": variant,
        "pin": pin,
        "functions": {one.name: {"header": one.header, "type": one.type} for one in declarations.functions},
        "structs": structs,
        "vtables": {
            name: [one["name"] for one in struct["fields"] if "(*)(" in one["type"]]
            for name, struct in structs.items()
            if name.endswith("_i")
        },
        "enums": {f"enum {name}": dict(values) for name, values in declarations.enums},
        "constants": dict(declarations.constants),
        "typedefs": dict(declarations.typedefs),
        "omitted": [vars(one) for one in declarations.omitted],
    }


def read_abi(path: Path) -> dict[str, Any]:
    """Read an abi.json, or the one of a build directory.

    Raises:
        UsageError: there is none, or it is of another version.
    """
    candidates = (path / "python" / FILE, path / FILE) if path.is_dir() else (path,)
    file = next((one for one in candidates if one.is_file()), None)
    if file is None:
        raise UsageError(
            f"{path} holds no ABI description (python/{FILE})", "`pyggml build` writes it with the bindings."
        )
    try:
        document = json.loads(file.read_bytes())
        if document["format"] == FORMAT and all(isinstance(document[one], dict) for one in SECTIONS):
            return dict(document)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise UsageError(f"{file} is not an ABI description of this version", "Make it again: pyggml build")


def diff_abi(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[AbiChange, ...]:
    """The differences for a program compiled against `before`, by section and name.

    The header of a declaration and the names of parameters make no difference.
    """
    changes: list[AbiChange] = []
    for section in SECTIONS:
        old, new = before[section], after[section]
        singular = section.removesuffix("s")
        for name in sorted({*old, *new}):
            if name not in new:
                changes.append(AbiChange(singular, name, "removed", None, _whole(section, old[name]), None))
            elif name not in old:
                changes.append(AbiChange(singular, name, "added", None, None, _whole(section, new[name])))
            else:
                changes += _inside(section, singular, name, old[name], new[name])
    return tuple(changes)


def _inside(section: str, singular: str, name: str, old: Any, new: Any) -> Iterator[AbiChange]:
    if section in ("constants", "typedefs", "functions"):
        if _whole(section, old) != _whole(section, new):
            yield AbiChange(singular, name, "changed", None, _whole(section, old), _whole(section, new))
        return
    a, b = _members(section, old), _members(section, new)
    for member in [*a, *(one for one in b if one not in a)]:
        if a.get(member) != b.get(member):
            what = "removed" if member not in b else "added" if member not in a else "changed"
            yield AbiChange(singular, name, what, member, a.get(member), b.get(member))
    if section == "structs" and old["size"] != new["size"]:
        yield AbiChange(
            singular, name, "changed", None, f"{old['size']} bytes in all", f"{new['size']} bytes in all"
        )


def _members(section: str, value: Any) -> dict[str, str]:
    if section == "vtables":
        return {slot: f"slot {number}" for number, slot in enumerate(value)}
    if section == "enums":
        return {name: str(number) for name, number in value.items()}
    return {
        one["name"]: f"offset {one['offset']}, {one['type']}"
        + (f", bits {one['bits']}" if "bits" in one else "")
        for one in value["fields"]
    }


def _whole(section: str, value: Any) -> str:
    if section == "functions":
        return str(value["type"])
    if section == "structs":
        return f"{value['size']} bytes, {len(value['fields'])} fields"
    if section in ("vtables", "enums"):
        return f"{len(value)} {'slots' if section == 'vtables' else 'values'}"
    return str(value)


def _struct(ffi: Any, ctype: Any) -> dict[str, Any]:
    fields = []
    for name, one in ctype.fields:
        entry = {"name": name, "offset": one.offset, "type": one.type.cname.replace("_Bool", "bool")}
        if one.bitsize >= 0:
            entry["bits"] = [one.bitshift, one.bitsize]
        fields.append(entry)
    return {"size": ffi.sizeof(ctype), "align": ffi.alignof(ctype), "fields": fields}
