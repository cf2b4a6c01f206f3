# The set-up of Fulmen {{version}}, as `fulmen env {{name}}` prints it. {{note}}
set -euo pipefail
if ! [ -f "${SOURCE:-}/Cargo.toml" ] && { [ -z "${SOURCE:-}" ] || [ -z "${REPOSITORY:-}" ]; }; then
  echo "SOURCE is '${SOURCE:-}' and REPOSITORY is '${REPOSITORY:-}'; expected a checkout of Fulmen as SOURCE, or a new folder as SOURCE and what to clone into it as REPOSITORY" >&2
  exit 1
fi
sudo=$([ "$(id -u)" = 0 ] || echo sudo)
if ! { command -v cc && command -v curl && command -v git && python3 -m pip --version; } >/dev/null; then
  $sudo apt-get update -qq
  $sudo apt-get install -y -qq build-essential curl git python3-pip
fi
if ! [ -f "$SOURCE/Cargo.toml" ]; then
  git clone --quiet --depth 1 "$REPOSITORY" "$SOURCE"
fi
if ! command -v cargo >/dev/null; then
  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal --default-toolchain {{rust}}
  $sudo ln -sf "$HOME"/.cargo/bin/* /usr/local/bin/
fi
if compgen -G '/dev/accel*' >/dev/null || compgen -G '/dev/vfio/[0-9]*' >/dev/null; then
  PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet libtpu=={{libtpu}}
fi
