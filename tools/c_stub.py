"""Write pyggml/native/c_library.pyi: what `load().lib` has, for mypy.

python tools/c_stub.py [BUILD]

It is made of python/abi.json of a build of the default pin; without BUILD, of the active one. Only names and kinds of
types are in it, nothing that differs between machines.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STUB = ROOT / "pyggml" / "native" / "c_library.pyi"

HEAD = '''# ruff: noqa
# fmt: off
"""The functions and constants of the bindings for mypy; written by tools/c_stub.py, not by hand.

A pointer to a struct and the struct itself are one class here, as cffi reads fields of both alike. What cffi converts
from several Python types (text, arrays, callbacks, structs by value) is Any.
"""

from typing import Any

'''
GLUE = """
    # glue.c
    def pyggml_python_begins(self, abort_fd: int, /) -> None: ...
    def pyggml_python_ends(self, /) -> None: ...
    def pyggml_rehearse(self, function: Any, first: Any, second: Any, text: Any, size: int, seconds: int, /) -> int: ...
"""
_WHOLE = re.compile(
    r"(?:u?int(?:8|16|32|64)_t|s?size_t|(?:unsigned |signed )?(?:int|char|short|long|long long)|enum \w+)"
)


class Types:
    """From C's types to Python's."""

    def __init__(self, abi: Mapping[str, Any]) -> None:
        self._typedefs: Mapping[str, str] = abi["typedefs"]
        names = [name.removeprefix("struct ").removeprefix("union ") for name in abi["structs"]]
        self.known = set(names)
        self.opaque: set[str] = set()

    def python(self, c: str) -> str:
        """A value that a function takes or returns, or a field."""
        c = " ".join(c.replace("const ", "").replace(" const", "").split())
        for _ in range(8):
            bare = c.removesuffix("*").strip()
            if bare in self._typedefs and bare not in self.known:
                c = self._typedefs[bare].replace("const ", "") + c[len(bare) :]
        c = " ".join(c.split())
        if c == "void":
            return "None"
        if c in ("bool", "_Bool"):
            return "bool"
        if c in ("float", "double"):
            return "float"
        if _WHOLE.fullmatch(c):
            return "int"
        struct = re.fullmatch(r"(?:struct |union )?(\w+)( ?\*)?", c)
        if struct and (struct[1] in self.known or c.startswith(("struct ", "union "))):
            if struct[1] not in self.known:
                self.opaque.add(struct[1])
            return struct[1]
        return "Any"


def parameters(c: str) -> list[str]:
    """The types between the outer parentheses of a signature."""
    if c in ("", "void"):
        return []
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(c):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(c[start:place].strip())
            start = place + 1
    return [*parts, c[start:].strip()]


def function(types: Types, name: str, c: str) -> str:
    """A method of the library."""
    result, _, rest = c.partition("(")
    taken = parameters(rest.rpartition(")")[0])
    if "..." in taken:
        return f"    def {name}(self, *arguments: Any) -> {types.python(result)}: ..."
    given = []
    for number, one in enumerate(taken):
        kind = types.python(one)
        # A struct by value can be a dict.
        by_value = kind in types.known and not one.rstrip().endswith("*") and not one.endswith("_t")
        given.append(f"a{number}: {'Any' if by_value else kind}")
    inside = ", ".join(["self", *given, "/"])
    return f"    def {name}({inside}) -> {types.python(result)}: ..."


def stub(abi: Mapping[str, Any]) -> str:
    """The text of the stub for an abi.json."""
    types = Types(abi)
    structs = []
    for name, struct in abi["structs"].items():
        bare = name.removeprefix("struct ").removeprefix("union ")
        fields = []
        for field in struct["fields"]:
            if field["name"].isidentifier() and field["name"] not in ("async", "global", "None"):
                fields.append(f"    {field['name']}: {types.python(field['type'])}")
        structs.append("\n".join([f"class {bare}:", *(fields or ["    ..."]), ""]))
    functions = [function(types, name, one["type"]) for name, one in abi["functions"].items()]
    constants = dict.fromkeys([one for values in abi["enums"].values() for one in values])
    constants |= dict.fromkeys(abi["constants"])
    opaque = [f"class {name}: ...\n" for name in sorted(types.opaque)]
    library = ["class CLibrary:", *(f"    {name}: int" for name in constants), "", *functions]
    return HEAD + "".join([*opaque, "\n", "\n".join(structs), "\n", "\n".join(library)]) + "\n" + GLUE


def main() -> None:
    if len(sys.argv) > 1:
        build = Path(sys.argv[1])
    else:
        sys.path.insert(0, str(ROOT))
        from pyggml.native.load import active_build

        build = active_build(ROOT).directory
    STUB.write_text(stub(json.loads((build / "python" / "abi.json").read_bytes())), "utf-8")


if __name__ == "__main__":
    main()
