# libtpu.sh SOURCE GIVEN VERSION OLDEST HASH BYTES OFFSET LENGTH TRAILER PIP…: makes ~/.fulmen/pods/libtpu-VERSION/libtpu.so
# a link to a libtpu with this hash. SOURCE is `fetch` to download it if this machine has none, `alone` for the same where
# nobody could send it instead, `input` if standard input has it, and `given` to check the file GIVEN of at least the version
# OLDEST, and nothing else. The library is LENGTH compressed bytes of the wheel from OFFSET on; with TRAILER they are a gzip
# file. PIP are the arguments of `pip download`.
source=$1 given=$2 version=$3 oldest=$4 hash=$5 bytes=$6 offset=$7 length=$8 trailer=$9
shift 9
# Says where the library is, and how it came there, and ends.
finish() { echo "path=$1"; echo "state=$2"; exit 0; }
hash_of() { local sum; read -r sum _ < <(sha256sum <"$1"); echo "$sum"; }
is_right() { [ -f "$1" ] && [ "$(stat -Lc %s "$1")" = "$bytes" ] && [ "$(hash_of "$1")" = "$hash" ]; }
# The version of the package that a library belongs to: pip puts libtpu-0.0.51.dist-info next to the library's folder.
version_of() {
  local folder known=""
  folder=$(dirname "$(dirname "$1")")
  for known in "$folder"/libtpu-*.dist-info "$folder"/libtpu_nightly-*.dist-info; do
    [ -d "$known" ] && known=${known##*/} && known=${known%.dist-info} && echo "${known#*-}" && return
  done
}
is_older() { [ "$1" != "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

if [ "$source" = given ]; then
  { [ -f "$given" ] && [ -r "$given" ]; } || fail "there is no libtpu at $given that this user can read; correct the path of --libtpu, or leave it out to install libtpu $version"
  IFS= read -r -n 4 magic <"$given"
  [ "$magic" = $'\x7fELF' ] || fail "$given is not a library: it does not begin as an ELF file; correct the path of --libtpu, or leave it out to install libtpu $version"
  known=$(version_of "$given")
  [ -n "$known" ] && is_older "$known" "$oldest" && fail "libtpu $known at $given is older than $oldest, the first whose PJRT API this version of Fulmen can use; update it, or leave --libtpu out to install libtpu $version"
  finish "$given" "version ${known:-unknown}"
fi

machine=$(uname -m)
[ "$machine" = x86_64 ] || fail "Google publishes libtpu for x86_64, but this processor is $machine; give the path of one with --libtpu PATH"
cache=${HOME}/.cache
case ${XDG_CACHE_HOME-} in /*) cache=$XDG_CACHE_HOME ;; esac
cache=$cache/fulmen/pjrt
own=$cache/libtpu-$version/libtpu.so
link=$root/libtpu-$version
use() {
  make_root && mkdir -p "$link" && ln -sfn "$1" "$link/new.$$" && mv -fT "$link/new.$$" "$link/libtpu.so" || exit 1
  finish "$link/libtpu.so" "$2"
}
is_right "$own" && use "$own" present
seen=""
for file in /lib/libtpu.so /usr/lib/libtpu.so "$HOME"/.local/lib/python3*/site-packages/libtpu/libtpu.so \
  /usr{/local,}/lib/python3*/{site,dist}-packages/libtpu/libtpu.so /opt/*/lib/python3*/site-packages/libtpu/libtpu.so; do
  [ -f "$file" ] || continue
  is_right "$file" && use "$file" present
  real=$(readlink -f "$file")
  case $seen in *":$real:"*) continue ;; esac
  seen+=":$real:"
  known=$(version_of "$file")
  if [ -z "$known" ]; then
    echo "other=a libtpu of unknown version at $file is not used"
  elif is_older "$known" "$oldest"; then
    echo "other=libtpu $known at $file is not used: it is older than $oldest, the first whose PJRT API this version of Fulmen can use"
  else
    echo "other=libtpu $known at $file is not used; to use it, pass --libtpu $file"
  fi
done

mkdir -p "$cache/libtpu-$version" || exit 1
if command -v flock >/dev/null; then
  exec 9>"$cache/.lock" || exit 1
  flock -w 1800 9 || fail "another process has been installing a plugin in $cache for 30 minutes; end it"
  # Another one was faster.
  is_right "$own" && use "$own" present
  # Those of killed processes: no other process works here now.
  rm -rf "$cache"/.fetching-*
fi
no_space() { fail "No space left on device: $cache has $((free / 1024)) MiB free, and libtpu takes $((bytes / 1048576)) MiB; set XDG_CACHE_HOME to a folder on another disk, or give the path of a libtpu with --libtpu"; }
{ read -r _ && read -r _ _ _ free _; } < <(df -Pk "$cache")
[ "$free" -gt $((bytes / 1024)) ] || no_space
partial=$cache/.fetching-$HOSTNAME-$$
mkdir "$partial" || exit 1
trap 'rm -rf "$partial"' EXIT
new=$partial/libtpu.so why=$partial/why
install_new() {
  chmod 755 "$new" && sync "$new" && mv -fT "$new" "$own" && sync "$cache/libtpu-$version" || exit 1
  use "$own" "$1"
}

if [ "$source" = input ]; then
  cat >"$new" || exit 1
  is_right "$new" || fail "the copy is damaged: its SHA-256 is $(hash_of "$new"), not $hash; copy it again"
  install_new copied
fi
# All of standard input is read, so that only pip says when something is wrong with the download.
as_gzip() { printf '\x1f\x8b\x08\0\0\0\0\0\0\xff' && tail -c "+$((offset + 1))" | { head -c "$length"; cat >/dev/null; } && printf '%b' "$trailer"; }
download() (
  cd "$partial" && python3 -m pip download --no-deps --no-input --disable-pip-version-check --quiet --retries 1 --timeout 15 \
    --dest "$partial" "$@" >&2 && cat "$partial"/*.whl
)
# Why pip failed, in one line. It ends with what it tried last, which may not be the cause.
reason_of_pip() {
  local last broken expected actual
  last=$(grep -v '^ *$' "$why" | tail -n 1)
  broken=$(sed -n "s/.*after connection broken by '\(.*\)': .*/\1/p" "$why" | tail -n 1)
  expected=$(sed -n 's/^ *Expected sha256 *//p' "$why" | tail -n 1)
  actual=$(sed -n 's/^ *Got *//p' "$why" | tail -n 1)
  if [ -n "$expected" ] && [ -n "$actual" ]; then
    echo "the download was cut short, or is not the file that pip's index describes: its SHA-256 is $actual, not $expected"
  elif [ -n "$broken" ] && [[ $last = *"No matching distribution"* ]]; then
    broken=${broken##*[>)]: }
    echo "pip did not reach its index: ${broken%[\"\']\)}"
  else
    echo "pip: $last"
  fi
}
if command -v python3 >/dev/null; then
  download "$@" 2>"$why" | as_gzip 2>/dev/null | gzip -dc >"$new" 2>"$why.gzip"
  code=${PIPESTATUS[0]}
  is_right "$new" && install_new downloaded
  grep -q "No space left on device" "$why" "$why.gzip" && no_space
  if [ "$code" = 0 ]; then
    reason="what pip got is not the published libtpu $version: the SHA-256 of the library is $(hash_of "$new"), not $hash"
  else
    reason=$(reason_of_pip)
  fi
else
  reason="there is no python3, whose pip would download it"
fi
if [ "$source" = alone ]; then
  fail "cannot download libtpu $version: $reason. Give this machine pip and a network, or the path of a libtpu with --libtpu"
fi
echo "missing=$reason"
