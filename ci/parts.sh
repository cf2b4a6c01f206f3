# What the scripts in this folder share. They read it first; it goes to the root of the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# part NAME COMMAND…: runs the command and says how long it took.
part() {
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  "$@"
  echo "== $name: $((SECONDS - start)) s"
}

# start_part NAME COMMAND…: starts the command in the background. `end_part` waits for it, and prints what it has printed.
# The command gets the time that others leave. Linux also weighs whole sessions, and each `setsid` begins one.
start_part() {
  started_name=$1 started_at=$SECONDS started_output=$(mktemp)
  shift
  setsid bash -c 'echo 19 2>/dev/null >/proc/self/autogroup || true; exec nice -n 19 "$@"' _ "$@" >"$started_output" 2>&1 &
  started=$!
  trap 'kill -- "-$started" 2>/dev/null || true; rm "$started_output"' EXIT
}

end_part() {
  local code=0
  wait "$started" || code=$?
  echo "== $started_name"
  cat "$started_output"
  echo "== $started_name: $((SECONDS - started_at)) s"
  return "$code"
}

# install PROGRAM… -- PACKAGE…: installs Debian's packages, unless all programs are there.
install() {
  local missing=false sudo=()
  while [ "$1" != -- ]; do
    PATH=$PATH:/usr/sbin command -v "$1" >/dev/null || missing=true
    shift
  done
  shift
  if $missing; then
    [ "$(id -u)" = 0 ] || sudo=(sudo)
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" apt-get install -y -qq --no-install-recommends "$@"
  fi
}

# jemalloc, with which XLA compiles quicker (`ci/test-runner`). The tests pass without it.
install_allocator() {
  [ -e "/usr/lib/$(uname -m)-linux-gnu/libjemalloc.so.2" ] || install libjemalloc.so.2 -- libjemalloc2 ||
    echo "no jemalloc: the tests take longer"
}

# libjpeg-turbo, behind the feature `turbojpeg`, is built from source. Nothing else needs cmake or nasm.
install_cmake() {
  install cmake nasm -- cmake nasm
}
