"""Small documents of the kinds that pages are made of, with hostile text in them."""

from __future__ import annotations

from typing import Any

HOSTILE = "</script><img src=x onerror=alert(1)>&\u2028'\""


def case(
    name: str, kv: str, verdict: str, nmse: float | None, devices: int = 2, **more: Any
) -> dict[str, Any]:
    checks = [] if nmse is None else [
        {"against": "cpu", "verdict": "within", "reason": "", "nmse": nmse, "ulp": 3, "differing": 12, "first": None}
    ]  # fmt: skip
    return {
        "model": f"/m/{name}.gguf", "name": name, "architecture": "llama", "devices": devices,
        "split_mode": "tensor", "tensor_split": None, "kv": kv, "kv_type": "f16", "streams": 1,
        "unified": False, "layout": "one", "schedule": "at-once", "flash_attn": "on", "swa_full": False,
        "judged": True, "verdict": verdict, "bad": verdict == "died", "reason": "", "note": "",
        "sensitivity": 1.0, "phase": "", "assertion": None, "checks": checks, "races": [], "seconds": 0.25, **more,
    }  # fmt: skip


def matrix_document(*cases: dict[str, Any]) -> dict[str, Any]:
    return {
        "build": "b11549-cpu", "against": None, "cuda": False, "poison": True, "bound": 1e-4,
        "runs": len(cases), "seconds": 1.5, "ok": not any(one["bad"] for one in cases), "counts": {},
        "cases": list(cases),
    }  # fmt: skip


ASSERTION = {
    "file": "/b/vendor/llama.cpp/ggml/src/ggml-backend-meta.cpp",
    "line": 543,
    "text": "GGML_ASSERT(x)",
}
NOW = matrix_document(
    case("llama-dense", "device", "reference", None, devices=0),
    case("llama-dense", "device", "within", 2e-7),
    case("llama-dense", "host", "identical", 2e-7),
    case(
        HOSTILE,
        "device",
        "died",
        None,
        reason=f"it died: {HOSTILE}",
        phase="step 1 of 8",
        assertion=ASSERTION,
    ),
)
BEFORE = matrix_document(
    case("llama-dense", "device", "within", 2e-7),
    case("llama-dense", "host", "died", None),
    case("gone-dense", "host", "identical", 0.0),
)
