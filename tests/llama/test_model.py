"""Model files, valid and invalid, and the properties of a loaded model."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyggml.builder.record import Build
from pyggml.errors import PyggmlError, UsageError
from pyggml.ggml.handle import ClosedError, ThreadError
from pyggml.llama import LlamaContext, Model

from .conftest import Open

pytestmark = pytest.mark.native


def test_model_properties(made: Callable[..., Path]) -> None:
    path = made(layers=3, heads=6, kv_heads=2, embd=96)
    with Model.load(path, devices=()) as model:
        assert model.architecture == "llama"
        assert (model.n_layer, model.n_head, model.n_head_kv, model.n_embd) == (3, 6, 2, 96)
        assert (model.n_vocab, model.n_ctx_train, model.bos, model.eos) == (300, 512, 1, 2)
        per_layer = 96 * (6 * 16 + 2 * 2 * 16 + 6 * 16 + 3 * 96) + 2 * 96
        assert model.n_params == 3 * per_layer + 2 * 300 * 96 + 96
        assert model.size == 4 * model.n_params
        assert model.description.startswith("llama")
        assert model.metadata["llama.attention.head_count_kv"] == "2"
        assert not model.is_recurrent and not model.is_hybrid and not model.has_encoder


@pytest.mark.parametrize("text", ["", "Hello world", "  zwei  Räume\n\t", "日本 \U0001f600", "a\0b"])
def test_text_survives_a_round_trip(made: Callable[..., Path], text: str) -> None:
    with Model.load(made(), devices=(), vocab_only=True) as model:
        tokens = model.tokenize(text)
        assert tokens[0] == model.bos
        assert model.detokenize(tokens) == text
        # One token for a space, one for every other byte.
        assert len(model.tokenize(text, special=False)) == len(text.encode())


def test_special_tokens_in_text(made: Callable[..., Path]) -> None:
    with Model.load(made(), devices=(), vocab_only=True) as model:
        assert model.tokenize("<s></s>", special=False, parse_special=True) == [1, 2]
        assert len(model.tokenize("<s></s>", special=False)) == 7
        assert model.detokenize([1, 2], unparse_special=True) == "<s></s>"
        assert model.is_end(2) and not model.is_end(1)
        for bad in ([300], [-1], [1.5], [[1]]):
            with pytest.raises(UsageError):
                model.detokenize(bad)
        with pytest.raises(UsageError, match="cannot be tokenized"):
            model.tokenize("\ud800")


def test_model_without_text(made: Callable[..., Path]) -> None:
    with Model.load(made(vocab=128), devices=()) as model:
        assert not model.reads_text
        for call in (lambda: model.tokenize("a"), lambda: model.detokenize([1]), lambda: model.is_end(1)):
            with pytest.raises(PyggmlError, match="128 tokens but no text"):
                call()


def test_vocabulary_alone(made: Callable[..., Path]) -> None:
    with Model.load(made(), devices=(), vocab_only=True) as model:
        assert model.n_vocab == 300
        for name in ("n_layer", "n_head", "n_head_kv", "n_embd", "n_swa"):
            with pytest.raises(PyggmlError, match="with vocab_only: there is no n_"):
                getattr(model, name)
        with pytest.raises(UsageError, match="vocab_only and cannot decode"):
            LlamaContext(model)


def test_files_that_are_not_models(made: Callable[..., Path], tmp_path: Path) -> None:
    data = made().read_bytes()
    unknown = data.replace(b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama", b"", 1)
    files = {
        "text": (b"just a text", "not a GGUF file: it begins with b'just'"),
        "empty": (b"", "not a GGUF file: it begins with b''"),
        "magic": (b"GGUF", "cannot load"),
        "version": (data[:4] + b"\xff\xff\xff\x7f" + data[8:], "cannot load .*version"),
        "unknown": (unknown, "cannot load"),
        "weights": (data[: len(data) // 2], r"data is not within the file bounds"),
        "last": (data[:-64], r"data is not within the file bounds"),
        "header": (data[:700], "cannot load .*failed to read key-value pairs"),
    }
    for name, (content, words) in files.items():
        path = tmp_path / f"{name} ü.gguf"
        path.write_bytes(content)
        with pytest.raises(PyggmlError, match=words) as raised:
            Model.load(path, devices=())
        assert str(path) in raised.value.message
    for path in (tmp_path, tmp_path / "none.gguf", Path("a\0b")):
        with pytest.raises(PyggmlError, match="cannot read the model"):
            Model.load(path, devices=())


def test_unknown_architecture_is_named(made: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(made().read_bytes().replace(b"llama", b"lmama"))
    with pytest.raises(PyggmlError, match="unknown model architecture: 'lmama'"):
        Model.load(path, devices=())


def test_every_cut_is_an_error(made: Callable[..., Path], tmp_path: Path) -> None:
    data = made(layers=1, embd=32, ff=32).read_bytes()
    path = tmp_path / "cut.gguf"
    cuts = np.random.default_rng(5).integers(0, len(data) - 1, 40)
    for cut in (*cuts, *range(4, 12000, 331)):
        path.write_bytes(data[: int(cut)])
        with pytest.raises(PyggmlError):
            Model.load(path, devices=())


def test_headers_that_llama_cpp_asserts_on(made: Callable[..., Path], tmp_path: Path) -> None:
    data = made().read_bytes()
    path = tmp_path / "bad.gguf"
    path.write_bytes(data.replace(b"<0x41>", b"<0x42>", 1))
    with pytest.raises(PyggmlError, match="tokens 68 and 69 are both b'<0x42>'"):
        Model.load(path, devices=())
    key = b"llama.block_count\x04\0\0\0"
    for number in (0, 513):
        at = data.index(key) + len(key)
        path.write_bytes(data[:at] + number.to_bytes(4, "little") + data[at + 4 :])
        with pytest.raises(PyggmlError, match=f"claims to have {number} layers; llama.cpp supports 1 to 512"):
            Model.load(path, devices=())


def test_progress(made: Callable[..., Path]) -> None:
    seen: list[float] = []
    Model.load(made(), devices=(), progress=seen.append).close()
    assert seen == sorted(seen) and seen[-1] == 1.0
    with pytest.raises(PyggmlError, match="stopped by the progress function"):
        Model.load(made(), devices=(), progress=lambda fraction: False)

    def broken(fraction: float) -> bool:
        raise KeyError(fraction)

    with pytest.raises(KeyError):
        Model.load(made(), devices=(), progress=broken)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"devices": ["NONE0"]}, "no device 'NONE0'"),
        ({"devices": "CPU"}, "devices is the string"),
        ({"devices": ["CPU"]}, "is a CPU"),
        ({"devices": [3]}, "no device 3"),
        ({"split_mode": "columns"}, "split_mode is 'columns'"),
        ({"split_mode": "tensor"}, "needs at least one device"),
        ({"load_mode": "tape"}, "load_mode is 'tape'"),
        ({"tensor_split": [1.0]}, "1 shares for 0 devices"),
        ({"gpu_layers": -5}, "gpu_layers is -5"),
        ({"gpu_layers": 1.5}, "must be a whole number"),
    ],
)
def test_invalid_arguments(made: Callable[..., Path], options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Model.load(made(), **{"devices": (), **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_ctx": -1}, "n_ctx is -1"),
        ({"n_ctx": 1 << 40}, "n_ctx is 1099511627776"),
        ({"n_batch": 0}, "n_batch is 0"),
        ({"n_ubatch": 0}, "n_ubatch is 0"),
        ({"n_seq_max": 0}, "n_seq_max is 0; it must be 1 to 256"),
        ({"n_seq_max": 257}, "n_seq_max is 257; it must be 1 to 256"),
        ({"n_seq_max": 8, "n_batch": 4}, "n_seq_max is 8, more than the 4 tokens of a batch"),
        ({"threads": 0}, "threads is 0; it must be 1 to 512"),
        ({"threads_batch": 513}, "threads_batch is 513"),
        ({"type_k": "q6_K"}, "type_k is 'q6_K'"),
        ({"type_v": 1}, "type_v is 1"),
        ({"flash_attn": "yes"}, "flash_attn is 'yes'"),
        ({"type_k": "q8_0", "flash_attn": False}, "packs 32 values at a time.* has 16"),
        ({"type_k": "q8_0"}, "does not divide n_embd_head_k=16"),
        ({"type_v": "q8_0", "flash_attn": False}, "quantized V cache requires flash_attn"),
        ({"pooling": "max"}, "pooling is 'max'"),
        (
            {"embeddings": True, "pooling": "mean", "n_seq_max": 2, "n_ubatch": 7},
            "the 7 tokens .* multiple of the 2 sequences",
        ),
        ({"rope_freq_base": float("nan")}, "rope_freq_base is nan"),
    ],
)
def test_invalid_context_options(
    made: Callable[..., Path], open_context: Open, options: dict[str, object], words: str
) -> None:
    with pytest.raises(PyggmlError, match=words):
        open_context(made(), **options)


@pytest.mark.parametrize("flash", [True, False, "auto"])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"])
def test_every_cache_type_computes(
    made: Callable[..., Path], open_context: Open, kind: str, flash: bool | str
) -> None:
    path = made(k_size=32)
    value = kind if flash else "f16"
    expected = open_context(path).decode(list(range(20)))
    context = open_context(path, type_k=kind, type_v=value, flash_attn=flash)
    error = context.decode(list(range(20))) - expected
    assert np.square(error).sum() / np.square(expected).sum() < 0.05


def test_closing(made: Callable[..., Path], pyggml_build: Build) -> None:
    model = Model.load(made(), devices=())
    context = LlamaContext(model, n_ctx=256, threads=1)
    other = LlamaContext(model, n_ctx=256, threads=1)
    memory = context.memory
    context.decode([1, 2])
    state = context.save_state()
    context.close()
    context.close()
    other.decode([1])
    model.close()
    model.close()
    for call in (
        lambda: context.decode([1]),
        lambda: other.decode([1]),
        context.logits,
        context.save_state,
        lambda: context.restore_state(state),
        lambda: context.perf,
        lambda: memory.can_shift,
        memory.pos_min,
        memory.pos_max,
        lambda: memory.last_position(0),
        memory.clear,
        memory.seq_rm,
        lambda: memory.seq_cp(0, 0),
        lambda: memory.seq_keep(0),
        lambda: memory.seq_add(0, 1),
        lambda: memory.seq_div(0, 2),
        lambda: memory.seq_release(0),
        lambda: memory.seq_reserve(0),
        lambda: memory.seq_held(0),
        lambda: memory.ensure_held((0,)),
        lambda: context.pointer,
        lambda: model.pointer,
        lambda: model.n_layer,
        lambda: model.metadata,
        lambda: model.architecture,
        lambda: model.n_vocab,
        lambda: model.tokenize("a"),
        lambda: LlamaContext(model),
    ):
        with pytest.raises(ClosedError):
            call()


def test_context_keeps_its_model_alive(made: Callable[..., Path], pyggml_build: Build) -> None:
    context = LlamaContext(Model.load(made(), devices=()), n_ctx=256, threads=1)
    gc.collect()
    assert context.decode([1]).shape == (1, 300)
    model = context.model
    del context
    gc.collect()
    assert LlamaContext(model, n_ctx=256, threads=1).decode([1]).shape == (1, 300)


def test_second_thread_is_refused(made: Callable[..., Path], open_context: Open) -> None:
    inside, done = threading.Event(), threading.Event()

    def wait() -> bool:
        inside.set()
        done.wait(30)
        return False

    context = open_context(made(), abort=wait)
    worker = threading.Thread(target=lambda: context.decode([1]))
    worker.start()
    try:
        assert inside.wait(30)
        for call in (lambda: context.decode([2]), context.memory.clear, context.close, context.model.close):
            with pytest.raises(ThreadError, match="in use by another thread"):
                call()
    finally:
        done.set()
        worker.join()
    assert context.memory.pos_max() == 0
