#!/usr/bin/env bash
# Several Ray nodes on this machine (Linux): cluster-configs/local-cluster.sh start [NODES [CPUS]], by default 2 of 1 cpu, prints
# the addresses to join and submit to, and how to stop the nodes: cluster-configs/local-cluster.sh stop FOLDER ends exactly those.
# Before it: STORE=bytes of an object store, PORT=of the head (0: a free one), JOBS_PORT=of the dashboard (8265; 0: a free one).

set -euo pipefail

# A loopback address that Ray keeps: it replaces 127.0.0.1 by the machine's external address. Nodes talk over it, and the
# dashboard listens only there; Ray's other ports listen on all addresses, so the nodes require its token.
ADDRESS=127.0.0.2
STORE=${STORE:-200000000}
PORT=${PORT:-0}
JOBS_PORT=${JOBS_PORT:-8265}
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

# number TEXT NAME: fails unless TEXT is a number of at least 1.
number() {
    [[ $1 =~ ^[1-9][0-9]*$ ]] || fail "$2 is '$1', but must be a number of at least 1" 2
}

# A port that is free now. Ray picks most of its ports itself, but not those of a node's agent, which starts jobs, and of
# its client server: another node on this machine may have their defaults.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# port VALUE VARIABLE: the port that was asked for, or a free one for 0. A port that is in use is reported here, before anything
# starts: Ray reports it late, in a log, or moves the dashboard to another port.
port() {
    [[ $1 =~ ^[0-9]{1,5}$ ]] && ((10#$1 == 0 || (10#$1 >= 1024 && 10#$1 <= 65535))) ||
        fail "$2 is '$1', but must be a port from 1024 to 65535, or 0 for any free one" 2
    if ((10#$1 == 0)); then
        free_port
        return
    fi
    python3 -c 'import socket, sys
for host in sys.argv[2:]:
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((host, int(sys.argv[1])))' "$1" "$ADDRESS" 0.0.0.0 2>/dev/null ||
        fail "port $1 is in use on this machine$(user_of "$1"): end what listens there, or choose another with $2=..., 0 for any free one"
    echo "$1"
}

# user_of PORT: which of your processes listens there, if the system reports it.
user_of() {
    command -v ss >/dev/null || return 0
    ss -Hltnp "sport = :$1" 2>/dev/null | sed -n 's/.*users:(("\([^"]*\)",pid=\([0-9]*\).*/ (by \1, process \2)/p' | head -n 1
}

# secret_token: creates Ray's token if there is none, readable by its owner only; refuses one that others can read.
secret_token() {
    local file=${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}
    [[ $RAY_AUTH_MODE == token && -z ${RAY_AUTH_TOKEN:-} ]] || return 0
    (umask 077 && ray get-auth-token --generate >/dev/null 2>&1) || fail "there is no token in $file, and none can be made"
    [[ -f $file ]] || fail "there is no token in $file, which RAY_AUTH_TOKEN_PATH names"
    [[ $(stat -Lc %a "$file") == *00 ]] ||
        fail "others can read $file, so they may know the token: run chmod 600 $file, or remove it for a new one"
}

# node FOLDER NUMBER OPTIONS...: starts a node and writes its process id to the folder. Each node has its own subfolder: nodes that
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

# alive PID FOLDER: whether PID is still the node that was started, and not another process with the same id.
alive() {
    [[ $(tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline") == *"--temp-dir=$2/"* ]]
}

# joined FOLDER COUNT: whether COUNT nodes have started. Exits if one of them has ended.
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
    local nodes=${1:-2} cpus=${2:-1} folder address n head jobs client
    number "$nodes" NODES
    number "$cpus" CPUS
    command -v ray >/dev/null || fail "there is no command ray: activate the environment in which distgrad is installed"
    head=$(port "$PORT" PORT) || exit
    jobs=$(port "$JOBS_PORT" JOBS_PORT) || exit
    client=$(free_port)
    secret_token
    folder=$(mktemp -d /tmp/distgrad-XXXXXX) # short: Ray's sockets are below it, and their paths have a limit
    touch "$folder/log"
    node "$folder" 1 --head --num-cpus="$cpus" --port="$head" --dashboard-host="$ADDRESS" --dashboard-port="$jobs" \
        --ray-client-server-port="$client"
    await "$folder" 1
    address=$(cat "$folder/1/ray_current_cluster")
    grep -q "http://$ADDRESS:$jobs" "$folder/log" || { end "$folder"; fail "port $jobs was taken while the head started"; }
    for ((n = 2; n <= nodes; n++)); do
        node "$folder" "$n" --address="$address" --num-cpus="$cpus"
    done
    await "$folder" "$nodes"
    echo "nodes:   $nodes, cpus of each: $cpus"
    echo "first:   export RAY_AUTH_MODE=$RAY_AUTH_MODE"
    echo "address: $address"
    echo "jobs:    http://$ADDRESS:$jobs"
    echo "stop:    $0 stop $folder"
}

# family PID...: these processes and all of their descendants.
family() {
    ps -eo pid=,ppid= | awk -v roots="$*" '
        BEGIN { n = split(roots, queue); for (i = 1; i <= n; i++) found[queue[i]] }
        { parent[$1] = $2 }
        END {
            do { more = 0; for (p in parent) if (!(p in found) && parent[p] in found) { found[p]; more = 1 } } while (more)
            for (p in found) print p
        }'
}

# end FOLDER: the last node first, so that the head is notified. Processes that have not ended after ten seconds are killed.
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
