# Deletes the TPU that this host belongs to once its time is over. A timer calls `check` every minute.
# The lines before set PROJECT, which may be empty, RESOURCE and SECONDS_LEFT.
STATE=${FULMEN_STATE:-/var/lib/fulmen}
METADATA=http://metadata.google.internal/computeMetadata/v1

set_deadline() {
  mkdir -p "$STATE" || exit 1
  # Renamed, so that it is never half written.
  echo $(($(date +%s) + $1)) >"$STATE/deadline.new" && mv "$STATE/deadline.new" "$STATE/deadline"
}

metadata() {
  curl --silent --fail --max-time 20 --header 'Metadata-Flavor: Google' "$METADATA/$1"
}

delete_tpu() {
  local project=$PROJECT token
  [ -n "$project" ] || project=$(metadata project/project-id)
  token=$(metadata instance/service-accounts/default/token | sed 's/.*"access_token" *: *"\([^"]*\)".*/\1/')
  # The token goes through standard input, since everyone sees a program's arguments.
  printf 'header = "Authorization: Bearer %s"\n' "$token" |
    curl --silent --show-error --fail --max-time 60 --request DELETE --config - \
      "https://tpu.googleapis.com/v2/projects/$project/$RESOURCE"
}

case ${1:-check} in
  begin) [ -s "$STATE/deadline" ] || set_deadline "$SECONDS_LEFT" ;;
  set) set_deadline "$2" ;;
  status)
    systemctl is-active --quiet fulmen-limit.timer || { echo 'the timer does not run' >&2; exit 1; }
    echo $(($(cat "$STATE/deadline") - $(date +%s)))
    ;;
  check)
    deadline=$(cat "$STATE/deadline") || { set_deadline "$SECONDS_LEFT"; exit; }
    [ "$(date +%s)" -lt "$deadline" ] || delete_tpu
    ;;
esac
