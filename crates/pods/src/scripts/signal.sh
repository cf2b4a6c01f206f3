# signal.sh RUN WORKER NAME: sends a signal to the program.
cd "$root/runs/$1/$2" 2>/dev/null || fail "there is no run $1 here"
signal "$3" || true
