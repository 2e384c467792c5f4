# shellcheck shell=bash disable=SC2154
# What the scripts of ci/ share. To be sourced after `program=` is set to the caller's name; paths are those of the project's
# root, which has to be the working directory.

# Messages are parsed (libFuzzer's, apt's): they have to be in one language, and the harness prints UTF-8.
export LC_ALL=C.UTF-8

# Exit code 2 means that the work could not be done; 1 is kept for what the work found.
say() { printf '%s: %s\n' "$program" "$*"; }
complain() { printf '%s: %s\n' "$program" "$*" >&2; }
die() { complain "$@"; exit 2; }
# counted 2 target: "2 targets"
counted() { if [[ $1 -eq 1 ]]; then printf '1 %s' "$2"; else printf '%s %ss' "$1" "$2"; fi; }
have() { command -v -- "$1" >/dev/null 2>&1; }

# need_value OPTION [VALUE]: the value of an option that has to have one.
need_value() {
  [[ $# -ge 2 && -n $2 ]] || die "$1 needs a value; see $program --help"
  printf '%s' "$2"
}

# need_count OPTION [VALUE]: the same for a number from 1 to 99999999. More would be years, and could overflow a sum.
need_count() {
  local value
  value=$(need_value "$@") || exit
  [[ $value =~ ^[1-9][0-9]{0,7}$ ]] || die "$1 needs a whole number from 1 to 99999999, not '$value'"
  printf '%s' "$value"
}

# One compiler process takes up to this much (RapidCheck's templates with sanitizers); more of them than fit would swap.
compiler_mib=1200
build_jobs() {
  local jobs fit
  jobs=$(nproc)
  fit=$(awk -v each="$compiler_mib" '/^MemAvailable:/ { print int($2 / 1024 / each) }' /proc/meminfo)
  [[ -z $fit || $fit -ge $jobs ]] || jobs=$((fit > 0 ? fit : 1))
  printf '%s' "${CMAKE_BUILD_PARALLEL_LEVEL:-$jobs}"
}

# Builds that differ in their folder alone share what they compiled: a rehearsal with planted faults has most files as they
# are. Sources have absolute names, so that nothing else hangs on the folder.
export CCACHE_NOHASHDIR=1

# ccache where it is there and can write its cache; an empty launcher also clears one that an earlier configure kept.
compiler_launcher() {
  local cache
  have ccache && cache=$(ccache --get-config cache_dir 2>/dev/null) || return 0
  if mkdir -p -- "$cache" 2>/dev/null && [[ -w $cache ]]; then printf 'ccache'; fi
}

# The compiler for HIP, or nothing where there is none. Not hipcc: it makes HIP of every source it is given, and ccache does
# not know it. Debian's hipcc depends on the clang of the version that its HIP was made with; an older one, which clang++
# may be, cannot read the device library.
hip_compiler() {
  local candidate
  for candidate in "${HIPCXX:-}" amdclang++ "${ROCM_PATH:-/opt/rocm}/bin/amdclang++" "$(debian_hip_compiler)"; do
    if [[ -n $candidate ]] && have "$candidate"; then printf '%s' "$candidate"; return; fi
  done
}

debian_hip_compiler() {
  local depends
  have dpkg-query && depends=$(dpkg-query -W -f '${Depends}' hipcc 2>/dev/null) || return 0
  if [[ $depends =~ clang-([0-9]+) ]]; then printf 'clang++-%s' "${BASH_REMATCH[1]}"; fi
}

# configure DIR CMAKE_ARGUMENT...: quiet, unless it fails.
configure() {
  local dir=$1
  shift
  local log=$dir.configure.log
  mkdir -p -- "$(dirname -- "$dir")" || die "cannot create $(dirname -- "$dir")"
  say "configuring $dir"
  cmake "$@" "-DCMAKE_CXX_COMPILER_LAUNCHER=$(compiler_launcher)" >"$log" 2>&1 && return
  cat -- "$log" >&2
  die "configuring $dir failed; its output is above and in $log"
}

# build DIR [TARGET...]
build() {
  local dir=$1
  shift
  local target=()
  [[ $# -eq 0 ]] || target=(--target "$@")
  say "building $dir"
  cmake --build "$dir" --parallel "$(build_jobs)" "${target[@]}" || die "building $dir failed"
}

# read_targets DIR: the fuzz targets of a build as the array `targets`, from the list that CMake writes.
read_targets() {
  local list=$1/fuzz/targets.txt
  [[ -s $list ]] || die "$list, the list of fuzz targets that CMake writes, is missing or empty"
  mapfile -t targets < <(grep -v '^[[:space:]]*$' -- "$list")
}

# Keeps those of `targets` that the array `wanted` names, in the order of the list; all when it names none.
select_targets() {
  [[ ${#wanted[@]} -gt 0 ]] || return 0
  local want target keep=()
  for want in "${wanted[@]}"; do
    [[ " ${targets[*]} " == *" fuzz_${want#fuzz_} "* ]] || die "no target '$want'; there are: ${targets[*]#fuzz_}"
  done
  for target in "${targets[@]}"; do
    for want in "${wanted[@]}"; do
      if [[ $target == "fuzz_${want#fuzz_}" ]]; then keep+=("$target"); break; fi
    done
  done
  targets=("${keep[@]}")
}

# Two runs would write the same logs and read each other's findings.
lock_output() {
  { mkdir -p -- "$out_dir" && : >>"$out_dir/.lock"; } || die "cannot write below $out_dir"
  exec 9>"$out_dir/.lock"
  flock -n 9 || die "another ci/fuzz is running in this directory"
}

# The directories of the corpus that there are, a line each.
corpus_dirs() {
  local dir
  for dir in corpus/seeds corpus/regressions; do
    if [[ -d $dir ]]; then printf '%s\n' "$dir"; fi
  done
}

# The files of the corpus, each ended by a NUL.
corpus_files() {
  local dir
  corpus_dirs | while IFS= read -r dir; do find "$dir" -type f -name '*.batch' -print0; done | sort -z
}

count_corpus_files() { corpus_files | tr -cd '\0' | wc -c; }

# replay DIR: runs every target of a build on every file of the corpus. The array `targets` has to be read.
replay() {
  local dir=$1 target count log
  count=$(count_corpus_files)
  [[ $count -gt 0 ]] || die "no .batch file below corpus/: there is nothing to replay"
  for target in "${targets[@]}"; do
    log=$dir/fuzz/$target.replay.log
    [[ -x $dir/fuzz/$target ]] || die "$dir/fuzz/$target is missing"
    # As many files a run as one command line takes easily; each run starts the program anew.
    corpus_files | xargs -0 -n 500 "$dir/fuzz/$target" >"$log" 2>&1 && continue
    tail -n 100 -- "$log" >&2
    die "$dir/fuzz/$target failed on the corpus; the end of its output is above, all of it in $log"
  done
  say "replayed $count files of the corpus on $(counted "${#targets[@]}" target) in $dir"
}
