/*
 * calibrate: which range every linear's input has on real text, written to a side file that --scales and repair read, and
 * compared with what the checkpoint's own input scales stand for.
 *
 * The weights are streamed: one layer of them is in memory at a time, so a model larger than memory works. Every step of `rows`
 * tokens reads all layers once; more rows mean fewer passes over the file and more memory for activations.
 */
#ifndef NB_DOCTOR_CALIBRATE_H
#define NB_DOCTOR_CALIBRATE_H

#include "base/buf.h"
#include "base/error.h"
#include "kernels/ops.h"

typedef struct nb_calibrate_options {
    const char *data; /* JSON lines {"text"} or {"messages"}; NULL: the built-in prompts */
    const char *out;  /* the file to write */
    const char *kernels;
    size_t threads;
    size_t rows;    /* tokens computed at once; 0: NB_TEXTS_ROWS of texts.h */
    nb_arith arith; /* exact or bf16: another would measure behind the very scales that are in question */
    bool act_bf16;
} nb_calibrate_options;

/* One linear. */
typedef struct nb_calibrated {
    char *module;      /* stored name, owned */
    float amax, p9999; /* of |input| */
    uint64_t
        tokens; /* rows seen: a block-diagonal linear sees `blocks` rows a token, an expert those routed to it */
    bool stored; /* the checkpoint has an input scale: */
    double
        stored_amax; /* what that scale stands for, 2688 * multiplier: larger inputs are clipped. May be non-finite */
    double ratio;          /* amax / stored_amax */
    const char *filled_by; /* NULL, or the rule that stands in for an expert that saw no token. Static */
} nb_calibrated;

typedef struct nb_calibration {
    nb_calibrated *items; /* [n] in the order of layers */
    size_t n, texts, tokens;
    double seconds;
} nb_calibration; /* zero-initialise; nb_calibration_free */

/*
 * Measures dir over the texts and writes opt->out, a safetensors file with F32 scalars MODULE.input_amax and MODULE.input_p9999
 * and an I64 scalar MODULE.tokens for each linear. An expert that saw no token gets the largest amax of the layer's other experts
 * for that projection; when none saw any, NB_ERR_MISSING. NaN or infinity on the way is NB_ERR_FORMAT naming the linear. The file
 * is whole or absent. What exists under that name is replaced when it is a file of ranges, else NB_ERR_ARGUMENT before any work.
 */
nb_status nb_calibrate(const char *dir, const nb_calibrate_options *opt, const nb_sink *sink,
                       nb_calibration *out, nb_error *err);
void nb_calibration_free(nb_calibration *c);

/* Reports, as specs/interfaces.md has the JSON; the text shows the worst ratios and the experts that saw no token. Test
 * nb_buf_ok(out) afterwards. */
void nb_calibration_json(const nb_calibration *c, nb_buf *out);
void nb_calibration_text(const nb_calibration *c, nb_buf *out);

#endif
