#!/usr/bin/env bash
# graft under mpirun: rank 0 the orchestrator, then drafters, then targets; all ranks run one program.
#   examples/cluster/mpirun.sh MODEL DRAFT [mpirun's options: --hostfile F ...] [-- COMMAND ...]
# N_DRAFT, N_TARGET (1 each). On several hosts: GRAFT_JOB_DIR, a folder that all of them see, or GRAFT_KEY_FILE with
# GRAFT_RENDEZVOUS=HOST:PORT of rank 0's host. Hostfiles say `HOST slots=N'.
set -euo pipefail
graft=${GRAFT_BIN:-$(cd "$(dirname "$0")/../.." && pwd)/build}/graft
model=$1 draft=$2
shift 2
options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
n_draft=${N_DRAFT:-1} n_target=${N_TARGET:-1}
flags=(--enable-recovery) # a rank that dies is its role's matter, and not the end of the others
for v in GRAFT_KEY_FILE GRAFT_JOB_DIR GRAFT_RENDEZVOUS GRAFT_LOG; do
    [ -z "${!v:-}" ] || flags+=(-x "$v")
done
[ "$(id -u)" != 0 ] || flags+=(--allow-run-as-root)
[ ${#options[@]} -gt 0 ] || flags+=(--oversubscribe) # one host, fewer cores than ranks
# mpirun --enable-recovery says 0 whatever a rank says; rank 0 tells the job's status.
said=$(mktemp)
trap 'rm -f "$said"' EXIT
status=0
exec 3>&1
mpirun "${flags[@]}" "${options[@]}" -n $((1 + n_draft + n_target)) \
    "$graft" launch --roles "serve:1,draft:$n_draft,target:$n_target" --model "$model" --draft "$draft" "$@" \
    2>&1 >&3 3>&- | tee "$said" >&2 || status=${PIPESTATUS[0]}
of_job=$(sed -n 's/.*graft launch: the job ended with status \([0-9]*\)$/\1/p' "$said" | tail -n 1)
exit "${of_job:-$((status > 0 ? status : 1))}"
