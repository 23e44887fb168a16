"""The verdicts that are known and why: `patches/<pin>/matrix.toml`.

Each entry names its rows exactly: the models, and for every axis of the configuration the values. An axis that is left
out has the value that the matrix uses unless told otherwise; there is no pattern and no `any`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyggml.errors import PyggmlError
from pyggml.matrix.cases import AT_ONCE, FLASH_ATTENTION, KV, LAYOUTS, Run
from pyggml.matrix.compare import BOUND
from pyggml.matrix.verdict import BAD, NOT_RUN, ExpectedVerdict, MatrixRow
from pyggml.matrix.workload import Workload

FILE = "matrix.toml"
WEIGHTS = ("lively", "upstream")
EXPECTABLE = (*BAD, *NOT_RUN)
NOT_EXPLAINED = "not explained yet"
"""The reason of a new entry; where the row has words and not only numbers, they follow."""

_HEADER = """\
Rows of `pyggml matrix` that are known not to be right, and why. The matrix fails when another row goes wrong, and when
one of these becomes right: then take it out. Every model and every value is named; an axis that is left out has the
value that the matrix uses without options. `pyggml matrix --expect write` writes the file anew, without your comments:
what you know belongs into `reason`."""
_WORK = Workload()
_SPLIT_NAMES = ("devices", "tensor-split")
Value = int | float | str | bool
Key = tuple[Any, ...]
"""The name of a model and a value of every axis, in the order of _AXES."""


@dataclass(frozen=True)
class _Axis:
    """A part of a configuration, called like the option that sets it.

    Attributes:
        values: those that are allowed, or the type of any.
        default: None if it must be named.
    """

    name: str
    of_run: Callable[[Run], Any]
    values: tuple[str, ...] | type
    default: Value | None = None


_AXES = (
    _Axis("split-mode", lambda run: run.split_mode, ("layer", "tensor", "none"), "tensor"),
    # Even shares of a number of devices, or the shares themselves.
    _Axis("devices", lambda run: run.split or run.devices, int),
    _Axis("kv", lambda run: run.kv, KV),
    _Axis("kv-type", lambda run: run.kv_type, str, "f16"),
    _Axis("streams", lambda run: run.streams, int, 1),
    _Axis("unified", lambda run: run.unified, bool, False),
    _Axis("layout", lambda run: run.layout, LAYOUTS, LAYOUTS[0]),
    _Axis("schedule", lambda run: run.schedule, str, AT_ONCE),
    _Axis("device-traits", lambda run: run.traits, str, ""),
    _Axis("races", lambda run: run.races, bool, False),
    _Axis("cuda", lambda run: run.cuda, bool, False),
    _Axis("flash-attn", lambda run: run.flash_attn, FLASH_ATTENTION, "on"),
    _Axis("swa-full", lambda run: run.swa_full, bool, False),
    _Axis("poison", lambda run: run.poison, bool, True),
    _Axis("prompt", lambda run: run.work.prompt, int, _WORK.prompt),
    _Axis("steps", lambda run: run.work.steps, int, _WORK.steps),
    _Axis("batch", lambda run: run.work.batch or 0, int, 0),
    _Axis("shift", lambda run: run.work.shift, int, _WORK.shift),
    _Axis("seed", lambda run: run.work.seed, int, _WORK.seed),
    _Axis("turnover", lambda run: run.work.turnover, bool, _WORK.turnover),
)
_OUTER = (
    _Axis("weights", lambda run: WEIGHTS[0], WEIGHTS, WEIGHTS[0]),
    _Axis("bound", lambda run: BOUND, float, BOUND),
)
"""Of the whole matrix, not of a run."""
_ALL = (*_AXES, *_OUTER)
_ALWAYS = ("split-mode", *_SPLIT_NAMES, "kv", "kv-type")
"""Axes that are written even where they have their default."""


@dataclass(frozen=True)
class Expectations:
    """The known rows of a pin.

    Attributes:
        path: their file, which need not exist.
        weights, bound: of the matrix that asks.
    """

    path: Path
    rows: Mapping[Key, ExpectedVerdict] = field(default_factory=dict)
    weights: str = WEIGHTS[0]
    bound: float = BOUND

    def of(self, run: Run) -> ExpectedVerdict | None:
        """What is known of a run."""
        return self.rows.get(self._key(run))

    def models(self) -> tuple[str, ...]:
        """The models of all entries."""
        return tuple(dict.fromkeys(key[0] for key in self.rows))

    def check_models(self, known: Iterable[str]) -> None:
        """Refuse entries about models that do not exist.

        Raises:
            PyggmlError: there is one.
        """
        names = sorted(known)
        for name in self.models():
            if name not in names:
                import difflib

                close = difflib.get_close_matches(name, names, n=3)
                hint = f"Similar: {', '.join(close)}." if close else "Remove its entry."
                raise PyggmlError(f"{self.path}: there is no model {name!r}", hint)

    def after(self, records: Iterable[MatrixRow]) -> Expectations:
        """The expectations by which these rows are all as expected; about rows that did not run nothing changes."""
        rows = dict(self.rows)
        for record in records:
            if not record.case.judged:
                continue
            key = self._key(record.case.run)
            known = rows.pop(key, None)
            if known is not None and record.as_expected:
                rows[key] = known
            elif record.verdict in BAD:
                rows[key] = _not_explained(record)
        return replace(self, rows=rows)

    def text(self) -> bytes:
        """The content of the file."""
        import tomlkit

        document = tomlkit.document()
        for line in _HEADER.splitlines():
            document.add(tomlkit.comment(line))
        document.add(tomlkit.nl())
        entries = tomlkit.aot()
        for known, values in self._entries():
            entry = tomlkit.table()
            for name, value in {**values, **_texts(known)}.items():
                entry[name] = value
                if isinstance(value, list) and len(str(value)) > 100:
                    entry[name].multiline(True)
            entries.append(entry)
        if self.rows:
            document["expected"] = entries
        return tomlkit.dumps(document).encode("utf-8")

    def _key(self, run: Run) -> Key:
        return (run.name, *(axis.of_run(run) for axis in _AXES), self.weights, self.bound)

    def _entries(self) -> Iterator[tuple[ExpectedVerdict, dict[str, Any]]]:
        """The entries: rows with the same verdict and reason, as few as products can describe."""
        groups: dict[ExpectedVerdict, list[Key]] = {}
        for key, known in self.rows.items():
            groups.setdefault(known, []).append(key)
        for known, keys in groups.items():
            for box in _boxes(keys):
                yield known, _to_values(box)


def read_expectations(path: Path, weights: str = WEIGHTS[0], bound: float = BOUND) -> Expectations:
    """Read a file of expectations; without one nothing is expected.

    Raises:
        PyggmlError: it is not valid; the message names the entry and what is wrong with it.
    """
    from pyggml.series.stack.series_file import read_toml

    document = read_toml(path, {})
    entries = document.get("expected", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise PyggmlError(
            f"{path}: 'expected' must be a list of tables", "Put each entry under [[expected]]."
        )
    for name in document:
        if name != "expected":
            raise PyggmlError(f"{path}: unknown key {name!r}", "Put each entry under [[expected]].")
    rows: dict[Key, ExpectedVerdict] = {}
    numbers: dict[Key, int] = {}
    for number, entry in enumerate(entries, 1):
        known, keys = _Entry(f"{path}: entry {number}", entry).read()
        for key in keys:
            if key in rows:
                raise PyggmlError(
                    f"{path}: entries {numbers[key]} and {number} both name {key[0]} with {_words(key)}",
                    "Leave it in one of the two.",
                )
            rows[key], numbers[key] = known, number
    return Expectations(path, rows, weights, bound)


def _not_explained(record: MatrixRow) -> ExpectedVerdict:
    says = record.assertion.text if record.assertion else ""
    words = f"{NOT_EXPLAINED}: {record.reason}" if record.verdict in ("died", "failed") else NOT_EXPLAINED
    return ExpectedVerdict(record.verdict, words, says=says)


class _Entry:
    """A table of the file, being read."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self._where = where
        self._values = values

    def read(self) -> tuple[ExpectedVerdict, list[Key]]:
        self._refuse_unknown()
        verdict = self._text("verdict", required=True)
        if verdict not in EXPECTABLE:
            raise self._error(f"{verdict!r} cannot be expected", f"There are: {', '.join(EXPECTABLE)}.")
        reason = self._text("reason", required=True)
        known = ExpectedVerdict(verdict, reason, self._text("at"), self._text("says"))
        models = self._list("models", str, ())
        if not models:
            raise self._error("'models' is missing", "Name the models, like the first column of the matrix.")
        values = [self._split() if axis.name == "devices" else self._axis(axis) for axis in _ALL]
        return known, list(itertools.product(models, *values))

    def _refuse_unknown(self) -> None:
        names = ("models", "verdict", "reason", "at", "says", "tensor-split", *(axis.name for axis in _ALL))
        for name in self._values:
            if name not in names:
                raise self._error(f"unknown key {name!r}", f"There are: {', '.join(names)}.")

    def _text(self, name: str, required: bool = False) -> str:
        value = self._values.get(name, "")
        if not isinstance(value, str) or (required and not value.strip()):
            raise self._error(f"{name!r} must be a text", "Correct that entry.")
        return value

    def _axis(self, axis: _Axis) -> tuple[Any, ...]:
        kind = axis.values if isinstance(axis.values, type) else str
        values = self._list(axis.name, kind, () if axis.default is None else (axis.default,))
        if not values:
            raise self._error(f"{axis.name!r} is missing", "Name its values: without them, it would be any.")
        for value in values:
            if isinstance(axis.values, tuple) and value not in axis.values:
                raise self._error(
                    f"{axis.name} {value!r} is unknown", f"There are: {', '.join(axis.values)}."
                )
        return values

    def _split(self) -> tuple[Any, ...]:
        counts = self._list("devices", int, ())
        splits = []
        for text in self._list("tensor-split", str, ()):
            try:
                splits.append(tuple(float(share) for share in text.split(",")))
            except ValueError:
                raise self._error(
                    f"tensor-split {text!r} is not a list of shares", 'Example: "55,45".'
                ) from None
        if not counts and not splits:
            raise self._error("'devices' is missing", 'Name the numbers of devices, or "tensor-split".')
        return (*counts, *splits)

    def _list(self, name: str, kind: type, default: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values of a key, which may be a single one."""
        if name not in self._values:
            return default
        value = self._values[name]
        values = value if isinstance(value, list) else [value]
        for one in values:
            number = kind is float and isinstance(one, int)
            if not (isinstance(one, kind) or number) or (isinstance(one, bool) and kind is not bool):
                words = {int: "a whole number", str: "a text", bool: "true or false", float: "a number"}
                raise self._error(f"{name} {one!r} is not {words[kind]}", "Correct that entry.")
            if isinstance(one, str) and ("*" in one or not one):
                raise self._error(f"{name} {one!r} does not name one", "List each: there are no patterns.")
        if len(set(values)) < len(values) or not values:
            raise self._error(f"{name!r} is empty or names one twice", "Correct that entry.")
        return tuple(values)

    def _error(self, message: str, hint: str) -> PyggmlError:
        return PyggmlError(f"{self._where}: {message}", hint)


_Box = tuple[tuple[Any, ...], ...]
"""A product of values, one tuple for each part of a key."""


def _boxes(keys: Sequence[Key]) -> list[_Box]:
    """Products that together are exactly these keys; products that differ in one axis only are joined."""
    boxes: list[_Box] = [tuple((value,) for value in key) for key in keys]
    while True:
        before = len(boxes)
        for axis in reversed(range(len(_ALL) + 1)):
            joined: dict[_Box, tuple[Any, ...]] = {}
            for box in boxes:
                rest = (*box[:axis], *box[axis + 1 :])
                joined[rest] = (*joined.get(rest, ()), *box[axis])
            boxes = [(*rest[:axis], values, *rest[axis:]) for rest, values in joined.items()]
        if len(boxes) == before:
            return boxes


def _to_values(box: _Box) -> dict[str, Any]:
    """The keys of an entry."""
    values: dict[str, Any] = {"models": list(box[0])}
    for axis, several in zip(_ALL, box[1:], strict=True):
        if axis.name == "devices":
            counts = [one for one in several if isinstance(one, int)]
            splits = [_shares(one) for one in several if not isinstance(one, int)]
            values |= {name: all_ for name, all_ in zip(_SPLIT_NAMES, (counts, splits), strict=True) if all_}
        elif axis.name in _ALWAYS or several != (axis.default,):
            values[axis.name] = list(several) if len(several) > 1 else several[0]
    return values


def _texts(known: ExpectedVerdict) -> dict[str, str]:
    texts = {"verdict": known.verdict, "says": known.says, "at": known.at, "reason": known.reason}
    return {name: text for name, text in texts.items() if text}


def _shares(split: Sequence[float]) -> str:
    """As on the command line, and exact."""
    return ",".join(str(share).removesuffix(".0") for share in split)


def _words(key: Key) -> str:
    """The values of a key that are not the default."""
    words = [
        f"{axis.name} {_shares(value) if isinstance(value, tuple) else value}"
        for axis, value in zip(_ALL, key[1:], strict=True)
        if axis.name in _ALWAYS or value != axis.default
    ]
    return ", ".join(words)
