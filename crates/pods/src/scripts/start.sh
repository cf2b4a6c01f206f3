# start.sh RUN WORKER PROGRAM LEASE GRACE OWNER START FILES SUPERVISE ARGUMENTS…: starts a program that outlives the connection,
# in the folder START or in the home directory. PROGRAM is a path, or the hash of a copy. FILES has lines with a variable and
# the file that it names, in the same way, or relative to the folder of all runs. Standard input has the environment, one variable per line, up to an empty line.
run=$1 folder=$root/runs/$1/$2 named=$3 lease=$4 grace=$5 launcher=$6 start=${7:-$HOME} files=$8 supervise=$9
shift 9
# The path of a file. Sets `path`.
locate() { case $1 in /*) path=$1 ;; */*) path=$root/$1 ;; *) path=$root/bin/$1 ;; esac; }
make_root && mkdir -p "$folder" && cd "$folder" || exit 1
# End a program that a lost connection has left, but none of another launcher.
if is_running; then
  read_owner
  [ "$owner" = "$launcher" ] || fail "a run named $run is already running here"
  signal KILL
  for _ in {1..100}; do
    runs "$supervisor" "$supervisor_time" || break
    sleep 0.1
  done
fi
rm -f pids progress why
locate "$named"
command=$path
while IFS='=' read -r variable file; do
  [ -n "$variable" ] && locate "$file" && export "$variable=$path"
done <<<"$files"
# Allocate the files now, so that a program that fills the disk can still end.
echo "-       " >exit && echo "$named" >program && echo "$launcher" >owner && touch lease && touch log &&
  head -c 4096 /dev/zero >reserve || exit 1
offset=$(stat -c %s log)
while IFS= read -r variable || fail "the connection was lost before the program started"; do
  [ -n "$variable" ] || break
  export "${variable?}"
done
export FULMEN_PROGRESS_FILE=$folder/progress
# Use job control, because without it the started program ignores Ctrl-C.
set -m
setsid bash -c "$supervise" fulmen-pod "$folder" "$lease" "$grace" "$start" "$command" "$@" </dev/null >/dev/null 2>why &
disown
for _ in {1..100}; do
  [ -s pids ] && break
  sleep 0.1
done
[ -s pids ] || fail "the program did not start: $(cat why)"
tell "started $offset"
