# copy.sh HASH <PROGRAM: writes the program atomically.
hash=$1
make_root && mkdir -p "$root/bin" && cd "$root/bin" || exit 1
new=$(mktemp "$hash.XXXXXX") || exit 1
trap 'rm -f "$new"' EXIT
cat >"$new" || exit 1
read -r arrived _ < <(sha256sum "$new")
[ "$arrived" = "$hash" ] || fail "the copy is damaged: its SHA-256 is $arrived, not $hash; copy it again"
chmod 700 "$new" && mv "$new" "$hash" || exit 1
find . -type f -mtime +30 -delete
