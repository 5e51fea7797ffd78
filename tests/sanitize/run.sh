#!/bin/bash
# The core under AddressSanitizer with UndefinedBehaviorSanitizer, under valgrind, and under ThreadSanitizer; and tests
# with tensors between guard pages, where torch's own libraries are caught too (convolutions, of which rule 8 tells).
#
#     tests/sanitize/run.sh [address] [valgrind] [thread] [pages]
#
# Without arguments all four. Each builds its own core into build/sanitize-*, puts a copy of the package around it and
# runs with that one only; what is installed is not touched. Reports are kept in build/sanitize-*/reports. The exit
# status is 1 when a test failed or a report is about our code (ours.py tells which are).
set -uo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
python=$(command -v "${PYTHON:-.venv/bin/python}") || { echo "no Python: set PYTHON"; exit 2; }
case $python in /*) ;; *) python=$root/$python ;; esac
jobs=${JOBS:-$(nproc)}
here=tests/sanitize
# Tests that take most ways through the core in little time, for programs that run many times slower.
few=(tests/api/test_disable_casts.py tests/api/test_op_wrap.py tests/rules/test_casts_inside.py tests/rules/test_workers.py
     tests/log/test_log_lines.py)
# Weights have cached casts where the core can look inside of tensors.
cached=(tests/weights/test_small_weights.py)
failures=()
summary=()

note() { summary+=("$1"); echo "== $1"; }
fail() { failures+=("$1"); note "FAILED: $1"; }

# build NAME SANITIZERS: the core, and the package around it in build/sanitize-NAME/site.
build() {
  local name=$1 folder=build/sanitize-$1
  if ! JOBS=$jobs "$python" tests/helpers/own_core.py "$folder" -DHABANA_MP_SANITIZE="$2" \
       -DCMAKE_BUILD_TYPE=RelWithDebInfo; then
    fail "$name: the core does not build (see $folder/build.log)"
    return 1
  fi
  rm -rf "$folder/reports"
  mkdir -p "$folder/reports"
  core=$(ls "$root/$folder"/site/habana_mp/_core*.so)
  site=$root/$folder/site
  reports=$root/$folder/reports
}

# under NAME... COMMAND: with the environment that the array `settings` holds, and our package.
under() { env PYTHONPATH="$site" PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=2 "${settings[@]}" "$@"; }

right_core() {
  local loaded
  loaded=$(under "$python" -c 'import habana_mp; from habana_mp import _core
print(_core.__file__, habana_mp.__file__)' 2>&1 | tail -n 1)
  [ "$loaded" = "$core $site/habana_mp/__init__.py" ] && return 0
  fail "$1: the wrong core is loaded ($loaded)"
  return 1
}

judge() {  # judge NAME: fails when one of the reports is about our code
  if "$python" "$here/ours.py" --sources src "$reports"; then note "$1: no report about our code"
  else fail "$1: reports about our code (above, and in ${reports#"$root/"})"; fi
}

# tests_pass KIND NAME ARGUMENTS...: of pytest, whose output is kept under that name.
tests_pass() {
  local report=$reports/$2.txt
  if under "$python" -X faulthandler -m pytest -q -p no:cacheprovider -m "not slow" --timeout 1200 "${@:3}" > "$report" 2>&1
  then note "$1: $2: $(tail -n 1 "$report")"
  else tail -n 25 "$report"; fail "$1: $2"; fi
}

library() { realpath "$(g++ -print-file-name="$1")"; }

address() {
  build address address,undefined || return
  # libstdc++ too: the sanitizer looks for the function that throws when it starts.
  settings=(LD_PRELOAD="$(library libasan.so) $(library libstdc++.so.6)"
            ASAN_OPTIONS="detect_leaks=0:log_path=$reports/asan:allocator_may_return_null=1:detect_stack_use_after_return=1"
            UBSAN_OPTIONS="print_stacktrace=1:log_path=$reports/ubsan")
  right_core address || return
  local malloc
  # Python's own allocator hides what is wrong with its objects' memory.
  for malloc in malloc default; do
    PYTHONMALLOC=$malloc tests_pass address "few-$malloc" "${few[@]}" "${cached[@]}"
  done
  HABANA_MP_BREAK=torch.tensor-layout PYTHONMALLOC=malloc tests_pass address few-attribute "${few[@]}"
  if under "$python" -W ignore "$here/threads.py" --core "$core" --seconds 30 --cold > "$reports/threads.txt" 2>&1
  then note "address: $(grep -o 'threads: [0-9]* rounds' "$reports/threads.txt")"
  else tail -n 25 "$reports/threads.txt"; fail "address: threads.py"; fi
  local test
  for test in kernels log rules install api/test_disable_casts.py; do
    # Without torch's database, of which each operation runs many times, without the libraries that a core needs, as this
    # one needs the sanitizer's, and without a test that waits until memory is used again: the sanitizer keeps it.
    tests_pass address "$(basename "$test" .py)" --ignore tests/rules/test_operation_database.py \
      --ignore tests/install/test_built_core.py "tests/$test" --deselect \
      tests/rules/test_state_of_lowered_results.py::test_ones_own_tensor_in_memory_that_a_lowered_result_had_is_as_it_was_made
  done
  # Leaks: Python and torch keep much to their end; only what was allocated by us, directly, counts.
  settings[1]="ASAN_OPTIONS=detect_leaks=1:log_path=$reports/leaks:allocator_may_return_null=1:exitcode=0:fast_unwind_on_malloc=0:malloc_context_size=12"
  settings+=(PYTHONMALLOC=malloc)
  tests_pass address leaks "${few[@]}" "${cached[@]}"
  if grep -q "has encountered a fatal error" "$reports"/leaks* 2> /dev/null; then
    note "address: leaks cannot be looked for here (no ptrace)"
  fi
  judge address
}

valgrind_() {
  command -v valgrind > /dev/null || { fail "valgrind is not installed"; return; }
  build plain "" || return
  settings=(PYTHONMALLOC=malloc OMP_NUM_THREADS=1)
  right_core plain || return
  if under valgrind --tool=memcheck --error-limit=no --num-callers=30 --fair-sched=yes --trace-children=no --leak-check=no \
       --suppressions="$here/valgrind.supp" --log-file="$reports/valgrind.%p.txt" \
       "$python" -m pytest -q -p no:cacheprovider --timeout 3600 "${few[@]}" "${cached[@]}" > "$reports/few.txt" 2>&1
  then note "valgrind: $(tail -n 1 "$reports/few.txt")"; else tail -n 25 "$reports/few.txt"; fail "valgrind: tests"; fi
  grep -h "ERROR SUMMARY" "$reports"/valgrind.*.txt
  judge valgrind
}

thread() {
  build thread thread || return
  settings=(LD_PRELOAD="$(library libtsan.so)"
            TSAN_OPTIONS="suppressions=$root/$here/tsan.supp:log_path=$reports/tsan:exitcode=0:history_size=4:report_signal_unsafe=0")
  # The sanitizer wants memory where newer kernels put something else at random.
  local exact=()
  setarch -R true 2> /dev/null && exact=(setarch -R)
  if ! (cd / && under "${exact[@]}" "$python" -c 'import torch'); then fail "thread: Python does not start"; return; fi
  local seed
  for seed in 0 100; do
    if under "${exact[@]}" "$python" -W ignore "$here/threads.py" --core "$core" --seconds 60 --seed $seed \
         > "$reports/threads-$seed.txt" 2>&1
    then note "thread: $(grep -o 'threads: [0-9]* rounds' "$reports/threads-$seed.txt") (seed $seed)"
    else tail -n 25 "$reports/threads-$seed.txt"; fail "thread: threads.py (seed $seed)"; fi
  done
  judge thread
}

pages() {
  build plain "" || return
  local library=$root/build/sanitize-plain/guard_pages.so
  g++ -std=c++20 -O2 -Wall -Wextra -Werror -shared -fPIC "$here/guard_pages.cpp" -o "$library" || {
    fail "pages: guard_pages.cpp does not build"
    return
  }
  settings=(LD_PRELOAD="$library")
  right_core pages || return
  if under "$python" -c 'import ctypes, torch
ctypes.memset(torch.ones(100).data_ptr() + 400, 0, 1)' 2> /dev/null; then
    fail "pages: a write beside a tensor is not seen"
    return
  fi
  local test seed
  for test in kernels weights/test_own_products.py memory/test_activation_buffers.py \
      rules/test_{convolutions,uneven_rows,casts_inside}.py; do
    tests_pass pages "$(basename "$test" .py)" -s "tests/$test"  # not captured: what is said of a page
  done
  for seed in 1 2 3 4 5 6 7 8; do
    tests_pass pages "test_convolutions-$seed" -s tests/rules/test_convolutions.py -k is_wrong --hypothesis-seed=$seed
  done
}

main() {
  [ $# -eq 0 ] && set -- address valgrind thread pages
  for one in "$@"; do
    case $one in
      address) address ;;
      valgrind) valgrind_ ;;
      thread) thread ;;
      pages) pages ;;
      *) echo "$0: unknown: $one"; exit 2 ;;
    esac
  done

  echo
  echo "---- summary ----"
  printf '%s\n' "${summary[@]}"
  if [ ${#failures[@]} -ne 0 ]; then echo "${#failures[@]} failures"; exit 1; fi
  echo "clean"
}

main "$@"
exit
