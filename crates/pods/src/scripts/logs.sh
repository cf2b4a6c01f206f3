# logs.sh RUN WORKER LINES: prints the last lines of the log.
cd "$root/runs/$1/$2" 2>/dev/null || fail "there is no run $1 here"
exec tail -n "$3" log
