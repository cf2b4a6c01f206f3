# copy.sh HASH <PROGRAM: the program appears whole, or not at all.
hash=$1
make_root && mkdir -p "$root/bin" && cd "$root/bin" || exit 1
new=$(mktemp "$hash.XXXXXX") || exit 1
trap 'rm -f "$new"' EXIT
cat >"$new" || exit 1
read -r arrived _ < <(sha256sum "$new")
[ "$arrived" = "$hash" ] || fail "what arrived is not what was sent"
chmod 700 "$new" && mv "$new" "$hash" || exit 1
find . -type f -mtime +30 -delete
