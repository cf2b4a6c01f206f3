# The common beginning of all scripts. They need bash and coreutils. Messages for `fulmen pod` go to standard error, with
# the prefix `fulmen-pod: `.
root=$HOME/.fulmen/pods

# Only this user may read the folder.
make_root() { mkdir -p "$root" && chmod 700 "$root"; }

tell() { echo "fulmen-pod: $*" >&2; }
fail() { tell "error $*"; exit 1; }

# The state and the start time of a process. The start time differs from a later process with the same id. A zombie has ended.
born() {
  local stat
  { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
  set -- ${stat##*) }
  state=$1 time=${20}
  [ "$state" != Z ]
}

# Whether the process with this id and start time still runs.
runs() { born "$1" && [ "$time" = "$2" ]; }

# The process table that ids belong to. Hosts may share a home directory, and a reboot starts a new table.
process_table() {
  local boot
  { read -r boot </proc/sys/kernel/random/boot_id; } 2>/dev/null
  echo "$boot/$(readlink /proc/self/ns/pid)"
}

# Reads the ids and start times of the supervisor and its program, if they are those of this host.
read_pids() {
  { read -r supervisor supervisor_time program program_time table <pids; } 2>/dev/null && [ "$table" = "$(process_table)" ]
}

# Whether the worker in this folder runs on this host.
is_running() { read_pids && runs "$supervisor" "$supervisor_time"; }

# The launcher that started the worker in this folder.
read_owner() { owner=""; { read -r owner <owner; } 2>/dev/null || true; }

# Sends a signal to the program and its child processes.
signal() {
  read_pids && runs "$program" "$program_time" && kill "-$1" -- "-$program" 2>/dev/null
}

# Whole seconds since the machine started: a clock that is never set.
uptime() { read -r up _ </proc/uptime; up=${up%.*}; }
