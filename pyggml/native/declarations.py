"""From the headers of one tree to the declarations that cffi compiles: a text that can be diffed.

The text holds every typedef, struct, enum, integer macro and exported function of the headers in their
order, with array sizes and enumerators as numbers. What cannot be in it is listed by name and reason.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyggml.errors import PyggmlError
from pyggml.native.constant_expressions import fold
from pyggml.native.preprocess import Compiler, Line, Preprocessed, preprocess

_PRELUDE = "".join(
    f"typedef int {name};\n"
    for name in (
        *("size_t", "ssize_t", "ptrdiff_t", "intptr_t", "uintptr_t", "intmax_t", "uintmax_t", "wchar_t"),
        *(f"{sign}int{bits}_t" for bits in (8, 16, 32, 64) for sign in ("", "u")),
        *("bool", "FILE", "va_list", "time_t", "off_t"),
    )
)
"""System headers are left out; these are the types that upstream's take from them."""

_GUARD = re.compile(r"_H_*$|_API$")
_VALUE = re.compile(r"[\d'(~!+-]|[A-Za-z_]\w*$")


@dataclass(frozen=True)
class Omitted:
    """A name of the headers that Python cannot use, and why."""

    name: str
    kind: str
    header: str
    reason: str


@dataclass(frozen=True)
class Function:
    """A function that Python can call; `type` is its signature without parameter names."""

    name: str
    header: str
    type: str


@dataclass(frozen=True)
class Declarations:
    """What the headers of one tree declare.

    Attributes:
        text: C declarations for cffi.
        structs: structs and unions whose fields are known, as C names them (`struct ggml_tensor`).
        typedefs: name to the type in C.
        enums: name (of a nameless one: `of FIRST_ENUMERATOR`) to enumerators and values.
        constants: integer macros and their values.
        omitted: sorted by name.
    """

    text: str
    functions: tuple[Function, ...]
    structs: tuple[str, ...]
    typedefs: tuple[tuple[str, str], ...]
    enums: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    constants: tuple[tuple[str, int], ...]
    omitted: tuple[Omitted, ...]


def make_declarations(
    compiler: Compiler,
    source: Path,
    exports: frozenset[str] | None = None,
    vdev_dir: Path | None = None,
) -> Declarations:
    """Read the headers of a tree.

    Args:
        source: the tree (with ggml/include, ggml/src and include).
        exports: names that the build's libraries export; None takes every function as exported.
        vdev_dir: where pyggml-vdev.h lies, or None to leave it out.

    Raises:
        PyggmlError: a header is missing or says what cannot be expressed; the message names it.
    """
    return declare(preprocess(compiler, source, vdev_dir), exports)


def declare(preprocessed: Preprocessed, exports: frozenset[str] | None = None) -> Declarations:
    """Turn preprocessed headers into declarations; see make_declarations."""
    reader = _Reader(exports)
    for node, header in _parse(preprocessed.lines):
        reader.add(node, header)
    constants = list(_constants(preprocessed.macros, reader))
    parts = ["/* macros */\n", *(f"#define {name} {value}\n" for name, value in constants), *reader.parts]
    return Declarations(
        text="".join(parts),
        functions=tuple(reader.functions.values()),
        structs=tuple(reader.structs),
        typedefs=tuple(reader.typedefs.items()),
        enums=tuple(reader.enums.items()),
        constants=tuple(constants),
        omitted=tuple(sorted(reader.omitted, key=lambda one: (one.name, one.kind))),
    )


def _parse(lines: tuple[Line, ...]) -> Iterable[tuple[Any, str]]:
    from pycparser import c_ast, c_parser

    text = [_PRELUDE]
    before = ""
    for line in lines:
        if line.header != before:
            before = line.header
            text.append(f'# 1 "{before}"\n')
        text.append(line.text + "\n")
    try:
        tree = c_parser.CParser().parse("".join(text), "prelude")
    except c_parser.ParseError as error:
        raise PyggmlError(
            f"a header cannot be parsed: {error}",
            "Only C is understood; C++ belongs inside #ifdef __cplusplus.",
        ) from error
    for node in tree.ext:
        if isinstance(node, c_ast.Pragma) or node.coord is None:
            continue
        # A struct's coordinates are those of its tag; the declaration's are right for all that is kept.
        if node.coord.file != "prelude":
            yield node, node.coord.file


@dataclass
class _Reader:
    exports: frozenset[str] | None
    parts: list[str] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    structs: dict[str, None] = field(default_factory=dict)
    typedefs: dict[str, str] = field(default_factory=dict)
    omitted: list[Omitted] = field(default_factory=list)
    enums: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    enumerators: dict[str, int] = field(default_factory=dict)
    types: dict[str, Any] = field(default_factory=dict)
    header: str = ""

    def add(self, node: Any, header: str) -> None:
        from pycparser import c_ast

        if isinstance(node, c_ast.FuncDef):
            self.leave_out(node.decl.name, "function", header, "its body is in the header (static inline)")
            return
        if isinstance(node, c_ast.StaticAssert):
            return
        self.resolve(node, header)
        if isinstance(node, c_ast.Typedef):
            if node.name in self.types:
                return
            self.types[node.name] = node.type
            self.typedefs[node.name] = _without_names(node.type)
            inner = node.type.type if isinstance(node.type, c_ast.TypeDecl) else None
            if isinstance(inner, c_ast.Struct | c_ast.Union) and inner.decls and inner.name is None:
                self.structs[node.name] = None
        elif isinstance(node, c_ast.Decl) and node.name is not None:
            if isinstance(node.type, c_ast.FuncDecl):
                self.function(node, header)
                return
            if not self.variable(node, header):
                return
        self.write(node, header)

    def function(self, node: Any, header: str) -> None:
        if node.name in self.functions:
            return
        if self.exports is not None and node.name not in self.exports:
            self.leave_out(node.name, "function", header, "no library of the build exports it")
            return
        node.storage, node.funcspec = [], []
        self.functions[node.name] = Function(node.name, header, _without_names(node.type))
        self.write(node, header)

    def variable(self, node: Any, header: str) -> bool:
        if "static" in node.storage and "const" in node.quals:
            node.init = None
            return True
        if self.exports is not None and node.name not in self.exports:
            self.leave_out(node.name, "variable", header, "no library of the build exports it")
            return False
        return True

    def leave_out(self, name: str, kind: str, header: str, reason: str) -> None:
        self.omitted.append(Omitted(name, kind, header, reason))

    def write(self, node: Any, header: str) -> None:
        if header != self.header:
            self.header = header
            self.parts.append(f"\n/* {header} */\n")
        self.parts.append(_c(node) + ";\n")

    def resolve(self, node: Any, header: str) -> None:
        """Replace array sizes and enumerators below `node` by numbers, and note the names of structs."""
        from pycparser import c_ast

        if isinstance(node, c_ast.Enum) and node.values is not None:
            following = 0
            for one in node.values.enumerators:
                value = following if one.value is None else fold(one.value, self.enumerators, self.types)
                if value is None:
                    raise PyggmlError(
                        f"{header}: the value of {one.name} cannot be computed from the text ({_c(one.value)})"
                    )
                one.value = c_ast.Constant("int", str(value))
                self.enumerators[one.name] = value
                following = value + 1
            names = [one.name for one in node.values.enumerators]
            self.enums[node.name or f"of {names[0]}"] = tuple((one, self.enumerators[one]) for one in names)
            return
        if isinstance(node, c_ast.ArrayDecl) and node.dim is not None:
            size = fold(node.dim, self.enumerators, self.types)
            if size is None:
                raise PyggmlError(f"{header}: the array size {_c(node.dim)} cannot be computed from the text")
            node.dim = c_ast.Constant("int", str(size))
        if isinstance(node, c_ast.Struct | c_ast.Union) and node.decls and node.name is not None:
            self.structs[f"{'struct' if isinstance(node, c_ast.Struct) else 'union'} {node.name}"] = None
        for _, child in node.children():
            self.resolve(child, header)


def _constants(macros: Any, reader: _Reader) -> Iterable[tuple[str, int]]:
    """Macros that are integers; strings are listed as left out, the rest (guards, keywords) is ignored."""
    from pycparser import c_ast, c_parser

    parser = c_parser.CParser()
    for name, text in macros.items():
        if _GUARD.search(name) or not text:
            continue
        if text.startswith('"'):
            reader.leave_out(name, "macro", "", f"not an integer: {text}")
            continue
        if not _VALUE.match(text):
            continue
        try:
            tree = parser.parse(f"{_PRELUDE}int x = ({text});")
        except c_parser.ParseError:
            continue
        last = tree.ext[-1]
        value = fold(last.init, reader.enumerators, reader.types) if isinstance(last, c_ast.Decl) else None
        if value is not None:
            yield name, value


def _c(node: Any) -> str:
    from pycparser import c_generator

    text: str = c_generator.CGenerator().visit(node)
    return text.replace("_Bool", "bool")


def _without_names(kind: Any) -> str:
    """A type in C without the names of parameters, which are not part of it."""
    from pycparser import c_ast

    kind = copy.deepcopy(kind)

    def strip(node: Any) -> None:
        if isinstance(node, c_ast.TypeDecl):
            node.declname = None
        elif isinstance(node, c_ast.Decl):
            node.name = None
        elif isinstance(node, c_ast.Struct | c_ast.Union) and node.name is not None:
            # Its fields are described where the struct is.
            node.decls = None
        for _, child in node.children():
            # Fields of a nameless struct keep their names: without them it says nothing.
            if not isinstance(child, c_ast.Struct | c_ast.Union) or child.name is not None:
                strip(child)

    strip(kind)
    return " ".join(_c(c_ast.Typename(None, [], None, kind)).split())
