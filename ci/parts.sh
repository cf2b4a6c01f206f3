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

# jemalloc, which `ci/test-runner` preloads, because XLA compiles quicker with it. The tests pass without it.
install_allocator() {
  [ -e "/usr/lib/$(uname -m)-linux-gnu/libjemalloc.so.2" ] || install libjemalloc.so.2 -- libjemalloc2 ||
    echo "no jemalloc: the tests take longer"
}

# libjpeg-turbo and jemalloc, behind the features `turbojpeg` and `jemalloc`, are built from source. Nothing else needs
# cmake, nasm or make.
install_build_tools() {
  install cmake nasm make -- cmake nasm make
}
