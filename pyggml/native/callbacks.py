"""Python functions as callbacks of ggml and llama, and how their exceptions come out of the C call.

C cannot pass an exception on. A callback that raises gives C an answer that ends the work as soon as C
allows, the exception is kept, and the guard around the C call raises it when that has returned:

    keep = callbacks.make("eval", function)
    lib.ggml_backend_sched_set_eval_callback(sched, keep.pointer, keep.data)
    with callbacks.guard():
        lib.ggml_backend_sched_graph_compute(sched, graph)

C holds a number, not the address of a Python object, so a callback whose owner is gone is refused, never
run in freed memory. Whoever may be called back keeps the `Callback` as long as C may call it.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

from pyggml.errors import PyggmlError

T = TypeVar("T")


@dataclass(frozen=True)
class Kind:
    """A kind of callback.

    Attributes:
        typedef: its type in upstream's headers.
        trampoline: the C function in the extension that stands for all of this kind.
        signature: of the trampoline.
        wrapper: the function of glue.c that calls it, and that upstream gets in its place.
    """

    name: str
    typedef: str
    trampoline: str
    signature: str
    wrapper: str = ""


KINDS = (
    Kind(
        "log",
        "ggml_log_callback",
        "pyggml_on_log",
        "void pyggml_on_log(enum ggml_log_level level, const char *text, void *data)",
        wrapper="pyggml_log",
    ),
    Kind(
        "eval",
        "ggml_backend_sched_eval_callback",
        "pyggml_on_eval",
        "bool pyggml_on_eval(struct ggml_tensor *tensor, bool ask, void *data)",
    ),
    Kind(
        "split",
        "ggml_backend_meta_get_split_state_t",
        "pyggml_on_split",
        "struct ggml_backend_meta_split_state pyggml_on_split(const struct ggml_tensor *tensor, void *data)",
    ),
    Kind(
        "progress",
        "llama_progress_callback",
        "pyggml_on_progress",
        "bool pyggml_on_progress(float progress, void *data)",
    ),
    Kind(
        "fill",
        "llama_model_set_tensor_data_t",
        "pyggml_on_fill",
        "void pyggml_on_fill(struct ggml_tensor *tensor, void *data)",
    ),
    Kind("abort", "ggml_abort_callback", "pyggml_on_abort_asked", "bool pyggml_on_abort_asked(void *data)"),
)

_GLUE = """
extern "Python+C" void pyggml_on_abort(const char *message);
void pyggml_log(enum ggml_log_level level, const char *text, void *data);
void pyggml_python_begins(int abort_fd);
void pyggml_python_ends(void);
int pyggml_rehearse(bool (*function)(void *, void *), void *first, void *second, char *text, int size, int seconds);
"""

WITH_LOCK = frozenset({"pyggml_rehearse"})
"""Functions of glue.c that are called with the interpreter's lock."""


def kinds_in(typedefs: frozenset[str]) -> tuple[Kind, ...]:
    """The kinds that a tree with these typedefs knows (the meta backend is younger than the others)."""
    return tuple(kind for kind in KINDS if kind.typedef in typedefs)


def glue_declarations(typedefs: frozenset[str]) -> str:
    """Declarations for cffi of the trampolines and of glue.c."""
    lines = [
        f'extern "Python{"+C" if kind.wrapper else ""}" {kind.signature};\n' for kind in kinds_in(typedefs)
    ]
    return "".join(lines) + _GLUE


class Callback:
    """One Python function as C sees it: `pointer` and `data` are what upstream's setters take."""

    def __init__(self, kind: str, function: Callable[..., Any], pointer: Any, data: Any) -> None:
        self.kind = kind
        self.function: Callable[..., Any] | None = function
        self.pointer = pointer
        self.data = data

    def close(self) -> None:
        """Refuse calls from now on; C should have been told to forget it before."""
        self.function = None


class Guard:
    """One or several C calls whose callbacks may raise."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None


class Callbacks:
    """The callbacks of one loaded build."""

    def __init__(self, ffi: Any, lib: Any) -> None:
        """Connect the trampolines.

        Raises:
            PyggmlError: a callback's type in the headers is not the one this version of pyggml knows.
        """
        self._ffi = ffi
        self._lib = lib
        self._numbers = itertools.count(1)
        self._alive: weakref.WeakValueDictionary[int, Callback] = weakref.WeakValueDictionary()
        self._here = threading.local()
        self._entered: list[Guard] = []
        self._pointers: dict[str, Any] = {}
        for kind in KINDS:
            if hasattr(lib, kind.trampoline):
                self._connect(kind)

    def make(self, kind: str, function: Callable[..., Any]) -> Callback:
        """A callback that C may call as long as the result is kept.

        Args:
            kind: `log` (function(level, bytes)), `eval` (function(tensor, ask) -> bool),
                `split` (function(tensor) -> struct ggml_backend_meta_split_state),
                `progress` (function(fraction) -> bool, False stops),
                `fill` (function(tensor), of a model that is made, not loaded) or
                `abort` (function() -> bool, True stops). Tensors are raw `struct ggml_tensor *`.

        Raises:
            PyggmlError: this build knows no such callback.
        """
        pointer = self._pointers.get(kind)
        if pointer is None:
            raise PyggmlError(f"this build has no {kind} callback", f"It knows: {', '.join(self._pointers)}.")
        if not callable(function):
            raise TypeError(f"a callback must be callable, not {type(function).__name__}")
        number = next(self._numbers)
        callback = Callback(kind, function, pointer, self._ffi.cast("void *", number))
        self._alive[number] = callback
        return callback

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Raise, at the end of the block, the first exception of a callback that C called within it."""
        mine = self._enter()
        try:
            yield
        except BaseException:
            # What the block made of the failed call is the consequence, not the cause.
            if mine.error is not None:
                raise mine.error from None
            raise
        finally:
            self._leave(mine)
        if mine.error is not None:
            raise mine.error

    def guarded(self, function: Callable[..., T], *arguments: Any) -> T:
        """`function(*arguments)` within a guard."""
        mine = self._enter()
        try:
            result = function(*arguments)
        finally:
            self._leave(mine)
        if mine.error is not None:
            raise mine.error
        return result

    @property
    def calling(self) -> bool:
        """Whether a guarded call of this thread has not returned: this is a callback of it."""
        return bool(self._stack())

    def _enter(self) -> Guard:
        mine = Guard()
        self._stack().append(mine)
        self._entered.append(mine)
        return mine

    def _leave(self, mine: Guard) -> None:
        self._stack().remove(mine)
        self._entered.remove(mine)

    def _stack(self) -> list[Guard]:
        stack: list[Guard] | None = getattr(self._here, "stack", None)
        if stack is None:
            stack = self._here.stack = []
        return stack

    def _current(self) -> Guard | None:
        """The guard of this thread or, on a thread that C made, the latest one of any thread."""
        stack = self._stack()
        if stack:
            return stack[-1]
        try:
            return self._entered[-1]
        except IndexError:
            return None

    def _keep(self, error: BaseException) -> None:
        guard = self._current()
        if guard is None:
            unraisable: Any = SimpleNamespace(
                exc_type=type(error),
                exc_value=error,
                exc_traceback=error.__traceback__,
                err_msg="Exception ignored in a callback that no guarded call runs",
                object=None,
            )
            sys.unraisablehook(unraisable)
        elif guard.error is None:
            guard.error = error

    def _call(self, data: Any, fallback: Any, *arguments: Any) -> Any:
        guard = self._current()
        if guard is not None and guard.error is not None:
            return fallback
        try:
            callback = self._alive.get(int(self._ffi.cast("uintptr_t", data)))
            function = callback.function if callback is not None else None
            if function is None:
                raise PyggmlError(
                    "C called a Python callback whose owner is closed",
                    "Keep the object that the callback was given to as long as it may be called.",
                )
            return function(*arguments)
        except BaseException as error:
            self._keep(error)
            return fallback

    def _connect(self, kind: Kind) -> None:
        pointer = getattr(self._lib, kind.trampoline)
        if self._ffi.typeof(kind.typedef) is not self._ffi.typeof(pointer):
            raise PyggmlError(
                f"{kind.typedef} of this tree is {self._ffi.typeof(kind.typedef).cname}, and pyggml knows "
                f"{self._ffi.typeof(pointer).cname}",
                "This upstream is newer than this version of pyggml.",
            )
        body, error = getattr(self, f"_{kind.name}")()

        # Reached when something is raised outside the function itself: Ctrl-C, or an answer of a wrong type.
        def failed(_type: Any, value: Any, _traceback: Any) -> Any:
            self._keep(value)
            return error

        self._ffi.def_extern(name=kind.trampoline, error=error, onerror=failed)(body)
        self._pointers[kind.name] = self._ffi.addressof(self._lib, kind.wrapper) if kind.wrapper else pointer

    def _log(self) -> tuple[Callable[..., Any], Any]:
        string = self._ffi.string

        def log(level: int, text: Any, data: Any) -> None:
            self._call(data, None, level, string(text))

        return log, None

    def _eval(self) -> tuple[Callable[..., Any], Any]:
        def evaluate(tensor: Any, ask: bool, data: Any) -> bool:
            # Wanting the node ends the run of nodes; refusing to go on after it ends the computation.
            return _truth(self._call(data, ask, tensor, ask), "eval")

        return evaluate, False

    def _split(self) -> tuple[Callable[..., Any], Any]:
        mirrored = self._ffi.new("struct ggml_backend_meta_split_state *")
        mirrored.axis = self._lib.GGML_BACKEND_SPLIT_AXIS_MIRRORED
        mirrored.n_segments = 1
        mirrored.nr[0] = 1
        # An all-zero answer would abort far away from the mistake.
        fallback = mirrored[0]
        kind = self._ffi.typeof(fallback)
        typeof, cdata = self._ffi.typeof, self._ffi.CData

        def split(tensor: Any, data: Any) -> Any:
            answer = self._call(data, fallback, tensor)
            # cffi would make a struct of a list or a dict, zeros for what is missing.
            if not isinstance(answer, cdata) or typeof(answer) is not kind:
                raise TypeError(f"the split callback must return a {kind.cname}, not {answer!r:.100}")
            return answer

        return split, fallback

    def _progress(self) -> tuple[Callable[..., Any], Any]:
        def progress(fraction: float, data: Any) -> bool:
            return _truth(self._call(data, False, fraction), "progress")

        return progress, False

    def _fill(self) -> tuple[Callable[..., Any], Any]:
        def fill(tensor: Any, data: Any) -> None:
            self._call(data, None, tensor)

        return fill, None

    def _abort(self) -> tuple[Callable[..., Any], Any]:
        def abort(data: Any) -> bool:
            return _truth(self._call(data, True), "abort")

        return abort, True


def _truth(answer: Any, kind: str) -> bool:
    # numpy's bool_ is one too; None is most likely a forgotten return, and would be taken as "stop".
    if answer is None:
        raise TypeError(f"the {kind} callback returned None; it must return True or False")
    return bool(answer)
