#!/usr/bin/env bash
# What only a GPU can say, in at most eight minutes: every kernel right on the device, its share of what the device
# copies, decode and prefill of a 1B model beside transformers, and a Run file of a whole scenario. JSON files in --out.
#
#   tests/gpu/run.sh [--out DIR] [--minutes N] [--only PHASE,...]
#   tests/gpu/run.sh --dry-run        the same, end to end, without a GPU: Triton's interpreter and tiny shapes
set -euo pipefail
cd "$(dirname "$0")/../.."

python="${PYTHON:-.venv/bin/python}" # PYTHON=... names another one
[ -x "$python" ] || python="$(command -v python3 || command -v python)"

minutes=8
dry_run=false
arguments=()
while [ $# -gt 0 ]; do
    case "$1" in
        --minutes) minutes="$2"; shift 2 ;;
        --dry-run) dry_run=true; shift ;;
        -h|--help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) arguments+=("$1"); shift ;;
    esac
done

if $dry_run; then
    # Switched on for this process; the engine's command line, which it starts, gets the environment without it.
    export TRITON_INTERPRET=1 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
    arguments+=(--dry-run)
else
    unset TRITON_INTERPRET
fi
# The session watches its own clock and leaves out what no longer fits; the outer limit is for a kernel that hangs.
exec timeout --signal=INT --kill-after=10 "$((minutes * 60 + 20))" \
    "$python" -m tests.gpu.session --minutes "$minutes" ${arguments[@]+"${arguments[@]}"}
