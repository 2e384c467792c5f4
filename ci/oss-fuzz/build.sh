#!/usr/bin/env bash
# ci/oss-fuzz/build.sh: builds the fuzz targets for an environment that brings compiler, flags and engine: OSS-Fuzz,
# ClusterFuzzLite, AFL++, honggfuzz. Its input is that environment: CXX, CXXFLAGS and LIB_FUZZING_ENGINE say how to compile
# and link, WORK is for intermediate files, and OUT gets, for each target,
#   fuzz_<name>                   the program: the only executables there, needing nothing but the C library
#   fuzz_<name>_seed_corpus.zip   corpus/seeds and corpus/regressions
#   fuzz_<name>.options           limits of an input
#   fuzz_<name>.dict              the words of the text form, for engines that do not use the targets' own mutator
# It downloads and installs nothing; .clusterfuzzlite/Dockerfile lists what has to be there.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

for name in CXX LIB_FUZZING_ENGINE OUT WORK; do
  if [[ -z ${!name:-} ]]; then
    printf 'ci/oss-fuzz/build.sh: %s is not set; ci/check-build shows a call\n' "$name" >&2
    exit 2
  fi
done
case ${SANITIZER:-} in
  memory | thread | dataflow)
    # Memory: the C++ library would have to be built with it. Thread: an engine's own counters are races.
    printf 'ci/oss-fuzz/build.sh: the targets are not made for SANITIZER=%s\n' "$SANITIZER" >&2
    exit 2
    ;;
esac

# The numbers are those of ci/fuzz.
input_timeout_s=10
memory_limit_mib=2048
max_len=4096

build_dir=$WORK/attnfuzz
generator=()
if command -v ninja >/dev/null 2>&1; then generator=(-G Ninja); fi
# No build type: nothing but the environment's flags. The C++ library goes into the programs: where they run there may be
# another, or none. No fault is planted, whatever WORK held before.
cmake -S . -B "$build_dir" "${generator[@]}" -DCMAKE_BUILD_TYPE=None \
  "-DCMAKE_CXX_COMPILER=$CXX" "-DCMAKE_CXX_FLAGS=${CXXFLAGS:-}" \
  "-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc ${LDFLAGS:-}" \
  -DATTNFUZZ_FUZZ_ONLY=ON -DATTNFUZZ_TESTS=OFF -DATTNFUZZ_PLANT=
mapfile -t targets <"$build_dir/fuzz/targets.txt"
cmake --build "$build_dir" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" --target "${targets[@]}"

mkdir -p -- "$OUT"
python3 ci/oss-fuzz/pack_seeds.py "$build_dir/seed_corpus.zip" corpus/seeds corpus/regressions
for target in "${targets[@]}"; do
  install -m 755 -- "$build_dir/fuzz/$target" "$OUT/$target"
  install -m 644 -- "$build_dir/seed_corpus.zip" "$OUT/${target}_seed_corpus.zip"
  install -m 644 -- fuzz/batch.dict "$OUT/$target.dict"
  printf '[libfuzzer]\nmax_len = %d\ntimeout = %d\nrss_limit_mb = %d\n' "$max_len" "$input_timeout_s" "$memory_limit_mib" \
    >"$OUT/$target.options"
done
printf 'ci/oss-fuzz/build.sh: %d targets in %s\n' "${#targets[@]}" "$OUT"
