#!/usr/bin/env bash
# Several Ray nodes on this machine (Linux): cluster-configs/local-cluster.sh start [NODES [CPUS]], by default 2 of 1 cpu,
# prints the addresses for dg.Session("ray", address=...), `distgrad run` and `distgrad submit`, and how to stop the nodes:
# cluster-configs/local-cluster.sh stop FOLDER ends exactly those. STORE=bytes before it sets the size of each object store.

set -euo pipefail

# A loopback address that Ray keeps: it takes 127.0.0.1 for the machine's outer address. Nodes talk over it, and the
# dashboard listens there alone; Ray's other ports listen on all addresses, so the nodes want its token.
ADDRESS=127.0.0.2
STORE=${STORE:-200000000}
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}

# `ray stop` would end every Ray of this user. Here each node is a `ray start --block`, which ends what it started.

usage() {
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
}

fail() {
    echo "error: $1" >&2
    exit "${2:-1}"
}

# number TEXT NAME: a number of things, or wrong use.
number() {
    [[ $1 =~ ^[1-9][0-9]*$ ]] || fail "$2 is '$1', but must be a number of at least 1" 2
}

# A port that is free now. Ray picks most of its ports itself, but not those of a node's agent, which starts jobs, and of
# its client server: another node on this machine may have their defaults.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# node FOLDER NUMBER OPTIONS...: one more node, whose process is noted in the folder. It has a folder of its own: nodes that
# shared one would remove the files of each other's jobs.
node() {
    local folder=$1 own=$1/$2 port
    port=$(free_port)
    shift 2
    ray start --block --node-ip-address="$ADDRESS" --object-store-memory="$STORE" --temp-dir="$own" \
        --dashboard-agent-listen-port="$port" --disable-usage-stats "$@" >>"$folder/log" 2>&1 </dev/null &
    echo $! >>"$folder/pids"
    disown
}

# alive PID FOLDER: whether it is still the node that was started, and not another process with its number.
alive() {
    [[ $(tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline") == *"--temp-dir=$2/"* ]]
}

# joined FOLDER COUNT: whether so many nodes have started. Fails for good when one of them has ended.
joined() {
    local pid
    while read -r pid; do
        kill -0 "$pid" 2>/dev/null || { tail -n 20 "$1/log" >&2; end "$1"; fail "a node did not start; its log is $1/log"; }
    done <"$1/pids"
    [[ $(grep -c "Ray runtime started" "$1/log") -ge $2 ]]
}

await() {
    local tries=0
    until joined "$@"; do
        ((++tries < 300)) || { end "$1"; fail "no cluster after a minute; its log is $1/log"; }
        sleep 0.2
    done
}

start() {
    local nodes=${1:-2} cpus=${2:-1} folder address n
    number "$nodes" NODES
    number "$cpus" CPUS
    command -v ray >/dev/null || fail "there is no command ray: activate the environment in which distgrad is installed"
    [[ $RAY_AUTH_MODE != token ]] || ray get-auth-token --generate >/dev/null 2>&1
    folder=$(mktemp -d /tmp/distgrad-XXXXXX) # short: Ray's sockets lie below it, and their paths have a limit
    touch "$folder/log"
    node "$folder" 1 --head --num-cpus="$cpus" --port=0 --dashboard-host="$ADDRESS" \
        --ray-client-server-port="$(free_port)"
    await "$folder" 1
    address=$(cat "$folder/1/ray_current_cluster")
    for ((n = 2; n <= nodes; n++)); do
        node "$folder" "$n" --address="$address" --num-cpus="$cpus"
    done
    await "$folder" "$nodes"
    echo "nodes:   $nodes, cpus of each: $cpus"
    echo "first:   export RAY_AUTH_MODE=$RAY_AUTH_MODE"
    echo "address: $address"
    echo "jobs:    $(grep -o "http://$ADDRESS:[0-9]*" "$folder/log" | head -n 1)"
    echo "stop:    $0 stop $folder"
}

# family PID...: these processes and all that they have started.
family() {
    ps -eo pid=,ppid= | awk -v roots="$*" '
        BEGIN { n = split(roots, queue); for (i = 1; i <= n; i++) found[queue[i]] }
        { parent[$1] = $2 }
        END {
            do { more = 0; for (p in parent) if (!(p in found) && parent[p] in found) { found[p]; more = 1 } } while (more)
            for (p in found) print p
        }'
}

# end FOLDER: the last node first, so that the head hears of it. What has not ended after ten seconds is killed.
end() {
    local nodes=() all pid tries=0
    for pid in $(tac "$1/pids"); do
        ! alive "$pid" "$1" || nodes+=("$pid")
    done
    ((${#nodes[@]})) || return 0
    all=$(family "${nodes[@]}")
    for pid in "${nodes[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in $all; do
        while kill -0 "$pid" 2>/dev/null; do
            ((++tries < 100)) || kill -9 "$pid" 2>/dev/null || true
            sleep 0.1
        done
    done
}

stop() {
    [[ -f ${1:-}/pids ]] || fail "'${1:-}' is not the folder of a cluster that this script started" 2
    end "$1"
    rm -rf "$1"
}

case ${1:-} in
start | stop) "$@" ;;
*) usage ;;
esac
