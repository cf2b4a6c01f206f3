// A plugin without devices. Its clients only use their key-value store, as the header of the PJRT C API specifies.
// The platform name of a client contains the values that it read.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  int code;
  size_t size;
  char message[200];
} Error;
typedef Error *MakeError(int code, const char *message, size_t size);

typedef struct {
  size_t struct_size;
  void *extension;
  const char *key;
  size_t key_size;
  int timeout_in_ms;
  MakeError **make_error;
  void *user_arg;
  char *value;
  size_t value_size;
  void (*deleter)(char *value);
} Get;

typedef struct {
  size_t struct_size;
  void *extension;
  const char *key;
  size_t key_size;
  MakeError **make_error;
  void *user_arg;
  char *value;
  size_t value_size;
  void (*deleter)(char *value);
} TryGet;

typedef struct {
  size_t struct_size;
  void *extension;
  const char *key;
  size_t key_size;
  const char *value;
  size_t value_size;
  MakeError **make_error;
  void *user_arg;
} Put;

typedef struct {
  size_t struct_size;
  void *extension;
  const char *name;
  size_t name_size;
  int type;
  union {
    const char *text;
    int64_t number;
    const int64_t *numbers;
    float real;
    _Bool yes;
  } value;
  size_t value_size;
} NamedValue;

typedef struct {
  size_t struct_size;
  void *extension;
  const NamedValue *options;
  size_t num_options;
  Error *(*get)(Get *);
  void *get_arg;
  Error *(*put)(Put *);
  void *put_arg;
  void *client;
  Error *(*try_get)(TryGet *);
  void *try_get_arg;
} Create;

typedef struct {
  Create store;
  char saw[400];
} Client;

typedef struct {
  size_t struct_size;
  void *extension;
  Error *error;
  const char *message;
  size_t message_size;
} Message;

typedef struct {
  size_t struct_size;
  void *extension;
  Error *error;
  int code;
} Code;

typedef struct {
  size_t struct_size;
  void *extension;
  Client *client;
  union {
    const void *pointer;
    int number;
  } answer;
  size_t size;
} Ask;

static Error *make_error(int code, const char *message, size_t size) {
  Error *error = malloc(sizeof *error);
  error->code = code;
  error->size = size < sizeof error->message ? size : sizeof error->message;
  memcpy(error->message, message, error->size);
  return error;
}

static MakeError *maker = make_error;

static Error *put(const Create *store, const char *key, const char *value) {
  Put args;
  memset(&args, 0xAA, sizeof args);  // Unused fields are uninitialized.
  args.key = key;
  args.key_size = strlen(key);
  args.value = value;
  args.value_size = strlen(value);
  args.make_error = &maker;
  args.user_arg = store->put_arg;
  return store->put(&args);
}

static Error *get(const Create *store, const char *key, char *value, size_t size) {
  Get args;
  memset(&args, 0xAA, sizeof args);
  args.key = key;
  args.key_size = strlen(key);
  args.timeout_in_ms = 7;
  args.make_error = &maker;
  args.user_arg = store->get_arg;
  Error *error = store->get(&args);
  if (error) return error;
  snprintf(value, size, "%.*s", (int)args.value_size, args.value);
  args.deleter(args.value);
  return NULL;
}

static int try_get(const Create *store, const char *key, char *value, size_t size) {
  TryGet args;
  memset(&args, 0xAA, sizeof args);
  args.key = key;
  args.key_size = strlen(key);
  args.make_error = &maker;
  args.user_arg = store->try_get_arg;
  Error *error = store->try_get(&args);
  if (error) {
    int code = error->code;
    free(error);
    return code;
  }
  snprintf(value, size, "%.*s", (int)args.value_size, args.value);
  args.deleter(args.value);
  return 0;
}

static Error *create(Create *args) {
  Client *client = calloc(1, sizeof *client);
  client->store = *args;
  char hello[50], again[50], none[50];
  const char *late = NULL;
  char *saw = client->saw;
  for (size_t i = 0; i < args->num_options; i++) {
    const NamedValue *option = &args->options[i];
    saw += sprintf(saw, "%.*s", (int)option->name_size, option->name);
    switch (option->type) {
      case 0: saw += sprintf(saw, "=%.*s ", (int)option->value_size, option->value.text); break;
      case 1: saw += sprintf(saw, "=%lld ", (long long)option->value.number); break;
      case 2:
        for (size_t k = 0; k < option->value_size; k++)
          saw += sprintf(saw, "%c%lld", k ? ',' : '=', (long long)option->value.numbers[k]);
        saw += sprintf(saw, " ");
        break;
      case 3: saw += sprintf(saw, "=%g ", option->value.real); break;
      case 4: saw += sprintf(saw, "=%s ", option->value.yes ? "yes" : "no"); break;
    }
    if (option->type == 0) late = option->value.text;
  }
  Error *error = put(args, "node/0", "hello");
  if (!error) error = get(args, "node/0", hello, sizeof hello);
  if (!error && late && !strncmp(late, "late", 4)) error = get(args, "late", again, sizeof again);
  if (error) {
    free(client);
    return error;
  }
  int found = try_get(args, "node/0", again, sizeof again), missing = try_get(args, "node/1", none, sizeof none);
  sprintf(saw, "got %s, then %d %s, then %d", hello, found, again, missing);
  args->client = client;
  return NULL;
}

static Error *destroy(Ask *args) {
  Error *error = put(&args->client->store, "closed", "yes");
  free(args->client);
  return error;
}

static Error *name(Ask *args) {
  args->answer.pointer = args->client->saw;
  args->size = strlen(args->client->saw);
  return NULL;
}

static Error *version(Ask *args) {
  args->answer.pointer = "1";
  args->size = 1;
  return NULL;
}

static Error *process(Ask *args) {
  args->answer.number = 1;
  return NULL;
}

static Error *devices(Ask *args) {
  args->answer.pointer = NULL;
  args->size = 0;
  return NULL;
}

static void error_destroy(Message *args) { free(args->error); }

static void error_message(Message *args) {
  args->message = args->error->message;
  args->message_size = args->error->size;
}

static Error *error_code(Code *args) {
  args->code = args->error->code;
  return NULL;
}

static Error *initialize(void *args) { return NULL; }

static struct {
  size_t size;
  void *extension;
  size_t version_size;
  void *version_extension;
  int major, minor;
  void *functions[138];
} table = {1144, 0, 24, 0, 0, 115,
           {[0] = error_destroy, [1] = error_message, [2] = error_code, [3] = initialize, [10] = create, [11] = destroy,
            [12] = name, [13] = process, [14] = version, [15] = devices, [16] = devices}};

void *GetPjrtApi(void) { return &table; }
