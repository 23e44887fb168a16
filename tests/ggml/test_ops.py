"""Operations: results as numpy says, and shapes that ggml would assert."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from pyggml.errors import PyggmlError
from pyggml.ggml import Allocator, Context, Ops, Tensor, cpu
from pyggml.ggml.library import load

pytestmark = pytest.mark.native


def given(context: Context, array: np.ndarray[Any, Any], name: str) -> Tensor:
    return context.tensor(array.dtype, array.shape, name)


def run(context: Context, made: Tensor, values: dict[Tensor, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    for tensor in values:
        tensor.mark_input()
    graph = context.graph(made.mark_output())
    allocator = Allocator(cpu())
    allocator.allocate(graph)
    for tensor, value in values.items():
        tensor.set(value)
    cpu().backend(threads=1).compute(graph)
    return made.numpy()


def test_a_product_is_rows_by_rows(rng: Any) -> None:
    context, a, b = Context(), rng.random((3, 8), np.float32), rng.random((5, 8), np.float32)
    ta, tb = given(context, a, "a"), given(context, b, "b")
    np.testing.assert_allclose(run(context, context.ops.mul_mat(ta, tb), {ta: a, tb: b}), b @ a.T, rtol=1e-6)


def test_views_reshapes_and_permutations_read_what_numpy_reads(rng: Any) -> None:
    context, a = Context(), rng.random((4, 3, 8), np.float32)
    tensor, ops = given(context, a, "a"), context.ops
    window = ops.view_3d(tensor, 4, 3, 2, 32, 96, 96 + 16)
    swapped = ops.permute(ops.cont(window), 0, 2, 1, 3)
    result = run(context, ops.reshape_2d(ops.cont(swapped), 12, 2), {tensor: a})
    expected = np.ascontiguousarray(a[1:3, :, 4:8].transpose(1, 0, 2)).reshape(2, 12)
    assert (result == expected).all()


def test_rows_are_picked_put_and_joined(rng: Any) -> None:
    context, table = Context(), rng.random((6, 4), np.float32)
    tensor, ops = given(context, table, "table"), context.ops
    picks, new = np.array([5, 0], np.int32), rng.random((2, 4), np.float32)
    indices, rows, where = (
        given(context, picks, "picks"),
        given(context, new, "new"),
        context.tensor("i64", 2),
    )
    changed = ops.set_rows(tensor, rows, where)
    joined = ops.concat(ops.get_rows(changed, indices), rows, 1)
    result = run(
        context, joined, {tensor: table, indices: picks, rows: new, where: np.array([0, 3], np.int64)}
    )
    expected = table.copy()
    expected[[0, 3]] = new
    assert (result == np.concatenate([expected[picks], new])).all()


def test_broadcasts_follow_ggml(rng: Any) -> None:
    context, a, b = Context(), rng.random((4, 6), np.float32), rng.random((1, 3), np.float32)
    ta, tb = given(context, a, "a"), given(context, b, "b")
    assert (run(context, context.ops.add(ta, tb), {ta: a, tb: b}) == a + np.tile(b, (4, 2))).all()


BAD: list[tuple[str, tuple[Any, ...], str]] = [
    ("mul_mat", ("a", "odd"), r"'a'.*'odd'.*ggml\.c:\d+: GGML_ASSERT\(ggml_can_mul_mat\(a, b\)\) failed"),
    ("mul_mat", ("turned", "b3"), r"GGML_ASSERT\(!ggml_is_transposed\(a\)\)"),
    ("mul_mat", ("deep2", "deep3"), r"GGML_ASSERT\(ggml_can_mul_mat\(a, b\)\)"),
    ("add", ("a", "odd"), r"\(3, 8\).*\(3, 7\).*GGML_ASSERT\(ggml_can_repeat\(b, a\)\)"),
    ("add", ("a", 1.0), "add, argument 2: a tensor is needed, not a float"),
    ("add", ("a", None), "a tensor is needed, not a NoneType"),
    ("add", ("a",), "add takes 2 arguments"),
    ("reshape_2d", ("a", 5, 5), r"'a'.*, 5, 5: ggml\.c:\d+: GGML_ASSERT\(ggml_nelements\(a\) == "),
    ("reshape_2d", ("turned", 4, 6), r"GGML_ASSERT\(ggml_is_contiguous\(a\)\)"),
    ("reshape_1d", ("a", -24), "at least 1"),
    ("reshape_2d", ("blocks", 16, 4), r"a row of 16 elements cuts blocks of q8_0"),
    ("view_1d", ("a", 25, 0), "reach byte 100"),
    ("view_1d", ("a", 1, 96), "reach byte 100"),
    ("view_1d", ("a", 1, 2), "whole elements"),
    ("view_2d", ("a", 8, 3, 40, 0), "reach byte 112"),
    ("view_2d", ("a", 8, 0, 32, 0), "at least 1"),
    ("view_2d", ("a", 1 << 62, 2, 32, 0), "at least 1"),
    ("view_1d", ("a", 1, -4), "from 0 to"),
    ("permute", ("a", 0, 1, 2, 2), r"GGML_ASSERT\(axis2 != axis3\)"),
    ("permute", ("a", 0, 1, 2, 4), r"GGML_ASSERT\(axis3 >= 0 && axis3 < GGML_MAX_DIMS\)"),
    ("cpy", ("a", "odd"), r"GGML_ASSERT\(ggml_nelements\(a\) == ggml_nelements\(b\)\)"),
    ("cont_2d", ("a", 3, 7), r"GGML_ASSERT\(ggml_nelements\(a\) == "),
    ("set_rows", ("a", "b3", "picks"), r"GGML_ASSERT\(a->ne\[0\] == b->ne\[0\]\)"),
    ("set_rows", ("a", "a", "a"), r"GGML_ASSERT"),
    ("get_rows", ("a", "a"), r"GGML_ASSERT"),
    ("get_rows", ("deep2", "picks"), r"GGML_ASSERT\(a->ne\[2\] == b->ne\[1\]\)"),
    ("concat", ("a", "odd", 1), r"GGML_ASSERT\(a->ne\[d\] == b->ne\[d\]\)"),
    ("concat", ("a", "a", 4), r", 4: .*GGML_ASSERT\(dim >= 0 && dim < GGML_MAX_DIMS\)"),
    ("concat", ("a", "ints8", 0), r"GGML_ASSERT\(a->type == b->type\)"),
    ("rope", ("a", "picks", 8, 0), r"GGML_ASSERT\(a->ne\[2\] == b->ne\[0\]\)"),
    ("rope", ("a", "one", 8, 1), r"GGML_ASSERT\(\(mode & 1\) == 0"),
    ("soft_max_ext", ("a", "odd", 1.0, 0.0), r"GGML_ASSERT\(mask->ne\[0\] == a->ne\[0\]\)"),
    ("soft_max_ext", ("a", None, 1.0, 2.0), r"GGML_ASSERT\(mask\)"),
    ("flash_attn_ext", ("a", "odd", "a", None, 1.0, 0.0, 0.0), r"GGML_ASSERT\(ggml_can_mul_mat\(k, q\)\)"),
    ("scale", ("a", "2"), "a number is needed, not '2'"),
    ("scale", ("a", True), "a number is needed"),
    ("cast", ("a", "q4_0"), "cuts blocks"),
    ("cast", ("a", "nothing"), "no tensor type"),
    ("repeat_4d", ("a", 1.5, 1, 1, 1), "whole number"),
    ("repeat_4d", ("a", 0, 1, 1, 1), "at least 1"),
    # No rule of pyggml's: a constructor that nothing here knows of comes back as well.
    ("diag", ("a",), r"GGML_ASSERT\(a->ne\[1\] == 1\)"),
    ("conv_1d", ("a", "a", 0, 0, 1), "division by zero"),
]


@pytest.mark.parametrize(("op", "arguments", "words"), BAD, ids=lambda value: str(value)[:40])
def test_wrong_arguments_raise_and_the_interpreter_lives(
    op: str, arguments: tuple[Any, ...], words: str
) -> None:
    context = Context()
    known: dict[str, Tensor] = {
        "a": context.tensor("f32", (3, 8), "a"),
        "odd": context.tensor("f32", (3, 7), "odd"),
        "b3": context.tensor("f32", (5, 3), "b3"),
        "deep2": context.tensor("f32", (2, 3, 8), "deep2"),
        "deep3": context.tensor("f32", (3, 3, 8), "deep3"),
        "ints": context.tensor("i32", (3, 8), "ints"),
        "ints8": context.tensor("i8", (3, 8), "ints8"),
        "picks": context.tensor("i32", 2, "picks"),
        "one": context.tensor("i32", 1, "one"),
        "blocks": context.tensor("q8_0", (2, 32), "blocks"),
    }
    known["turned"] = context.ops.transpose(known["a"])
    before = len(context.tensors())
    with pytest.raises(PyggmlError, match=words):
        getattr(context.ops, op)(*(known.get(one, one) if isinstance(one, str) else one for one in arguments))
    assert len(context.tensors()) == before


KERNELS: list[tuple[str, tuple[Any, ...], str]] = [
    ("mul_mat", ("a", "ints8"), "mul_mat of tensor 'a'.*'ints8'.* is not supported by CPU"),
    ("mul_mat", ("a", "far"), "cannot be computed on CPU: elements of a row are not adjacent"),
    ("add", ("ints", "ints"), "cannot be computed on CPU: the first must be f32, f16 or bf16"),
    ("add", ("blocks", "row"), "to blocks only f32 of the same shape is added"),
    ("rope", ("a", "one", 9, 0), "9 dimensions of rows of 8"),
    ("sum_rows", ("far",), "elements of a row are not adjacent"),
    ("cpy", ("blocks", "words"), "q8_0 is not converted to i32"),
]


@pytest.mark.parametrize(("op", "arguments", "words"), KERNELS, ids=lambda value: str(value)[:40])
def test_what_only_a_kernel_asserts_is_refused_when_the_graph_is_to_be_computed(
    op: str, arguments: tuple[Any, ...], words: str
) -> None:
    context = Context()
    wide = context.tensor("f32", (8, 3), "wide")
    known: dict[str, Tensor] = {
        "a": context.tensor("f32", (3, 8), "a"),
        "ints": context.tensor("i32", (3, 8), "ints"),
        "ints8": context.tensor("i8", (3, 8), "ints8"),
        "one": context.tensor("i32", 1, "one"),
        "blocks": context.tensor("q8_0", (2, 32), "blocks"),
        "row": context.tensor("f32", (1, 32), "row"),
        "words": context.tensor("i32", (2, 32), "words"),
        "far": context.ops.transpose(wide),
    }
    known_op = getattr(context.ops, op)
    made = known_op(*(known.get(one, one) if isinstance(one, str) else one for one in arguments))
    context.allocate(cpu())
    with pytest.raises(PyggmlError, match=words):
        cpu().backend(threads=1).compute(context.graph(made))


def test_checked_names_operations_of_this_build() -> None:
    bindings = load()
    names = {
        bindings.ffi.string(bindings.lib.ggml_op_name(number)).decode()
        for number in range(bindings.lib.GGML_OP_COUNT)
    }
    assert names >= Ops.checked > {"MUL_MAT", "ADD", "FLASH_ATTN_EXT"}


def test_only_operations_are_offered() -> None:
    ops = Context().ops
    for name in (
        "new_tensor",
        "free",
        "init",
        "get_first_tensor",
        "map_custom1",
        "nonsense",
        "backend_init_best",
    ):
        assert not hasattr(ops, name)
    assert {"mul_mat", "flash_attn_ext", "ssm_scan", "flash_attn_ext_add_sinks"} <= set(dir(ops))


def test_two_contexts_do_not_use_each_other() -> None:
    one, two = Context("one"), Context("two")
    a, b = one.tensor("f32", 3), two.tensor("f32", 3)
    one.ops.add(a, b)
    with pytest.raises(PyggmlError, match="context one is made of tensors of context two"):
        two.ops.add(b, a)


def test_what_a_context_reaches_grows_with_the_contexts_that_it_uses() -> None:
    one, two, three = Context("one"), Context("two"), Context("three")
    a, b, c = (context.tensor("f32", 3) for context in (one, two, three))
    one.ops.add(a, b)
    assert one.reach() == (one, two)
    two.ops.add(b, c)
    assert one.reach() == (one, two, three)
    three.close()
    assert one.closed and two.closed


def test_contexts_are_freed_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        one, two = Context("one"), Context("two")
        ops = one.ops
        ops.add(one.tensor("f32", 3), two.tensor("f32", 3))
        alive = weakref.ref(one), weakref.ref(two)
        del one, two, ops
        assert [ref() for ref in alive] == [None, None]
    finally:
        gc.enable()


def test_stale_memory_is_refused_where_an_operation_is_built() -> None:
    """Also after operations on fresh memory, and in a context that only uses the one with that memory."""
    weights, context = Context("weights"), Context("graph")
    tensor = weights.tensor("f32", 3, "w")
    buffer = weights.allocate(cpu())
    context.ops.scale(tensor, 1.0)
    buffer.close()
    with pytest.raises(PyggmlError, match=r"'w'.* has lost its memory"):
        context.ops.scale(tensor, 1.0)


def test_a_graph_that_is_too_small_says_what_it_needs() -> None:
    context = Context()
    tensor = context.tensor("f32", 3, "x")
    for _ in range(20):
        tensor = context.ops.scale(tensor, 1.0)
    graph = context.graph(size=10)
    with pytest.raises(PyggmlError, match=r"needs 20 nodes and 1 leaves, and .* holds 10"):
        graph.add(tensor)
    assert len(graph) == 0 and len(context.graph(tensor, size=20)) == 20


def test_a_deep_graph_is_no_deep_recursion_in_python() -> None:
    context = Context(capacity=6000)
    tensor = context.tensor("f32", 3)
    for _ in range(5000):
        tensor = context.ops.scale(tensor, 1.0)
    assert len(context.graph(tensor)) == 5000
    assert len(context.graph(tensor, size=5000)) == 5000
