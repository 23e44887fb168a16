"""The instruction set of a build: which ggml options stand for which processor features.

ggml's own `GGML_NATIVE` hides in the object files what they need; here each extension is an option that
can be read back, so that a build brought to another machine is refused instead of dying with SIGILL.
Option names and compiler flags: `ggml/CMakeLists.txt` and `ggml/src/ggml-cpu/CMakeLists.txt`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

_X86 = ("x86_64", "amd64", "AMD64", "i686", "i386")
_ARM64 = ("aarch64", "arm64")


@dataclass(frozen=True)
class Extension:
    """One ggml option, the features it needs by the kernel's names, the compiler flags it turns into."""

    option: str
    features: tuple[str, ...]
    flags: tuple[str, ...]


EXTENSIONS = (
    Extension("GGML_SSE42", ("sse4_2",), ("-msse4.2",)),
    Extension("GGML_F16C", ("f16c",), ("-mf16c",)),
    Extension("GGML_FMA", ("fma",), ("-mfma",)),
    Extension("GGML_BMI2", ("bmi2",), ("-mbmi2",)),
    Extension("GGML_AVX", ("avx",), ("-mavx",)),
    Extension("GGML_AVX2", ("avx2",), ("-mavx2",)),
    Extension("GGML_AVX_VNNI", ("avx_vnni",), ("-mavxvnni",)),
    Extension(
        "GGML_AVX512",
        ("avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"),
        ("-mavx512f", "-mavx512cd", "-mavx512vl", "-mavx512dq", "-mavx512bw"),
    ),
    Extension("GGML_AVX512_VBMI", ("avx512vbmi",), ("-mavx512vbmi",)),
    Extension("GGML_AVX512_VNNI", ("avx512_vnni",), ("-mavx512vnni",)),
    Extension("GGML_AVX512_BF16", ("avx512_bf16",), ("-mavx512bf16",)),
    Extension("GGML_AMX_TILE", ("amx_tile",), ("-mamx-tile",)),
    Extension("GGML_AMX_INT8", ("amx_int8",), ("-mamx-int8",)),
    Extension("GGML_AMX_BF16", ("amx_bf16",), ("-mamx-bf16",)),
)

_ARM_TAGS = (("asimdhp", "fp16"), ("asimddp", "dotprod"), ("i8mm", "i8mm"), ("sve", "sve"))


def all_flags(arch: str) -> tuple[str, ...]:
    """The compiler flags worth asking a compiler for on `arch`."""
    return tuple(flag for ext in EXTENSIONS for flag in ext.flags) if arch in _X86 else ()


@dataclass(frozen=True)
class InstructionSet:
    """What a build uses: CMake options (name, value) and the features its code needs to run."""

    options: tuple[tuple[str, str], ...]
    features: tuple[str, ...]


def choose(
    arch: str,
    features: Collection[str],
    known_options: Collection[str],
    flags: Collection[str],
    *,
    avx512: bool = True,
) -> InstructionSet:
    """Switch on every extension that processor, compiler and source tree all know, and the others off.

    Args:
        arch: the machine's architecture.
        features: the processor's features, by the kernel's names.
        known_options: the options that the tree's CMake files declare.
        flags: the compiler flags (of `all_flags`) that the compiler takes.
        avx512: False keeps AVX-512 and what builds on it off.
    """
    if arch in _ARM64:
        return _choose_arm(features, known_options)
    if arch not in _X86:
        return InstructionSet((), ())
    options: list[tuple[str, str]] = []
    needed: list[str] = []
    for ext in EXTENSIONS:
        if ext.option not in known_options:
            continue
        usable = set(ext.features) <= set(features) and set(ext.flags) <= set(flags)
        if "512" in ext.option and not avx512:
            usable = False
        options.append((ext.option, "ON" if usable else "OFF"))
        if usable:
            needed += ext.features
    return InstructionSet(tuple(options), tuple(needed))


def _choose_arm(features: Collection[str], known_options: Collection[str]) -> InstructionSet:
    used = [(feature, tag) for feature, tag in _ARM_TAGS if feature in features]
    if not {"asimdhp", "asimddp"} <= set(features) or "GGML_CPU_ARM_ARCH" not in known_options:
        return InstructionSet((), ())
    value = "+".join(["armv8.2-a", *(tag for _, tag in used)])
    return InstructionSet((("GGML_CPU_ARM_ARCH", value),), tuple(feature for feature, _ in used))


def missing_features(needed: Iterable[str], present: Collection[str]) -> tuple[str, ...]:
    """What a build needs and a processor lacks, in the build's order."""
    return tuple(feature for feature in needed if feature not in present)
