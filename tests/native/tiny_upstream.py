"""A tiny tree with upstream's six headers, compiled into upstream's four libraries in about a second."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pyggml.builder.machine import read_machine
from pyggml.builder.record import Build, BuildRecord, write_record

GGML_H = """\
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <stdio.h>
#define GGML_API __attribute__ ((visibility ("default"))) extern
#define GGML_MAX_DIMS 4
#define GGML_MAX_NAME (2 * 32)
#define GGML_NEGATIVE -1
#define GGML_SHIFTED (1 << 4)
#define GGML_TEXT "text"
#define GGML_UNUSED(x) (void)(x)
#define GGML_KEYWORD restrict
#ifdef __cplusplus
template <typename T> void only_in_cpp(T);
#endif
enum ggml_log_level { GGML_LOG_LEVEL_NONE = 0, GGML_LOG_LEVEL_DEBUG, GGML_LOG_LEVEL_INFO,
    GGML_LOG_LEVEL_WARN, GGML_LOG_LEVEL_ERROR, GGML_LOG_LEVEL_CONT };
enum ggml_flag { GGML_FLAG_A = 1 << 0, GGML_FLAG_B = GGML_FLAG_A << 3, GGML_FLAG_C };
struct ggml_opaque;
struct ggml_tensor {
    int32_t type;
    int64_t ne[GGML_MAX_DIMS];
    int32_t op_params[64 / sizeof(int32_t)];
    void * data;
    char name[GGML_MAX_NAME];
};
typedef struct { uint16_t bits; } ggml_bf16_t;
static const size_t GGML_TENSOR_SIZE = sizeof(struct ggml_tensor);
typedef bool (*ggml_abort_callback)(void * data);
typedef void (*ggml_abort_callback_t)(const char * error_message);
typedef void (*ggml_log_callback)(enum ggml_log_level level, const char * text, void * user_data);
GGML_API ggml_abort_callback_t ggml_set_abort_callback(ggml_abort_callback_t callback);
GGML_API void ggml_log_set(ggml_log_callback callback, void * user_data);
GGML_API void ggml_say(enum ggml_log_level level, const char * text);
GGML_API size_t ggml_tensor_overhead(void);
GGML_API int ggml_format(char * out, size_t size, const char * fmt, ...) __attribute__((format(printf, 3, 4)));
__attribute__((deprecated("use another"))) GGML_API int ggml_old(void);
GGML_API int ggml_never_defined(int, float);
static inline int ggml_inline(int x) { return x + 1; }
"""

BACKEND_H = """\
#pragma once
#include "ggml.h"
typedef bool (*ggml_backend_sched_eval_callback)(struct ggml_tensor * t, bool ask, void * user_data);
enum ggml_backend_meta_split_axis { GGML_BACKEND_SPLIT_AXIS_0 = 0, GGML_BACKEND_SPLIT_AXIS_MIRRORED = 10 };
struct ggml_backend_meta_split_state {
    enum ggml_backend_meta_split_axis axis;
    int64_t ne[16 * 16];
    uint32_t nr[16];
    uint32_t n_segments;
};
typedef struct ggml_backend_meta_split_state (*ggml_backend_meta_get_split_state_t)(
    const struct ggml_tensor * tensor, void * userdata);
GGML_API int ggml_nodes_computed(ggml_backend_sched_eval_callback callback, void * data, int n);
GGML_API int64_t ggml_ask_split(ggml_backend_meta_get_split_state_t callback, void * data, int n);
GGML_API int ggml_on_thread(ggml_backend_sched_eval_callback callback, void * data);
GGML_API void ggml_die(const char * text);
"""

IMPL_H = """\
#pragma once
#include "ggml-backend.h"
struct ggml_backend_i {
    const char * (*get_name)(int backend);
    void (*free)(int backend);
    int version;
    void (*synchronize)(int backend);
};
"""

LLAMA_H = """\
#pragma once
#include "ggml-backend.h"
#define LLAMA_API __attribute__ ((visibility ("default")))
typedef bool (*llama_progress_callback)(float progress, void * user_data);
LLAMA_API void llama_log_set(ggml_log_callback callback, void * user_data);
LLAMA_API int llama_load(llama_progress_callback callback, void * user_data);
"""

FILES = {
    "ggml/include/ggml.h": GGML_H,
    "ggml/include/ggml-alloc.h": '#pragma once\n#include "ggml.h"\n',
    "ggml/include/ggml-backend.h": BACKEND_H,
    "ggml/include/gguf.h": '#pragma once\n#include "ggml.h"\n',
    "ggml/src/ggml-backend-impl.h": IMPL_H,
    "include/llama.h": LLAMA_H,
    "base.c": """\
#include "ggml-backend.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
static ggml_abort_callback_t on_abort;
static ggml_log_callback on_log;
static void * log_data;
ggml_abort_callback_t ggml_set_abort_callback(ggml_abort_callback_t callback) {
    ggml_abort_callback_t before = on_abort;
    on_abort = callback;
    return before;
}
void ggml_log_set(ggml_log_callback callback, void * data) { on_log = callback; log_data = data; }
void ggml_say(enum ggml_log_level level, const char * text) { on_log(level, text, log_data); }
void ggml_die(const char * text) { if (on_abort) { on_abort(text); } abort(); }
size_t ggml_tensor_overhead(void) { return sizeof(struct ggml_tensor); }
int ggml_format(char * out, size_t size, const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(out, size, fmt, args);
    va_end(args);
    return n;
}
int ggml_old(void) { return 7; }
int ggml_nodes_computed(ggml_backend_sched_eval_callback callback, void * data, int n) {
    struct ggml_tensor t = {0};
    for (int i = 0; i < n; i++) {
        t.ne[0] = i;
        if (callback(&t, true, data) && !callback(&t, false, data)) { return i + 1; }
    }
    return n;
}
int64_t ggml_ask_split(ggml_backend_meta_get_split_state_t callback, void * data, int n) {
    struct ggml_tensor t = {0};
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        struct ggml_backend_meta_split_state s = callback(&t, data);
        sum += 1000 * s.axis + 100 * s.n_segments + s.nr[0] + s.ne[1];
    }
    return sum;
}
static ggml_backend_sched_eval_callback thread_callback;
static void * run(void * data) { thread_callback(NULL, true, data); return NULL; }
int ggml_on_thread(ggml_backend_sched_eval_callback callback, void * data) {
    pthread_t thread;
    thread_callback = callback;
    pthread_create(&thread, NULL, run, data);
    return pthread_join(thread, NULL);
}
""",
    "llama.c": """\
#include "llama.h"
void llama_log_set(ggml_log_callback callback, void * data) { ggml_log_set(callback, data); }
int llama_load(llama_progress_callback callback, void * data) {
    for (int i = 0; i <= 10; i++) { if (!callback(i / 10.0f, data)) { return i; } }
    return 100;
}
""",
    "empty.c": "int ggml_empty_library(void) { return 0; }\n",
}


def write_tree(root: Path) -> Path:
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def link(source: Path, bin_dir: Path) -> None:
    bin_dir.mkdir(parents=True, exist_ok=True)
    include = [f"-I{source / one}" for one in ("ggml/include", "include", "ggml/src")]
    for name, file in (
        ("ggml-base", "base.c"),
        ("ggml", "empty.c"),
        ("ggml-cpu", "empty.c"),
        ("llama", "llama.c"),
    ):
        library = bin_dir / f"lib{name}.so"
        command = ["cc", "-shared", "-fPIC", "-w", *include, str(source / file), "-o", str(library)]
        command += [f"-Wl,-soname,{library.name}", "-Wl,-rpath,$ORIGIN"]
        command += [] if name == "ggml-base" else [str(bin_dir / "libggml-base.so")]
        subprocess.run(command, check=True)


def tiny_record(**changes: object) -> BuildRecord:
    values: dict[str, object] = {
        "variant": "tiny-cpu",
        "pin": "tiny",
        "state": "done",
        "head": "a" * 40,
        "tree": "b" * 40,
        "dirty": False,
        "fingerprint": "c" * 64,
        "arch": read_machine().arch,
        "features": (),
        "options": {},
        "targets": (),
        "tools": {"cc": "cc", "cc_version": "cc 1"},
    }
    return BuildRecord(**{**values, **changes})  # type: ignore[arg-type]


def tiny_build(root: Path) -> Build:
    """A finished build in `root`/build of a tree in `root`/source."""
    source = write_tree(root / "source")
    directory = root / "build"
    link(source, directory / "bin")
    (directory / "CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={source}\n", "utf-8")
    record = tiny_record()
    write_record(directory, record)
    return Build(directory, record)
