# follow.sh RUN WORKER OFFSET OWNER: prints the log from OFFSET on, until the program has ended. Standard input has names of
# signals for the program, and dots, which renew its lease if OWNER is 1.
cd "$root/runs/$1/$2" 2>/dev/null || fail "there is no run $1 here"
read_pids || fail "the run $1 has not started here"
offset=$3 owner=$4
tail -c "+$((offset + 1))" -s 0.2 -f log --pid="$supervisor" 2>/dev/null &
tail=$!
trap 'kill $tail 2>/dev/null' EXIT
uptime
heard=$up told=-1 part=""
while runs "$supervisor" "$supervisor_time"; do
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
      *) [ "$owner" = 1 ] && touch lease ;;
    esac
  elif [ $? -le 128 ] || [ $((up - heard)) -gt 120 ]; then
    # The connection is lost.
    exit 0
  else
    # The read may time out within a line.
    part+=$line
  fi
done
wait $tail
read -r code <exit
# The supervisor was killed, so end the program here.
[ "$code" = - ] && signal KILL
trap - EXIT
tell "exit $code"
