#!/usr/bin/env bash
# One MPI job: orchestrator, draft worker and target worker as three ranks (Open MPI 4; the programs make no MPI calls).
# What the others need comes by environment:
#   GRAFT_KEY_FILE  the shared key, made with `graft serve --make-key F`; readable on every host of the job
#   GRAFT_ADDRESS   where the orchestrator serves (default 127.0.0.1:5055); on several hosts: an address they all reach
#   GRAFT_TARGET, GRAFT_DRAFT, GRAFT_BIN   model folders and the build folder
# More options for mpirun (--hostfile F, --map-by ...) are this script's arguments. On several hosts the target also needs
# an address that drafters reach: GRAFT_LISTEN=HOST:0.
#
# --enable-recovery keeps the job alive when a rank dies by a signal; without it mpirun ends all of them. The ranks run under
# --supervise, so a worker that dies comes back; a rank whose supervisor dies stays away, and the others go on without it.
# The job ends with the orchestrator: it tells the workers to exit, and their supervisors end with them.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${GRAFT_BIN:-build}
address=${GRAFT_ADDRESS:-127.0.0.1:5055}
target=${GRAFT_TARGET:-models/demo/target}
draft=${GRAFT_DRAFT:-models/demo/draft}
listen=${GRAFT_LISTEN:-127.0.0.1:0}
: "${GRAFT_KEY_FILE:?make a key with \`graft serve --make-key F\` and export GRAFT_KEY_FILE=F}"

flags=(--enable-recovery -x GRAFT_KEY_FILE)
[ -n "${GRAFT_LOG:-}" ] && flags+=(-x GRAFT_LOG)
# A machine of one's own, as in a container: root, and more ranks than cores.
[ "$(id -u)" = 0 ] && flags+=(--allow-run-as-root)
[ $# -gt 0 ] || flags+=(--oversubscribe)

exec mpirun "${flags[@]}" "$@" \
    -n 1 "$bin/graft" serve --control "$address" : \
    -n 1 "$bin/graft-draft" --model "$draft" --join "$address" --supervise : \
    -n 1 "$bin/graft-target" --model "$target" --join "$address" --listen "$listen" --supervise
