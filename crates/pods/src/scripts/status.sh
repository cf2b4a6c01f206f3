# status.sh [RUN]: prints a line for each worker of the run, or of all runs.
cd "$root/runs" 2>/dev/null || exit 0
for folder in ${1:-*}/*; do
  [ -f "$folder/exit" ] || continue
  (
    cd "$folder" || exit
    program="" shown=ended here=no
    if read_pids; then
      here=yes
      if runs "$supervisor" "$supervisor_time"; then
        shown=running
        born "$program" && [ "$state" = T ] && shown=stopped
      fi
    fi
    code="" step=""
    { read -r code <exit; read -r step <progress; } 2>/dev/null
    read_owner
    started=$(stat -c %Y program)
    age=$(($(date +%s) - started))
    echo "$folder $shown ${code:--} ${program:--} $started $age $(stat -c %s log) ${owner:--} $here ${step##* }"
  )
done
