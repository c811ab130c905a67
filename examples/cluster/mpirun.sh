#!/usr/bin/env bash
# graft under mpirun: rank 0 the orchestrator, then drafters, then targets; all ranks run one program.
#   examples/cluster/mpirun.sh MODEL DRAFT [mpirun's options: --hostfile F ...] [-- COMMAND ...]
# N_DRAFT, N_TARGET (1 each). On several hosts: GRAFT_JOB_DIR, a folder that all of them see, or GRAFT_KEY_FILE with
# GRAFT_RENDEZVOUS=HOST:PORT of rank 0's host. Hostfiles say `HOST slots=N'.
# SIGINT and SIGTERM let the ranks finish their turns, and the command its own; a second one ends at once.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: $0 MODEL DRAFT [mpirun's options] [-- COMMAND ...]" >&2; exit 2; }
graft=${GRAFT_BIN:-$(cd "$(dirname "$0")/../.." && pwd)/build}/graft
[ -n "${GRAFT_BIN:-}" ] || [ -e "$graft" ] || graft=$(command -v graft) # where it is installed
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
said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
mkfifo "$said/pipe"
[ ! -t 0 ] || exec </dev/null # what runs in the background may not read the terminal
set -m                        # process groups of their own: mpirun gives up at once where a signal reaches it twice
tee "$said/text" <"$said/pipe" >&2 &
copy=$!
mpirun "${flags[@]}" "${options[@]}" -n $((1 + n_draft + n_target)) \
    "$graft" launch --roles "serve:1,draft:$n_draft,target:$n_target" --model "$model" --draft "$draft" "$@" \
    <&0 2>"$said/pipe" &
job=$!
# mpirun kills its ranks a second after it was told to end. SIGUSR1 it hands to them, and they drain.
asked='' status=0
end() {
    if [ -z "$asked" ]; then asked=yes; kill -USR1 "$job"; else kill -TERM "$job"; fi 2>/dev/null || true
}
trap end INT TERM
until wait "$job"; status=$?; ! kill -0 "$job" 2>/dev/null; do :; done
wait "$copy" || true
of_job=$(sed -n 's/.*graft launch: the job ended with status \([0-9]*\)$/\1/p' "$said/text" | tail -n 1)
exit "${of_job:-$((status > 0 ? status : 1))}"
