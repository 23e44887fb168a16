#!/usr/bin/env bash
# Measures what the patches do on a real GPU, in less than ten minutes and without a network.
#
#   tools/gpu_check.sh pack FILE.tar.xz   here: pack repository, prepared source, Python wheels (at most 64 MiB)
#   tools/gpu_check.sh OUT                there, in the unpacked copy: build, run, write OUT/gpu_check.json
#   REHEARSE=1 tools/gpu_check.sh OUT     here: the same on virtual devices, to test the script
#
# The GPU machine needs Python, git, CMake, a C++ compiler and nvcc; CUDA libraries that its Python has installed
# are used. Without git or the packages it still builds and runs upstream's test of all splits. Every step has a
# time limit, and a failing step does not stop the later ones. OUT/gpu_check.json has the result of each step, the
# measurements, and the ratios of after to before; OUT/logs.tar.gz has the output.
#
# Environment variables: LIMIT=540 (seconds for everything), DEVICES="2 4 8", ARCHS (architectures of the matrix,
# a regular expression), MODEL_SHAPE (options of `pyggml model make`), PYTHON, and for pack PACK_PYTHON=3.12 (the
# Python version of the GPU machine, by default that of this machine).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PYTHON=${PYTHON:-python3}
LIMIT=${LIMIT:-540}
DEVICES=${DEVICES:-2 4 8}
ARCHS=${ARCHS:-^(llama|gpt2|falcon|gemma2|qwen35|qwen3next|deepseek2|mamba)\$}
REHEARSE=${REHEARSE:-}
LARGEST=$((64 << 20))
TREE=vendor/llama.cpp

pack() {
    local archive scratch version size
    archive=$(realpath -m "$1")
    scratch=$(mktemp -d) || return 1
    # shellcheck disable=SC2064  # expanded now
    trap "rm -rf '$scratch'" EXIT
    "$PYTHON" -m pyggml patch apply || return 1
    # The GPU machine may have no package registry, so take the wheels from here.
    version=${PACK_PYTHON:-$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
    "$PYTHON" -m pip wheel --quiet --no-deps --wheel-dir "$scratch/wheels" . || return 1
    "$PYTHON" - "$scratch/wheels" >"$scratch/requirements.txt" <<'EOF' || return 1
import pathlib, sys, tomllib
project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
tests = [one for one in project["optional-dependencies"]["test"] if one.startswith("pytest")]
print("\n".join([*project["dependencies"], *tests, "ninja"]))
EOF
    "$PYTHON" -m pip download --quiet --only-binary :all: --python-version "$version" --implementation cp \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
        --platform manylinux2014_x86_64 --platform manylinux_2_5_x86_64 --platform manylinux1_x86_64 \
        --dest "$scratch/wheels" -r "$scratch/requirements.txt" || return 1
    # Tracked files, and the vendored tree with its repository, which also has the unpatched commit. Fast xz is
    # enough: git objects and wheels are compressed already.
    git ls-files -z | tar -cf "$scratch/pack.tar" --null -T - --no-null "$TREE" -C "$scratch" wheels || return 1
    xz -T0 -3 --force "$scratch/pack.tar" || return 1
    size=$(stat -c %s "$scratch/pack.tar.xz")
    if [ "$size" -gt "$LARGEST" ]; then
        echo "the archive is too large: $((size >> 20)) MiB of at most $((LARGEST >> 20)) MiB" >&2
        return 1
    fi
    mv "$scratch/pack.tar.xz" "$archive" || return 1
    echo "$archive: $((size >> 20)) of at most $((LARGEST >> 20)) MiB, for Python $version"
}

if [ "${1:-}" = pack ] && [ $# -eq 2 ]; then
    pack "$2"
    exit
fi
if [ $# -ne 1 ] || [ "$1" = pack ] || [ "${1#-}" != "$1" ]; then
    sed -n '2,15s/^# \{0,1\}//p' "$0"
    exit 2
fi
OUT=$(realpath -m "$1")
mkdir -p "$OUT" .pyggml || exit 1
STEPS=$(mktemp -d "$PWD/.pyggml/gpu_check.XXXXXX") || exit 1

# step NAME SECONDS COMMAND...: run a command, limited to SECONDS and to what is left of LIMIT. Standard output
# goes to STEPS/NAME if that ends in .json or .jsonl, otherwise to STEPS/NAME.log.
step() {
    local name=$1 seconds=$2 left begin status log out
    shift 2
    log="$STEPS/${name%.json*}.log"
    left=$((LIMIT - SECONDS))
    if [ "$left" -le 5 ]; then
        printf '%s\t%s\t%s\n' "$name" "no time left" 0 >>"$STEPS/steps.tsv"
        echo "$name: no time left"
        return 1
    fi
    [ "$seconds" -lt "$left" ] || seconds=$left
    out=$log
    [ "$name" = "${name%.json*}" ] || out="$STEPS/$name"
    begin=$SECONDS
    printf '$ %s\n' "$*" >>"$log"
    timeout -k 5 "$seconds" "$@" >>"$out" 2>>"$log" </dev/null
    status=$?
    echo "$name: $status after $((SECONDS - begin)) s"
    printf '%s\t%s\t%s\n' "$name" "$status" $((SECONDS - begin)) >>"$STEPS/steps.tsv"
    return "$status"
}

finish() {
    trap - EXIT
    rm -f "$STEPS"/model.gguf
    tar -czf "$OUT/logs.tar.gz" -C "$STEPS" . || true
    "${PYTHON:-python3}" tools/gpu_report.py "$STEPS" "$SECONDS" "$OUT/gpu_check.json" && rm -rf "$STEPS"
}
trap finish EXIT
interrupted() {
    printf '%s\t%s\t%s\n' "the rest" "stopped by $1" 0 >>"$STEPS/steps.tsv"
    exit "$2"
}
trap 'interrupted SIGTERM 143' TERM
trap 'interrupted SIGINT 130' INT

# --- the machine -----------------------------------------------------------------------------------------------
if [ -z "$REHEARSE" ]; then
    step gpu 20 nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
if [ -d wheels ] && [ -z "$REHEARSE" ]; then
    # In addition to what this Python has installed, so that its CUDA libraries are found.
    step install 90 "$PYTHON" -m pip install --quiet --no-index --find-links wheels --target "$STEPS/../gpu-site" \
        pyggml pytest pytest-xdist ninja
    PYTHONPATH=$PYTHONPATH:$PWD/.pyggml/gpu-site
    PATH=$PWD/.pyggml/gpu-site/bin:$PATH
fi

# Upstream's own build, if pyggml cannot run.
plain() {
    local ninja=()
    command -v ninja >/dev/null && ninja=(-G Ninja)
    step plain-configure 60 cmake -S "$TREE" -B .pyggml/plain "${ninja[@]}" -DCMAKE_BUILD_TYPE=Release \
        -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native -DGGML_CUDA_FA_ALL_QUANTS=OFF -DLLAMA_CURL=OFF \
        -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_SERVER=OFF || return 1
    step plain-build 450 cmake --build .pyggml/plain --parallel "$(nproc)" --target test-llama-archs || return 1
    for n in 1 $DEVICES; do
        step "archs-$n" 60 env GGML_CUDA_DEVICES="$n" .pyggml/plain/bin/test-llama-archs -s 20200101
    done
}

if ! command -v git >/dev/null || ! "$PYTHON" -c 'import pyggml.cli, pyggml.llama' 2>>"$STEPS/python.log"; then
    echo "git or a package that pyggml needs is missing: running only upstream's own test"
    plain
    exit 1
fi

# --- after: with the patches -----------------------------------------------------------------------------------
pyggml=("$PYTHON" -m pyggml)
step doctor.json 30 "${pyggml[@]}" doctor --offline --json
# The copy may belong to another user.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
step apply 30 "${pyggml[@]}" patch apply
if [ -n "$REHEARSE" ]; then
    step build.json "$LIMIT" "${pyggml[@]}" build --json || exit 1
else
    step build.json 430 "${pyggml[@]}" build --cuda --minimal --json || exit 1
fi
field() { "$PYTHON" -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$STEPS/build.json" "$1"; }
VARIANT=$(field variant)
BIN=$(field bin)
export PYGGML_BUILD=$VARIANT

# patched N PROGRAM ARGS...: set `command` to run a program of the patched build on N devices.
# unpatched N PROGRAM ARGS...: the same with the unpatched build.
patched() {
    local n=$1
    shift
    if [ -n "$REHEARSE" ]; then
        command=("${pyggml[@]}" run --variant "$VARIANT" --devices "$n" -- "$@")
    else
        command=(env GGML_CUDA_DEVICES="$n" "$BIN/$1" "${@:2}")
    fi
}
unpatched() {
    local n=$1
    shift
    if [ -n "$REHEARSE" ]; then
        command=("${pyggml[@]}" run --variant before --devices "$n" -- "$@")
    else
        # The CUDA backend of the patched build serves both: the patches do not touch it, and it uses the
        # libggml-base of the program that loads it.
        command=(env GGML_CUDA_DEVICES="$n" GGML_BACKEND_PATH="$BIN/libggml-cuda.so" ".pyggml/build/before/bin/$1" "${@:2}")
    fi
}

[ -n "$REHEARSE" ] || step devices.json 60 env GGML_CUDA_DEVICES=8 "${pyggml[@]}" devices --json

# Random weights, enough heads for eight devices; any text can be tokenized byte by byte.
MODEL=$STEPS/model.gguf
read -ra shape <<<"${MODEL_SHAPE:---heads 32 --kv-heads 8 --k-size 64 --layers 16 --embd 2048 --ff 5632 --context 4096 --type q8_0}"
step model 90 "${pyggml[@]}" model make "$MODEL" "${shape[@]}"
cat README.md patches/*/*.patch | head -c 60000 >"$STEPS/text.txt"

matrix=("${pyggml[@]}" matrix --devices "${DEVICES// /,}" --arch "$ARCHS" --timeout 60 --json -)
[ -n "$REHEARSE" ] || matrix+=(--cuda --jobs 8)
step matrix.json 120 "${matrix[@]}"

bench=(llama-bench -m "$MODEL" -ngl 99 -sm tensor -fa 1 -p 512 -n 64 -r 3 -o json)
# llama-batched-bench may exit before the thread of its log has written the last rows, also upstream.
perplexity=(llama-perplexity -m "$MODEL" -f "$STEPS/text.txt" -ngl 99 -fa on -c 512 --chunks 4)
streams=(llama-batched-bench -m "$MODEL" -ngl 99 -sm tensor -fa on -c 8192 -npp 128 -ntg 64 -npl "1,2,4,8" --output-format jsonl)
if [ -n "$REHEARSE" ]; then
    bench=(llama-bench -m "$MODEL" -ngl 99 -sm tensor -fa 1 -p 32 -n 4 -r 1 -o json)
    perplexity=(llama-perplexity -m "$MODEL" -f "$STEPS/text.txt" -ngl 99 -fa on -c 128 --chunks 1)
    streams=(llama-batched-bench -m "$MODEL" -ngl 99 -sm tensor -fa on -c 512 -npp 16 -ntg 4 -npl "1,2" --output-format jsonl)
fi
patched 1 "${perplexity[@]}" && step perplexity-1 60 "${command[@]}"
for n in $DEVICES; do
    patched "$n" test-llama-archs -a llama -s 20200101 && step "archs-$n" 60 "${command[@]}"
    for nkvo in 0 1; do
        patched "$n" "${bench[@]}" -nkvo "$nkvo" && step "bench-$n-nkvo$nkvo-after.json" 60 "${command[@]}"
        kv=()
        [ "$nkvo" = 0 ] || kv=(-nkvo)
        patched "$n" "${perplexity[@]}" -sm tensor "${kv[@]}" && step "perplexity-$n-nkvo$nkvo" 60 "${command[@]}"
        patched "$n" "${streams[@]}" "${kv[@]}" && step "streams-$n-nkvo$nkvo-after.jsonl" 60 "${command[@]}"
    done
done
if [ -f tools/bench/streams.py ]; then
    n=${DEVICES%% *}
    where=seen
    [ -z "$REHEARSE" ] || where=$n
    step streams-table 60 env GGML_CUDA_DEVICES="$n" "$PYTHON" tools/bench/streams.py --model "$MODEL" --runs 3 \
        --devices "$where" --json "$STEPS/streams-table.json"
fi

# --- before: the same without the patches ----------------------------------------------------------------------
# The CUDA backend is not built again: only headers that it includes change.
if step unapply 30 "${pyggml[@]}" patch unapply; then
    seconds=120
    [ -z "$REHEARSE" ] || seconds=$LIMIT
    if step build-before.json "$seconds" "${pyggml[@]}" build --variant before --target llama-bench \
        --target llama-batched-bench --json; then
        for n in $DEVICES; do
            for nkvo in 0 1; do
                kv=()
                [ "$nkvo" = 0 ] || kv=(-nkvo)
                unpatched "$n" "${bench[@]}" -nkvo "$nkvo" && step "bench-$n-nkvo$nkvo-before.json" 60 "${command[@]}"
                unpatched "$n" "${streams[@]}" "${kv[@]}" && step "streams-$n-nkvo$nkvo-before.jsonl" 60 "${command[@]}"
            done
        done
    fi
    step reapply 30 "${pyggml[@]}" patch apply
fi

# --- the tests, in the time that is left -----------------------------------------------------------------------
if "$PYTHON" -c 'import pytest, xdist' 2>/dev/null; then
    rehearsal=()
    [ -z "$REHEARSE" ] || rehearsal=(PYGGML_GPU_REHEARSAL=1 PYGGML_TESTS_PREPARED=1)
    step tests "$LIMIT" env "${rehearsal[@]}" "$PYTHON" -m pytest -q -n 6 -m gpu -p no:cacheprovider tests/gpu
fi
