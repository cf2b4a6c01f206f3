# check.sh HASH PATH SECONDS RUN OWNER: describes the machine, once PATH (if any) exists. Standard input stays open as long as
# `fulmen pod` waits.
hash=$1 path=$2 patience=$3 run=$4 launcher=$5
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
# Marks the program as recently used.
touch -c "$root/bin/$hash" 2>/dev/null
present=no copied=""
[ -x "$root/bin/$hash" ] && read -r copied _ < <(sha256sum "$root/bin/$hash")
[ "$copied" = "$hash" ] && present=yes
echo "machine=$(uname -m)"
echo "glibc=${glibc##* }"
echo "address=${3-}"
echo "chips=$chips"
echo "present=$present"
echo "running=$running"
