# status.sh [RUN]: prints a line for each worker of the run, or of all runs.
cd "$root/runs" 2>/dev/null || exit 0
for folder in ${1:-*}/*; do
  [ -f "$folder/exit" ] || continue
  (
    cd "$folder" || exit
    program="" shown=ended
    if read_pids && runs "$supervisor" "$supervisor_time"; then
      shown=running
      born "$program" && [ "$state" = T ] && shown=stopped
    fi
    code="" step=""
    { read -r code <exit; read -r step <progress; } 2>/dev/null
    echo "$folder $shown ${code:--} ${program:--} $(stat -c %Y program) $(stat -c %s log) $step"
  )
done
