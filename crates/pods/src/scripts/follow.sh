# follow.sh RUN WORKER OFFSET OWNER: the log from OFFSET on, until the program has ended. Standard input brings signals for
# the program, by name, and dots; with OWNER they renew its lease.
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
    # The listener is gone.
    exit 0
  else
    # The time may be over within a line.
    part+=$line
  fi
done
wait $tail
read -r code <exit
# Without its supervisor, nobody would end the program.
[ "$code" = - ] && signal KILL
trap - EXIT
tell "exit $code"
