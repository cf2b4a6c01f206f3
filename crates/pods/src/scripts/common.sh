# What all scripts begin with. They need bash and coreutils. Lines for `fulmen pod` go to standard error, after `fulmen-pod: `.
root=$HOME/.fulmen/pods

# Only this user reads what is in there.
make_root() { mkdir -p "$root" && chmod 700 "$root"; }

tell() { echo "fulmen-pod: $*" >&2; }
fail() { tell "error $*"; exit 1; }

# The state and the start time of a process, which tells it from a later one with the same id. A zombie has ended.
born() {
  local stat
  { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
  set -- ${stat##*) }
  state=$1 time=${20}
  [ "$state" != Z ]
}

# Whether the process of that id and start time still runs.
runs() { born "$1" && [ "$time" = "$2" ]; }

# Reads what the supervisor has written of itself and of its program.
read_pids() { { read -r supervisor supervisor_time program program_time <pids; } 2>/dev/null; }

# Sends a signal to the program and to all that it has started.
signal() {
  read_pids && runs "$program" "$program_time" && kill "-$1" -- "-$program" 2>/dev/null
}

# Whole seconds since the machine started: a clock that nobody sets.
uptime() { read -r up _ </proc/uptime; up=${up%.*}; }
