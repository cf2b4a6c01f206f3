# follow.sh RUN WORKER OFFSET OWNER: prints the log from OFFSET on, until the program has ended. Standard input has names of
# signals for the program, and dots, which renew its lease if OWNER is 1.
cd "$root/runs/$1/$2" 2>/dev/null || fail "there is no run $1 here"
[ -f pids ] || fail "the run $1 has not started here"
offset=$3 owns=$4
# `tail` ends after it has printed the rest, once this process has ended. It cannot watch the supervisor: in a container whose
# first process does not reap, an ended process keeps its id.
exec 3> >(exec cat >/dev/null 2>&1)
watched=$!
tail -c "+$((offset + 1))" -s 0.2 -f log --pid=$watched 2>/dev/null 3>&- &
tail=$!
trap 'kill $tail 2>/dev/null' EXIT
uptime
heard=$up told=-1 part=""
read_pids
here=$?
while [ $here = 0 ] && runs "$supervisor" "$supervisor_time"; do
  uptime
  if [ "$up" != "$told" ]; then
    told=$up state="?"
    born "$program"
    step=""
    { read -r step <progress; } 2>/dev/null
    tell "alive $state $step"
  fi
  if IFS= read -r -t 0.2 line; then
    heard=$up line=$part$line part=""
    case $line in
      INT | TERM | KILL) signal "$line" ;;
      *) [ "$owns" = 1 ] && touch lease ;;
    esac
  elif [ $? -le 128 ] || [ $((up - heard)) -gt 120 ]; then
    # The connection is lost.
    exit 0
  else
    # The read may time out within a line.
    part+=$line
  fi
done
exec 3>&-
wait $watched
wait $tail
read -r code <exit
step=""
{ read -r step <progress; } 2>/dev/null
tell "alive ? $step"
# The supervisor was killed, so end the program here.
[ "$code" = - ] && signal KILL
trap - EXIT
tell "exit $code"
