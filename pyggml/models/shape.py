"""The shape of a generated model, and the check that it makes sense."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pyggml.errors import UsageError

TYPES = ("f32", "f16", "q8_0")
Q8_0_BLOCK = 32
"""Values in one block of q8_0; rows of a matrix must be whole blocks (QK8_0, ggml/src/ggml-common.h)."""
MAX_LAYERS = 512
"""LLAMA_MAX_LAYERS (src/llama-hparams.h)."""
TEXT_TOKENS = 260
"""The smallest vocabulary for text: 3 special tokens, the space and 256 bytes."""
_MAX_COUNT = 1 << 24


@dataclass(frozen=True)
class Architecture:
    """What one of upstream's architectures supports.

    Attributes:
        free_v_size: V heads may have another size than K heads.
        separate, fused: it reads `attn_q`, `attn_k` and `attn_v`; it reads a single `attn_qkv`.
        plain: exactly llama's tensors; otherwise there are also norms of Q and K and after each part, and
            `ffn_up` holds gate and up together.
        window: it requires a layer with sliding-window attention, and thus two caches (iSWA).
    """

    free_v_size: bool
    separate: bool
    fused: bool
    plain: bool
    window: bool


ARCHITECTURES = {
    "llama": Architecture(free_v_size=False, separate=True, fused=True, plain=True, window=False),
    "mimo2": Architecture(free_v_size=True, separate=True, fused=True, plain=True, window=True),
    "plamo3": Architecture(free_v_size=True, separate=False, fused=True, plain=False, window=False),
}
"""The architectures that can be written, as upstream's src/models/*.cpp reads them.

`llama`, like most, builds Q, K and V with one size, `n_embd_head_v` (build_qkv, src/llama-graph.cpp), so
the two sizes must agree. `mimo2` is the only one with an independent V size both in a fused matrix and in
separate ones and with a dense feed-forward part like llama's; its first layer gets a window larger than any
context. `plamo3` has an independent V size with a single ordinary cache, but only in a fused matrix.
(Others with an independent V size: step35, separate only; plamo2, a hybrid; those with MLA.)
"""


@dataclass(frozen=True)
class ModelShape:
    """A llama-like model: RMS norm, rotary attention with grouped KV heads, SiLU feed-forward.

    Attributes:
        heads, kv_heads: query heads and KV heads; each KV head serves heads / kv_heads query heads.
        k_size, v_size: width of a K (and Q) head and of a V head; v_size None means k_size.
        layers, embd, ff: depth, width, and width of the feed-forward part.
        vocab: number of tokens; with TEXT_TOKENS or more the model reads text, byte by byte, with fewer it
            only takes token ids.
        context: the training context that it claims, in tokens.
        arch: one of ARCHITECTURES; None means llama if K and V have the same size, otherwise mimo2.
        fused_qkv: one matrix `attn_qkv` instead of `attn_q`, `attn_k` and `attn_v`, with the same values.
        seed: seed of the weights.
        type: type of the matrices: f32, f16 or q8_0. Norms are always f32.

    Raises:
        UsageError: an impossible shape; the message names the numbers.
    """

    heads: int = 4
    kv_heads: int = 2
    k_size: int = 64
    v_size: int | None = None
    layers: int = 2
    embd: int = 256
    vocab: int = 512
    ff: int = 384
    context: int = 512
    arch: str | None = None
    fused_qkv: bool = False
    seed: int = 1
    type: str = "f32"

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.heads % self.kv_heads:
            raise UsageError(
                f"{self.heads} heads cannot share {self.kv_heads} KV heads evenly",
                "The number of heads must be a multiple of the KV heads, e.g. --heads 4 --kv-heads 2.",
            )
        if self.k_size % 2:
            raise UsageError(
                f"the K head size {self.k_size} is odd, but rotary embedding rotates pairs of values",
                "Choose an even --k-size.",
            )
        self._check_architecture()
        if self.type not in TYPES:
            raise UsageError(f"there is no weight type {self.type!r}", f"Use one of {', '.join(TYPES)}.")
        if self.type == "q8_0":
            self._check_blocks()

    @property
    def v_width(self) -> int:
        """The V head size, also if `v_size` is None."""
        return self.k_size if self.v_size is None else self.v_size

    @property
    def architecture(self) -> str:
        """The architecture, also if `arch` is None."""
        if self.arch is not None:
            return self.arch
        return "llama" if self.v_width == self.k_size else "mimo2"

    @property
    def reads_text(self) -> bool:
        return self.vocab >= TEXT_TOKENS

    @property
    def name(self) -> str:
        """The shape in short, for general.name and file names."""
        parts = [
            f"{self.architecture}-h{self.heads}-kv{self.kv_heads}-k{self.k_size}-v{self.v_width}",
            f"l{self.layers}-e{self.embd}-n{self.vocab}-f{self.ff}-c{self.context}",
            "fused" if self.fused_qkv else "separate",
            f"{self.type}-s{self.seed}",
        ]
        return "-".join(parts)

    def _check_numbers(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("arch", "fused_qkv", "type") or value is None:
                continue
            option = "--" + field.name.replace("_", "-")
            if isinstance(value, bool) or not isinstance(value, int):
                raise UsageError(f"{option} {value!r} is not a whole number")
            least, most = _RANGES.get(field.name, (1, _MAX_COUNT))
            if not least <= value <= most:
                raise UsageError(f"{option} {value} is out of range", f"It must be {least} to {most}.")

    def _check_architecture(self) -> None:
        traits = ARCHITECTURES.get(self.architecture)
        if traits is None:
            raise UsageError(
                f"models of architecture {self.arch!r} cannot be made",
                f"Use one of {', '.join(ARCHITECTURES)}.",
            )
        if not traits.free_v_size and self.v_width != self.k_size:
            raise UsageError(
                f"{self.arch} needs K and V heads of the same size, not {self.k_size} and {self.v_width}",
                "Use --arch mimo2 or plamo3, or leave --arch out.",
            )
        if not (traits.fused if self.fused_qkv else traits.separate):
            raise UsageError(
                f"{self.arch} only supports one fused matrix for Q, K and V",
                "Add --fused-qkv, or use --arch mimo2.",
            )

    def _check_blocks(self) -> None:
        rows = {
            "--embd": self.embd,
            "--ff": self.ff,
            "--heads times --v-size": self.heads * self.v_width,
        }
        for what, width in rows.items():
            if width % Q8_0_BLOCK:
                raise UsageError(
                    f"q8_0 packs {Q8_0_BLOCK} values at a time, but {what} is {width}",
                    f"Choose a multiple of {Q8_0_BLOCK}, or another --type.",
                )


_RANGES = {"layers": (1, MAX_LAYERS), "vocab": (2, _MAX_COUNT), "seed": (0, (1 << 63) - 1)}
