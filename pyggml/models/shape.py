"""What a made model looks like, and which shapes make sense."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pyggml.errors import UsageError

TYPES = ("f32", "f16", "q8_0")
Q8_0_BLOCK = 32
"""Values in one block of q8_0: rows of a matrix are whole blocks (QK8_0, ggml/src/ggml-common.h)."""
MAX_LAYERS = 512
"""LLAMA_MAX_LAYERS (src/llama-hparams.h)."""
TEXT_TOKENS = 260
"""From this vocabulary on a model reads text: 3 special tokens, the space and 256 bytes."""
_MAX_COUNT = 1 << 24


@dataclass(frozen=True)
class Architecture:
    """What one of upstream's architectures can be given.

    Attributes:
        free_v_size: V heads may have another size than K heads.
        separate, fused: it reads `attn_q`, `attn_k`, `attn_v`; it reads one `attn_qkv`.
        plain: exactly llama's tensors; otherwise norms of Q and K and after each part come on top, and
            `ffn_up` holds gate and up together.
        window: it insists on a layer with sliding-window attention, and so on two caches (iSWA).
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
"""The architectures that the writer knows, as upstream's src/models/*.cpp reads them.

`llama`, like most, builds Q, K and V with one size, `n_embd_head_v` (build_qkv, src/llama-graph.cpp), so
the two sizes must agree. `mimo2` alone takes the V size independently, both from a fused matrix and from
separate ones, with a dense feed-forward part like llama's; its first layer gets a window that no context
fills. `plamo3` has the independent V size with a single ordinary cache, but only as a fused matrix.
(Others with a V size of their own: step35, separate only; plamo2, a hybrid; those with MLA.)
"""


@dataclass(frozen=True)
class ModelShape:
    """A llama-like model: RMS norm, rotary attention with grouped KV heads, SiLU feed-forward.

    Attributes:
        heads, kv_heads: query heads, and KV heads, of which each serves heads / kv_heads.
        k_size, v_size: width of one K (and Q) and of one V head; v_size None means k_size.
        layers, embd, ff: depth, width, and width of the feed-forward part.
        vocab: tokens; from TEXT_TOKENS on the model reads text, byte by byte, below it takes token ids only.
        context: tokens it claims to be trained on.
        arch: one of ARCHITECTURES; None means llama where K and V have one size, else mimo2.
        fused_qkv: one matrix `attn_qkv` instead of `attn_q`, `attn_k`, `attn_v`, with the same values.
        seed: of the weights.
        type: of the matrices: f32, f16 or q8_0. Norms are always f32.

    Raises:
        UsageError: a shape that no model can have; the message names the numbers.
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
                "The KV heads must divide the heads, e.g. --heads 4 --kv-heads 2.",
            )
        if self.k_size % 2:
            raise UsageError(
                f"a K head of {self.k_size} is odd, and rotary embedding turns pairs of values",
                "Choose an even --k-size.",
            )
        self._check_architecture()
        if self.type not in TYPES:
            raise UsageError(f"no weight type {self.type!r}", f"There are: {', '.join(TYPES)}.")
        if self.type == "q8_0":
            self._check_blocks()

    @property
    def v_width(self) -> int:
        """The V head size, also where `v_size` is None."""
        return self.k_size if self.v_size is None else self.v_size

    @property
    def architecture(self) -> str:
        """The architecture, also where `arch` is None."""
        if self.arch is not None:
            return self.arch
        return "llama" if self.v_width == self.k_size else "mimo2"

    @property
    def reads_text(self) -> bool:
        return self.vocab >= TEXT_TOKENS

    @property
    def name(self) -> str:
        """The shape in a few letters, for general.name and file names."""
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
                raise UsageError(f"{option} {value} makes no sense", f"It goes from {least} to {most}.")

    def _check_architecture(self) -> None:
        traits = ARCHITECTURES.get(self.architecture)
        if traits is None:
            raise UsageError(
                f"the writer has no architecture {self.arch!r}", f"It has: {', '.join(ARCHITECTURES)}."
            )
        if not traits.free_v_size and self.v_width != self.k_size:
            raise UsageError(
                f"{self.arch} has K and V heads of one size, not {self.k_size} and {self.v_width}",
                "Use --arch mimo2 or plamo3, or leave --arch away.",
            )
        if not (traits.fused if self.fused_qkv else traits.separate):
            raise UsageError(
                f"{self.arch} has only one fused matrix for Q, K and V",
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
                    f"q8_0 packs {Q8_0_BLOCK} values at a time, and {what} is {width}",
                    f"Choose a multiple of {Q8_0_BLOCK}, or another --type.",
                )


_RANGES = {"layers": (1, MAX_LAYERS), "vocab": (2, _MAX_COUNT), "seed": (0, (1 << 63) - 1)}
