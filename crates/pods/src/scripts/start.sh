# start.sh RUN WORKER HASH LEASE GRACE OWNER SUPERVISE ARGUMENTS…: starts a program that outlives the connection. Standard input
# has its environment, one variable per line, up to an empty line.
run=$1 folder=$root/runs/$1/$2 hash=$3 lease=$4 grace=$5 launcher=$6 supervise=$7
shift 7
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
# Allocate the files now, so that a program that fills the disk can still end.
echo "-       " >exit && echo "$hash" >program && echo "$launcher" >owner && touch lease && touch log || exit 1
offset=$(stat -c %s log)
while IFS= read -r variable || fail "the connection was lost before the program started"; do
  [ -n "$variable" ] || break
  export "${variable?}"
done
export FULMEN_PROGRESS_FILE=$folder/progress
# Use job control, because without it the started program ignores Ctrl-C.
set -m
setsid bash -c "$supervise" fulmen-pod "$folder" "$lease" "$grace" "$root/bin/$hash" "$@" </dev/null >/dev/null 2>why &
disown
for _ in {1..100}; do
  [ -s pids ] && break
  sleep 0.1
done
[ -s pids ] || fail "the program did not start: $(cat why)"
tell "started $offset"
