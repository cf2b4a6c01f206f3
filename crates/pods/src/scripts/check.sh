# check.sh HASHES PATH SECONDS RUN OWNER: describes the machine, once PATH (if any) exists, and names the files that it has a
# copy of. Standard input stays open as long as `fulmen pod` waits.
hashes=$1 path=$2 patience=$3 run=$4 launcher=$5
uptime
end=$((up + patience))
while [ -n "$path" ] && [ ! -e "$path" ]; do
  uptime
  [ "$up" -ge "$end" ] && fail "$path does not exist after $patience s"
  read -r -t 0.5 _
  [ $? -gt 128 ] || exit 1
done
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || glibc=$(ldd --version 2>/dev/null | head -n 1)
set -- ${SSH_CONNECTION-}
chips=$(ls -d /dev/accel[0-9]* /dev/vfio/[0-9]* 2>/dev/null | wc -l)
# Another launcher's worker of this name.
running=""
for folder in "$root/runs/$run"/*/; do
  cd "$folder" 2>/dev/null && is_running && read_owner && [ "$owner" != "$launcher" ] && running=$(basename "$folder")
done
present=""
for hash in $hashes; do
  # Marks the file as recently used.
  touch -c "$root/bin/$hash" 2>/dev/null
  copied=""
  [ -x "$root/bin/$hash" ] && read -r copied _ < <(sha256sum "$root/bin/$hash")
  [ "$copied" = "$hash" ] && present+="$hash "
done
echo "machine=$(uname -m)"
echo "glibc=${glibc##* }"
echo "address=${3-}"
echo "chips=$chips"
echo "present=$present"
echo "running=$running"
