#!/usr/bin/env bash
# What the patches do on a real GPU, in one script of under ten minutes that needs no network.
#
#   tools/gpu_check.sh pack FILE.tar.gz   here: repository, prepared source tree, Python wheels (64 MiB at most)
#   tools/gpu_check.sh OUT                there, in the unpacked copy: build, run, leave JSON in OUT
#
# The GPU machine needs Python, CMake, a C++ compiler and a CUDA toolkit. Every step has a time limit and leaves
# OUT/<step>.log; a step that fails does not stop the next ones. OUT/summary.json says how each one ended.
# LIMIT=480 (seconds for everything) and DEVICES="2 4 8" can be set in the environment.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PYTHON=${PYTHON:-python3}
LIMIT=${LIMIT:-540}
DEVICES=${DEVICES:-2 4 8}

pack() {
    local archive wheels
    archive=$(realpath -m "$1")
    wheels=$(mktemp -d) || exit 1
    trap 'rm -rf "$wheels"' EXIT
    "$PYTHON" -m pyggml patch apply || exit 1
    # The GPU machine may have no package registry.
    "$PYTHON" -m pip download --quiet --only-binary :all: --dest "$wheels/wheels" . ninja || exit 1
    # Tracked files, and the vendored tree with its repository, which has the unpatched commit as well.
    git ls-files -z | tar -czf "$archive" --null -T - --no-null vendor/llama.cpp -C "$wheels" wheels || exit 1
    local size
    size=$(stat -c %s "$archive")
    echo "$archive: $((size >> 20)) MiB"
    [ "$size" -le $((64 << 20)) ] || { echo "more than 64 MiB" >&2; exit 1; }
}

if [ "${1:-}" = pack ] && [ -n "${2:-}" ]; then
    pack "$2"
    exit
fi
[ -n "${1:-}" ] || { sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2; }
OUT=$(realpath -m "$1")
mkdir -p "$OUT"
rows=()

# step NAME SECONDS COMMAND...: run it within its limit and what is left of everything; standard output
# goes to NAME.json if the name ends so.
step() {
    local name=$1 seconds=$2 left begin status out
    shift 2
    left=$((LIMIT - SECONDS))
    [ "$left" -gt 5 ] || { rows+=("{\"step\": \"$name\", \"status\": \"no time left\"}"); return 1; }
    [ "$seconds" -lt "$left" ] || seconds=$left
    out="$OUT/${name%.json}.log"
    [ "$name" = "${name%.json}" ] || out="$OUT/$name"
    begin=$SECONDS
    timeout -k 5 "$seconds" "$@" >"$out" 2>>"$OUT/${name%.json}.log"
    status=$?
    echo "$name: $status after $((SECONDS - begin)) s"
    rows+=("{\"step\": \"$name\", \"status\": $status, \"seconds\": $((SECONDS - begin))}")
    return "$status"
}
finish() {
    local IFS=,
    echo "{\"seconds\": $SECONDS, \"steps\": [${rows[*]}]}" >"$OUT/summary.json"
}
trap finish EXIT

nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv >"$OUT/gpu.csv" 2>&1
if [ -d wheels ]; then
    "$PYTHON" -m venv .gpu-venv && PYTHON=$PWD/.gpu-venv/bin/python
    step install 120 "$PYTHON" -m pip install --quiet --no-index --find-links wheels wheels/pyggml-*.whl ninja
    PATH=$(dirname "$PYTHON"):$PATH
fi
pyggml() { "$PYTHON" -m pyggml "$@"; }
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

step doctor.json 30 "$PYTHON" -m pyggml doctor --offline --json
step build.json 420 "$PYTHON" -m pyggml build --cuda --minimal --json || exit 1
VARIANT=$("$PYTHON" -c 'import json, sys; print(json.load(open(sys.argv[1]))["variant"])' "$OUT/build.json")
BIN=.pyggml/build/$VARIANT/bin
export PYGGML_BUILD=$VARIANT
step devices.json 60 "$PYTHON" -m pyggml devices --json

# Random weights, enough heads for eight devices; a text that its 512 tokens can spell.
MODEL=$OUT/model.gguf
step model 60 "$PYTHON" -m pyggml model make "$MODEL" --heads 32 --kv-heads 8 --k-size 64 --layers 16 \
    --embd 2048 --ff 5632 --context 4096 --type q8_0
cat README.md patches/*/*.patch | head -c 60000 >"$OUT/text.txt"

step archs-1 90 "$BIN/test-llama-archs" -a llama -s 20200101
for n in $DEVICES; do
    export GGML_CUDA_DEVICES=$n
    step "archs-$n" 90 "$BIN/test-llama-archs" -a llama -s 20200101
    for kv in 0 1; do
        step "bench-$n-nkvo$kv.json" 60 "$BIN/llama-bench" -m "$MODEL" -ngl 99 -sm tensor -fa 1 -nkvo "$kv" \
            -p 512 -n 64 -r 3 -o json
    done
    step "perplexity-$n" 60 "$BIN/llama-perplexity" -m "$MODEL" -f "$OUT/text.txt" -ngl 99 -sm tensor -fa on \
        -c 512 --chunks 4
    step "streams-$n" 60 "$BIN/llama-batched-bench" -m "$MODEL" -ngl 99 -sm tensor -fa on -c 8192 -npp 128 \
        -ntg 64 -npl 1,2,4,8 --output-format jsonl
    unset GGML_CUDA_DEVICES
done
step perplexity-1 60 "$BIN/llama-perplexity" -m "$MODEL" -f "$OUT/text.txt" -ngl 99 -fa on -c 512 --chunks 4

# Before: the same build without the patches; Ninja compiles what they touch.
if step unapply 30 "$PYTHON" -m pyggml patch unapply; then
    if step build-before.json 240 "$PYTHON" -m pyggml build --cuda --minimal --target llama-bench \
        --target ggml-cuda --json; then
        for n in $DEVICES; do
            export GGML_CUDA_DEVICES=$n
            step "before-bench-$n.json" 60 "$BIN/llama-bench" -m "$MODEL" -ngl 99 -sm tensor -fa 1 -p 512 -n 64 -r 3 \
                -o json
        done
    fi
    step reapply 30 "$PYTHON" -m pyggml patch apply
fi
rm -f "$MODEL"
