# supervise.sh FOLDER LEASE GRACE START PROGRAM ARGUMENTS…: runs the program in the folder START and saves its exit code. If LEASE is not 0 and the
# lease is not renewed for LEASE seconds, `fulmen pod run` is gone, and the program is ended.
cd "$1" || exit 1
lease=$2 grace=$3 start=$4
shift 4
set -m
# Start the program only after its ids are saved, because it may fill the disk.
(until [ -s pids ]; do kill -0 $$ || exit 1; sleep 0.01; done; cd "$start" && exec "$@") </dev/null >>log 2>&1 &
child=$!
born $$ && own=$time
born $child || time=0
echo "$$ $own $child $time $(process_table)" >pids.new && mv pids.new pids || { kill -KILL -- -$child; exit 1; }
uptime
seen="" since=$up end=""
while kill -0 $child 2>/dev/null; do
  uptime
  renewed=$(stat -c %y lease)
  [ "$renewed" != "$seen" ] && seen=$renewed since=$up
  if [ "$lease" -gt 0 ] && [ -z "$end" ] && [ $((up - since)) -gt "$lease" ]; then
    kill -TERM -- -$child
    end=$((up + grace))
  fi
  [ -n "$end" ] && [ "$up" -ge "$end" ] && kill -KILL -- -$child
  sleep 0.2
done
wait $child
code=$?
kill -KILL -- -$child 2>/dev/null
# A full disk also keeps the program from saying why it ended. The reserve has room for one line.
if ! why=$(LC_ALL=C cp reserve reserve.copy 2>&1); then
  rm -f reserve reserve.copy
  [ -n "$(tail -c 1 log)" ] && echo >>log
  echo "${why##*: }: lines of this program may be missing, because they are kept in $PWD; free some space there" >>log
fi
rm -f reserve reserve.copy
# Overwrite in place, because the disk may be full.
printf '%-8s' $code 1<>exit
