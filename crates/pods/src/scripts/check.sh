# check.sh HASH PATH SECONDS: describes the machine, once PATH (if any) exists.
hash=$1 path=$2 patience=$3
uptime
end=$((up + patience))
while [ -n "$path" ] && [ ! -e "$path" ]; do
  uptime
  [ "$up" -ge "$end" ] && fail "$path does not exist after $patience s"
  sleep 0.5
done
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || glibc=$(ldd --version 2>/dev/null | head -n 1)
set -- ${SSH_CONNECTION-}
chips=$(ls -d /dev/accel[0-9]* /dev/vfio/[0-9]* 2>/dev/null | wc -l)
# Marks the program as recently used.
touch -c "$root/bin/$hash" 2>/dev/null
present=no
[ -x "$root/bin/$hash" ] && present=yes
echo "machine=$(uname -m)"
echo "glibc=${glibc##* }"
echo "address=${3-}"
echo "chips=$chips"
echo "present=$present"
