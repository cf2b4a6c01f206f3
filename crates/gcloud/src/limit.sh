# Deletes this host's TPU at the deadline. A timer calls `check` every minute.
# The lines above set PROJECT, which may be empty, RESOURCE and SECONDS_LEFT.
STATE=${FULMEN_TEST_STATE:-/var/lib/fulmen}
METADATA=http://metadata.google.internal/computeMetadata/v1

set_deadline() {
  mkdir -p "$STATE" || exit 1
  # Written atomically by renaming.
  echo $(($(date +%s) + $1)) >"$STATE/deadline.new" && mv "$STATE/deadline.new" "$STATE/deadline"
}

metadata() {
  curl --silent --fail --max-time 20 --header 'Metadata-Flavor: Google' "$METADATA/$1"
}

# Calls an API as the host's service account.
call() {
  local token
  token=$(metadata instance/service-accounts/default/token | sed 's/.*"access_token" *: *"\([^"]*\)".*/\1/')
  # Pass the token by standard input, because other users can see a program's arguments.
  printf 'header = "Authorization: Bearer %s"\n' "$token" |
    curl --silent --show-error --fail --max-time 60 --config - "$@"
}

project() {
  if [ -n "$PROJECT" ]; then echo "$PROJECT"; else metadata project/project-id; fi
}

delete_tpu() {
  call --request DELETE "https://tpu.googleapis.com/v2/projects/$(project)/$RESOURCE"
}

# Whether the service account may delete the TPU. This is unknown if the API for the query is not enabled.
may_delete() {
  local permission=tpu.nodes.delete answer
  case $RESOURCE in */queuedResources/*) permission=tpu.queuedResources.delete ;; esac
  answer=$(call --header 'Content-Type: application/json' --data "{\"permissions\":[\"$permission\"]}" \
    "https://cloudresourcemanager.googleapis.com/v1/projects/$(project):testIamPermissions" 2>&1) ||
    { echo "; whether it may is unknown: $answer"; return 0; }
  case $answer in *"$permission"*) echo '; it may' ;; *)
    echo "ERROR: the service account of this host lacks the permission $permission" >&2
    return 1 ;;
  esac
}

case ${1:-check} in
  begin) [ -s "$STATE/deadline" ] || set_deadline "$SECONDS_LEFT" ;;
  set) set_deadline "$2" ;;
  status)
    systemctl is-active --quiet fulmen-limit.timer || { echo 'ERROR: the timer does not run' >&2; exit 1; }
    deadline=$(cat "$STATE/deadline") && may=$(may_delete) || exit 1
    echo "it deletes itself in $((deadline - $(date +%s))) s$may"
    ;;
  check)
    deadline=$(cat "$STATE/deadline") || { set_deadline "$SECONDS_LEFT"; exit; }
    [ "$(date +%s)" -lt "$deadline" ] || delete_tpu
    ;;
esac
