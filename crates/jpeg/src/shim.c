/* The half of the decoder that must be C: libjpeg reports errors by a function that may not return, so each entry below
 * sets a place to jump back to. No frame but C's lies between the jump and its target.
 *
 * Out of scope: which rows and columns are wanted, and all checks of arguments. Those are lib.rs.
 */
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

/* A progressive file of a few kilobytes can claim so many scans that it decodes for minutes. */
#define MOST_SCANS 500

/* As `Handle::check` in ffi.rs. */
#define OK 0
#define FAILED 1
#define CUT_SHORT 2
#define TOO_MANY_SCANS 3

struct fulmen_jpeg {
  struct jpeg_decompress_struct info;
  struct jpeg_error_mgr errors;
  struct jpeg_source_mgr source;
  struct jpeg_progress_mgr progress;
  jmp_buf escape;
  int status;
  /* Warnings of data that make pixels wrong. */
  int damaged;
  char message[JMSG_LENGTH_MAX];
  const uint8_t *data;
  size_t size;
};

/* As `Header` in ffi.rs. */
struct fulmen_jpeg_header {
  uint32_t width, height, components, space, precision, progressive, lossless;
  size_t consumed;
};

static struct fulmen_jpeg *of(j_common_ptr info) { return (struct fulmen_jpeg *)info->client_data; }

static void fail(j_common_ptr info) {
  struct fulmen_jpeg *self = of(info);
  (*info->err->format_message)(info, self->message);
  longjmp(self->escape, 1);
}

static void warn(j_common_ptr info, int level) {
  struct fulmen_jpeg *self = of(info);
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_JPEG_EOF:
      if (!self->damaged++) (*info->err->format_message)(info, self->message);
      break;
    default:
      break;
  }
}

static void silent(j_common_ptr info) { (void)info; }

static void begin(j_decompress_ptr info) { (void)info; }

/* All there is was given at once: to be asked for more means that the file is truncated. */
static boolean more(j_decompress_ptr info) {
  struct fulmen_jpeg *self = of((j_common_ptr)info);
  self->status = CUT_SHORT;
  longjmp(self->escape, 1);
  return FALSE;
}

static void skip(j_decompress_ptr info, long count) {
  if (count <= 0) return;
  if ((size_t)count > info->src->bytes_in_buffer) {
    more(info);
    return;
  }
  info->src->next_input_byte += count;
  info->src->bytes_in_buffer -= (size_t)count;
}

static void progressed(j_common_ptr info) {
  struct fulmen_jpeg *self = of(info);
  if (info->is_decompressor && ((j_decompress_ptr)info)->input_scan_number > MOST_SCANS) {
    self->status = TOO_MANY_SCANS;
    longjmp(self->escape, 1);
  }
}

struct fulmen_jpeg *fulmen_jpeg_new(void) {
  struct fulmen_jpeg *self = calloc(1, sizeof *self);
  if (!self) return NULL;
  self->info.err = jpeg_std_error(&self->errors);
  self->errors.error_exit = fail;
  self->errors.emit_message = warn;
  self->errors.output_message = silent;
  /* jpeg_create_decompress keeps err and client_data. */
  self->info.client_data = self;
  if (setjmp(self->escape)) {
    free(self);
    return NULL;
  }
  jpeg_create_decompress(&self->info);
  self->source.init_source = begin;
  self->source.fill_input_buffer = more;
  self->source.skip_input_data = skip;
  self->source.resync_to_restart = jpeg_resync_to_restart;
  self->source.term_source = begin;
  self->info.src = &self->source;
  self->progress.progress_monitor = progressed;
  self->info.progress = &self->progress;
  return self;
}

void fulmen_jpeg_free(struct fulmen_jpeg *self) {
  if (!setjmp(self->escape)) jpeg_destroy_decompress(&self->info);
  free(self);
}

const char *fulmen_jpeg_message(const struct fulmen_jpeg *self) { return self->message; }

int fulmen_jpeg_damaged(const struct fulmen_jpeg *self) { return self->damaged; }

static int failed(struct fulmen_jpeg *self) { return self->status ? self->status : FAILED; }

int fulmen_jpeg_header(struct fulmen_jpeg *self, const uint8_t *data, size_t size, struct fulmen_jpeg_header *header) {
  self->status = OK;
  self->damaged = 0;
  self->message[0] = 0;
  self->data = data;
  self->size = size;
  if (setjmp(self->escape)) return failed(self);
  jpeg_abort_decompress(&self->info);
  self->source.next_input_byte = data;
  self->source.bytes_in_buffer = size;
  jpeg_read_header(&self->info, TRUE);
  header->width = self->info.image_width;
  header->height = self->info.image_height;
  header->components = (uint32_t)self->info.num_components;
  header->space = (uint32_t)self->info.jpeg_color_space;
  header->precision = (uint32_t)self->info.data_precision;
  header->progressive = (uint32_t)(jpeg_has_multiple_scans(&self->info) != FALSE);
  /* A scan of coefficients does not end before it begins; a lossless one has its predictor's number there, and 0. */
  header->lossless = (uint32_t)(!self->info.progressive_mode && self->info.Ss > 0 && self->info.Se == 0);
  header->consumed = size - self->source.bytes_in_buffer;
  return OK;
}

/* Decodes rows `top` to `top + rows` of the columns from *left on, *width of them, at `eighths` / 8 of the size, and nothing
 * below them. *left may become smaller, and *width greater by as much. `into` has room for `rows` rows of
 * `stride` bytes. */
int fulmen_jpeg_decode(struct fulmen_jpeg *self, uint32_t space, uint32_t eighths, uint32_t *left, uint32_t *width,
                       uint32_t top, uint32_t rows, uint8_t *into, size_t stride) {
  JSAMPROW lines[16];
  if (setjmp(self->escape)) return failed(self);
  self->info.out_color_space = (J_COLOR_SPACE)space;
  self->info.scale_num = eighths;
  self->info.scale_denom = 8;
  jpeg_start_decompress(&self->info);
  if (*width < self->info.output_width) {
    JDIMENSION x = *left, w = *width;
    jpeg_crop_scanline(&self->info, &x, &w);
    *left = x;
    *width = w;
  }
  if ((size_t)self->info.output_width * (size_t)self->info.output_components > stride) {
    snprintf(self->message, sizeof self->message, "a row is longer than its place");
    return FAILED;
  }
  if (top > 0) jpeg_skip_scanlines(&self->info, top);
  for (uint32_t row = 0; row < rows;) {
    uint32_t count = rows - row < 16 ? rows - row : 16;
    for (uint32_t i = 0; i < count; i++) lines[i] = into + (size_t)(row + i) * stride;
    JDIMENSION done = jpeg_read_scanlines(&self->info, lines, count);
    if (done == 0) {
      self->status = CUT_SHORT;
      return CUT_SHORT;
    }
    row += done;
  }
  return OK;
}

/* Ends an image, finished or not. */
void fulmen_jpeg_end(struct fulmen_jpeg *self) {
  if (!setjmp(self->escape)) jpeg_abort_decompress(&self->info);
  self->source.next_input_byte = NULL;
  self->source.bytes_in_buffer = 0;
}
