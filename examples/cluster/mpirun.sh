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
exec mpirun "${flags[@]}" "${options[@]}" -n $((1 + n_draft + n_target)) \
    "$graft" launch --roles "serve:1,draft:$n_draft,target:$n_target" --model "$model" --draft "$draft" "$@"
