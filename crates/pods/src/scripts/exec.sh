# exec.sh COMMAND…: runs a command. Standard input has names of signals for it. Once standard input ends, the connection is lost,
# and the command is ended.
set -m
"$@" </dev/null &
child=$! part=""
while kill -0 $child 2>/dev/null; do
  if IFS= read -r -t 0.2 line; then
    kill "-$part$line" -- "-$child" 2>/dev/null
    part=""
  elif [ $? -le 128 ]; then
    kill -TERM -- "-$child" 2>/dev/null
    for _ in {1..50}; do
      kill -0 $child 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL -- "-$child" 2>/dev/null
    break
  else
    # The read may time out within a line.
    part+=$line
  fi
done
wait $child
