#!/usr/bin/env bash
# One MPI job: orchestrator, draft worker and target worker as three ranks (Open MPI 4; the programs make no MPI calls).
# What the others need comes by environment:
#   GRAFT_KEY_FILE  the shared key, made with `graft serve --make-key F`; readable on every host of the job
#   GRAFT_ADDRESS   where the orchestrator serves (default 127.0.0.1:5055); on several hosts: an address they all reach
#   GRAFT_TARGET, GRAFT_DRAFT, GRAFT_BIN   model folders and the build folder
#   GRAFT_CLUSTER   this job's name, for workers that are to be added by hand (graft-target --cluster); default: a new one
# More options for mpirun (--hostfile F, --map-by ...) are this script's arguments. GRAFT_LISTEN=HOST:PORT says where
# drafters connect to the target, if not at the addresses that it finds by itself (graft-target --listen).
#
# --enable-recovery keeps the job alive when a rank dies by a signal; without it mpirun ends all of them. The ranks run under
# --supervise, so a worker that dies comes back; a rank whose supervisor dies stays away, and the others go on without it.
# The job ends with the orchestrator: it tells the workers to exit, and their supervisors end with them. Where it is killed
# nobody starts it again, so the workers wait for it for 60 s and not for ever.
#
# Exit status: mpirun's, but 1 where a rank has failed by itself (a port that is taken, a model that is not there), which
# --enable-recovery would hide; a rank that a signal has killed is no failure of the job. 0 after SIGINT or SIGTERM.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd) # of what is not named; what is named is seen from the caller's folder
bin=${GRAFT_BIN:-$root/build}
[ -n "${GRAFT_BIN:-}" ] || [ -e "$bin" ] || bin=$(dirname "$(command -v graft)") # where it is installed
address=${GRAFT_ADDRESS:-127.0.0.1:5055}
target=${GRAFT_TARGET:-$root/models/demo/target}
draft=${GRAFT_DRAFT:-$root/models/demo/draft}
listen=()
[ -n "${GRAFT_LISTEN:-}" ] && listen=(--listen "$GRAFT_LISTEN")
: "${GRAFT_KEY_FILE:?make a key with \`graft serve --make-key F\` and export GRAFT_KEY_FILE=F}"

# A name of its own: workers of this job do not join the orchestrator of another one that has its address already.
host=$(hostname)
export GRAFT_CLUSTER=${GRAFT_CLUSTER-mpirun-${host:0:40}-$$}

flags=(--enable-recovery -x GRAFT_KEY_FILE -x GRAFT_CLUSTER)
[ -n "${GRAFT_LOG:-}" ] && flags+=(-x GRAFT_LOG)
# A machine of one's own, as in a container: root, and more ranks than cores.
[ "$(id -u)" = 0 ] && flags+=(--allow-run-as-root)
[ $# -gt 0 ] || flags+=(--oversubscribe)

# Each rank tells on standard error, which mpirun brings here, if it has failed by itself.
rank='"$@"; s=$?; [ $s = 0 ] || [ $s -ge 128 ] || echo "mpirun.sh: rank failed with status $s: $1" >&2; exit $s'
said=$(mktemp)
trap 'rm -f "$said"' EXIT
status=0
set -m # a process group of its own: mpirun gives up at once where a signal reaches it twice
mpirun "${flags[@]}" "$@" \
    -n 1 bash -c "$rank" rank "$bin/graft" serve --control "$address" : \
    -n 1 bash -c "$rank" rank "$bin/graft-draft" --model "$draft" --join "$address" --supervise --rejoin-timeout 60 : \
    -n 1 bash -c "$rank" rank "$bin/graft-target" --model "$target" --join "$address" "${listen[@]}" --supervise \
        --rejoin-timeout 60 \
    </dev/null 2> >(tee "$said" >&2) &
job=$!
# mpirun kills its ranks a second after it was told to end: the orchestrator is asked to finish its turns instead. A second
# signal does not wait for them.
asked='' # to end
end() {
    if [ -z "$asked" ]; then
        asked=yes
        { "$bin/graft" stop --connect "$address" --timeout 25 >/dev/null 2>&1 || kill -TERM "$job" 2>/dev/null; } &
    else
        kill -TERM "$job" 2>/dev/null
    fi
}
trap end INT TERM
until wait "$job"; status=$?; ! kill -0 "$job" 2>/dev/null; do :; done
grep -q '^mpirun.sh: rank failed' "$said" && exit 1
[ -z "$asked" ] || exit 0 # mpirun's own status is 1 then
exit "$status"
